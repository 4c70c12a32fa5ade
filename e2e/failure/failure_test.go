// Package failure: a function dies under load and its on_fail decides.
package failure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
)

// atOnce is how many tests run at the same time, if nobody says otherwise (-parallel): those that do wait for the agent's own clocks, not for a
// processor. Those that count what is lost run before them, one by one.
const atOnce = "4"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// guarded lets one port through a firewall.
const guarded = `
functions:
  fw: {image: firewall, on_fail: drop, config: {allow: [udp/9000]}}
chains:
  c: fw
policies:
  p: {from: alice, to: bob, match: [udp, icmp], chain: c}
`

func function(ctx context.Context, t *testing.T, r *rig.Rig, name string) api.Function {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", name); err != nil {
		t.Fatal(err)
	}
	return f
}

// kill ends a function's process and waits until the agent has started another.
func kill(ctx context.Context, t *testing.T, r *rig.Rig, name string) {
	t.Helper()
	before := function(ctx, t, r, name)
	if before.Status.PID <= 1 {
		t.Fatalf("%s has no process: %+v", name, before.Status)
	}
	if err := syscall.Kill(before.Status.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, name+" restarted", func() (bool, string) {
		f := function(ctx, t, r, name)
		return f.Status.Healthy && f.Status.PID != before.Status.PID && f.Status.PID > 1, fmt.Sprintf("%+v", f.Status)
	})
}

func events(ctx context.Context, t *testing.T, r *rig.Rig, reason, object string) []api.Event {
	t.Helper()
	var list struct {
		Items []api.Event `json:"items"`
	}
	if err := r.Get(ctx, &list, "events"); err != nil {
		t.Fatal(err)
	}
	var out []api.Event
	for _, e := range list.Items {
		if e.Reason == reason && e.Object == object {
			out = append(out, slices.Repeat([]api.Event{e}, max(e.Count, 1))...)
		}
	}
	return out
}

const rate = 2000 // datagrams a second

func run(t *testing.T, image, onFail string) rig.Outcome {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+`
functions:
  f: {image: `+image+`, on_fail: `+onFail+`}
  w: {image: wire}
chains:
  c: w | f
policies:
  p: {from: alice, to: bob, match: [udp, icmp], chain: c}
`)
	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, rate)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	kill(ctx, t, r, "f")
	if err := s.Await(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	o, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "events of death and recovery", func() (bool, string) {
		died, back := events(ctx, t, r, "FunctionDied", "f"), events(ctx, t, r, "FunctionRecovered", "f")
		return len(died) == 1 && len(back) == 1 && back[0].OutageNs > 0, fmt.Sprintf("%+v %+v", died, back)
	})
	if died := events(ctx, t, r, "FunctionDied", "f"); !strings.HasPrefix(died[0].Message, "process killed (signal 9); ") {
		t.Errorf("it died otherwise: %q", died[0].Message)
	}
	back := events(ctx, t, r, "FunctionRecovered", "f")
	fmt.Printf("%s killed, on_fail %s: longest gap in traffic %s, %d of %d datagrams lost, function back after %s\n",
		image, onFail, o.LongestGap.Round(10*time.Microsecond), o.Lost, o.Sent, time.Duration(back[0].OutageNs).Round(time.Millisecond))
	return o
}

func TestBypassGoesOn(t *testing.T) {
	for _, image := range []string{"wire", "firewall, config: {allow: [udp]}"} {
		t.Run(image[:4], func(t *testing.T) {
			// By what is lost, not by the longest gap: that has in it how long this test waited for a processor.
			if o := run(t, image, "bypass"); o.Lost > rate/10 || o.Duplicated > 0 {
				t.Errorf("%+v: want traffic to go on within 100 ms, nothing twice", o)
			}
		})
	}
}

// The function that dropped the forbidden port dies: nothing forbidden may pass meanwhile.
func TestDropLeaksNothing(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+guarded)
	allowed, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	forbidden, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9001, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := allowed.Await(ctx, 500); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		kill(ctx, t, r, "fw")
	}
	if err := allowed.Await(ctx, 500); err != nil {
		t.Fatal(err)
	}
	a, err := allowed.Stop()
	if err != nil {
		t.Fatal(err)
	}
	f, err := forbidden.Stop()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("firewall killed 5 times, on_fail drop: forbidden %d of %d passed; allowed: longest gap %s, %d of %d lost\n",
		f.Received, f.Sent, a.LongestGap.Round(time.Millisecond), a.Lost, a.Sent)
	if f.Received != 0 || f.Sent < 1000 {
		t.Errorf("%d of %d forbidden datagrams leaked", f.Received, f.Sent)
	}
	if a.Received == 0 {
		t.Error("no allowed datagram arrived at all")
	}
}

