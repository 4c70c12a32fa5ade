package catalogue

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestExamplesOfREADMEs: what a reader copies from the READMEs of functions whose other tests here have documents of their own, between two stations, one after
// the other: each does what its README says.
func TestExamplesOfREADMEs(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	for _, x := range []struct {
		image string
		does  func(context.Context, *testing.T, *rig.Rig)
	}{
		{"wire", wires}, {"wire-bridge", wires}, {"wire-packet", wires}, {"firewall", allows}, {"monitor", tells},
		{"shaper", func(ctx context.Context, t *testing.T, r *rig.Rig) {
			within(ctx, t, r, "up", 10e6)
			within(ctx, t, r, "down", 50e6, "--reverse")
		}},
	} {
		t.Run(x.image, func(t *testing.T) {
			r.MustApply(ctx, t, r.Endpoints()+example(t, x.image), "--prune")
			x.does(ctx, t, r)
		})
	}
}

// wires: what passes goes through the function.
func wires(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	const pings = 50
	in, out := through(ctx, t, r, "w")
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, pings, "0.01"); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "the function's ports have counted the pings and their replies", func() (bool, string) {
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
func allows(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	for _, port := range []string{"80", "81", "8000", "8100", "8101"} {
		rig.Serve(t, r.Bob(), rig.BobAddr+":"+port, rig.Echo)
	}
	dial := func(port string, patience time.Duration) error {
		var c net.Conn
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := netns.Do(r.Alice(), func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp4", rig.BobAddr+":"+port)
			return err
		})
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, port := range []string{"80", "8000", "8100"} {
		if err := dial(port, 30*time.Second); err != nil {
			t.Errorf("port %s, which is allowed: %v", port, err)
		}
	}
	for _, port := range []string{"81", "8101"} {
		if dial(port, 500*time.Millisecond) == nil {
			t.Errorf("port %s answers, which is not allowed", port)
		}
	}
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.05"); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// tells: the flow of a ping is in the log.
func tells(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	rig.Eventually(ctx, t, "a flow of pings is logged", func() (bool, string) {
		if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 1, "0.1"); err != nil {
			t.Fatal(err)
		}
		out, err := r.Weir(ctx, "function", "logs", "mon")
		if err != nil {
			return false, err.Error()
		}
		for text := range strings.Lines(out) {
			var l struct{ Event, Proto, Src, Dst string }
			_, rest, found := strings.Cut(text, "{")
			if found && json.Unmarshal([]byte("{"+rest), &l) == nil && l.Event == "new" && l.Proto == "icmp" && l.Src == rig.AliceAddr && l.Dst == rig.BobAddr {
				return true, ""
			}
		}
		return false, out
	})
}
