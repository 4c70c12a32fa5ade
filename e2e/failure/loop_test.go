package failure

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// A function that ends again and again is not said to have recovered each time. Once it is mended it starts at once, whatever its wait was, and
// then it is said once.
func TestAMendedCrashLoopStartsAtOnce(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	r.Images = hole(ctx, t)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	doc := func(seconds string) string {
		return "functions:\n  f: {image: hole, command: [/bin/busybox, sleep, '" + seconds + "']}\n"
	}
	r.MustApply(ctx, t, doc("0.4"))
	rig.Eventually(ctx, t, "six ends", func() (bool, string) {
		n := len(events(ctx, t, r, "FunctionDied", "f"))
		return n >= 6, fmt.Sprint(n)
	})
	if back := events(ctx, t, r, "FunctionRecovered", "f"); len(back) > 0 {
		t.Errorf("it ends again and again, and is said to have recovered %d times", len(back))
	}
	short, cancel := context.WithTimeout(ctx, 3*time.Second) // the wait is 8 s by now
	defer cancel()
	r.MustApply(short, t, doc("1000000"))
	rig.Eventually(ctx, t, "that it has recovered", func() (bool, string) {
		return len(events(ctx, t, r, "FunctionRecovered", "f")) > 0, fmt.Sprintf("%+v", function(ctx, t, r, "f").Status)
	})
	back := events(ctx, t, r, "FunctionRecovered", "f")
	if len(back) != 1 || !strings.HasSuffix(back[0].Message, " failures") || back[0].OutageNs < int64(4*time.Second) {
		t.Errorf("%+v: want one event, of the whole time, with the number of failures", back)
	}
}

// A policy whose endpoint is in error is not active, and says why.
func TestAPolicyOfABrokenEndpointIsNotActive(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	link := func(words string) {
		t.Helper()
		if _, err := r.Run(ctx, "", append([]string{"ip", "link"}, strings.Fields(words)...)...); err != nil {
			t.Fatal(err)
		}
	}
	link("add up0 type veth peer name up1")
	link("set up0 up")
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+"  up: {interface: up0}\nfunctions:\n  w: {image: wire}\nchains:\n  c: w\npolicies:\n  p: {from: alice, to: up, match: [udp], chain: c}\n")
	state := func(want, reason string) {
		t.Helper()
		rig.Eventually(ctx, t, "policy "+want, func() (bool, string) {
			var p api.Policy
			if err := r.Get(ctx, &p, "policy", "p"); err != nil {
				return false, err.Error()
			}
			return string(p.Status.State) == want && strings.Contains(p.Status.Message, reason), fmt.Sprintf("%+v", p.Status)
		})
	}
	state("active", "")
	link("del up0")
	state("error", "endpoint up: ")
	link("add up0 type veth peer name up1")
	link("set up0 up")
	state("active", "")
}
