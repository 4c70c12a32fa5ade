package placement_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/placement"
	"weir.dev/weir/portkind"
)

var now = time.Date(2026, 11, 21, 20, 0, 0, 0, time.UTC)

func host(name string, cores int, memory int64, more ...func(*api.Host)) api.Host {
	h := api.Host{Meta: api.Meta{Name: name}, Status: api.HostStatus{State: "ready", Cores: cores, Memory: memory << 30, Free: memory << 30}}
	for _, f := range more {
		f(&h)
	}
	return h
}

func isLost(h *api.Host)        { h.Status.State = "lost" }
func drained(h *api.Host)       { h.Spec.Drain = true }
func unschedulable(h *api.Host) { h.Spec.Unschedulable = true }
func load(l float64) func(*api.Host) {
	return func(h *api.Host) { h.Status.Load = l }
}
func images(list ...string) func(*api.Host) {
	return func(h *api.Host) { h.Status.Images = list }
}

func function(name string, more ...func(*api.Function)) api.Function {
	f := api.Function{Meta: api.Meta{Name: name}, Spec: api.FunctionSpec{Image: "wire"}}
	for _, m := range more {
		m(&f)
	}
	return f
}

func at(h string) func(*api.Function) {
	return func(f *api.Function) { f.Placement = &api.Placement{Host: h} }
}
func ports(runtime, sw portkind.Kind) func(*api.Host) {
	return func(h *api.Host) {
		h.Status.Runtime, h.Status.RuntimePorts = "kvm", []portkind.Kind{runtime}
		h.Status.Switch, h.Status.SwitchPorts = "ebpf", []portkind.Kind{sw}
	}
}

// former is a host whose agent knows one runtime.
func former(h *api.Host) {
	h.Status.Runtime, h.Status.RuntimePorts, h.Status.SwitchPorts = "oci", []portkind.Kind{portkind.Veth}, []portkind.Kind{portkind.Veth}
}

// runtimes are what a host says of each, by name and why it is not available; the first is the default.
func runtimes(all ...string) func(*api.Host) {
	return func(h *api.Host) {
		h.Status.Runtime, h.Status.SwitchPorts = all[0], []portkind.Kind{portkind.Veth}
		for i := 0; i < len(all); i += 2 {
			h.Status.Runtimes = append(h.Status.Runtimes, api.HostRuntime{Name: all[i], Available: all[i+1] == "", Why: all[i+1], Default: i == 0, Ports: []portkind.Kind{portkind.Veth}})
		}
	}
}

func another(name string, kind portkind.Kind) func(*api.Host) {
	return func(h *api.Host) {
		h.Status.Runtimes = append(h.Status.Runtimes, api.HostRuntime{Name: name, Available: true, Ports: []portkind.Kind{kind}})
	}
}
func in(runtime string) func(*api.Function) {
	return func(f *api.Function) { f.Spec.Runtime = runtime }
}
func pin(h string) func(*api.Function) { return func(f *api.Function) { f.Spec.Host = h } }
func cpus(c string) func(*api.Function) {
	return func(f *api.Function) { f.Spec.CPUs = c }
}
func memory(m string) func(*api.Function) {
	return func(f *api.Function) { f.Spec.Memory = m }
}
func image(i string) func(*api.Function) { return func(f *api.Function) { f.Spec.Image = i } }
func deleting(f *api.Function)           { f.Deleting = &now }

// told is a decision in one line: "f -> h1: reason" or "f: problem".
func told(ds []placement.Decision) []string {
	out := []string{}
	for _, d := range ds {
		from := ""
		if d.From != "" {
			from = " from " + d.From
		}
		if d.Placement == nil {
			out = append(out, fmt.Sprintf("%s%s nowhere: %s", d.Function, from, d.Problem))
			continue
		}
		out = append(out, fmt.Sprintf("%s%s to %s: %s", d.Function, from, d.Placement.Host, d.Placement.Reason))
	}
	return out
}

