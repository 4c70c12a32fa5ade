package fabric

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// drained: two stations, each at a host of its own, and functions that begin on h1. %s is the pin of one of them.
const drained = `
endpoints:
  v1: {host: h1, netns: %[1]s/v1, interface: eth0, address: 10.0.0.1/24}
  v2: {host: h2, netns: %[1]s/v2, interface: eth0, address: 10.0.0.2/24}
functions:
  first: {image: wire}
  second: {image: wire}
  large: {image: wire, cpus: "2"}
  fixed: {image: wire%[2]s}
chains:
  both: first | second
  alone: fixed
policies:
  datagrams: {from: v1, to: v2, match: [udp, icmp], chain: both}
  web: {from: v1, to: v2, match: [tcp/80], chain: alone}
`

// A host is drained under a counted stream: functions that another host can have go there, and nothing is lost. If the manager is killed meanwhile, the
// drain goes on when it is back; a router that starts does not know the former way of functions that are moving, and the policy is closed until they are
// up. Those that no other host can have stay, with the reason, until that changes. Nothing new is placed on the host until the drain is taken back.
func TestADrainedHostLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", func(text string) string { return strings.Replace(text, "  h3: {}\n", "", 1) })
	document := func(pin string) string { return fmt.Sprintf(drained, "/run/weir-testbed/"+b.name+"/netns", pin) }
	b.must("host", "set", "h1", "--cpus", "8")
	b.must("host", "set", "h2", "--cpus", "1")
	b.must("host", "close", "h2") // all begin on h1
	b.apply(document(", host: h1"))
	b.must("host", "open", "h2")
	b.reach("v1", "10.0.0.2")

	// A plan changes nothing.
	plan := b.must("host", "drain", "h1", "--dry-run")
	for _, want := range []string{
		"function/first (chain both) would move from h1 to h2: h1 is being drained; most-available: ", "function/second (chain both) would move from h1 to h2: ",
		"function/fixed stays: h1 is being drained; pinned by spec.host",
		"function/large stays: h1 is being drained; no host: h1 is being drained (spec.drain); h2 has 1 of 1 cores left, and 2 are asked for",
		"endpoint/v1 stays: ", "policies concerned: datagrams\n",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	if h := b.host("h1"); h.Spec.Drain || h.Status.Drain != nil || b.hostOf("first") != "h1" {
		t.Errorf("a plan has changed something: %+v, first is on %s", h.Spec, b.hostOf("first"))
	}

	// Each measurement moves both functions from the host where they are to the other one.
	from, to := "h1", "h2"
	o := b.exact(func() rig.Outcome {
		o := b.draining(from, to, false)
		from, to = to, from
		return o
	})
	if o.Lost+o.Duplicated > 0 {
		t.Errorf("lost %d and duplicated %d of %d", o.Lost, o.Duplicated, o.Sent)
	}
	if o := b.draining(from, to, true); o.Duplicated > 0 {
		t.Errorf("duplicated %d of %d", o.Duplicated, o.Sent)
	}
	b.must("host", "undrain", "h2") // an even number of measurements has brought them back to h1
	b.must("host", "drain", "h1", "--wait=false")
	b.left("h1", 2)

	// Who stays says why, also after the manager's death.
	for name, want := range map[string]string{"fixed": "pinned by spec.host", "large": "h2 has 1 of 1 cores left"} {
		if f := b.placedFunction(name); f.At() != "h1" || !strings.Contains(f.Placement.Stays, want) {
			t.Errorf("%s is at %s and says %q, want %q", name, f.At(), f.Placement.Stays, want)
		}
	}
	if _, err := b.weir("host", "drain", "h1"); err == nil || !strings.Contains(err.Error(), "host h1 is not empty: functions that no other host can have: 2") {
		t.Errorf("a drain that comes to nothing says %v", err)
	}
	if c := b.host("h1").Status.Conditions.Get(api.ConditionDraining); c == nil || c.Reason != api.ReasonStays {
		t.Errorf("the host says %+v", c)
	}

	// Nothing new comes; what stayed goes as soon as it can.
	b.apply("functions:\n  later: {image: wire}\n")
	if at := b.hostOf("later"); at != "h2" {
		t.Errorf("a new function is placed on %s, h1 is being drained", at)
	}
	b.must("host", "set", "h2", "--cpus", "8")
	b.apply(document(""))
	if out := b.must("host", "drain", "h1"); !strings.Contains(out, "h1 is drained\n") {
		t.Errorf("the drain ends with %q", out)
	}
	for _, name := range []string{"first", "second", "large", "fixed"} {
		if _, err := os.Stat(b.function("h1", name)); !os.IsNotExist(err) {
			t.Errorf("%s is still on h1: %v", name, err)
		}
	}
	if n := b.raised("HostDrained"); n == 0 {
		t.Error("no event says that h1 is drained")
	}
	b.reach("v1", "10.0.0.2")

	// Taken back: h1 takes functions again, and none goes back by itself.
	b.must("host", "undrain", "h1")
	if h := b.host("h1"); h.Spec.Drain || h.Status.Drain != nil || h.Status.Conditions.Get(api.ConditionDraining) != nil {
		t.Errorf("after undrain: %+v, %+v, %+v", h.Spec, h.Status.Drain, h.Status.Conditions)
	}
	if at := b.hostOf("first"); at != "h2" {
		t.Errorf("first has gone back to %s", at)
	}
}

// draining drains a host under a stream, and kills the manager meanwhile if asked to.
func (b *bed) draining(from, to string, kill bool) rig.Outcome {
	b.t.Helper()
	b.must("host", "undrain", to)
	s, err := rig.NewStream(b.netns("v1"), b.netns("v2"), "10.0.0.2", streamPort, streamRate)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}
	b.must("host", "drain", from, "--wait=false")
	if kill {
		b.kill("manager")
		if err := s.Await(b.ctx, streamRate/4); err != nil {
			b.t.Fatal(err)
		}
		b.again()
	}
	b.await("both functions are up on "+to+" and have left "+from, func() (bool, string) {
		for _, name := range []string{"first", "second"} {
			f := b.placedFunction(name)
			_, err := os.Stat(b.function(from, name))
			if !f.Status.Healthy || f.Status.Host != to || !os.IsNotExist(err) {
				return false, fmt.Sprintf("%s is at %s, %s: %s; at the former host: %v", name, f.At(), f.Status.State, f.Status.Message, err)
			}
		}
		return true, ""
	})
	if err := s.Await(b.ctx, streamRate/4); err != nil {
		b.t.Fatal(err)
	}
	o, err := s.Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("drained %s: %s", from, outage(o))
	return o
}

// left waits until nothing is leaving a host that is being drained and as many functions stay.
func (b *bed) left(host string, stay int) {
	b.t.Helper()
	b.await("what can leave "+host+" has left", func() (bool, string) {
		d := b.host(host).Status.Drain
		return d != nil && d.Leaving == 0 && d.Stays == stay, fmt.Sprintf("%+v", d)
	})
}

func (b *bed) host(name string) api.Host {
	b.t.Helper()
	h, err := b.client.Hosts().Get(b.ctx, name)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

// raised counts the events of a reason.
func (b *bed) raised(reason string) (n int) {
	b.t.Helper()
	for _, e := range b.events() {
		if e.Reason == reason {
			n++
		}
	}
	return n
}
