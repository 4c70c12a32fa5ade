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
