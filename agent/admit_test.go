package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/agent/kernel/fake"
	"weir.dev/weir/agent/report"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/cpuset"
	"weir.dev/weir/image"
	"weir.dev/weir/netns"
)

// An image's labels alone give NET_ADMIN and NET_RAW where a user namespace bounds them, and nothing else anywhere.
func TestCapabilitiesAreTheOperatorsToGive(t *testing.T) {
	none, unknown := fmt.Errorf("x: %w", netns.ErrNoUserns), errors.New("disk full")
	for name, c := range map[string]struct {
		asks, allow []string
		unshared    error
		noUserns    bool   // in the runtime
		refused     string // "" none
	}{
		"nothing":                                   {unshared: none},
		"its own network":                           {asks: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}},
		"another":                                   {asks: []string{"CAP_NET_RAW", "CAP_SYS_NICE"}, refused: "CAP_SYS_NICE"},
		"another that is allowed":                   {asks: []string{"CAP_SYS_NICE"}, allow: []string{"CAP_SYS_NICE"}},
		"the host's network":                        {asks: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, unshared: none, refused: "CAP_NET_ADMIN, CAP_NET_RAW"},
		"the host's network, one of two allowed":    {asks: []string{"CAP_NET_ADMIN", "CAP_NET_RAW"}, allow: []string{"CAP_NET_RAW"}, unshared: none, refused: "CAP_NET_ADMIN"},
		"the host's network by the operator's word": {asks: []string{"CAP_NET_ADMIN"}, allow: []string{"CAP_NET_ADMIN"}, unshared: none},
		"the host's network, in a runtime without user namespaces": {asks: []string{"CAP_NET_ADMIN"}, noUserns: true, refused: "CAP_NET_ADMIN"},
		"not known whether bounded":                                {asks: []string{"CAP_NET_ADMIN"}, unshared: unknown, refused: "CAP_NET_ADMIN"},
		"not known, and nothing asked for":                         {unshared: unknown},
		"allowed, and not asked for":                               {allow: []string{"CAP_NET_ADMIN"}, unshared: none},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Agent{Options: Options{Host: "h1"}, unshared: func() error { return c.unshared }}
			p := a.CheckCapabilities(container.About{Name: "oci", Userns: !c.noUserns}, api.FunctionSpec{Image: "x:1", Allow: c.allow}, image.Image{Contract: image.Contract{Capabilities: c.asks}})
			if (p != nil) != (c.refused != "") {
				t.Fatalf("got %+v", p)
			}
			if p != nil && (!strings.Contains(p.Message, "image x:1 asks for "+c.refused+",") || !strings.Contains(p.Hint, "allow: ["+c.refused+"]")) {
				t.Errorf("%+v: want %s in it", p, c.refused)
			}
		})
	}
}

// An image that does not know Weir gets what is allowed, and nobody gets what would let it out.
func TestCapabilitiesOfForeignImages(t *testing.T) {
	a := &Agent{Options: Options{Host: "h1"}, unshared: func() error { return nil }}
	check := func(allow ...string) *api.Problem {
		return a.CheckCapabilities(container.About{Name: "oci", Userns: true}, api.FunctionSpec{Image: "x:1", Allow: allow}, image.Image{Contract: image.Contract{Foreign: true}})
	}
	if p := check("CAP_NET_ADMIN", "CAP_NET_RAW"); p != nil {
		t.Errorf("what can be granted: %+v", p)
	}
	if p := check("CAP_NET_ADMIN", "CAP_SYS_ADMIN"); p == nil || p.Path != "allow" || !strings.HasPrefix(p.Message, "CAP_SYS_ADMIN cannot be granted") {
		t.Errorf("what cannot: %+v", p)
	}
}

// lacking is a kernel without AF_XDP sockets.
type lacking struct{ Kernel }

func (lacking) ProbeXDP() error { return errors.New("kernel option CONFIG_XDP_SOCKETS") }

// An image that takes frames by AF_XDP sockets is refused where none would come to them, with what to do, and all others are taken there.
func TestImagesByXDPWantTheHostsKernel(t *testing.T) {
	for name, c := range map[string]struct {
		about  container.About
		kernel Kernel
		refuse string
	}{
		"on the host's kernel":   {container.About{Name: "native"}, fake.New(), ""},
		"in a machine":           {container.About{Name: "kvm", Machine: true}, fake.New(), "a kernel of their own"},
		"in one that is missing": {container.About{Name: api.RuntimeKVM}, fake.New(), "a kernel of their own"},
		"a kernel without":       {container.About{Name: "native"}, lacking{fake.New()}, "CONFIG_XDP_SOCKETS"},
	} {
		a := &Agent{Options: Options{Host: "h1", Kernel: c.kernel}}
		p := a.checkXDP(c.about, api.FunctionSpec{Image: "wire-xdp"}, image.Image{Contract: image.Contract{XDP: true}})
		if (p != nil) != (c.refuse != "") || p != nil && (!strings.Contains(p.Message, c.refuse) || !strings.Contains(p.Message, "image wire-xdp") || p.Hint == "") {
			t.Errorf("%s: %+v, want %q", name, p, c.refuse)
		}
		if p := a.checkXDP(c.about, api.FunctionSpec{Image: "wire"}, image.Image{}); p != nil {
			t.Errorf("%s: another image: %+v", name, p)
		}
	}
}

