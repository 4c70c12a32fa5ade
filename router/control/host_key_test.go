package control

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/discovery"
)

// TestAHostSignsForItselfOnly: with its own key a host shows its own uplink, and neither another host's nor a switch's port; a host whose
// key is revoked is at no port any more.
func TestAHostSignsForItselfOnly(t *testing.T) {
	t.Parallel()
	var revoked atomic.Bool
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}, HostKey: func(name string) ([]byte, error) {
		if name == "h1" && revoked.Load() {
			return nil, discovery.ErrNoKey
		}
		return keyOfHost(name), nil
	}})
	a, b := fake.New(fake.Config{DatapathID: 1, Ports: ports(3)}), fake.New(fake.Config{DatapathID: 2, Ports: ports(3)})
	r.dial(a)
	r.dial(b)
	r.agent("h1", func(f []byte) { a.Receive(1, f) })
	victim := r.agent("h2", func(f []byte) { b.Receive(1, f) })
	at := func(name string, n uint32, want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("what is at port %d of %s", n, name), func() string {
			if p := r.port(name, n); p.Peer != want {
				return fmt.Sprintf("is %+v, want %q", p, want)
			}
			return ""
		})
	}
	at("s1", 1, "h1:eth0")
	at("s2", 1, "h2:eth0")

	for chassis, port := range map[string]string{lldp.HostChassis("h2"): "eth0", lldp.SwitchChassis(2): "2"} { // h1's key for another's name
		f, err := lldp.Encode(lldp.Frame{Chassis: chassis, Port: port, TTL: 4, Sequence: victim.seq.Next(time.Now())}, keyOfHost("h1"))
		if err != nil {
			t.Fatal(err)
		}
		a.Receive(1, f)
		a.Receive(2, f)
	}
	r.waitEvent("LinkForged", "signature")
	f, err := lldp.Encode(lldp.Frame{Chassis: lldp.HostChassis("nobody"), Port: "eth0", TTL: 4, Sequence: 1}, keyOfHost("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	b.Receive(3, f)
	r.waitEvent("LinkForged", `"nobody" is not known`)
	at("s1", 1, "h1:eth0")
	at("s2", 1, "h2:eth0")
	if l := r.links(); len(l) != 0 {
		t.Errorf("links: %v", l)
	}

	revoked.Store(true)
	began := time.Now()
	eventually(t, "the revoked host's link", func() string {
		if p := r.port("s1", 1); p.Kind == "host" && p.State == "up" && r.linked("h1") {
			return fmt.Sprintf("is still there: %+v", p)
		}
		return ""
	})
	t.Logf("gone after %v", time.Since(began))
	r.waitEvent("LinkLost", "h1:eth0 - s1:1")
	at("s2", 1, "h2:eth0")
}

// linked tells whether the router has a host in its topology.
func (r *rig) linked(host string) bool {
	for _, s := range r.switches() {
		for _, p := range s.Status.Ports {
			if p.Kind == "host" && p.Peer == host+":eth0" {
				return true
			}
		}
	}
	return false
}
