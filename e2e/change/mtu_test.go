package change

import (
	"fmt"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

const wide = `
functions:
  fw: {image: firewall, config: {allow: [all]}}
  w: {image: wire}
  mon: {image: monitor}
chains:
  c: fw | w | tap:mon
policies:
  p: {from: alice, to: bob, chain: c}
`

// Functions' ports carry what endpoints send: frames of 9,000 bytes, whole and unfinished ones, through a firewall, a wire and a tap. When a
// larger endpoint comes, the ports of functions that run grow without losing a frame.
func TestFunctionsCarryLargeFrames(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			carol := r.Name + "-carol"
			if err := r.Namespace(carol); err != nil {
				t.Fatal(err)
			}
			endpoints := func(mtu int) string {
				d := r.Endpoints() + "  carol: {netns: " + carol + ", interface: eth0, address: 10.9.0.3/24}\n"
				return strings.Replace(d, "/24}", fmt.Sprintf("/24, mtu: %d}", mtu), 2) // alice and bob
			}
			r.MustApply(ctx, t, endpoints(1500)+wide)
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Await(ctx, 300); err != nil {
				t.Fatal(err)
			}
			mtus := func() (all []string) {
				for name, links := range map[string][]string{"fw": {"in", "out"}, "w": {"in", "out"}, "mon": {"tap"}} {
					var f api.Function
					if err := r.Get(ctx, &f, "function", name); err != nil {
						t.Fatal(err)
					}
					for _, link := range links {
						out, err := r.Run(ctx, fmt.Sprintf("/proc/%d/ns/net", f.Status.PID), "ip", "-o", "link", "show", link)
						if err != nil {
							t.Fatal(err)
						}
						_, rest, _ := strings.Cut(out, " mtu ")
						all = append(all, strings.Fields(rest)[0])
					}
				}
				return all
			}
			// carol's link becomes larger; those that the stream uses stay as they are.
			r.MustApply(ctx, t, strings.Replace(endpoints(1500), "10.9.0.3/24}", "10.9.0.3/24, mtu: 9000}", 1)+wide)
			rig.Eventually(ctx, t, "the functions' ports carry 9000", func() (bool, string) {
				all := mtus()
				return strings.Count(strings.Join(all, " "), "9000") == len(all), fmt.Sprint(all)
			})
			if err := s.Await(ctx, 300); err != nil {
				t.Fatal(err)
			}
			if o, err := s.Stop(); err != nil || o.Lost > 0 || o.Sent < 600 {
				t.Errorf("while the ports grew: %+v, %v", o, err)
			}
			r.MustApply(ctx, t, endpoints(9000)+wide)
			var mon api.Function
			if err := r.Get(ctx, &mon, "function", "mon"); err != nil {
				t.Fatal(err)
			}
			tap, err := rig.Listen(fmt.Sprintf("/proc/%d/ns/net", mon.Status.PID), "tap")
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range []string{"1400", "1472", "1473", "1477", "1500", "4000", "8972"} {
				if out, err := r.Run(ctx, r.Alice(), "ping", "-n", "-q", "-c", "5", "-i", "0.02", "-W", "2", "-M", "do", "-s", size, rig.BobAddr); err != nil || !strings.Contains(out, " 5 received") {
					t.Errorf("%s bytes: %v\n%s", size, err, out)
				}
			}
			rig.Eventually(ctx, t, "the tap got all large frames", func() (bool, string) { // the last may not be read yet
				large := 0
				for _, f := range tap.Seen() {
					if len(f.Data) >= 9000 {
						large++
					}
				}
				return large >= 10, fmt.Sprintf("%d of 10, requests and replies", large)
			})
			tap.Close()
			if bits, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 1); err != nil || bits < 1e7 {
				t.Errorf("a TCP stream: %.0f bit/s, %v", bits, err)
			}
		})
	}
}
