package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"weir.dev/weir/container/nspawn"
	"weir.dev/weir/container/rkt"
	"weir.dev/weir/lab/tied"
	"weir.dev/weir/lab/traffic/tools"
)

// plugins of the Container Network Interface (CNI 0.4.0), which rkt had: bridge with portmap, and macvlan.
// https://github.com/containernetworking/cni/blob/spec-v0.4.0/SPEC.md
var plugins = []string{"bridge", "portmap", "macvlan", "static"}

// pluginDirs is where distributions have them.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// plugin is the path of one; empty: it is not installed.
func plugin(name string) string {
	for _, dir := range pluginDirs {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return ""
}

// checkPlugins tells why a runtime has no networks of its own here; empty: it has.
func checkPlugins(runtime string) string {
	if runtime != nspawn.Name && runtime != rkt.Name {
		return fmt.Sprintf("runtime %s has no network of its own: it is given one (networks %s and %s)", runtime, byNAT, byMacvlan)
	}
	for _, p := range plugins {
		if plugin(p) == "" {
			return fmt.Sprintf("%s: %s (apt-get install containernetworking-plugins)", p, tools.ErrMissing)
		}
	}
	if err := tools.Installed("iptables"); err != nil {
		return err.Error()
	}
	return ""
}

type dict = map[string]any

// plugged joins a processor to its host as the plugins do.
func (l *Processors) plugged(ctx context.Context, host, i int, p Processor, port uint16) error {
	ipam := func(address, gateway string) dict {
		a := dict{"address": address}
		out := dict{"type": "static", "addresses": []dict{a}}
		if gateway != "" {
			a["gateway"], out["routes"] = gateway, []dict{{"dst": "0.0.0.0/0"}}
		}
		return out
	}
	if l.o.Network == ownMacvlan {
		_, err := l.plug(ctx, host, p, dict{"type": "macvlan", "master": Station, "mode": "bridge", "ipam": ipam(lineAddress(1, byte(1+i)).String(), "")})
		return err
	}
	result, err := l.plug(ctx, host, p, dict{
		"type": "bridge", "bridge": switchName, "isGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": ipam(natAddress(host, 1+i).String(), natAddress(host, 0).Addr().String()),
	})
	if err != nil {
		return err
	}
	mapped := []dict{{"hostPort": port, "containerPort": port, "protocol": "udp"}}
	_, err = l.plug(ctx, host, p, dict{"type": "portmap", "snat": true, "capabilities": dict{"portMappings": true}, "runtimeConfig": dict{"portMappings": mapped}, "prevResult": result})
	return err
}

// plug runs a plugin on a host.
func (l *Processors) plug(ctx context.Context, host int, p Processor, config dict) (result json.RawMessage, err error) {
	config["cniVersion"], config["name"] = "0.4.0", "lab"
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	name := config["type"].(string)
	cmd := exec.CommandContext(ctx, plugin(name))
	cmd.Env = append(cmd.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+p.Name, "CNI_NETNS="+p.Space, "CNI_IFNAME="+Station, "CNI_PATH="+filepath.Dir(plugin(name)))
	out, problems := &tied.Output{Most: tied.DefaultMost}, &tied.Output{Most: tied.DefaultMost}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(text)), out, problems
	if err = tied.Start(l.hosts[host], cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("CNI plugin %s: %w: %s", name, err, strings.TrimSpace(out.String()+" "+problems.String()))
	}
	return json.RawMessage(out.String()), nil
}
