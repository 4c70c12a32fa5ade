package settle

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// What is not DNS passes dns-lb by. Queries never do: those for its names are answered, also while another flow between the same stations is settled.
func TestDNSLBSettlesWhatIsNotDNS(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	config := "{names: {app.example.com: {targets: [{address: ADDRESS}]}}}"
	r.MustApply(ctx, t, one(r, "dns-lb", strings.Replace(config, "ADDRESS", "10.9.0.77", 1), "[all]"))
	seen := sniff(t, r, "fn")
	w := newTalk(t, r, 9000)
	w.passedBy(ctx, r, seen, "fn")
	asks := func(want string) {
		t.Helper()
		for range 20 {
			out, err := r.Run(ctx, r.Alice(), "dig", "+short", "+tries=2", "+time=5", "@"+rig.BobAddr, "app.example.com")
			if err != nil || strings.TrimSpace(out) != want {
				t.Fatalf("%q, %v; want %s", out, err, want)
			}
		}
	}
	asks("10.9.0.77")
	w.passedBy(ctx, r, seen, "fn")
	r.MustApply(ctx, t, one(r, "dns-lb", strings.Replace(config, "ADDRESS", "10.9.0.78", 1), "[all]"))
	asks("10.9.0.78")
	w.passedBy(ctx, r, seen, "fn")
	if out, err := r.Weir(ctx, "function", "restart", "fn"); err != nil {
		t.Fatal(err, out)
	}
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
	asks("10.9.0.78")
}

// What nat does not translate passes it by, and what it translates, too: the switch translates it. Another configuration holds in the middle of a flow.
func TestNATSettlesWhatItTranslatesAndWhatNot(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	of := func(clients string) string {
		return one(r, "nat", "{pool: [10.9.0.100], clients: ["+clients+"]}", "[all]")
	}
	others, alice := of("10.9.0.50/32"), of("10.9.0.1/32")
	r.MustApply(ctx, t, others)
	seen := sniff(t, r, "fn")
	// changes the configuration in the middle of a connection. Bob gets its packets from another address then, and ends it: he knows no such connection.
	changes := func(what, before, after string, port int, looks func(*talk)) {
		t.Helper()
		rule{what: what, resets: true, settle: func(try int) *talk {
			r.MustApply(ctx, t, before)
			w := newTalk(t, r, port+try)
			w.passedBy(ctx, r, seen, "fn")
			looks(w)
			return w
		}, forbid: func(int) time.Time {
			return inForce(ctx, t, r, "fn", "pool in force", func() { r.MustApply(ctx, t, after) })
		}}.holds(t, r)
	}
	changes("a flow that is translated now", others, alice, 9010, func(*talk) {})
	changes("a flow that is translated no more", alice, others, 9020, func(w *talk) {
		if out, err := r.Run(ctx, r.Bob(), "ss", "-Htn", "sport", "=", fmt.Sprintf(":%d", w.c.RemoteAddr().(*net.TCPAddr).Port)); err != nil || !strings.Contains(out, "10.9.0.100:") {
			t.Errorf("%v: at bob the connection is\n%s\nwant one with an address of the pool", err, out)
		}
	})
	w := newTalk(t, r, 9002)
	w.passedBy(ctx, r, seen, "fn")
	if out, err := r.Weir(ctx, "function", "restart", "fn"); err != nil {
		t.Fatal(err, out)
	}
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
}

// An open connection through the load-balancer is rewritten by the switch, also behind a new instance, which takes the connections over.
func TestTheLoadBalancerSettlesOpenConnections(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+`functions:
  fn:
    image: load-balancer
    on_fail: drop
    config:
      services: {web: {address: 10.9.0.100, protocol: tcp, port: 9000, targets: [{address: 10.9.0.2}]}}
      health: {addresses: [10.9.0.9/24]}
chains:
  c: fn
policies:
  p: {from: alice, mode: exhaustive, chain: c}
`)
	w := newTalkBy(t, r, 9000, "10.9.0.100")
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
	if out, err := r.Weir(ctx, "function", "restart", "fn"); err != nil {
		t.Fatal(err, out)
	}
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
}

// Five functions of the catalogue in a chain, each with work to do: a connection in which none of them has anything to do any more, but to translate, passes all five by.
// A rule in the first one holds for it at once all the same.
func TestFiveOfTheCatalogueArePassedBy(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	document := func(allow string) string {
		return r.Endpoints() + `functions:
  firewall: {image: firewall, config: {allow: [` + allow + `]}}
  http-filter: {image: http-filter, config: {rules: [{name: leaks, words: [topsecret]}]}}
  ids: {image: ids, config: {depth: 16KB, rules: "drop tcp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)"}}
  dns-lb: {image: dns-lb, config: {names: {app.example.com: {targets: [{address: 10.9.0.2}]}}}}
  nat: {image: nat, config: {pool: [10.9.0.100], clients: [10.9.0.1/32]}}
chains:
  c: firewall | http-filter | ids | dns-lb | nat
policies:
  p: {from: alice, to: bob, match: [all], chain: c}
`
	}
	rule{what: "a rule of the firewall", settle: func(try int) *talk {
		r.MustApply(ctx, t, document("tcp"), "--timeout", "3m")
		first := 9000 + 10*try
		w := behind(ctx, t, r, []string{"firewall", "http-filter", "ids", "dns-lb", "nat"}, first, first+1, first+2, first+3)
		w.mustSay(200)
		return w
	}, forbid: func(int) time.Time {
		return inForce(ctx, t, r, "firewall", "rules in force", func() { r.MustApply(ctx, t, document("udp"), "--timeout", "3m") })
	}}.holds(t, r)
}
