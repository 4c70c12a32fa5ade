package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/netns"
)

// cubic is the congestion control of the TCP streams by which chains are judged: Linux's own default, and one that sends as fast as
// the path takes it. BBR, which distributions and machines may set instead, sends at the pace that it believes the path to have: a stream
// of it tells as much of its belief as of the path. It is measured beside where it is the machine's choice.
const cubic = "cubic"

// turns of TCP and ping are taken in each round: many short runs of both sides in turn say more than a few long ones on a machine whose
// speed changes while one looks.
const turns = 3

// ways to ask for a round trip. The first is how the target's figure had been found: a request every 2 ms, the mean of what ping tells.
// Back to back leaves out how cold the processor's caches become in 2 ms, which depends on all that the machine does. Without -U ping
// takes the kernel's time stamp, from where the reply was queued last: of a chain without queues it leaves the way back out, which a user
// of the chain has to wait for all the same.
var pings = []struct {
	name, interval string
	count          int
	more           []string
}{
	{"ping", "0.002", 300, nil},
	{"ping -U", "0.002", 300, []string{"-U"}},
	{"ping back to back", "0", 1000, nil},
	{"ping back to back -U", "0", 1000, []string{"-U"}},
}

// stream is a way to send. All on one CPU, a stream's rate is what the whole path costs: sender, chain and receiver. On two, the scheduler
// decides anew in each run who works beside whom, and what goes from one CPU's cache to the other's costs more than a chain of bridges. On one
// it decides how often the two ends interrupt each other, which halves the rate or not: so both have the same real-time priority there.
type stream struct {
	name string
	args []string // of iperf3
	one  bool     // all on one CPU
}

func streams(controls []string) (all []stream) {
	for _, cc := range controls {
		all = append(all, stream{cc, []string{"-C", cc}, false}, stream{cc + " on one CPU", []string{"-C", cc, "-A", "0,0"}, true})
	}
	return all
}

// path is one way between two stations and what was measured on it.
type path struct {
	from, to, addr string
	gbps           map[string][]float64 // by name of stream
	rtt            map[string][]float64 // us, by name of pings
}

func newPath(from, to, addr string) *path {
	return &path{from: from, to: to, addr: addr, gbps: map[string][]float64{}, rtt: map[string][]float64{}}
}

// chains: one TCP stream and ping through 0..100 wires, beside Linux bridges all the way; through 9 beside no chain, too, and through 9
// and 100 beside the least that a chain can be.
func (b *bench) chains() error {
	return b.withWeir(func(w *weir) error {
		controls, err := w.controls(b)
		if err != nil {
			return err
		}
		b.Notes = append(b.Notes, "ping: the mean of 300 requests, one every 2 ms, by ping's own figures, which end where the reply was queued last: "+
			"Weir's chain has no queue, so the way back is left out; -U is the whole way; back to back: each request follows the reply before it")
		if w.Realtime = b.realtime; b.realtime {
			b.Notes = append(b.Notes, "TCP streams, both ends, of all sides: at real-time priority")
		}
		none, err := w.unsteered()
		if err != nil {
			return err
		}
		for _, n := range []int{0, 1, 9, 50, 100} {
			if err := b.chain(w, n, none, controls); err != nil {
				return fmt.Errorf("%d wires: %w", n, err)
			}
		}
		return nil
	})
}

