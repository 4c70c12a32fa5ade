package lead

import (
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/portkind"
)

// Functions that fit nowhere are looked at again when a host comes to have something else, and not at each of its reports.
func TestHostsThatChangeWhatTheyOffer(t *testing.T) {
	before := api.Host{Status: api.HostStatus{State: api.HostReady, Cores: 4, Memory: 1 << 30, RuntimePorts: []portkind.Kind{portkind.VhostUser}, SwitchPorts: []portkind.Kind{portkind.Veth}}}
	for name, x := range map[string]struct {
		change func(h *api.Host)
		news   bool
	}{
		"a report":             {func(h *api.Host) { h.Status.Heartbeat, h.Status.Load, h.Status.Free = time.Now(), 3, 1<<20 }, false},
		"its state":            {func(h *api.Host) { h.Status.State = api.HostLost }, true},
		"unschedulable":        {func(h *api.Host) { h.Spec.Unschedulable = true }, true},
		"cores":                {func(h *api.Host) { h.Status.Cores = 8 }, true},
		"memory":               {func(h *api.Host) { h.Status.Memory <<= 1 }, true},
		"images":               {func(h *api.Host) { h.Status.Images = []string{"wire"} }, true},
		"ports of its runtime": {func(h *api.Host) { h.Status.RuntimePorts = []portkind.Kind{portkind.Veth} }, true},
		"another runtime": {func(h *api.Host) {
			h.Status.Runtimes = []api.HostRuntime{{Name: "docker", Why: "no engine"}, {Name: "oci", Available: true}}
		}, true},
		"ports that a switch takes": {func(h *api.Host) { h.Status.SwitchPorts = []portkind.Kind{portkind.Veth, portkind.VhostUser} }, true},
	} {
		after := before
		x.change(&after)
		if news := offers(before) != offers(after); news != x.news {
			t.Errorf("%s: %v, want %v", name, news, x.news)
		}
	}
}
