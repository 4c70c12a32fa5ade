package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/lab/platform"
)

// side is the path from alice to bob, who reach each other.
func (w *weir) side(b *bench) (*side, error) {
	port, err := w.link("alice")
	if err != nil {
		return nil, err
	}
	_, err = w.Ping(b.ctx, w.alice(), "10.9.0.2", 3, "0.05")
	return &side{Path: platform.Path{From: w.alice(), To: w.bob(), Source: netip.MustParseAddr("10.9.0.1"), Address: netip.MustParseAddr("10.9.0.2"), Space: w.Netns, Link: port}}, err
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

func (b *bench) pps(w *weir, n int) (err error) {
	ours, err := w.side(b)
	if err != nil {
		return err
	}
	p, done, err := newBridges(b.ctx, w.Rig, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	l, err := newLeast(w.Rig, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	sides := []*side{ours, {Path: p}, {Path: l.path()}}
	for _, s := range sides[1:] {
		if _, err := w.Ping(b.ctx, s.From, s.Address.String(), 3, "0.05"); err != nil { // bridges learn
			return err
		}
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
		v, err := s.rate(b.ctx, time.Duration(b.Seconds)*time.Second)
		if err != nil {
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
		s, err := w.side(b)
		if err != nil {
			return err
		}
		var few, many []float64
		for range b.Rounds {
			for _, n := range []int{10, 10_000} {
				if _, err := w.Apply(b.ctx, w.endpoints()+manyPolicies(n), "--prune"); err != nil {
					return err
				}
				v, err := s.rate(b.ctx, time.Duration(b.Seconds)*time.Second)
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
