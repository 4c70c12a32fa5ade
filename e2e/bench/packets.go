package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// stationMAC reads a station's address.
func stationMAC(space, link string) (hw net.HardwareAddr, err error) {
	err = netns.Do(space, func() error {
		ifi, err := net.InterfaceByName(link)
		if err == nil {
			hw = ifi.HardwareAddr
		}
		return err
	})
	return hw, err
}

// inject makes a generator at the switch side of a station's link; the caller ends it with stop.
func inject(b *bench, r *rig.Rig, space, link, from, to string, src, dst string, dport uint16) (g generator, stop func() error, err error) {
	a, err := stationMAC(from, "eth0")
	if err != nil {
		return g, nil, err
	}
	z, err := stationMAC(to, "eth0")
	if err != nil {
		return g, nil, err
	}
	// A veth takes injected frames only with NAPI, which GRO switches on.
	if _, err := r.Run(b.ctx, space, "ethtool", "-K", link, "gro", "on"); err != nil {
		return g, nil, err
	}
	g = generator{space: space, link: link, frame: udp(a, z, netip.MustParseAddr(src), netip.MustParseAddr(dst), 7, dport, 60)}
	return g, func() error {
		_, err := r.Run(b.ctx, space, "ethtool", "-K", link, "gro", "off")
		return err
	}, nil
}

// injector makes a generator of datagrams from alice to bob, who reach each other.
func (w *weir) injector(b *bench) (g generator, stop func() error, err error) {
	port, err := w.link("alice")
	if err != nil {
		return g, nil, err
	}
	if _, err := w.Ping(b.ctx, w.alice(), "10.9.0.2", 3, "0.05"); err != nil {
		return g, nil, err
	}
	return inject(b, w.Rig, w.Netns, port, w.alice(), w.bob(), "10.9.0.1", "10.9.0.2", 9)
}

func (w *weir) link(endpoint string) (string, error) {
	var e api.Endpoint
	err := w.Get(w.ctx, &e, "endpoint", endpoint)
	return e.Status.Link, err
}

// packets: 64-byte UDP packets per second through 9 and 100 wires, beside Linux bridges and the least that a chain can be.
func (b *bench) packets() error {
	return b.withWeir(func(w *weir) error {
		for _, n := range []int{9, 100} {
			if _, err := w.wires(n); err != nil {
				return err
			}
			if err := w.settle(b); err != nil {
				return err
			}
			if err := b.pps(w, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// side is one of those that are measured in turn: frames injected at a link arrive at a station.
type side struct {
	generator
	to  string
	got []float64 // Mpps
}

func (b *bench) pps(w *weir, n int) (err error) {
	p, err := newBridges(b.ctx, w.Rig, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	l, err := newLeast(w.Rig, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	port, err := w.link("alice")
	if err != nil {
		return err
	}
	var sides []*side
	for _, at := range []struct{ space, link, from, to, src, dst string }{
		{w.Netns, port, w.alice(), w.bob(), "10.9.0.1", "10.9.0.2"},
		{p.hub, "bsrc", p.src(), p.dst(), "10.8.0.1", "10.8.0.2"},
		{l.hub, "lsrc", l.src(), l.dst(), "10.7.0.1", "10.7.0.2"},
	} {
		if _, err := w.Ping(b.ctx, at.from, at.dst, 3, "0.05"); err != nil { // bridges learn
			return err
		}
		g, stop, err := inject(b, w.Rig, at.space, at.link, at.from, at.to, at.src, at.dst, 9)
		if err != nil {
			return err
		}
		defer func() { _ = stop() }()
		sides = append(sides, &side{generator: g, to: at.to})
	}
	for turn := range turns * b.Rounds {
		if err := b.rates(sides, turn); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("udp 64 B, %d wires", n)
	b.add(name, "Mpps", sides[0].got, sides[1].got, "Linux bridges", true, map[int]float64{9: 4}[n])
	b.add(name+" against the least", "Mpps", sides[0].got, sides[2].got, leastChain, true, 0)
	return nil
}

// rates measures each side once; who is first changes from turn to turn.
func (b *bench) rates(sides []*side, turn int) error {
	for i := range sides {
		s := sides[(i+turn)%len(sides)]
		sink, err := newSink(s.to, "eth0")
		if err != nil {
			return err
		}
		v, err := rate(s.generator, sink, time.Duration(b.Seconds)*time.Second)
		if err := errors.Join(err, sink.close()); err != nil {
			return err
		}
		s.got = append(s.got, v/1e6)
	}
	return nil
}

// rules: what a packet costs beside 10,000 policies against 10.
func (b *bench) rules() error {
	return b.withWeir(func(w *weir) error {
		if _, err := w.Apply(b.ctx, "functions:\n  w1: {image: wire}\nchains:\n  one: w1\npolicies:\n  all: {from: alice, to: bob, match: [udp/9], chain: one, priority: 5}\n"); err != nil {
			return err
		}
		g, stop, err := w.injector(b)
		if err != nil {
			return err
		}
		defer func() { _ = stop() }()
		s, err := newSink(w.bob(), "eth0")
		if err != nil {
			return err
		}
		defer s.close()
		var few, many []float64
		for range b.Rounds {
			for _, n := range []int{10, 10_000} {
				if _, err := w.Apply(b.ctx, w.endpoints()+manyPolicies(n), "--prune"); err != nil {
					return err
				}
				v, err := rate(g, s, time.Duration(b.Seconds)*time.Second)
				if err != nil {
					return err
				}
				if n == 10 {
					few = append(few, v/1e6)
				} else {
					many = append(many, v/1e6)
				}
			}
		}
		b.add("udp 64 B beside 10,000 policies", "Mpps", many, few, "Weir with 10 policies", true, 0.9)
		return nil
	})
}

// manyPolicies is a document with n policies at bob's port that do not select the measured packet, and one that does.
func manyPolicies(n int) string {
	var d strings.Builder
	d.WriteString("functions:\n  w1: {image: wire}\nchains:\n  one: w1\npolicies:\n  all: {from: alice, to: bob, match: [udp/9], chain: one, priority: 5}\n")
	for i := range n {
		fmt.Fprintf(&d, "  p%d: {from: 10.%d.%d.%d, to: bob, match: [tcp/80], symmetric: false, chain: one, priority: 100}\n", i, 100+i>>16, i>>8&255, i&255)
	}
	return d.String()
}
