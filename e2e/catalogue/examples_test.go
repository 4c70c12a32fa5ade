package catalogue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestExamplesOfREADMEs: what a reader copies from the READMEs of functions whose other tests here have documents of their own, between two stations, one after
// the other, on both switches: each does what its README says, by IPv4 and IPv6.
func TestExamplesOfREADMEs(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			for _, x := range []struct {
				image string
				does  func(context.Context, *testing.T, *rig.Rig, family)
			}{
				{"wire", wires}, {"wire-bridge", wires}, {"wire-packet", wires}, {"wire-xdp", wires}, {"firewall", allows}, {"monitor", tells}, {"shaper", bounds},
			} {
				t.Run(x.image, func(t *testing.T) {
					r.MustApply(ctx, t, r.DualEndpoints()+example(t, x.image), "--prune")
					for _, f := range families {
						x.does(ctx, t, r, f)
					}
				})
			}
		})
	}
}

// bounds: both directions are as slow as the example says. Each is measured by one family here: TestAShaperInAChain has both of both.
func bounds(ctx context.Context, t *testing.T, r *rig.Rig, f family) {
	t.Helper()
	if f == ipv4 {
		within(ctx, t, r, f, "up", 10e6)
		return
	}
	within(ctx, t, r, f, "down", 50e6, "--reverse")
}

// wires: what passes goes through the function.
func wires(ctx context.Context, t *testing.T, r *rig.Rig, f family) {
	t.Helper()
	const pings = 50
	in, out := through(ctx, t, r, "w")
	if _, err := r.Ping(ctx, r.Alice(), f.bob, pings, "0.01"); err != nil {
		t.Fatal(f.name, err)
	}
	rig.Eventually(ctx, t, f.name+": the function's ports have counted the pings and their replies", func() (bool, string) {
		laterIn, laterOut := through(ctx, t, r, "w")
		return laterIn-in >= pings && laterOut-out >= pings, ""
	})
}

// through is how many packets the switch gave to a function's ports, the fewest of both, and how many it got from there.
func through(ctx context.Context, t *testing.T, r *rig.Rig, name string) (given, got uint64) {
	t.Helper()
	var all api.Counters
	if err := r.Get(ctx, &all, "ports"); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, p := range all.Ports {
		if strings.HasPrefix(p.Name, "function/"+name+"/") {
			if seen++; seen == 1 {
				given, got = p.Tx.Packets, p.Rx.Packets
			}
			given, got = min(given, p.Tx.Packets), min(got, p.Rx.Packets)
		}
	}
	if seen != 2 {
		t.Fatalf("%d ports of function %s: %+v", seen, name, all)
	}
	return given, got
}

// allows: the services that are named, and pings; nothing else.
func allows(ctx context.Context, t *testing.T, r *rig.Rig, f family) {
	t.Helper()
	for _, port := range []string{"80", "81", "8000", "8100", "8101"} {
		rig.Serve(t, r.Bob(), net.JoinHostPort(f.bob, port), rig.Echo)
	}
	dial := func(port string, patience time.Duration) error {
		var c net.Conn
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := netns.Do(r.Alice(), func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(f.bob, port))
			return err
		})
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, port := range []string{"80", "8000", "8100"} {
		if err := dial(port, 30*time.Second); err != nil {
			t.Errorf("%s: port %s, which is allowed: %v", f.name, port, err)
		}
	}
	for _, port := range []string{"81", "8101"} {
		if dial(port, 500*time.Millisecond) == nil {
			t.Errorf("%s: port %s answers, which is not allowed", f.name, port)
		}
	}
	rig.Eventually(ctx, t, f.name+": a datagram to a port that is allowed arrives", func() (bool, string) {
		at := net.JoinHostPort(f.bob, "53")
		from, err := sentOn(ctx, r, at, at)
		return strings.Contains(from, f.alice), fmt.Sprint(from, err)
	})
	at := net.JoinHostPort(f.bob, "54")
	if from, err := sentOn(ctx, r, at, at); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: a datagram to a port that is not allowed: it arrives from %q, %v", f.name, from, err)
	}
	if _, err := r.Ping(ctx, r.Alice(), f.bob, 3, "0.05"); err != nil {
		t.Errorf("%s: ping: %v", f.name, err)
	}
}

// tells: the flow of a ping is in the log.
func tells(ctx context.Context, t *testing.T, r *rig.Rig, f family) {
	t.Helper()
	rig.Eventually(ctx, t, f.name+": a flow of pings is logged", func() (bool, string) {
		if _, err := r.Ping(ctx, r.Alice(), f.bob, 1, "0.1"); err != nil {
			t.Fatal(err)
		}
		out, err := r.Weir(ctx, "function", "logs", "mon")
		if err != nil {
			return false, err.Error()
		}
		for text := range strings.Lines(out) {
			var l struct{ Event, Proto, Src, Dst string }
			_, rest, found := strings.Cut(text, "{")
			if found && json.Unmarshal([]byte("{"+rest), &l) == nil && l.Event == "new" && f.pinged(l.Proto, l.Src, l.Dst) {
				return true, ""
			}
		}
		return false, out
	})
}