func chains(paths ...string) map[string]api.ChainSpec {
	out := map[string]api.ChainSpec{}
	for i, p := range paths {
		out[fmt.Sprintf("c%d", i+1)] = api.ChainSpec{Path: p}
	}
	return out
}

func strategy(t testing.TB, name string) placement.Strategy {
	t.Helper()
	s, err := placement.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPlace(t *testing.T) {
	two := []api.Host{host("h1", 4, 8), host("h2", 4, 8)}
	for name, x := range map[string]struct {
		hosts     []api.Host
		functions []api.Function
		strategy  string
		changed   map[string]bool
		chains    map[string]api.ChainSpec
		want      []string
	}{
		"no host yet": {functions: []api.Function{function("f")}, want: []string{"f nowhere: no host has joined yet"}},
		"one host takes all, whatever they ask for": {hosts: []api.Host{host("local", 2, 1)},
			functions: []api.Function{function("a", cpus("2"), memory("1G")), function("b", cpus("2"), memory("1G"))},
			want:      []string{"a to local: the only host", "b to local: the only host"}},
		"what is placed stays": {hosts: two, functions: []api.Function{function("a", at("h1")), function("b", at("h1"))}, want: []string{}},
		"what is being deleted is left alone": {hosts: []api.Host{host("h1", 4, 8, isLost), host("h2", 4, 8)},
			functions: []api.Function{function("a", at("h1"), deleting), function("b", deleting)}, want: []string{}},
		"the host with most free resources": {hosts: []api.Host{host("h1", 4, 8), host("h2", 8, 16)}, functions: []api.Function{function("a")},
			want: []string{"a to h2: most-available: 8 of 8 cores and 16 GiB of 16 GiB free"}},
		"what is requested is not free": {hosts: two, functions: []api.Function{function("a", at("h1"), cpus("3"), memory("4G")), function("b", cpus("1"))},
			want: []string{"b to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"nor what is in use": {hosts: []api.Host{host("h1", 4, 8, load(3.5)), host("h2", 4, 8)}, functions: []api.Function{function("a")},
			want: []string{"a to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"a little load decides nothing": {hosts: []api.Host{host("h1", 4, 8, load(0.1)), host("h2", 4, 8)}, functions: []api.Function{function("a")},
			want: []string{"a to h1: most-available: 3.9 of 4 cores and 8 GiB of 8 GiB free"}},
		"a chain stays together when nothing else decides": {hosts: two, chains: chains("b | a", "d | tap:c"),
			functions: []api.Function{function("a"), function("b"), function("c"), function("d")},
			want: []string{"b to h1: most-available: 4 of 4 cores and 8 GiB of 8 GiB free", "a to h1: most-available: 4 of 4 cores and 8 GiB of 8 GiB free",
				"d to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free", "c to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"a pin": {hosts: two, functions: []api.Function{function("a", pin("h2"))}, want: []string{"a to h2: pinned by spec.host"}},
		"a pin is more than room, images and unschedulable": {hosts: []api.Host{host("h1", 4, 8), host("h2", 1, 1, unschedulable, images("x"))},
			functions: []api.Function{function("a", pin("h2"), cpus("8"), memory("8G"))}, want: []string{"a to h2: pinned by spec.host"}},
		"a new pin moves": {hosts: two, functions: []api.Function{function("a", at("h1"), pin("h2"))}, want: []string{"a from h1 to h2: pinned by spec.host"}},
		"a pin to no host": {hosts: two, functions: []api.Function{function("a", pin("h3"))},
			want: []string{"a nowhere: pinned by spec.host to h3, which is no host of this Weir"}},
		"a pin to a lost host": {hosts: []api.Host{host("h1", 4, 8), host("h2", 4, 8, isLost)}, functions: []api.Function{function("a", at("h1"), pin("h2"))},
			want: []string{"a from h1 nowhere: pinned by spec.host to h2, which is lost"}},
		"pinned to a host that got lost": {hosts: []api.Host{host("h1", 4, 8, isLost), host("h2", 4, 8)}, functions: []api.Function{function("a", at("h1"), pin("h1"))},
			want: []string{"a from h1 nowhere: h1 is lost; pinned there by spec.host"}},
		"off a lost host": {hosts: []api.Host{host("h1", 4, 8, isLost), host("h2", 4, 8)}, functions: []api.Function{function("a", at("h1")), function("b", at("h2"))},
			want: []string{"a from h1 to h2: h1 is lost; most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"off a removed host": {hosts: []api.Host{host("h2", 4, 8), host("h3", 2, 8)}, functions: []api.Function{function("a", at("h1"))},
			want: []string{"a from h1 to h2: h1 was removed; most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"an unschedulable host keeps what it has and gets nothing": {hosts: []api.Host{host("h1", 4, 8, unschedulable), host("h2", 4, 8)},
			functions: []api.Function{function("a", at("h1")), function("b")}, want: []string{"b to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"off a host that is being drained": {hosts: []api.Host{host("h1", 4, 8, drained), host("h2", 4, 8)}, functions: []api.Function{function("a", at("h1")), function("b", at("h2")), function("c")},
			want: []string{"a from h1 to h2: h1 is being drained; most-available: 4 of 4 cores and 8 GiB of 8 GiB free", "c to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"what no other host can have stays on a host that is being drained": {hosts: []api.Host{host("h1", 4, 8, drained), host("h2", 1, 8), host("h3", 4, 8, drained)},
			functions: []api.Function{function("a", at("h1"), cpus("2")), function("b", at("h1"), pin("h1")), function("c", at("h1"), cpus("1")), function("d", at("h1"), cpus("1"))},
			want: []string{"b from h1 nowhere: h1 is being drained; pinned by spec.host",
				"a from h1 nowhere: h1 is being drained; no host: h1 is being drained (spec.drain); h2 has 1 of 1 cores left, and 2 are asked for; h3 is being drained (spec.drain)",
				"c from h1 to h2: h1 is being drained; most-available: 1 of 1 cores and 8 GiB of 8 GiB free",
				"d from h1 nowhere: h1 is being drained; no host: h1 is being drained (spec.drain); h2 has 0 of 1 cores left, and 1 are asked for; h3 is being drained (spec.drain)"}},
		"the only host is being drained": {hosts: []api.Host{host("h1", 4, 8, drained)}, functions: []api.Function{function("a", at("h1")), function("b")},
			want: []string{"a from h1 nowhere: h1 is being drained; no host: h1 is being drained (spec.drain)", "b nowhere: no host: h1 is being drained (spec.drain)"}},
		"where the image is": {hosts: []api.Host{host("h1", 4, 8, images("firewall:latest", "wire:v1")), host("h2", 4, 8, images("wire:latest"))},
			functions: []api.Function{function("a"), function("b", image("wire:v1")), function("c", image("firewall"))},
			want: []string{"a to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free", "b to h1: most-available: 4 of 4 cores and 8 GiB of 8 GiB free",
				"c to h1: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"where the switch takes the ports that the runtime gives": {hosts: []api.Host{host("h1", 8, 16, ports("tap", "veth")), host("h2", 4, 8, ports("tap", "tap"))},
			functions: []api.Function{function("a")}, want: []string{"a to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"no switch takes the ports that the runtime gives": {hosts: []api.Host{host("h1", 8, 16, ports("tap", "veth"))}, functions: []api.Function{function("a")},
			want: []string{"a nowhere: no host: h1 cannot join functions with its switch: runtime kvm gives ports of kind tap; switch ebpf takes veth (start its agent with another --switch)"}},
		"pinned to a host whose switch does not": {hosts: []api.Host{host("h1", 8, 16, ports("tap", "veth"))}, functions: []api.Function{function("a", pin("h1"))},
			want: []string{"a nowhere: pinned by spec.host to h1, which cannot join functions with its switch: runtime kvm gives ports of kind tap; switch ebpf takes veth (start its agent with another --switch)"}},
		"where its runtime is": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "")), host("h2", 4, 8, runtimes("oci", "", "docker", "")), host("h3", 16, 64)},
			functions: []api.Function{function("a", in("docker")), function("b", in("oci"), at("h1")), function("c")},
			want:      []string{"a to h2: most-available: 4 of 4 cores and 8 GiB of 8 GiB free", "c to h3: most-available: 16 of 16 cores and 64 GiB of 64 GiB free"}},
		"no host has its runtime": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "", "docker", "no engine: start dockerd")), host("h2", 4, 8, runtimes("oci", "")), host("h3", 16, 64, former)},
			functions: []api.Function{function("a", in("docker"))},
			want: []string{"a nowhere: no host: h1 has no runtime docker: no engine: start dockerd; h2 has no runtime docker: the program of its agent does not know it; " +
				"h3 has no runtime docker, as far as is known: its agent names none but oci"}},
		"the only host lacks its runtime": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "", "docker", "no engine"))}, functions: []api.Function{function("a", in("docker"))},
			want: []string{"a nowhere: no host: h1 has no runtime docker: no engine"}},
		"the only host lacks its default": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "no program runc"))}, functions: []api.Function{function("a")},
			want: []string{"a nowhere: no host: h1 has no runtime oci: no program runc"}},
		"pinned to a host that lacks its runtime": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "")), host("h2", 4, 8, runtimes("oci", "", "docker", ""))},
			functions: []api.Function{function("a", in("docker"), pin("h1"))},
			want:      []string{"a nowhere: pinned by spec.host to h1, which has no runtime docker: the program of its agent does not know it"}},
		"the switch takes the ports of the default, and not of its runtime": {
			hosts:     []api.Host{host("h1", 8, 16, ports("veth", "veth"), runtimes("oci", ""), another("kvm", portkind.Tap))},
			functions: []api.Function{function("a", in("kvm")), function("b")},
			want: []string{"a nowhere: no host: h1 cannot join functions with its switch: runtime kvm gives ports of kind tap; switch ebpf takes veth (start its agent with another --switch)",
				"b to h1: the only host"}},
		"a host that has lost a runtime keeps its functions": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "", "docker", "no engine")), host("h2", 4, 8, runtimes("oci", "", "docker", ""))},
			functions: []api.Function{function("a", in("docker"), at("h1"))}, want: []string{}},
		"one that names another runtime now goes where that is": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "", "docker", "no engine")), host("h2", 4, 8, runtimes("oci", "", "docker", ""))},
			functions: []api.Function{function("a", in("docker"), at("h1")), function("b", in("docker"), at("h1"))}, changed: map[string]bool{"a": true},
			want: []string{"a from h1 to h2: h1 has no runtime docker: no engine; most-available: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"one that names another runtime now stays where that is": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "", "docker", "")), host("h2", 16, 32, runtimes("oci", "", "docker", ""))},
			functions: []api.Function{function("a", in("docker"), at("h1"))}, changed: map[string]bool{"a": true}, want: []string{}},
		"one that names a runtime that nobody has stays": {hosts: []api.Host{host("h1", 8, 16, runtimes("oci", "")), host("h2", 16, 32, runtimes("oci", ""))},
			functions: []api.Function{function("a", in("kvm"), at("h1"))}, changed: map[string]bool{"a": true},
			want: []string{"a from h1 nowhere: h1 has no runtime kvm: the program of its agent does not know it; no host: h1 has no runtime kvm: the program of its agent does not know it; " +
				"h2 has no runtime kvm: the program of its agent does not know it"}},
		"its runtime at a host of a former version": {hosts: []api.Host{host("h1", 8, 16, former)}, functions: []api.Function{function("a", in("oci"))}, want: []string{"a to h1: the only host"}},
		"nothing fits": {hosts: []api.Host{host("h1", 4, 8, unschedulable), host("h2", 4, 8, isLost), host("h3", 4, 8, images("x")), host("h4", 1, 8), host("h5", 4, 1)},
			functions: []api.Function{function("a", cpus("2"), memory("2G"))},
			want:      []string{"a nowhere: no host: h1 takes no new functions (spec.unschedulable); h2 is lost; h3 has no image wire; h4 has 1 of 1 cores left, and 2 are asked for; and 1 more"}},
		"full": {hosts: two, functions: []api.Function{function("a", at("h1"), memory("7G")), function("b", at("h2"), memory("8G")), function("c", memory("2G"))},
			want: []string{"c nowhere: no host: h1 has 1 GiB of 8 GiB memory left, and 2 GiB are asked for; h2 has 0 MiB of 8 GiB memory left, and 2 GiB are asked for"}},
		"pack fills one first": {hosts: two, strategy: "pack", functions: []api.Function{function("a", cpus("2")), function("b", cpus("2")), function("c", cpus("2"))},
			want: []string{"a to h1: pack: 4 of 4 cores and 8 GiB of 8 GiB free", "b to h1: pack: 2 of 4 cores and 8 GiB of 8 GiB free",
				"c to h2: pack: 4 of 4 cores and 8 GiB of 8 GiB free"}},
		"spread keeps a chain apart": {hosts: two, strategy: "spread", chains: chains("a | b"), functions: []api.Function{function("a"), function("b", image("x"))},
			want: []string{"a to h1: spread: 0 of its chain here, 0 of its image, 0 in all", "b to h2: spread: 0 of its chain here, 0 of its image, 0 in all"}},
		"spread keeps replicas apart and counts even": {hosts: two, strategy: "spread",
			functions: []api.Function{function("a", image("x")), function("b"), function("c"), function("d", image("y")), function("e", image("z"))},
			want: []string{"a to h1: spread: 0 of its chain here, 0 of its image, 0 in all", "b to h2: spread: 0 of its chain here, 0 of its image, 0 in all",
				"c to h1: spread: 0 of its chain here, 0 of its image, 1 in all", "d to h2: spread: 0 of its chain here, 0 of its image, 1 in all",
				"e to h1: spread: 0 of its chain here, 0 of its image, 2 in all"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := placement.Context{Strategy: strategy(t, x.strategy), Chains: x.chains, Changed: x.changed}
			if d := cmp.Diff(x.want, told(placement.Place(x.hosts, x.functions, c, now))); d != "" {
				t.Error(d)
			}
		})
	}
}

