package daemon

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/image"
	"weir.dev/weir/manager"
)

// admitTimeout bounds what one admission may take: it reads images' layers once.
const admitTimeout = 20 * time.Second

// Admit refuses what this host cannot give to what is new or changed: images, interfaces, network namespaces. All that changed is taken
// to be for this host.
func (h *host) Admit(ctx context.Context, d, changed api.Document) []api.Problem {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	var out []api.Problem
	add := func(path, message, hint string) {
		out = append(out, api.Problem{Path: path, Message: message, Hint: hint})
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Endpoints)) {
		if p := h.agent.CheckEndpoint(ctx, name, d); p != nil {
			add("endpoints."+name+"."+p.Path, p.Message, p.Hint)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed.Functions)) {
		f := changed.Functions[name]
		img, err := h.images.Verify(ctx, f.Image)
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
	return append(out, admitChains(h.images, d, changed)...)
}

// Counters, Logs and Exec are the agent's.
func (h *host) Counters(ctx context.Context) (api.Counters, error) { return h.agent.Counters(ctx) }

// Logs streams a function's output.
func (h *host) Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	return h.agent.Logs(ctx, function, o)
}

// Exec runs one more process in a function.
func (h *host) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	return h.agent.Exec(ctx, function, e)
}

// admission asks each host about what is meant for it.
type admission struct {
	ctx     context.Context
	own     *host // nil: this machine is none
	manager *manager.Manager
}

type admitter interface {
	Admit(ctx context.Context, d, changed api.Document) []api.Problem
}

// admit gives each host its part of what changed. A host that cannot be asked now will say in the objects' status what it lacks. A
// function that may run anywhere is refused only if no host has anything for it.
func (a *admission) admit(d, changed api.Document) []api.Problem {
	ctx, cancel := context.WithTimeout(a.ctx, admitTimeout)
	defer cancel()
	hosts := map[string]admitter{}
	for _, name := range a.manager.Remotes() {
		if c := a.manager.Remote(name); c != nil {
			hosts[name] = c
		}
	}
	if a.own != nil {
		hosts[a.own.name] = a.own
	}
	parts, free := a.split(changed, hosts)
	var out []api.Problem
	seen := map[api.Problem]bool{}
	add := func(problems []api.Problem) {
		for _, p := range problems {
			if !seen[p] {
				seen[p] = true
				out = append(out, p)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		add(hosts[name].Admit(ctx, d, parts[name]))
	}
	add(a.anywhere(ctx, hosts, d, free))
	return out
}

// split gives what changed to the hosts that it names, and the functions that name none.
func (a *admission) split(changed api.Document, hosts map[string]admitter) (parts map[string]api.Document, free map[string]api.FunctionSpec) {
	parts, free = map[string]api.Document{}, map[string]api.FunctionSpec{}
	part := func(host string) (api.Document, bool) {
		if host == "" && a.own != nil {
			host = a.own.name
		}
		if host == "" && len(hosts) == 1 {
			for only := range hosts {
				host = only
			}
		}
		if hosts[host] == nil {
			return api.Document{}, false
		}
		p, ok := parts[host]
		if !ok {
			p = api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}}
			parts[host] = p
		}
		return p, true
	}
	for name, e := range changed.Endpoints {
		if e.Interface == "" && e.Netns == "" {
			continue // a station of the fabric: at no host
		}
		if p, ok := part(e.Host); ok {
			p.Endpoints[name] = e
		}
	}
	for name, f := range changed.Functions {
		if f.Host == "" && len(hosts) > 1 {
			free[name] = f
		} else if p, ok := part(f.Host); ok {
			p.Functions[name] = f
		}
	}
	if len(changed.Chains) == 0 {
		return parts, free
	}
	for name := range hosts { // images say how functions stand in chains; whoever has them
		_, _ = part(name)
		p := parts[name]
		p.Chains = changed.Chains
		parts[name] = p
	}
	return parts, free
}

// anywhere tells what every host has against functions that may run on any: what this machine says, or the first.
func (a *admission) anywhere(ctx context.Context, hosts map[string]admitter, d api.Document, left map[string]api.FunctionSpec) []api.Problem {
	order := slices.Sorted(maps.Keys(hosts))
	if a.own != nil {
		order = append([]string{a.own.name}, slices.DeleteFunc(order, func(n string) bool { return n == a.own.name })...)
	}
	said := map[string][]api.Problem{}
	for _, host := range order {
		if len(left) == 0 {
			return nil
		}
		against := map[string][]api.Problem{}
		for _, p := range hosts[host].Admit(ctx, d, api.Document{Functions: left}) {
			if name, _, ok := strings.Cut(strings.TrimPrefix(p.Path, "functions."), "."); ok {
				against[name] = append(against[name], p)
			}
		}
		still := map[string]api.FunctionSpec{}
		for name, problems := range against {
			still[name] = left[name]
			if said[name] == nil {
				said[name] = problems
			}
		}
		left = still
	}
	var out []api.Problem
	for _, name := range slices.Sorted(maps.Keys(left)) {
		out = append(out, said[name]...)
	}
	return out
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
