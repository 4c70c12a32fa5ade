package settle

import (
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

// What nat does not translate passes it by. A configuration that translates it holds in the middle of the flow, and what is translated is never settled.
func TestNATSettlesWhatItDoesNotTranslate(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	of := func(clients string) string {
		return one(r, "nat", "{pool: [10.9.0.100], clients: ["+clients+"]}", "[all]")
	}
	r.MustApply(ctx, t, of("10.9.0.50/32"))
	seen := sniff(t, r, "fn")
	w := newTalk(t, r, 9000)
	w.passedBy(ctx, r, seen, "fn")
	r.MustApply(ctx, t, of("10.9.0.1/32"))
	begun := time.Now()
	for w.say(time.Second) == nil { // then it is another connection for bob
		if time.Since(begun) > prompt {
			t.Fatalf("a flow that is translated now passes by for %s", time.Since(begun))
		}
	}
	translated := newTalk(t, r, 9001)
	translated.mustSay(100)
	translated.mustSay(100)
	for i, c := range seen {
		rig.Eventually(ctx, t, "the last line of a translated flow is seen", func() (bool, string) {
			return len(c.With(strings.TrimSuffix(translated.line(translated.said), "\n"))) > 0, string(rune('0' + i))
		})
	}
	r.MustApply(ctx, t, of("10.9.0.50/32"))
	w = newTalk(t, r, 9002)
	w.passedBy(ctx, r, seen, "fn")
	if out, err := r.Weir(ctx, "function", "restart", "fn"); err != nil {
		t.Fatal(err, out)
	}
	w.passedBy(ctx, r, sniff(t, r, "fn"), "fn")
}

// Five functions of the catalogue in a chain, each with work to do: a connection in which none of them has anything to do any more passes all five by.
// A rule in the first one holds for it at once all the same.
func TestFiveOfTheCatalogueArePassedBy(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	document := func(allow string) string {
		return r.Endpoints() + `functions:
  firewall: {image: firewall, config: {allow: [` + allow + `]}}
  http-filter: {image: http-filter, config: {rules: [{name: leaks, words: [topsecret]}]}}
  ids: {image: ids, config: {depth: 16KB, rules: "drop tcp any any -> any any (msg:\"bad\"; content:\"evil-word\"; sid:1;)"}}
  dns-lb: {image: dns-lb, config: {names: {app.example.com: {targets: [{address: 10.9.0.2}]}}}}
  nat: {image: nat, config: {pool: [10.9.0.100], clients: [10.9.0.50/32]}}
chains:
  c: firewall | http-filter | ids | dns-lb | nat
policies:
  p: {from: alice, to: bob, match: [all], chain: c}
`
	}
	r.MustApply(ctx, t, document("tcp"), "--timeout", "3m")
	w := behind(ctx, t, r, []string{"firewall", "http-filter", "ids", "dns-lb", "nat"}, 9000, 9001, 9002, 9003)
	w.mustSay(200)
	r.MustApply(ctx, t, document("udp"), "--timeout", "3m")
	w.silence("a rule of the firewall")
}
