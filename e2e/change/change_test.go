// Package change: what is in force changes while traffic flows, and nothing slips past a function meanwhile.
package change

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

const guarded = `
functions:
  fw: {image: firewall, config: {allow: [udp/9000, icmp]}}
  w1: {image: wire}
  w2: {image: wire}
`

// never is a function that is never up: its process ends at once.
const never = "  bad: {image: firewall, command: [/bin/busybox, 'false'], config: {allow: [udp/9000, icmp]}}\n"

// leaks sends to a port that the firewall forbids and one that it allows, and counts what arrives.
func leaks(ctx context.Context, t *testing.T, r *rig.Rig, change func()) (forbidden, allowed rig.Outcome) {
	t.Helper()
	bad, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9001, 1000)
	if err != nil {
		t.Fatal(err)
	}
	good, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Await(ctx, 300); err != nil {
		t.Fatal(err)
	}
	change()
	if err := bad.Await(ctx, 700); err != nil {
		t.Fatal(err)
	}
	if forbidden, err = bad.Stop(); err != nil {
		t.Fatal(err)
	}
	if allowed, err = good.Stop(); err != nil {
		t.Fatal(err)
	}
	return forbidden, allowed
}

func TestLiveChangesLoseAndLeakNothing(t *testing.T) {
	policy := "policies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: %s}\n"
	for _, c := range []struct{ name, before, after string }{
		{"a wire is inserted", "chains:\n  c: fw\n" + fmt.Sprintf(policy, "c"), "chains:\n  c: w1 | fw\n" + fmt.Sprintf(policy, "c")},
		{"a wire is removed", "chains:\n  c: w1 | fw | w2\n" + fmt.Sprintf(policy, "c"), "chains:\n  c: fw | w2\n" + fmt.Sprintf(policy, "c")},
		{"functions change places", "chains:\n  c: w1 | fw\n" + fmt.Sprintf(policy, "c"), "chains:\n  c: fw | w1\n" + fmt.Sprintf(policy, "c")},
		{"the policy moves to a new chain", "chains:\n  c: w1 | fw\n" + fmt.Sprintf(policy, "c"), "chains:\n  d: fw | w2\n" + fmt.Sprintf(policy, "d")},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{})
			r.MustApply(ctx, t, r.Endpoints()+guarded+c.before)
			forbidden, allowed := leaks(ctx, t, r, func() { r.MustApply(ctx, t, r.Endpoints()+guarded+c.after, "--prune") })
			if forbidden.Received != 0 {
				t.Errorf("%d of %d forbidden datagrams passed", forbidden.Received, forbidden.Sent)
			}
			if allowed.Lost != 0 || allowed.Duplicated != 0 {
				t.Errorf("allowed traffic: %+v, want nothing lost or twice", allowed)
			}
			fmt.Printf("%s: 0 of %d forbidden passed; allowed: %d sent, %d lost, longest gap %s\n", c.name, forbidden.Sent, allowed.Sent, allowed.Lost, allowed.LongestGap)
		})
	}
}

// What replaces the chain never gets ready: the former one has to stay.
func TestAChainThatIsNeverReadyChangesNothing(t *testing.T) {
	for _, c := range []struct{ name, before, after string }{
		{"the policy moves to a new chain", "chains:\n  c: w1 | fw\npolicies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: c}\n",
			never + "chains:\n  d: fw | bad\npolicies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: d}\n"},
		{"a function moves to another chain", "chains:\n  c: w1 | fw\n  d: w2\npolicies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: c}\n  q: {from: bob, to: alice, match: [tcp], chain: d}\n",
			never + "chains:\n  c: fw | bad\n  d: w2 | w1\npolicies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: c}\n  q: {from: bob, to: alice, match: [tcp], chain: d}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{})
			r.MustApply(ctx, t, r.Endpoints()+guarded+c.before)
			forbidden, allowed := leaks(ctx, t, r, func() {
				if _, err := r.Apply(ctx, r.Endpoints()+guarded+c.after, "--prune", "--timeout", "2s"); err == nil {
					t.Error("apply says that a chain with a dead function is ready")
				}
			})
			if forbidden.Received != 0 || allowed.Lost != 0 {
				t.Errorf("forbidden: %d of %d passed; allowed: %d lost", forbidden.Received, forbidden.Sent, allowed.Lost)
			}
		})
	}
}

