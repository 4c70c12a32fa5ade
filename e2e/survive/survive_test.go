// Package survive: the daemon dies at the worst moment and nobody notices; a machine that rebooted gets everything back.
package survive

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

const chain = `
functions:
  fw: {image: firewall, config: {allow: [udp, tcp, icmp]}}
  w1: {image: wire}
  w2: {image: wire}
  mon: {image: monitor}
chains:
  web: fw | w1 | tap:mon | w2
policies:
  guests: {from: alice, to: bob, match: [udp, tcp, icmp], chain: web}
`

// world is what a restart may not change.
type world struct {
	pids  map[string]int
	rules map[string]api.RuleCounters
	ports map[string]api.PortCounters
	ver   uint32
}

func look(ctx context.Context, t *testing.T, r *rig.Rig) world {
	t.Helper()
	w := world{pids: map[string]int{}, rules: map[string]api.RuleCounters{}, ports: map[string]api.PortCounters{}}
	var list struct {
		Items []api.Function `json:"items"`
	}
	if err := r.Get(ctx, &list, "functions"); err != nil {
		t.Fatal(err)
	}
	for _, f := range list.Items {
		w.pids[f.Name] = f.Status.PID
	}
	var c api.Counters
	if err := r.Get(ctx, &c, "counters"); err != nil {
		t.Fatal(err)
	}
	w.ver = c.Version
	for _, x := range c.Rules {
		w.rules[x.Cookie] = x
	}
	for _, x := range c.Ports {
		w.ports[x.Name] = x
	}
	return w
}

// settled waits until every function is healthy and every policy active.
func settled(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	rig.Eventually(ctx, t, "all functions healthy, all policies active", func() (bool, string) {
		var f struct {
			Items []api.Function `json:"items"`
		}
		var p struct {
			Items []api.Policy `json:"items"`
		}
		var h struct {
			Items []api.Host `json:"items"`
		}
		if err := r.Get(ctx, &h, "hosts"); err != nil {
			return false, err.Error()
		}
		for _, x := range h.Items { // first: what a host that is starting has is from before
			if x.Status.State != "ready" {
				return false, fmt.Sprintf("host %s: %s", x.Name, x.Status.State)
			}
		}
		if err := r.Get(ctx, &f, "functions"); err != nil {
			return false, err.Error()
		}
		if err := r.Get(ctx, &p, "policies"); err != nil {
			return false, err.Error()
		}
		for _, x := range f.Items {
			if !x.Status.Healthy {
				return false, fmt.Sprintf("%s: %+v", x.Name, x.Status)
			}
		}
		for _, x := range p.Items {
			if x.Status.State != "active" {
				return false, fmt.Sprintf("%s: %+v", x.Name, x.Status)
			}
		}
		return len(f.Items) > 0, "no functions"
	})
}

func TestKillingTheDaemonLosesNothing(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	before := look(ctx, t, r)

	iperf := make(chan error, 1)
	go func() {
		bits, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 4)
		if err == nil && bits < 1e8 {
			err = fmt.Errorf("only %.0f bit/s", bits)
		}
		iperf <- err
	}()
	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 500); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 1000); err != nil {
		t.Fatal(err)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, r)
	if err := s.Await(ctx, 500); err != nil {
		t.Fatal(err)
	}
	o, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if err := <-iperf; err != nil {
		t.Errorf("the TCP stream: %v", err)
	}
	t.Logf("kill -9 and restart under load: %+v", o)
	if o.Lost != 0 || o.Duplicated != 0 {
		t.Errorf("lost %d, duplicated %d of %d datagrams, want none", o.Lost, o.Duplicated, o.Sent)
	}

	after := look(ctx, t, r)
	for name, pid := range before.pids {
		if after.pids[name] != pid || pid == 0 {
			t.Errorf("function %s: pid %d before, %d after the restart", name, pid, after.pids[name])
		}
	}
	if before.ver != after.ver {
		t.Errorf("the rules were written again: version %d before, %d after", before.ver, after.ver)
	}
	if len(before.rules) == 0 || len(after.rules) != len(before.rules) {
		t.Errorf("%d rules before, %d after", len(before.rules), len(after.rules))
	}
	for c, b := range before.rules {
		if a := after.rules[c]; a.Hits.Packets < b.Hits.Packets || a.Hits.Bytes < b.Hits.Bytes {
			t.Errorf("counter of %q went back: %+v, then %+v", b.Note, b.Hits, a.Hits)
		}
	}
	for n, b := range before.ports {
		if a := after.ports[n]; a.Rx.Packets < b.Rx.Packets || a.Tx.Packets < b.Tx.Packets {
			t.Errorf("counter of port %s went back: %+v, then %+v", n, b, a)
		}
	}
}

func TestRebootBringsEverythingBack(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	before := look(ctx, t, r)
	logs := filepath.Join(r.Root, "native", "logs", "fw.log")
	said, err := os.ReadFile(logs)
	if err != nil || len(said) == 0 {
		t.Fatalf("the firewall has printed %q, %v", said, err)
	}

	// What a reboot leaves: the state directory. The rest goes by `weir down`, as the kernel would forget it.
	if _, err := r.Weir(ctx, "down", "--keep-state"); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(logs); err != nil || !strings.HasPrefix(string(kept), string(said)) {
		t.Errorf("before down --keep-state the log had\n%safter it, %v\n%s", said, err, kept)
	}
	if links, err := r.Run(ctx, "", "ip", "-o", "link"); err != nil || strings.Count(links, "\n") != 1 {
		t.Fatalf("after down only the loopback should be there: %v\n%s", err, links)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, r)
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 5, "0.02"); err != nil {
		t.Fatal(err)
	}
	after := look(ctx, t, r)
	if len(after.rules) != len(before.rules) {
		t.Errorf("%d rules before the reboot, %d after", len(before.rules), len(after.rules))
	}
	hits := false
	for _, x := range after.rules {
		hits = hits || x.Hits.Packets > 0
	}
	if !hits {
		t.Error("after the reboot no packet was steered")
	}
}

// A power cut leaves files that say "running" and a run directory that is gone or stale.
func TestStaleRunDirectoryOfADeadMachine(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join("/run/weir", r.Name)
	copied := t.TempDir()
	if out, err := r.Run(ctx, "", "cp", "-a", run+"/functions", copied); err != nil {
		t.Fatal(out, err)
	}
	if _, err := r.Weir(ctx, "down", "--keep-state"); err != nil {
		t.Fatal(err)
	}
	// A run directory on disk survives a power cut as plain files: functions' records and names of namespaces, nothing alive.
	if err := os.MkdirAll(filepath.Join(run, "netns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := r.Run(ctx, "", "cp", "-a", copied+"/functions", run+"/"); err != nil {
		t.Fatal(out, err)
	}
	for _, f := range []string{"fw", "w1", "w2", "mon"} {
		if err := os.WriteFile(filepath.Join(run, "netns", f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if netns.Exists(filepath.Join(run, "netns", f)) {
			t.Fatal("a plain file passes for a namespace")
		}
	}
	begin := time.Now()
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, r)
	t.Logf("all back %s after the start", time.Since(begin).Round(time.Millisecond))
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 5, "0.02"); err != nil {
		t.Fatal(err)
	}
}
