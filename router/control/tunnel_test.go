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
		in.Switches[fabric.HostID(name)] = fabric.Switch{Name: name, Host: true}
	}
	l.tunnels(&in)
	if len(in.Links) != 1 || in.Links[0].A.Switch != fabric.HostID("h1") || in.Links[0].B.Switch != fabric.HostID("h2") {
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

// Tunnels are encrypted where both hosts can. Where one cannot, they are plain, which is said, or there are none, as the operator wants.
func TestTunnelsAreEncryptedWhereBothHostsCan(t *testing.T) {
	for _, x := range []struct {
		mode, a, b string
		key        string // in a's tunnel to b
		ok         bool
		told       string
	}{
		{TunnelsAuto, "ka", "kb", "kb", true, ""},
		{TunnelsAuto, "ka", "", "", true, "TunnelsPlain"},
		{TunnelsEncrypted, "ka", "kb", "kb", true, ""},
		{TunnelsEncrypted, "", "kb", "", false, "NoTunnels"},
		{TunnelsPlain, "ka", "kb", "", true, ""},
	} {
		c, err := New(Options{API: &api.Client{}, LLDPKey: testKey, Underlay: UnderlayVXLAN, Tunnels: x.mode})
		if err != nil {
			t.Fatal(err)
		}
		l := newLoop(c)
		for name, key := range map[string]string{"a": x.a, "b": x.b} {
			h := api.Host{Meta: api.Meta{Name: name}, Status: api.HostStatus{Address: "10.0.0." + map[string]string{"a": "1", "b": "2"}[name], TunnelKey: key}}
			if key == "" {
				h.Status.Features = []api.Feature{{Name: api.FeatureSealed, Detail: "no such module"}}
			}
			l.intent.hosts[name] = h
		}
		tunnels := l.mesh("a")
		if len(tunnels) != 0 != x.ok || x.ok && tunnels[0].Key != x.key {
			t.Errorf("%+v: %+v", x, tunnels)
		}
		told := ""
		l.mesh("a") // told once
		for _, e := range l.reports.pending.Events {
			told += e.Reason
		}
		if told != x.told {
			t.Errorf("%+v: told %q", x, told)
		}
	}
}