func TestAnEndpointDeletedUnderADyingDaemonIsTakenDown(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	for _, line := range []string{"ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up"} {
		if _, err := r.Run(ctx, "", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 30 * time.Millisecond} {
		r.MustApply(ctx, t, r.Endpoints()+"  uplink: {interface: up0}\n")
		if _, err := r.Apply(ctx, r.Endpoints(), "--prune", "--wait=false"); err != nil {
			t.Fatal(err)
		}
		<-time.After(after) // the moment to die is the point
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(ctx, t, "up0 is nobody's port", func() (bool, string) {
			out, err := r.Run(ctx, "", "ip", "-o", "link", "show", "up0")
			return err == nil && !strings.Contains(out, "master"), out
		})
	}
}

func TestANameIsUsedAgainAtOnce(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, "functions:\n  x: {image: wire}\n")
	images := []string{"wire", "monitor"}
	for i := range 10 {
		if _, err := r.Weir(ctx, "delete", "function", "x", "--wait=false"); err != nil {
			t.Fatal(err)
		}
		r.MustApply(ctx, t, "functions:\n  x: {image: "+images[i%2]+"}\n")
		sock := filepath.Join("/run/weir", r.Name, "functions", "x", "run", "events.sock")
		if _, err := os.Stat(sock); err != nil {
			t.Fatalf("life %d: %v", i, err)
		}
	}
	// An image of the other kind under the same name: other ports, the same socket.
	r.MustApply(ctx, t, "functions:\n  x: {image: wire}\n")
	if _, err := os.Stat(filepath.Join("/run/weir", r.Name, "functions", "x", "run", "events.sock")); err != nil {
		t.Error(err)
	}
}

// A function's configuration may hold secrets, and any user of its container may raise events: other users of the machine can do neither.
func TestOtherUsersReachNothingOfAFunction(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, "functions:\n  fw: {image: firewall, config: {allow: [tcp/80]}}\n")
	for _, path := range []string{"etc/config.json", "run/events.sock"} {
		path = filepath.Join("/run/weir", r.Name, "functions", "fw", path)
		for uid, reached := range map[uint32]bool{0: true, 65534: false} {
			c := exec.CommandContext(ctx, "stat", path)
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			if out, err := c.CombinedOutput(); (err == nil) != reached {
				t.Errorf("%s, user %d: %v\n%s", path, uid, err, out)
			}
		}
	}
}

func TestLinksThatSomebodyDeletesComeBack(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+"functions:\n  w: {image: wire}\n  mon: {image: monitor}\nchains:\n  c: w | tap:mon\npolicies:\n  p: {from: alice, to: bob, chain: c}\n")
	var c api.Counters
	if err := r.Get(ctx, &c, "counters"); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Ports {
		if p.Name == "function/mon/tap" || p.Name == "function/w/in" {
			if _, err := r.Run(ctx, "", "ip", "link", "del", p.Link); err != nil {
				t.Fatal(err)
			}
		}
	}
	rig.Eventually(ctx, t, "both functions are back and traffic passes", func() (bool, string) {
		for _, name := range []string{"w", "mon"} {
			var f api.Function
			if err := r.Get(ctx, &f, "function", name); err != nil || !f.Status.Healthy || name == "mon" && f.Status.Restarts == 0 {
				return false, fmt.Sprintf("%s: %+v %v", name, f.Status, err)
			}
		}
		_, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 2, "0.02")
		return err == nil, fmt.Sprint(err)
	})
}

func TestAConfigThatCannotBeWrittenIsNotCalledReady(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, "functions:\n  fw: {image: firewall, config: {allow: [udp/1]}}\n")
	block := filepath.Join("/run/weir", r.Name, "functions", "fw", "etc", "config.json.new")
	if err := os.Mkdir(block, 0o755); err != nil { // stands for a disk that refuses
		t.Fatal(err)
	}
	out, err := r.Apply(ctx, "functions:\n  fw: {image: firewall, config: {allow: [udp/2]}}\n", "--timeout", "3s")
	if err == nil {
		t.Fatalf("apply says ready:\n%s", out)
	}
	if !strings.Contains(err.Error(), "config.json.new") {
		t.Errorf("the reason is not told: %v", err)
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, "functions:\n  fw: {image: firewall, config: {allow: [udp/2]}}\n")
}