// A memory limit with which a runtime makes nothing is refused, but of a function that is to be stopped.
func TestALimitBelowWhatARuntimeWantsIsRefused(t *testing.T) {
	kvm, native := container.About{Name: "kvm", LeastMemory: 96 << 20}, container.About{Name: "native"}
	for name, c := range map[string]struct {
		about  container.About
		spec   api.FunctionSpec
		refuse bool
	}{
		"too little":          {kvm, api.FunctionSpec{Memory: "64M"}, true},
		"enough":              {kvm, api.FunctionSpec{Memory: "96M"}, false},
		"the host's default":  {kvm, api.FunctionSpec{}, false},
		"it is to be stopped": {kvm, api.FunctionSpec{Memory: "64M", State: api.FunctionStopped}, false},
		"another runtime":     {native, api.FunctionSpec{Memory: "4M"}, false},
	} {
		p := checkMemory(c.about, c.spec)
		if (p != nil) != c.refuse || p != nil && (p.Path != "memory" || !strings.Contains(p.Message, "memory 64M: a function in the runtime kvm wants at least 96M") || p.Hint == "") {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// Ports carry what endpoints can send, but those of a function by AF_XDP no more than a program of XDP takes.
func TestPortsByXDPAreBounded(t *testing.T) {
	f := &function{a: &Agent{}}
	for mtu, want := range map[int]int{1500: 1500, 3400: 3400, 9000: xdpMTU} {
		f.a.mtu.Store(int64(mtu))
		if got := f.portMTU(attachment{xdp: true}); got != want {
			t.Errorf("endpoints of %d: %d, want %d", mtu, got, want)
		}
		if got := f.portMTU(attachment{}); got != mtu {
			t.Errorf("endpoints of %d, another function: %d", mtu, got)
		}
	}
}

// Processors that a host lacks are refused before anything is made.
func TestProcessorsThatAHostLacksAreRefused(t *testing.T) {
	a := &Agent{Options: Options{Host: "h1"}}
	online, err := cpuset.Online()
	if err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		"": "", online.String(): "", fmt.Sprint(online[0]): "",
		fmt.Sprint(cpuset.Max):                      fmt.Sprintf("host h1 has no processor %d, it has %s", cpuset.Max, online),
		fmt.Sprintf("%d,%d", cpuset.Max, online[0]): fmt.Sprintf("has no processor %d,", cpuset.Max),
		"3-1": "want numbers",
	} {
		err := a.checkCPUSet(api.FunctionSpec{CPUSet: text})
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	if err := a.checkCPUSet(api.FunctionSpec{CPUSet: fmt.Sprint(cpuset.Max), State: api.FunctionStopped}); err != nil {
		t.Errorf("a function that is to be stopped: %v", err)
	}
}

// stubRuntimes are the runtimes with and without user namespaces.
type stubRuntimes struct{}

func (stubRuntimes) Names() []string { return []string{"with", "without"} }
func (stubRuntimes) About(_ context.Context, name string) (container.About, error) {
	a := container.About{Name: name, Userns: name == "with"}
	if name != "with" && name != "without" {
		a.Missing = "no such runtime"
	}
	return a, nil
}
func (stubRuntimes) Note(string) string { return "" }
func (stubRuntimes) Of(string) string   { return "" }

// A sandbox of a runtime without user namespaces is the host's: a container of a runtime with them is not made in it, and the reverse.
func TestASandboxSuitsItsRuntime(t *testing.T) {
	none := fmt.Errorf("x: %w", netns.ErrNoUserns)
	for name, x := range map[string]struct {
		runtime  string
		ids      netns.IDs
		unshared error
		suits    bool
	}{
		"own, for a runtime that uses it":              {"with", netns.OwnIDs(netns.FirstID), nil, true},
		"the host's, for a runtime that wants its own": {"with", netns.IDs{}, nil, false},
		"the default's": {"", netns.IDs{}, nil, false},
		"the host's, on a host that has no others": {"with", netns.IDs{}, none, true},
		"own, for a runtime that cannot":           {"without", netns.OwnIDs(netns.FirstID), nil, false},
		"the host's, for a runtime that cannot":    {"without", netns.IDs{}, nil, true},
		"a runtime that is not there":              {"nobody", netns.IDs{}, none, false},
	} {
		a := &Agent{Options: Options{Host: "h1", RuntimeName: "with", Runtimes: stubRuntimes{}}, unshared: func() error { return x.unshared },
			report: report.New("h1", nil, nil, time.Now), wake: make(chan struct{}, 1)}
		f := &function{a: a, box: sandbox.Box{IDs: x.ids}, ready: prepared{spec: container.Spec{Runtime: x.runtime}}}
		if got := f.suits(t.Context()); got != x.suits {
			t.Errorf("%s: %v", name, got)
		}
	}
}