// What a hostile host says of itself is no burden on the functions of others.
func TestAHostsWordsAreShort(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	h := host("h1", 8, 16, ports(portkind.Kind(long), "veth"))
	h.Status.Runtime, h.Status.Switch = long, long
	for _, d := range placement.Place([]api.Host{h, host("h2", 4, 8, isLost)}, []api.Function{function("a"), function("b", pin("h1"))}, placement.Context{}, now) {
		if len(d.Problem) > 1000 || !strings.Contains(d.Problem, "cannot join") || !utf8.ValidString(d.Problem) {
			t.Errorf("%s: %d bytes: %.200s", d.Function, len(d.Problem), d.Problem)
		}
	}
}

// leafSpine is h1 h2 at s1, h3 at s2, both at s9.
func leafSpine() []api.Switch {
	sw := func(name string, ports ...api.SwitchPort) api.Switch {
		return api.Switch{Meta: api.Meta{Name: name}, Status: api.SwitchStatus{Ports: ports}}
	}
	link := func(kind, peer string) api.SwitchPort { return api.SwitchPort{State: "up", Kind: kind, Peer: peer} }
	return []api.Switch{
		sw("s1", link("host", "h1:eth1"), link("host", "h2:eth1"), link("link", "s9:1"), api.SwitchPort{State: "up", Kind: "edge"}),
		sw("s2", link("host", "h3:eth1"), link("link", "s9:2"), api.SwitchPort{State: "down", Kind: "link", Peer: "s1:7"}),
		sw("s9", link("link", "s1:3"), link("link", "s2:2")),
	}
}

