package fabric

import (
	"fmt"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// hostChanges is how often a policy changes its way across hosts.
const hostChanges = 24

// A policy's way across three hosts changes, again and again, under a counted stream: other functions, on other hosts, in another order, and
// what it matches.
func TestChangesAcrossHostsLoseAndDuplicateNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", nil)
	spaces := "/run/weir-testbed/" + b.name + "/netns/"
	objects := `
endpoints:
  v1: {host: h1, netns: ` + spaces + `v1, interface: eth0, address: 10.0.0.1/24}
  v2: {host: h2, netns: ` + spaces + `v2, interface: eth0, address: 10.0.0.2/24}
functions:
  a3: {image: wire, host: h3}
  b3: {image: wire, host: h3}
  b1: {image: wire, host: h1}
  c2: {image: wire, host: h2}
  c3: {image: wire, host: h3}
  d1: {image: wire, host: h1}
  d2: {image: wire, host: h2}
  d3: {image: wire, host: h3}
chains:
  a: a3
  b: b3 | b1
  c: c2 | c3
  d: d3 | d2 | d1
policies:
`
	document := func(i int) string {
		return fmt.Sprintf("%s  p: {from: v1, to: v2, match: [%s], chain: %s, priority: %d}\n", objects, []string{"udp", "udp/9000", "udp, icmp"}[i/3%3],
			[]string{"a", "b", "c", "d"}[i%4], 100+i/5)
	}
	b.apply(document(0))
	b.reach("v1", "10.0.0.2")
	round := 0
	o := b.exact(func() rig.Outcome {
		round += hostChanges
		return b.changing(len(objects), func(i int) string { return document(round - hostChanges + i) })
	})
	t.Logf("%d changes: %s", hostChanges, outage(o))
	if o.Lost > 0 || o.Duplicated > 0 {
		t.Errorf("lost %d and duplicated %d of %d", o.Lost, o.Duplicated, o.Sent)
	}
}

// changing applies one document after the other under a stream from v1 to v2.
func (b *bed) changing(head int, document func(int) string) rig.Outcome {
	b.t.Helper()
	s, err := rig.NewStream(b.netns("v1"), b.netns("v2"), "10.0.0.2", streamPort, streamRate)
	if err != nil {
		b.t.Fatal(err)
	}
	lost := 0
	for i := 1; i <= hostChanges; i++ {
		b.apply(document(i))
		if err := s.Await(b.ctx, streamRate/4); err != nil {
			b.t.Fatal(err)
		}
		if missing := s.Sent() - s.Received(); missing > lost+streamRate/50 {
			b.t.Logf("after change %d: %d missing\n%s", i, missing, document(i)[head:])
			lost = missing
		}
	}
	o, err := s.Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}
