package settle

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// watched is a document with ids between the stations; rules are further ones.
func watched(r *rig.Rig, rules string) string {
	return r.Endpoints() + `functions:
  ids:
    image: ids
    on_fail: drop
    config:
      depth: 16KB
      rules: |
        drop tcp any any -> any any (msg:"bad"; content:"evil-word"; sid:1;)
` + rules + "chains:\n  c: ids\npolicies:\n  p: {from: alice, to: bob, match: [tcp, udp], chain: c}\n"
}

// behindDepth talks on a connection until it passes ids by.
func behindDepth(ctx context.Context, t *testing.T, r *rig.Rig, ports ...int) *talk {
	t.Helper()
	return behind(ctx, t, r, []string{"ids"}, ports...)
}

// behind talks on a connection until it passes functions by, ids among them. What ids hears late, as on a busy machine, it does not say: then another connection has to do.
func behind(ctx context.Context, t *testing.T, r *rig.Rig, names []string, ports ...int) *talk {
	t.Helper()
	said := ""
	for _, at := range ports {
		w := newTalk(t, r, at)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
			w.mustSay(200) // some KB in each direction
			by, detail := w.passesBy(ctx, r, names...)
			if by {
				return w
			}
			said = detail
		}
	}
	t.Fatalf("no connection is settled: %s", said)
	return nil
}

// Suricata sees a connection up to the depth, and no packet after. Another rule holds in it at once. A connection that it has to inspect is given to it
// up to the end.
func TestSuricataSettlesWhatItInspectsNoFurther(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, watched(r, ""), "--timeout", "3m")
	seen := sniff(t, r, "ids")
	short := newTalk(t, r, 9000)
	short.mustSay(1)
	w := behindDepth(ctx, t, r, 9001, 9002, 9003, 9004)
	first := w.said
	w.mustSay(100)
	short.mustSay(5)
	for _, c := range seen {
		rig.Eventually(ctx, t, "a line of a connection that is not behind the depth is seen", func() (bool, string) {
			n := len(c.Incoming(strings.TrimSuffix(short.line(short.said), "\n")))
			return n == 1, fmt.Sprintf("seen %d times", n)
		})
		// What came before it has been read, too.
		if n := len(c.Incoming(strings.TrimSuffix(w.line(1), "\n"))); n != 1 {
			t.Errorf("the first line was seen %d times", n)
		}
		for n := first + 1; n <= w.said; n++ {
			if len(c.With(strings.TrimSuffix(w.line(n), "\n"))) > 0 {
				t.Fatalf("line %d of a flow that was settled after %d was seen", n, first)
			}
		}
	}
	// A word that a rule drops, in a connection that is not settled.
	rule{what: "a word in a connection that is not settled", settle: func(try int) *talk {
		if try > 0 {
			short = newTalk(t, r, 9020)
			short.mustSay(1)
		}
		return short
	}, forbid: func(int) time.Time {
		fmt.Fprint(short.c, "an evil-word\n")
		return time.Now()
	}}.holds(t, r)

	// Another rule, in the middle of the settled one.
	rule{what: "a new rule", settle: func(try int) *talk {
		if try > 0 {
			r.MustApply(ctx, t, watched(r, ""), "--timeout", "3m")
			w = behindDepth(ctx, t, r, 9021, 9022, 9023, 9024)
		}
		return w
	}, forbid: func(int) time.Time {
		r.MustApply(ctx, t, watched(r, `        drop tcp any any -> any any (msg:"all lines"; content:"line "; sid:2;)`+"\n"), "--timeout", "3m")
		return time.Now()
	}}.holds(t, r)

	// Connections that have passed ids by end as others do.
	r.MustApply(ctx, t, watched(r, ""), "--timeout", "3m")
	w = behindDepth(ctx, t, r, 9005, 9006, 9007, 9008)
	if err := w.c.Close(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "both ends of a settled connection are closed", func() (bool, string) {
		out, err := r.Run(ctx, r.Alice(), "ss", "-Htn", "state", "fin-wait-1", "state", "fin-wait-2", "state", "last-ack")
		return err == nil && strings.TrimSpace(out) == "", out
	})
}
