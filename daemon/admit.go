package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir.dev/weir/agent"
	"weir.dev/weir/api"
	"weir.dev/weir/image"
)

// admitTimeout bounds what one admission may take: it reads images' layers once.
const admitTimeout = 20 * time.Second

// admit refuses what this host cannot give to what is new or changed: images, interfaces, network namespaces.
func admit(ctx context.Context, ag *agent.Agent, images Images, d, changed api.Document) []api.Problem {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	var out []api.Problem
	add := func(path, message, hint string) {
		out = append(out, api.Problem{Path: path, Message: message, Hint: hint})
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Endpoints)) {
		if p := ag.CheckEndpoint(ctx, name, d); p != nil {
			add("endpoints."+name+"."+p.Path, p.Message, p.Hint)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Functions)) {
		f := changed.Functions[name]
		img, err := images.Verify(ctx, f.Image)
		if err != nil {
			add("functions."+name+".image", err.Error(), "")
			continue
		}
		for _, p := range img.Contract.CheckConfig(f.Config) {
			path := "functions." + name + ".config"
			if p.Path != "" {
				path += "." + p.Path
			}
			add(path, p.Message, p.Hint)
		}
	}
	return append(out, admitChains(images, d, changed)...)
}

// admitChains refuses functions that stand in a chain otherwise than their images have ports.
func admitChains(images Images, d, changed api.Document) []api.Problem {
	var out []api.Problem
	for _, name := range slices.Sorted(maps.Keys(d.Chains)) {
		hops, err := api.ParsePath(d.Chains[name].Path)
		if err != nil {
			continue // said elsewhere
		}
		_, new := changed.Chains[name]
		for _, h := range hops {
			f, there := d.Functions[h.Function]
			if _, newer := changed.Functions[h.Function]; !there || !new && !newer {
				continue
			}
			img, err := images.Resolve(f.Image)
			if err != nil || img.Contract.Tap == h.Tap {
				continue
			}
			out = append(out, api.Problem{Path: "chains." + name + ".path", Message: portsOf(h.Function, img), Hint: wantHop(h.Function, img)})
		}
	}
	return out
}

func portsOf(function string, img image.Image) string {
	if img.Contract.Tap {
		return fmt.Sprintf("function %q (image %s) has one port, a tap: it sees copies and hands nothing on", function, img.Ref)
	}
	return fmt.Sprintf("function %q (image %s) has the ports in and out: it is no tap", function, img.Ref)
}

func wantHop(function string, img image.Image) string {
	if img.Contract.Tap {
		return "write tap:" + function
	}
	return "write " + function
}
