package fabric

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// forbidden is how many datagrams each case counts at least: more with FRAMES=N.
func forbidden() int {
	if n, err := strconv.Atoi(os.Getenv("FRAMES")); err == nil && n > 0 {
		return n
	}
	return 2000
}

// A new policy that crosses hosts lets nothing past from the moment when apply returns, also with --wait=false: whatever is installed at hosts
// and switches until its chain works, and whether it ever does.
func TestANewPolicyAcrossHostsIsClosed(t *testing.T) {
	const (
		works  = "{image: firewall, host: HOST, on_fail: drop, config: {allow: [icmp]}}"
		never  = `{image: firewall, host: HOST, on_fail: drop, command: [/bin/busybox, sleep, "1000000"]}`
		oneWay = "match: [udp], symmetric: false, chain: c}"
	)
	for _, bed := range []struct {
		name, example, hosts, host string
		edit                       func(string) string
		endpoints                  func(b *bed) string
	}{
		{"agents joined by tunnels", "vxlan.yaml", "v1 v2", "h3", nil, func(b *bed) string {
			return fmt.Sprintf("  v1: {host: h1, netns: %s, interface: eth0, address: 10.0.0.1/24}\n  v2: {host: h2, netns: %s, interface: eth0, address: 10.0.0.2/24}\n", b.netns("v1"), b.netns("v2"))
		}},
		{"stations of OpenFlow switches", "fig2.yaml", "vm1 vm2", "nfv1", nil, func(*bed) string {
			return "  vm1: {address: 10.0.0.1/24}\n  vm2: {address: 10.0.0.2/24}\n"
		}},
	} {
		t.Run(bed.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, bed.example, bed.edit)
			from, to, _ := strings.Cut(bed.hosts, " ")
			objects := "endpoints:\n" + bed.endpoints(b)
			for i, c := range []struct{ name, function, policy string }{
				{"its function works", works, "{from: " + from + ", to: " + to + ", " + oneWay},
				{"its function works, from one endpoint", works, "{from: " + from + ", to: any, " + oneWay},
				{"its function works, to one endpoint", works, "{from: any, to: " + to + ", " + oneWay},
				{"its function works, no endpoint", works, "{from: 10.0.0.0/24, to: any, " + oneWay},
				{"its function never comes up", never, "{from: " + from + ", to: " + to + ", " + oneWay},
				{"its function never comes up, to one endpoint", never, "{from: any, to: " + to + ", " + oneWay},
				{"its function never comes up, no endpoint", never, "{from: 10.0.0.0/24, to: any, " + oneWay},
			} {
				before := objects + "functions:\n  fw: " + works + "\nchains:\n  c: fw\n"
				if c.function == never {
					before = objects
				}
				document := objects + "functions:\n  fw: " + c.function + "\nchains:\n  c: fw\npolicies:\n  p: " + c.policy + "\n"
				before, document = strings.ReplaceAll(before, "HOST", bed.host), strings.ReplaceAll(document, "HOST", bed.host)
				t.Run(c.name, func(t *testing.T) {
					b := b.in(t)
					b.apply(before, "--prune")
					b.reach(from, "10.0.0.2")
					s, err := rig.NewStream(b.netns(from), b.netns(to), "10.0.0.2", 9000, 4000)
					if err != nil {
						t.Fatal(err)
					}
					if err := s.Await(b.ctx, 200); err != nil {
						t.Fatal(err)
					}
					accepted := s.Sent()
					b.apply(document, "--wait=false")
					returned := s.Sent() + 1 // one may be on its way
					if err := s.Await(b.ctx, forbidden()); err != nil {
						t.Fatal(err)
					}
					o, err := s.Stop()
					if err != nil {
						t.Fatal(err)
					}
					early := s.LostOf(0, accepted)
					passed := o.Sent - returned - s.LostOf(returned, o.Sent)
					t.Logf("case %d: %d lost of %d before, %d passed while apply ran, %d of %d after it", i, early, accepted,
						returned-accepted-s.LostOf(accepted, returned), passed, o.Sent-returned)
					if early == accepted || passed > 0 {
						t.Errorf("%d of %d datagrams passed the new policy", passed, o.Sent-returned)
					}
				})
			}
		})
	}
}
