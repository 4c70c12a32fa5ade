// Package down: what Weir made goes, what was there stays, whenever it was killed.
package down

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
)

const functions = `
functions:
  fw: {image: firewall, config: {allow: [udp, tcp, icmp]}, cpus: "0.5", memory: 64M}
  w1: {image: wire}
  mon: {image: monitor}
chains:
  web: fw | w1 | tap:mon
policies:
  guests: {from: alice, to: bob, match: [udp, tcp, icmp], chain: web}
`

// foreign is somebody else's work in the same namespace: none of it may change.
func foreign(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	for _, line := range []string{
		"sysctl -qw net.ipv6.conf.default.disable_ipv6=1", // addresses that come by themselves would differ
		"ip link add br-foreign type bridge", "ip link add f0 type veth peer name f1", "ip link set f0 master br-foreign",
		"ip link set f0 up", "ip addr add 192.0.2.1/24 dev f1", "ip link set f1 up",
		"tc qdisc add dev f0 clsact", "nft add table inet foreign",
		"nft add chain inet foreign c { type filter hook forward priority 0 ; }", "nft add rule inet foreign c counter accept",
		"ip link add uplink type veth peer name uplink-far", "ip link set uplink up", "ip link set uplink-far up",
	} {
		if _, err := r.Run(ctx, "", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDownLeavesTheMachineAsItWas(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	foreign(ctx, t, r)
	spaces := []string{r.Netns, r.Alice(), r.Bob()}
	before, err := rig.Snapshot(ctx, spaces...)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	uplink := "  up: {interface: uplink}\n"
	r.MustApply(ctx, t, r.Endpoints()+uplink+functions)
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Fatal(err)
	}
	during, err := rig.Snapshot(ctx, spaces...)
	if err != nil {
		t.Fatal(err)
	}
	if len(rig.Diff(before, during)) < 10 {
		t.Fatal("a running Weir should show in the snapshot; the comparison proves nothing")
	}
	for _, l := range rig.Diff(before, during) {
		if strings.Contains(l, "foreign") {
			t.Errorf("a running Weir touches what is not its own: %s", l)
		}
	}
	// Where nobody can be asked, nothing is erased without --yes, and the message counts what there is to lose.
	ask := r.Command(ctx, "", r.Bin, "down")
	ask.Env = append(r.Env(), "WEIR_YES=false")
	if out, err := ask.CombinedOutput(); ask.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "weir down erases 3 endpoints, 3 functions, 1 chain, 1 policy: the state in "+r.Root) ||
		!strings.Contains(string(out), "add --yes") {
		t.Errorf("weir down without --yes: %v\n%s", err, out)
	}
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	waits, watches := waiting(ctx, t, r), []func(string){watching(ctx, t, r, "get", "functions", "-w"), watching(ctx, t, r, "events", "-f")}
	if _, err := r.Weir(ctx, "down"); err != nil {
		t.Fatal(err)
	}
	expect(ctx, t, before, spaces)
	waits("function/never")
	for _, ends := range watches {
		ends("waited 5s for it")
	}
}

// waiting is a command that waits for what will never be; the returned function expects that it ends because the daemon has, and says a text.
func waiting(ctx context.Context, t *testing.T, r *rig.Rig) func(says string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "never.yaml")
	if err := os.WriteFile(file, []byte("functions: {never: {image: firewall, command: [/bin/busybox, 'false']}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return goingOn(ctx, t, r, "applied: 1 created", "apply", "-f", file, "--timeout", "0")
}

// watching is waiting for a command that goes on for ever.
func watching(ctx context.Context, t *testing.T, r *rig.Rig, args ...string) func(says string) {
	t.Helper()
	return goingOn(ctx, t, r, "", args...)
}

// goingOn starts a command and waits for a line of its output that begins with a text.
func goingOn(ctx context.Context, t *testing.T, r *rig.Rig, first string, args ...string) func(says string) {
	t.Helper()
	c := r.Command(ctx, "", append([]string{r.Bin}, args...)...)
	c.Env = r.Env()
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	for line, begun := "", false; !begun; begun = strings.HasPrefix(line, first) {
		if line, err = said.ReadString('\n'); err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
	}
	return func(says string) {
		t.Helper()
		_, _ = io.Copy(io.Discard, said)
		_ = c.Wait() // its exit code is looked at
		text := errs.String()
		if code := c.ProcessState.ExitCode(); code != command.ExitUnreachable || !strings.Contains(text, "weir is not reachable") || !strings.Contains(text, says) {
			t.Errorf("%v: exit code %d, want %d and %q: %s", args, code, command.ExitUnreachable, says, text)
		}
	}
}

func TestDeleteLeavesARunningWeirAsItWas(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	foreign(ctx, t, r)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	// What belongs to the first container stays for the next: its image is mounted, the parents of the cgroups are there.
	r.MustApply(ctx, t, r.Endpoints()+functions)
	remove := func() {
		for _, argv := range [][]string{
			{"policy", "guests"}, {"chain", "web"}, {"function", "fw"}, {"function", "w1"}, {"function", "mon"}, {"endpoint", "alice"}, {"endpoint", "bob"},
		} {
			if _, err := r.Weir(ctx, append([]string{"delete"}, argv...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove()
	spaces := []string{r.Netns, r.Alice(), r.Bob()}
	before := still(ctx, t, spaces)
	r.MustApply(ctx, t, r.Endpoints()+"  up: {interface: uplink}\n"+functions)
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Fatal(err)
	}
	remove()
	if _, err := r.Weir(ctx, "delete", "endpoint", "up"); err != nil {
		t.Fatal(err)
	}
	expect(ctx, t, before, spaces)
}

// still is a snapshot in which nothing changes any more: the kernel frees some things in the background.
func still(ctx context.Context, t *testing.T, spaces []string) (now []string) {
	t.Helper()
	rig.Eventually(ctx, t, "nothing changes", func() (bool, string) {
		before := now
		var err error
		if now, err = rig.Snapshot(ctx, spaces...); err != nil {
			t.Fatal(err)
		}
		diff := rig.Diff(before, now)
		return before != nil && len(diff) == 0, strings.Join(diff, "\n")
	})
	return now
}

// patience with the kernel, on a busy machine.
const patience = 30 * time.Second

// expect compares with the snapshot from before; what the kernel frees in the background gets a moment.
func expect(ctx context.Context, t *testing.T, before []string, spaces []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		after, err := rig.Snapshot(context.WithoutCancel(ctx), spaces...)
		if err != nil {
			t.Fatal(err)
		}
		diff := rig.Diff(before, after)
		if len(diff) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not as before:\n%s", strings.Join(diff, "\n"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// kills is how often the daemon dies in the churn.
const kills = 50

func TestChurnWithRandomKillsLeaksNothing(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	foreign(ctx, t, r)
	spaces := []string{r.Netns, r.Alice(), r.Bob()}
	before, err := rig.Snapshot(ctx, spaces...)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	documents := []string{
		r.Endpoints() + functions,
		r.Endpoints() + "functions:\n  w1: {image: wire}\n  w2: {image: wire}\nchains:\n  web: w1 | w2\npolicies:\n  guests: {from: alice, to: bob, match: [udp, tcp, icmp], chain: web}\n",
		r.Endpoints() + "functions:\n  w2: {image: wire}\n  w3: {image: wire, on_fail: bypass}\nchains:\n  web: w3 | w2\npolicies:\n  guests: {from: alice, mode: exhaustive, chain: web}\n",
		r.Endpoints(),
	}
	for i := range kills {
		if err := r.Up(ctx); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		applied := make(chan error, 1)
		applying, cancel := context.WithCancel(ctx)
		go func() { // ends with the daemon
			_, err := r.Apply(applying, documents[random.IntN(len(documents))], "--prune", "--timeout", "20s")
			applied <- err
		}()
		select {
		case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-applied
	}
	// After all that the last word counts.
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, documents[0], "--prune")
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.05"); err != nil {
		t.Fatal(err)
	}
	// 1 bridge, 2 endpoints, fw in+out, w1 in+out, mon's tap. apply does not wait for what an earlier one, which was killed, began to delete.
	rig.Eventually(ctx, t, "8 links carry our mark", func() (bool, string) {
		links, err := r.Run(ctx, "", "ip", "-o", "link")
		return err == nil && strings.Count(links, "weir:"+r.Name+":") == 8, fmt.Sprint(links, err)
	})
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Weir(ctx, "down"); err != nil {
		t.Fatal(err)
	}
	expect(ctx, t, before, spaces)
	fmt.Printf("%d kills, nothing leaked\n", kills)
}
