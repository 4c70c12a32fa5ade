package catalogue

import (
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestABadLineInAChain: the policy of its README between two stations. Echo requests take as long as it says, by IPv4 and IPv6, datagrams that are not chosen
// do not wait, none is lost, a stream arrives whole and has the rate, and what the seed says is lost is lost, each time.
func TestABadLineInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := r.DualEndpoints() + example(t, "impair")
			r.MustApply(ctx, t, document)
			for _, addr := range []string{ipv4.bob, ipv6.bob} {
				rig.Eventually(ctx, t, "neighbours are known", func() (bool, string) {
					out, err := r.Run(ctx, r.Alice(), "ping", "-c", "1", "-W", "1", addr)
					return err == nil, out
				})
				out, _ := r.Run(ctx, r.Alice(), "ping", "-c", "10", "-i", "0.1", "-W", "2", addr)
				_, times, ok := strings.Cut(out, "rtt min/avg/max/mdev = ")
				var least float64
				if _, err := fmt.Sscanf(times, "%f/", &least); !ok || err != nil || least < 35 {
					t.Errorf("%s: round trips: want at least 35 ms:\n%s", addr, out)
				}
			}
			counting(func() {
				s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 500) // not chosen
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Await(ctx, 500); err != nil {
					t.Fatal(err)
				}
				if o, err := s.Stop(); err != nil || o.Lost > 0 {
					t.Errorf("datagrams that are not chosen: %+v, %v", o, err)
				}
			})
			rate, least, err := r.Limited(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 3, "--reverse")
			if err != nil || least > 21e6 || rate < 1e6 {
				t.Errorf("%.3g bit/s down, %.3g in the whole time, %v: want at most 20 Mbit/s", rate, least, err)
			}
			lossy := r.DualEndpoints() + "functions:\n  bad-line: {image: impair, config: {seed: %d, up: {loss: 50%%}, match: [udp/7000]}}\nchains: {line: bad-line}\npolicies:\n  worse: {from: alice, to: bob, match: [all], chain: line}\n"
			var fates [3][]int
			for i, seed := range []int{3, 3, 4} {
				if i > 0 { // a new instance counts anew
					r.MustApply(ctx, t, document)
				}
				r.MustApply(ctx, t, fmt.Sprintf(lossy, seed))
				counting(func() {
					s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 500)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Await(ctx, 400); err != nil {
						t.Fatal(err)
					}
					if _, err := s.Stop(); err != nil {
						t.Fatal(err)
					}
					for n := range 300 {
						fates[i] = append(fates[i], s.LostOf(n, n+1))
					}
				})
			}
			if fmt.Sprint(fates[0]) != fmt.Sprint(fates[1]) || fmt.Sprint(fates[0]) == fmt.Sprint(fates[2]) {
				t.Errorf("what is lost does not follow from the seed:\n%v\n%v\n%v", fates[0], fates[1], fates[2])
			}
			var f api.Function
			if err := r.Get(ctx, &f, "function", "bad-line"); err != nil || f.Status.Restarts != 0 || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v: a bad line looked like a failure", f.Status, err)
			}
		})
	}
}