func TestNearest(t *testing.T) {
	hosts := []api.Host{host("h1", 4, 8), host("h2", 4, 8), host("h3", 16, 64)}
	top := placement.NewTopology(leafSpine(), hosts, false)
	for name, x := range map[string]struct {
		functions []api.Function
		ends      map[string]string
		policy    api.PolicySpec
		want      string
	}{
		"between stations of one switch": {ends: map[string]string{"x": "switch:s1", "y": "switch:s1"}, policy: api.PolicySpec{From: "x", To: "y"},
			want: "a to h1: nearest: 2 extra hops; 4 of 4 cores and 8 GiB of 8 GiB free"},
		"at the sender's host": {ends: map[string]string{"x": "h2", "y": "switch:s2"}, policy: api.PolicySpec{From: "x", To: "y"},
			want: "a to h2: nearest: 0 extra hops; 4 of 4 cores and 8 GiB of 8 GiB free"},
		"from anywhere, at the receiver's": {ends: map[string]string{"y": "switch:s2"}, policy: api.PolicySpec{To: "y"},
			want: "a to h3: nearest: 2 extra hops; 16 of 16 cores and 64 GiB of 64 GiB free"},
		"beside the rest of the chain": {functions: []api.Function{function("b", at("h2"))}, policy: api.PolicySpec{},
			want: "a to h2: nearest: 0 extra hops; 4 of 4 cores and 8 GiB of 8 GiB free"},
		"nothing to go by": {policy: api.PolicySpec{From: "10.0.0.0/8"},
			want: "a to h3: nearest: 0 extra hops; 16 of 16 cores and 64 GiB of 64 GiB free"},
		"no way known": {ends: map[string]string{"y": "switch:s77"}, policy: api.PolicySpec{To: "y"},
			want: "a to h3: nearest: no way to it is known; 16 of 16 cores and 64 GiB of 64 GiB free"},
	} {
		t.Run(name, func(t *testing.T) {
			x.policy.Chain = "c1"
			c := placement.Context{Strategy: placement.Nearest, Chains: chains("a | b"), Policies: map[string]api.PolicySpec{"p": x.policy},
				Endpoints: x.ends, Distance: top.Distance}
			if d := cmp.Diff([]string{x.want}, told(placement.Place(hosts, append(x.functions, function("a")), c, now))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTopologyDistance(t *testing.T) {
	hosts := []api.Host{host("h1", 4, 8), host("h3", 4, 8), host("h4", 4, 8)}
	hosts[0].Status.Address, hosts[1].Status.Address = "192.0.2.1", "192.0.2.3"
	plain, tunnelled := placement.NewTopology(leafSpine(), hosts, false), placement.NewTopology(leafSpine(), hosts, true)
	for _, x := range []struct {
		a, b string
		hops int
		ok   bool
		mesh int
	}{
		{"h1", "h1", 0, true, 0},
		{"h1", "h2", 2, true, 2},
		{"h1", "h3", 4, true, 1},
		{"h3", "switch:s1", 3, true, 3},
		{"switch:s1", "switch:s2", 2, true, 2},
		{"h1", "h4", 0, false, 0},
	} {
		if hops, ok := plain.Distance(x.a, x.b); hops != x.hops || ok != x.ok {
			t.Errorf("%s to %s: %d, %v, want %d, %v", x.a, x.b, hops, ok, x.hops, x.ok)
		}
		if hops, ok := plain.Distance(x.b, x.a); hops != x.hops || ok != x.ok {
			t.Errorf("%s to %s: %d, %v, want %d, %v", x.b, x.a, hops, ok, x.hops, x.ok)
		}
		if hops, ok := tunnelled.Distance(x.a, x.b); hops != x.mesh || ok != x.ok {
			t.Errorf("%s to %s with tunnels: %d, %v, want %d, %v", x.a, x.b, hops, ok, x.mesh, x.ok)
		}
	}
}

func TestNamedStrategies(t *testing.T) {
	for _, name := range append(placement.Names(), "") {
		if s, err := placement.Named(name); s == nil || err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := placement.Named("best"); err == nil || !strings.Contains(err.Error(), `placement "best": want one of most-available, pack, spread, nearest`) {
		t.Errorf("says %v", err)
	}
}
