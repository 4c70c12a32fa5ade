package settle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// one is a document with one function of the catalogue between the stations.
func one(r *rig.Rig, image, config, match string) string {
	return r.Endpoints() + fmt.Sprintf("functions:\n  fn: {image: %s, on_fail: drop, config: %s}\nchains:\n  c: fn\npolicies:\n  p: {from: alice, to: bob, match: %s, chain: c}\n",
		image, config, match)
}

// dual is a document with a firewall between the stations, which have IPv4 and IPv6.
func dual(r *rig.Rig, config string) string {
	return strings.Replace(one(r, "firewall", config, "[all]"), r.Endpoints(), r.DualEndpoints(), 1)
}

// dial bob's port, where nobody needs to listen.
func dial(r *rig.Rig, port int) error {
	return netns.Do(r.Alice(), func() error {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", rig.BobAddr, port), time.Second)
		if err == nil {
			return c.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) { // bob has answered
			return nil
		}
		return err
	})
}

// unseen says some lines, and whether the function was given nothing meanwhile, at either port.
func (w *talk) unseen(ctx context.Context, r *rig.Rig, name string) (bool, string) {
	w.t.Helper()
	var before []api.PortCounters
	for _, link := range []string{"in", "out"} {
		before = append(before, port(ctx, w.t, r, "function/"+name+"/"+link))
	}
	w.mustSay(10)
	for _, b := range before {
		if now := port(ctx, w.t, r, b.Name); now.Tx.Packets > b.Tx.Packets || now.Settled.Packets < b.Settled.Packets+10 {
			return false, fmt.Sprintf("before %+v, now %+v", b, now)
		}
	}
	return true, ""
}

// passedBy waits until a talk passes a function by, and goes on with it: no sniffer there sees any of it.
func (w *talk) passedBy(ctx context.Context, r *rig.Rig, seen []*rig.Capture, name string) {
	w.t.Helper()
	rig.Eventually(ctx, w.t, "the flow is settled", func() (bool, string) { return w.unseen(ctx, r, name) })
	first := w.said
	w.mustSay(200)
	for i, c := range seen {
		for n := first + 1; n <= w.said; n++ {
			if len(c.With(strings.TrimSuffix(w.line(n), "\n"))) > 0 {
				w.t.Fatalf("capture %d: line %d of a flow that was settled after %d was seen", i, n, first)
			}
		}
	}
}

// The firewall sees the first packets of what it allows, and none after. A rule that forbids it holds at once, in the middle of a flow; so does the same
// one in a new instance, by IPv4 and IPv6. What it denies is never settled.
func TestTheFirewallSettlesWhatItAllows(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, dual(r, "{allow: [tcp/9000-9009]}"))
	seen := sniff(t, r, "fn")
	w := newTalk(t, r, 9000)
	w.mustSay(1)
	for i, c := range seen {
		rig.Eventually(ctx, t, fmt.Sprintf("capture %d: the first line is seen once", i), func() (bool, string) {
			n := len(c.Incoming(strings.TrimSuffix(w.line(1), "\n")))
			return n == 1, fmt.Sprint(n)
		})
	}
	w.passedBy(ctx, r, seen, "fn")
	denied := port(ctx, t, r, "function/fn/in").Dropped.Packets
	if err := dial(r, 9010); err == nil {
		t.Error("a port that is not allowed answers")
	}
	if p := port(ctx, t, r, "function/fn/in"); p.Dropped.Packets != denied {
		t.Error("what the firewall denies is dropped before it: it counts it no more")
	}

	// A rule in the middle of the flow: the instance goes on, and so do other flows.
	other := newTalk(t, r, 9001)
	other.passedBy(ctx, r, seen, "fn")
	const all = "{allow: [tcp/9000-9009]}"
	settle := func(port int, address string) *talk {
		r.MustApply(ctx, t, dual(r, all))
		w := newTalkBy(t, r, port, address)
		w.passedBy(ctx, r, seen, "fn")
		return w
	}
	forbid := func(config string, port ...any) time.Time {
		return inForce(ctx, t, r, "fn", "rules in force", func() { r.MustApply(ctx, t, dual(r, fmt.Sprintf(config, port...))) })
	}
	rule{what: "a rule that allows it no more", settle: func(try int) *talk { return settle(9003+try, rig.BobAddr) }, forbid: func(try int) time.Time {
		return forbid("{allow: [tcp/9000-%d, tcp/%d-9009]}", 9002+try, 9004+try)
	}}.holds(t, r)
	other.mustSay(1)
	other.passedBy(ctx, r, seen, "fn")
	rule{what: "a rule that denies it", settle: func(try int) *talk { return settle(9005+try, rig.BobAddr) }, forbid: func(try int) time.Time {
		return forbid("{allow: [tcp/9000-9009], deny: [tcp/%d]}", 9005+try)
	}}.holds(t, r)
	rule{what: "a rule that denies it, by IPv6", settle: func(try int) *talk { return settle(9007+try, rig.BobAddr6) }, forbid: func(try int) time.Time {
		return forbid("{allow: [tcp/9000-9009], deny: [tcp/%d]}", 9007+try)
	}}.holds(t, r)
	r.MustApply(ctx, t, dual(r, all))

	// A new instance settles the flows that go on, too; they end as others do.
	w = newTalk(t, r, 9002)
	w.passedBy(ctx, r, seen, "fn")
	if out, err := r.Weir(ctx, "function", "restart", "fn"); err != nil {
		t.Fatal(err, out)
	}
	w.mustSay(1)
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
	if err := w.c.Close(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "both ends of a settled connection are closed", func() (bool, string) {
		out, err := r.Run(ctx, r.Alice(), "ss", "-Htn", "state", "fin-wait-1", "state", "fin-wait-2", "state", "last-ack")
		return err == nil && strings.TrimSpace(out) == "", out
	})
}