// What somebody deletes by hand is noticed, told, and made anew as soon as it can be.
func TestEndpointsThatSomebodyDeletesComeBack(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+guarded)
	endpoint := func(name string) (e api.Endpoint) {
		t.Helper()
		if err := r.Get(ctx, &e, "endpoint", name); err != nil {
			t.Fatal(err)
		}
		return e
	}
	told := func(name string) {
		t.Helper()
		rig.Eventually(ctx, t, name+" is back, and told", func() (bool, string) {
			e, lost, back := endpoint(name), events(ctx, t, r, "EndpointLost", name), events(ctx, t, r, "EndpointRecovered", name)
			// The outage is only known if the kernel told of the loss.
			return e.Status.State == "up" && len(lost) == 1 && len(back) == 1 && back[0].OutageNs > 0, fmt.Sprintf("%+v %+v %+v", e.Status, lost, back)
		})
		rig.Eventually(ctx, t, "traffic flows again", func() (bool, string) {
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 1000)
			if err != nil {
				t.Fatal(err)
			}
			waited := s.Await(ctx, 100)
			o, err := s.Stop()
			return waited == nil && err == nil && o.Received > 0, fmt.Sprintf("%+v %v", o, err)
		})
	}
	if _, err := r.Run(ctx, r.Alice(), "ip", "link", "del", "eth0"); err != nil {
		t.Fatal(err)
	}
	told("alice")
	if _, err := r.Run(ctx, "", "ip", "netns", "del", r.Bob()); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "bob's loss is told", func() (bool, string) {
		e, lost := endpoint("bob"), events(ctx, t, r, "EndpointLost", "bob")
		return e.Status.State == "error" && len(lost) == 1 && strings.Contains(lost[0].Message, r.Bob()), fmt.Sprintf("%+v %+v", e.Status, lost)
	})
	if _, err := r.Run(ctx, "", "ip", "netns", "add", r.Bob()); err != nil {
		t.Fatal(err)
	}
	told("bob")
}

// Who starts a function that cannot run is told so and why, however long he would wait.
func TestWhoStartsInVainIsToldWhy(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	for name, c := range map[string]struct {
		command []string
		says    []string
	}{
		"ends":    {[]string{"/bin/busybox", "sh", "-c", "echo no configuration; exit 3"}, []string{"process ended with exit code 3: no configuration, restarting", "weir function logs ends"}},
		"hungry":  {[]string{"/bin/busybox", "sh", "-c", "echo begins; x=a; while :; do x=$x$x; done"}, []string{"process out of memory (limit 16M), restarting"}},
		"missing": {[]string{"/no/such/program"}, []string{"/no/such/program", "not found in the image"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create := append([]string{"function", "create", name, "--image", "firewall", "--memory", "16M", "--wait=false", "--"}, c.command...)
			if _, err := r.Weir(ctx, create...); err != nil {
				t.Fatal(err)
			}
			for _, verb := range []string{"start", "stop", "start", "restart"} {
				_, err := r.Weir(ctx, "function", verb, name, "--timeout", "0")
				if verb == "stop" {
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				var exit *rig.ExitError
				if !errors.As(err, &exit) || exit.Code != command.ExitFailure {
					t.Fatalf("%s of %s: %v", verb, name, err)
				}
				for _, text := range append(c.says, verb+" function/"+name, string(api.OpFailedTemp)) {
					if !strings.Contains(exit.Stderr, text) {
						t.Errorf("%s of %s does not say %q: %s", verb, name, text, exit.Stderr)
					}
				}
			}
		})
	}
}

func TestDropDropsWhileDown(t *testing.T) {
	o := run(t, "wire", "drop")
	if o.Lost == 0 {
		t.Errorf("%+v: a dead function with on_fail drop should have cost something", o)
	}
	if o.Received == 0 {
		t.Errorf("%+v: nothing arrived", o)
	}
}
