package change

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// counted sends 5,000 datagrams a direction and as many that the firewall forbids, while functions change.
func counted(ctx context.Context, t *testing.T, r *rig.Rig, change func()) (there, back, forbidden rig.Outcome) {
	t.Helper()
	var streams []*rig.Stream
	for _, x := range []struct {
		from, to, addr string
		port           int
	}{{r.Alice(), r.Bob(), rig.BobAddr, 9000}, {r.Bob(), r.Alice(), rig.AliceAddr, 9000}, {r.Alice(), r.Bob(), rig.BobAddr, 9001}} {
		s, err := rig.NewStream(x.from, x.to, x.addr, x.port, 1000)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	if err := streams[0].Await(ctx, 300); err != nil {
		t.Fatal(err)
	}
	change()
	for streams[0].Sent() < 5000 || streams[1].Sent() < 5000 {
		if err := streams[1].Await(ctx, 100); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]rig.Outcome, len(streams))
	for i, s := range streams {
		o, err := s.Stop()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = o
	}
	return out[0], out[1], out[2]
}

// A planned change of a function makes the new instance beside the one in force and moves over: nothing is lost, nothing comes twice, nothing forbidden
// passes, whatever on_fail says.
func TestPlannedChangesLoseNothing(t *testing.T) {
	document := func(r *rig.Rig, wire, firewall, config string) string {
		return r.Endpoints() + `
functions:
  w: {image: wire` + wire + `}
  fw: {image: firewall, on_fail: bypass` + firewall + `, config: {default: accept, deny: [udp/9001` + config + `]}}
chains:
  c: w | fw
policies:
  p: {from: alice, to: bob, match: [udp], chain: c}
`
	}
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			r.MustApply(ctx, t, document(r, "", "", ", udp/9002"))
			for _, c := range []struct {
				name   string
				change func()
			}{
				{"environment and limits of both", func() {
					r.MustApply(ctx, t, document(r, ", env: {A: b}", ", memory: 128M", ", udp/9002"))
				}},
				{"restart", func() {
					for _, f := range []string{"fw", "w"} {
						if _, err := r.Weir(ctx, "function", "restart", f); err != nil {
							t.Fatal(err)
						}
					}
				}},
			} {
				before := pids(ctx, t, r)
				there, back, forbidden := counted(ctx, t, r, c.change)
				fmt.Printf("%s, %s: there %d sent, %d lost, %d twice; back %d, %d, %d; forbidden %d sent, %d passed\n", sw, c.name,
					there.Sent, there.Lost, there.Duplicated, back.Sent, back.Lost, back.Duplicated, forbidden.Sent, forbidden.Received)
				if there.Lost+there.Duplicated+back.Lost+back.Duplicated+forbidden.Received > 0 {
					t.Errorf("%s: there %+v, back %+v, forbidden %+v", c.name, there, back, forbidden)
				}
				if after := pids(ctx, t, r); after["fw"] == before["fw"] {
					t.Errorf("%s: the firewall was not made anew: pids %v, then %v", c.name, before, after)
				}
			}
			// One instance is left of each, under the names of before.
			rig.Eventually(ctx, t, "one instance of each", func() (bool, string) {
				boxes, err := filepath.Glob(filepath.Join("/run/weir", r.Name, "sandboxes", "*.*"))
				return err == nil && len(boxes) == 2, fmt.Sprint(boxes, err)
			})
			var counters api.Counters
			if err := r.Get(ctx, &counters, "counters"); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range counters.Ports {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != "endpoint/alice endpoint/bob function/fw/in function/fw/out function/w/in function/w/out" {
				t.Errorf("ports: %s", got)
			}
		})
	}
}

func pids(ctx context.Context, t *testing.T, r *rig.Rig) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, name := range []string{"fw", "w"} {
		var f api.Function
		if err := r.Get(ctx, &f, "function", name); err != nil {
			t.Fatal(err)
		}
		out[name] = f.Status.PID
	}
	return out
}

// A change that does not come up leaves what is in force as it is, and says so.
func TestAChangeThatDoesNotComeUpChangesNothing(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	document := func(command string) string {
		return r.Endpoints() + "functions:\n  w: {image: wire}\n  fw: {image: firewall, on_fail: bypass" + command + ", config: {default: accept, deny: [udp/9001]}}\n" +
			"chains:\n  c: w | fw\npolicies:\n  p: {from: alice, to: bob, match: [udp], chain: c}\n"
	}
	r.MustApply(ctx, t, document(""))
	before := pids(ctx, t, r)
	there, back, forbidden := counted(ctx, t, r, func() {
		_, err := r.Apply(ctx, document(", command: [/bin/busybox, sh, -c, 'echo no rules; exit 3']"), "--timeout", "3s")
		if err == nil || !strings.Contains(err.Error(), "the former instance goes on: process ended with exit code 3: no rules") {
			t.Errorf("apply: %v", err)
		}
	})
	if there.Lost+there.Duplicated+back.Lost+back.Duplicated+forbidden.Received > 0 {
		t.Errorf("there %+v, back %+v, forbidden %+v", there, back, forbidden)
	}
	if after := pids(ctx, t, r); after["fw"] != before["fw"] {
		t.Errorf("the firewall is another process: %v, then %v", before, after)
	}
	r.MustApply(ctx, t, document(""))
}
