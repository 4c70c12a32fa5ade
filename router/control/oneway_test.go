package control

import (
	"fmt"
	"testing"

	"weir.dev/weir/openflow/fake"
)

// A cable that leads frames in one direction only, beside a whole one: neither end of it is an edge port. Floods would leave by the one end,
// arrive at the other, and go round for ever.
func TestWhatIsHeardAtOneEndIsNoEdge(t *testing.T) {
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	a, b := fake.New(fake.Config{DatapathID: 1, Ports: ports(3)}), fake.New(fake.Config{DatapathID: 2, Ports: ports(3)})
	oneWay, end := make(chan []byte, 1000), make(chan struct{})
	a.Attach(1, func(f []byte) {
		select {
		case oneWay <- f:
		default:
		}
	})
	lost := make(chan struct{}, 1000)
	b.Attach(1, func([]byte) {
		select {
		case lost <- struct{}{}:
		default:
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case f := <-oneWay:
				b.Receive(1, f)
			case <-end:
				return
			}
		}
	}()
	defer func() { close(end); <-done }()
	fake.Cable(a, 3, b, 3)
	r.dial(a)
	r.dial(b)
	r.waitLinks(2)      // the status has both
	r.waitEdge("s1", 2) // by now s1:1, where nothing is heard, would be one, too
	r.waitEdge("s2", 2)
	r.quiet(2, 1)
	ends := []struct {
		name string
		port uint32
	}{{"s1", 1}, {"s2", 1}}
	for _, at := range ends {
		rules, err := r.c.SwitchRules(t.Context(), at.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range rules.Rules {
			if x.Match == fmt.Sprintf("arp,in_port=%d", at.port) {
				t.Errorf("port %d of %s is taken for an edge port: %+v", at.port, at.name, x)
			}
		}
	}
	got := [2]chan []byte{make(chan []byte, 1000), make(chan []byte, 1000)}
	a.Attach(2, func(f []byte) { got[0] <- f })
	b.Attach(2, func(f []byte) { got[1] <- f })
	eventually(t, "a broadcast at the other station", func() string {
		a.Receive(2, arp(mac(1), [4]byte{10, 0, 0, 1}))
		if len(got[1]) == 0 {
			return "not there"
		}
		return ""
	})
	for range 100 {
		a.Receive(2, arp(mac(1), [4]byte{10, 0, 0, 1}))
		b.Receive(2, arp(mac(2), [4]byte{10, 0, 0, 2}))
	}
	for _, at := range ends {
		if p := r.port(at.name, at.port); p.State != "up" || p.Kind == "edge" { // another router would take it for one
			t.Errorf("port %d of %s is shown as %+v", at.port, at.name, p)
		}
	}
	for i, s := range []*fake.Switch{a, b} {
		if n := s.Loops(); n != 0 {
			t.Errorf("%d frames looped", n)
		}
		if n := len(got[i]); n > 110 {
			t.Errorf("the station at s%d has got %d frames, of 100 that were sent", i+1, n)
		}
	}
}
