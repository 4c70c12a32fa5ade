package control

import (
	"slices"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// A host with an uplink and tunnels would be a second way for what is flooded: it gets no tunnels, and says so.
func TestAHostWithAnUplinkGetsNoTunnels(t *testing.T) {
	c, err := New(Options{API: new(api.Client), Underlay: UnderlayVXLAN, LLDPKey: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoop(c)
	in := fabric.Input{Topology: fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}}}
	for name, address := range map[string]string{"h1": "10.0.0.1", "h2": "10.0.0.2", "h3": "10.0.0.3", "h4": ""} {
		h := api.Host{Meta: api.Meta{Name: name}}
		h.Status.Address = address
		if name == "h3" {
			h.Status.Uplinks = []api.Uplink{{Interface: "eth1", State: "up"}}
		}
		l.intent.hosts[name] = h
		in.Switches[hostID(name)] = fabric.Switch{Name: name, Host: true}
	}
	l.tunnels(&in)
	if len(in.Links) != 1 || in.Links[0].A.Switch != hostID("h1") || in.Links[0].B.Switch != hostID("h2") {
		t.Errorf("links %v", in.Links)
	}
	for name, want := range map[string][]string{"h1": {"h2"}, "h2": {"h1"}, "h3": nil, "h4": nil} {
		var got []string
		for _, tunnel := range l.mesh(name) {
			got = append(got, tunnel.Host)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has tunnels to %v, want %v", name, got, want)
		}
	}
	if l.reachable("h3", &in) || !l.reachable("h1", &in) {
		t.Error("h3 can be reached without a link, or h1 cannot by its tunnel")
	}
}