// chain measures n wires. Congestion controls other than the first are for the lengths that have targets.
func (b *bench) chain(w *weir, n int, none *path, controls []string) (err error) {
	if n > 0 {
		if _, err := w.wires(n); err != nil {
			return err
		}
		if err := w.settle(b); err != nil {
			return err
		}
	}
	p, done, err := newBridges(b.ctx, w.Rig, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	ours, theirs := newPath(w.alice(), w.bob(), "10.9.0.2"), newPath(p.From, p.To, p.Address.String())
	both, all := []*path{ours, theirs}, []*path{ours, theirs}
	var bare *path
	if n == 9 || n == 100 {
		l, lerr := newLeast(w.Rig, n)
		if lerr != nil {
			return lerr
		}
		defer func() { err = errors.Join(err, l.close()) }()
		bare = newPath(l.path().From, l.path().To, "10.7.0.2")
		both, all = append(both, bare), append(all, bare)
	} else {
		controls = controls[:1]
	}
	if n == 9 {
		all = append(all, none)
	}
	kinds := streams(controls)
	for turn := range turns * b.Rounds {
		if err := b.turn(w.Rig, both, all, kinds); err != nil {
			return err
		}
		if turn%2 == 0 { // who comes first, next time comes last
			slices.Reverse(both)
			slices.Reverse(all)
		}
	}
	for i, s := range kinds {
		target := func(v float64) float64 {
			if i > 0 {
				return 0
			}
			return v
		}
		b.add(fmt.Sprintf("tcp %s, %d wires", s.name, n), "Gb/s", ours.gbps[s.name], theirs.gbps[s.name], "Linux bridges", true, target(map[int]float64{9: 1.7, 100: 5}[n]))
		if n == 9 {
			b.add(fmt.Sprintf("tcp %s, 9 wires against none", s.name), "Gb/s", ours.gbps[s.name], none.gbps[s.name], "Weir without a chain", true, target(0.9))
		}
		if bare != nil {
			b.add(fmt.Sprintf("tcp %s, %d against the least", s.name, n), "Gb/s", ours.gbps[s.name], bare.gbps[s.name], leastChain, true, 0)
		}
	}
	for _, kind := range pings {
		target := 0.0
		if n == 100 && len(kind.more) == 0 {
			target = 12 // of figures without -U, as it was set
		}
		b.add(fmt.Sprintf("%s, %d wires", kind.name, n), "us", ours.rtt[kind.name], theirs.rtt[kind.name], "Linux bridges", false, target)
		if bare != nil {
			b.add(fmt.Sprintf("%s, %d against the least", kind.name, n), "us", ours.rtt[kind.name], bare.rtt[kind.name], leastChain, false, 0)
		}
	}
	return nil
}

// turn measures everything once on each path, each figure on one path right after the other.
func (b *bench) turn(r *rig.Rig, pinged, streamed []*path, kinds []stream) error {
	for _, p := range streamed {
		if _, err := r.Ping(b.ctx, p.from, p.addr, 20, "0.01"); err != nil { // learn
			return fmt.Errorf("from %s: %w", p.from, err)
		}
	}
	if err := b.ping(r, pinged); err != nil {
		return err
	}
	realtime := r.Realtime
	defer func() { r.Realtime = realtime }()
	for _, s := range kinds {
		r.Realtime = realtime || s.one
		for _, p := range streamed {
			bits, err := r.Iperf(b.ctx, p.from, p.to, p.addr, 5201, b.Seconds, s.args...)
			if err != nil {
				return fmt.Errorf("tcp %s from %s: %w", s.name, p.from, err)
			}
			p.gbps[s.name] = append(p.gbps[s.name], bits/1e9)
		}
	}
	return nil
}

// ping measures each kind of round trip on each path.
func (b *bench) ping(r *rig.Rig, paths []*path) error {
	defer machine.Awake()()
	for _, kind := range pings {
		for _, p := range paths {
			rtt, err := r.Ping(b.ctx, p.from, p.addr, kind.count, kind.interval, kind.more...)
			if err != nil {
				return fmt.Errorf("%s from %s: %w", kind.name, p.from, err)
			}
			p.rtt[kind.name] = append(p.rtt[kind.name], float64(rtt.Nanoseconds())/1e3)
		}
	}
	return nil
}

// unsteered makes two more stations, carol and dave, whose traffic no policy takes.
func (w *weir) unsteered() (*path, error) {
	carol, dave := w.Name+"-carol", w.Name+"-dave"
	for _, s := range []string{carol, dave} {
		if err := w.Namespace(s); err != nil {
			return nil, err
		}
	}
	_, err := w.Apply(w.ctx, fmt.Sprintf("endpoints:\n  carol: {netns: %s, interface: eth0, address: 10.9.0.3/24}\n  dave: {netns: %s, interface: eth0, address: 10.9.0.4/24}\n", carol, dave))
	return newPath(carol, dave, "10.9.0.4"), err
}

// controls are the congestion controls to measure with: cubic, and the machine's own choice if that is another.
func (w *weir) controls(b *bench) ([]string, error) {
	var own, all string
	err := netns.Do(w.alice(), func() error {
		for name, into := range map[string]*string{"tcp_congestion_control": &own, "tcp_available_congestion_control": &all} {
			v, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
			if err != nil {
				return err
			}
			*into = strings.TrimSpace(string(v))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the congestion control: %w", err)
	}
	switch {
	case !slices.Contains(strings.Fields(all), cubic):
		b.Notes = append(b.Notes, fmt.Sprintf("congestion control: %s, this machine's own; it has no %s", own, cubic))
		return []string{own}, nil
	case own == cubic:
		b.Notes = append(b.Notes, fmt.Sprintf("congestion control: %s, Linux's default and this machine's", cubic))
		return []string{cubic}, nil
	}
	b.Notes = append(b.Notes, fmt.Sprintf("congestion control: %s, Linux's default; beside it %s, this machine's, without targets: it sends at a pace of its own", cubic, own))
	return []string{cubic, own}, nil
}
