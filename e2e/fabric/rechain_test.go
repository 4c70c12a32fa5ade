package fabric

import (
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// guardedWays are chains of one policy in turn: from one pair of functions to one that does the same in the other order, on other hosts, and
// back; then the path of one chain is edited in place, around functions that stay. Every way has one function that stands for A and one for
// B, and w does not count.
var guardedWays = []struct {
	chain string
	paths map[string]string
}{
	{"ab", nil}, {"ba", nil}, {"ab", nil}, {"ba", nil}, {"ab", nil}, {"ba", nil},
	{"in", nil},
	{"in", map[string]string{"in": "a5 | w1 | b5"}},
	{"in", map[string]string{"in": "w2 | a5 | w1 | b5"}},
	{"in", map[string]string{"in": "w2 | a5 | b5"}},
	{"in", map[string]string{"in": "a6 | b5"}},
	{"in", map[string]string{"in": "a6 | b5 | w2"}},
	{"in", map[string]string{"in": "a6 | w1 | b5 | w2"}},
	{"in", map[string]string{"in": "a6 | b6 | w2"}},
	{"in", map[string]string{"in": "a6 | b6"}},
	{"in", map[string]string{"in": "a5 | b5"}},
	{"ab", nil}, {"ba", nil},
}

// A policy's functions change places across three hosts, and its chain's path is edited, under a counted stream: no datagram is lost or
// doubled, and each meets A once and B once.
func TestFunctionsChangePlacesAcrossHosts(t *testing.T) {
	b := newBed(t, "vxlan.yaml", nil)
	spaces := "/run/weir-testbed/" + b.name + "/netns/"
	at := map[string]string{"a1": "h3", "b1": "h1", "a2": "h2", "b2": "h3", "a5": "h3", "b5": "h2", "a6": "h1", "b6": "h3", "w1": "h3", "w2": "h1"}
	objects := fmt.Sprintf("endpoints:\n  v1: {host: h1, netns: %sv1, interface: eth0, address: 10.0.0.1/24}\n  v2: {host: h2, netns: %sv2, interface: eth0, address: 10.0.0.2/24}\nfunctions:\n", spaces, spaces)
	for name, host := range at {
		objects += fmt.Sprintf("  %s: {image: wire, host: %s}\n", name, host)
	}
	paths := map[string]string{"ab": "a1 | b1", "ba": "b2 | a2", "in": "a5 | b5"}
	document := func(i int) string {
		w := guardedWays[i]
		text := objects + "chains:\n"
		for name, path := range paths {
			if p := w.paths[name]; p != "" {
				path = p
			}
			text += fmt.Sprintf("  %s: %s\n", name, path)
		}
		return text + fmt.Sprintf("policies:\n  p: {from: v1, to: v2, match: [udp], symmetric: false, chain: %s}\n", w.chain)
	}
	b.apply(document(0))
	b.reach("v1", "10.0.0.2")
	var met map[string]uint64
	o := b.exact(func() rig.Outcome {
		b.apply(document(0))
		b.rendered(paths[guardedWays[0].chain])
		before := b.met(at)
		s, err := rig.NewStream(b.netns("v1"), b.netns("v2"), "10.0.0.2", 9000, streamRate)
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for i, w := range guardedWays {
			b.apply(document(i))
			path := paths[w.chain]
			if p := w.paths[w.chain]; p != "" {
				path = p
			}
			b.rendered(path)
			if err := s.Await(b.ctx, streamRate/4); err != nil {
				t.Fatal(err)
			}
			if n := s.Sent() - s.Received(); n > missing+streamRate/100 {
				t.Logf("after change %d, to chain %s %v: %d missing", i, w.chain, w.paths, n)
				missing = n
			}
		}
		o, err := s.Stop()
		if err != nil {
			t.Fatal(err)
		}
		met = b.metSince(at, before, o)
		return o
	})
	t.Logf("%d changes: %s; met: %v", len(guardedWays)-1, outage(o), met)
	if o.Lost > 0 || o.Duplicated > 0 {
		t.Errorf("lost %d and duplicated %d of %d", o.Lost, o.Duplicated, o.Sent)
	}
	b.each(met, o)
	b.swap(at, func(path string) string {
		return objects + "chains:\n  in: " + path + "\npolicies:\n  p: {from: v1, to: v2, match: [udp], symmetric: false, chain: in}\n"
	})
}

// swap lets two functions of one chain change places in its path. What comes out of one of them then does not show whether it has met the
// other: so datagrams are dropped at the entry in between, rather than let past a function.
func (b *bed) swap(at map[string]string, document func(path string) string) {
	b.t.Helper()
	paths := []string{"a5 | b5", "b5 | a5", "a5 | b5"}
	b.apply(document(paths[0]), "--prune")
	var met map[string]uint64
	o := b.exact(func() rig.Outcome {
		before := b.met(at)
		s, err := rig.NewStream(b.netns("v1"), b.netns("v2"), "10.0.0.2", 9001, streamRate)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, path := range paths {
			b.apply(document(path))
			b.rendered(path)
			if err := s.Await(b.ctx, streamRate/2); err != nil {
				b.t.Fatal(err)
			}
		}
		o, err := s.Stop()
		if err != nil {
			b.t.Fatal(err)
		}
		met = b.metSince(at, before, o)
		b.t.Logf("%d swaps in place: %s; met: %v", len(paths)-1, outage(o), met)
		o.Lost = int(max(met["a"], met["b"])) - o.Received // within the chain; at the entry it is meant
		return o
	})
	if o.Duplicated > 0 || o.Received == 0 {
		b.t.Errorf("%d of %d received, %d duplicated", o.Received, o.Sent, o.Duplicated)
	}
	b.each(met, o)
}

// rendered wants the policy to lead along a path, since apply says that it is in force.
func (b *bed) rendered(path string) {
	b.t.Helper()
	p := b.policy("p")
	var met []string
	for _, port := range p.Status.RenderedPath {
		if f, ok := strings.CutPrefix(port, "function/"); ok && strings.HasSuffix(f, "/in") {
			met = append(met, strings.TrimSuffix(f, "/in"))
		}
	}
	if p.Status.State != "active" || strings.Join(met, " | ") != path {
		b.t.Errorf("apply returns before %s is in force: %s, %s", path, p.Status.State, met)
	}
}

// each wants every datagram that arrived to have met A once and B once.
func (b *bed) each(met map[string]uint64, o rig.Outcome) {
	b.t.Helper()
	for _, kind := range []string{"a", "b"} {
		if met[kind] != uint64(o.Received) {
			b.t.Errorf("%d datagrams arrived and met %s %d times, want each once", o.Received, strings.ToUpper(kind), met[kind])
		}
	}
}

// metSince is what functions have met since, when all that arrived is counted: counters are a little late.
func (b *bed) metSince(at map[string]string, before map[string]uint64, o rig.Outcome) map[string]uint64 {
	b.t.Helper()
	var met map[string]uint64
	b.await("counters", func() (bool, string) {
		met = map[string]uint64{}
		for kind, n := range b.met(at) {
			met[kind] = n - before[kind]
		}
		return met["a"] >= uint64(o.Received) && met["b"] >= uint64(o.Received), fmt.Sprintf("%s; met: %v", outage(o), met)
	})
	return met
}

// met counts frames that came in at functions, by the first letter of their names.
func (b *bed) met(at map[string]string) map[string]uint64 {
	b.t.Helper()
	n := map[string]uint64{}
	hosts := map[string]bool{}
	for _, host := range at {
		hosts[host] = true
	}
	for host := range hosts {
		var counters api.Counters
		b.get(&counters, "counters", host)
		for _, p := range counters.Ports {
			if f, ok := strings.CutPrefix(p.Name, "function/"); ok && strings.HasSuffix(f, "/in") {
				n[f[:1]] += p.Tx.Packets
			}
		}
	}
	return n
}
