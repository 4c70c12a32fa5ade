package change

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const (
	steady  = 10_000 // datagrams a second
	slowest = 625    // below, losses with no change are no excuse
	changes = 100
)

// A policy changes a hundred times under 10,000 datagrams a second. Each change is one step of the switch: none is lost or doubled, and each
// datagram passes the functions of one chain, never of both or none. The same stream with no changes, before and after, is the
// control: where the machine loses some of that, or the kernel's receive queues overran, which all namespaces share, what is lost during changes
// tells nothing, and it is tried again at half the rate.
func TestAHundredPolicyChangesLoseAndDuplicateNothing(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := func(i int) string { // only the stream's own datagrams are UDP
				return r.Endpoints() + "functions:\n  a: {image: wire}\n  b: {image: wire}\n  c: {image: wire}\n" +
					"chains:\n  one: a | b\n  other: c\n" +
					fmt.Sprintf("policies:\n  p: {from: alice, to: bob, match: [%s], chain: %s, priority: %d}\n",
						[]string{"udp", "udp/9000", "udp, sctp"}[i%3], []string{"one", "other"}[i%2], 1+i%1000)
			}
			r.MustApply(ctx, t, document(0))
			for first, rate := 1, steady; ; first, rate = first+changes, rate/2 {
				c := count(ctx, t, r, sw, rate, func() {
					for i := first; i < first+changes; i++ {
						r.MustApply(ctx, t, document(i))
					}
				})
				t.Logf("%d datagrams, %d a second: of %d without changes %d lost, of %d during %d changes %d lost, %d duplicated, longest gap %s; %d by the first chain, %d by the other",
					c.Sent, rate, c.quiet, c.lostQuiet, c.changing, changes, c.lostChanging, c.Duplicated, c.LongestGap, c.first, c.other)
				if c.Duplicated > 0 {
					t.Errorf("%d duplicated", c.Duplicated)
				}
				if (c.lostQuiet > 0 || c.Lost > 0 && c.overran > 0) && rate > slowest {
					t.Logf("the machine is too busy for this rate (its processors' receive queues overran by %d); half of it", c.overran)
					continue
				}
				if c.Lost > 0 {
					t.Errorf("%d of %d lost", c.Lost, c.Sent)
				}
				extra := int64(c.first+c.other) - int64(c.Sent)
				if extra < 0 || extra > 2*c.probes || c.first == 0 || c.other == 0 {
					t.Errorf("of %d datagrams %d passed one chain, %d the other: want each to pass one of them, and both to be used (with at most %d probes at each)",
						c.Sent, c.first, c.other, c.probes)
				}
				if diff := int64(c.first) - int64(c.second); diff < -c.probes || diff > c.probes {
					t.Errorf("%d datagrams passed the first function of a chain, %d its second", c.first, c.second)
				}
				return
			}
		})
	}
}

// counts of a stream.
type counts struct {
	rig.Outcome
	quiet, lostQuiet, changing, lostChanging int
	first, second, other                     uint64 // frames into a and b of one chain, into c of the other
	probes                                   int64  // at most so many of these at each function
	overran                                  uint64 // frames that the processors' receive queues had no room for
}

// count runs a stream for a while, then do, then for a while more.
func count(ctx context.Context, t *testing.T, r *rig.Rig, sw string, rate int, do func()) counts {
	t.Helper()
	start := time.Now()
	overruns, err := netns.Overruns()
	if err != nil {
		t.Fatal(err)
	}
	before := into(ctx, t, r, sw)
	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, rate)
	if err != nil {
		t.Fatal(err)
	}
	wait := func() {
		if err := s.Await(ctx, 2*rate); err != nil {
			t.Fatal(err)
		}
	}
	wait()
	begin := s.Sent()
	do()
	wait() // the last change is one of them
	end := s.Sent()
	wait()
	var c counts
	if c.Outcome, err = s.Stop(); err != nil {
		t.Fatal(err)
	}
	if c.overran, err = netns.Overruns(); err != nil {
		t.Fatal(err)
	}
	c.overran -= overruns
	c.changing, c.lostChanging = end-begin, s.LostOf(begin, end)
	c.quiet, c.lostQuiet = c.Sent-c.changing, c.Lost-c.lostChanging
	now := into(ctx, t, r, sw)
	c.first, c.second, c.other = now[0]-before[0], now[1]-before[1], now[2]-before[2]
	if sw == "ovs" {
		c.probes = int64(time.Since(start)/time.Second) + 2
	}
	return c
}

// into is how many frames have gone into a, b and c: by the switch's own counters, or those of their links where the switch's attribute what
// came about the time of a change to what is in force after it, as Open vSwitch does. The latter count the agent's probes, too.
func into(ctx context.Context, t *testing.T, r *rig.Rig, sw string) (n [3]uint64) {
	t.Helper()
	var all api.Counters
	if err := r.Get(ctx, &all, "counters"); err != nil {
		t.Fatal(err)
	}
	for _, p := range all.Ports {
		for i, name := range []string{"function/a/in", "function/b/in", "function/c/in"} {
			switch {
			case p.Name != name:
			case sw == "ovs":
				n[i] = sentBy(ctx, t, r, p.Link)
			default:
				n[i] = p.Tx.Packets
			}
		}
	}
	return n
}

// sentBy is how many frames a link of the daemon's namespace has sent.
func sentBy(ctx context.Context, t *testing.T, r *rig.Rig, link string) uint64 {
	t.Helper()
	out, err := r.Run(ctx, "", "ip", "-j", "-s", "link", "show", link)
	if err != nil {
		t.Fatal(err)
	}
	var links []struct {
		Stats64 struct {
			TX struct{ Packets uint64 }
		}
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		t.Fatalf("counters of %s: %v: %s", link, err, out)
	}
	return links[0].Stats64.TX.Packets
}
