package survive

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/store/standalone"
)

// bounded is how long a command may take to say that the store is away.
const bounded = 25 * time.Second

// TestAnEtcdWithoutQuorumStopsNothing stops two of three members of an etcd elsewhere. Changes are refused within a bounded time, traffic goes on, a
// function that dies is restarted, the firewall stays closed, and all recovers when the members are back.
func TestAnEtcdWithoutQuorumStopsNothing(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "weir-etcd-")
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := standalone.StartCluster(dir, 3)
	t.Cleanup(func() {
		etcd.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, e := range etcd.Endpoints() {
		args = append(args, "--etcd", e)
	}
	r, ctx := rig.ForTest(t, rig.Options{Args: args})
	r.MustApply(ctx, t, r.Endpoints()+dropping)
	settled(ctx, t, r)
	want, before := declared(ctx, t, r), look(ctx, t, r)
	other := r.Endpoints() + strings.Replace(dropping, "fw | w1 | tap:mon | w2", "fw | w1", 1)

	etcd.Stop(0)
	filtered(ctx, t, r)
	r.MustApply(ctx, t, other) // two of three are a quorum
	r.MustApply(ctx, t, r.Endpoints()+dropping)

	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 100); err != nil {
		t.Fatal(err)
	}
	etcd.Stop(1)
	for name, command := range map[string][]string{
		"apply": {"apply", "-f", "-"},
		"get":   {"get", "policies"},
	} {
		began := time.Now()
		_, err := r.WeirInput(ctx, other, command...)
		took := time.Since(began)
		var exit *rig.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: %v, want it to be refused", name, err)
		}
		if !strings.Contains(exit.Stderr, "has lost its quorum or cannot be reached") || !strings.Contains(exit.Stderr, "start its members again") || took > bounded {
			t.Errorf("%s says after %v:\n%s", name, took, exit.Stderr)
		}
		t.Logf("%s is refused after %v", name, took.Round(time.Millisecond))
	}
	filtered(ctx, t, r)
	o, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if o.Lost != 0 {
		t.Errorf("lost %d of %d datagrams when the quorum was lost", o.Lost, o.Sent)
	}

	if err := syscall.Kill(before.pids["fw"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	blocked(ctx, t, r)
	filtered(ctx, t, r) // it runs again, without the store

	if err := etcd.Start(0, 1); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(ctx, t, "the API answers again", func() (bool, string) {
		_, err := r.Weir(ctx, "get", "policies")
		if err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	settled(ctx, t, r)
	if have := declared(ctx, t, r); have != want && have != declaredOf(want, "fw | w1") {
		t.Errorf("after it all:\n%swant:\n%s", have, want)
	}
	var list struct {
		Items []api.Function `json:"items"`
	}
	if err := r.Get(ctx, &list, "functions"); err != nil {
		t.Fatal(err)
	}
	for _, f := range list.Items {
		if changed := f.Status.PID != before.pids[f.Name]; changed != (f.Name == "fw") {
			t.Errorf("function %s: pid %d before, %d after", f.Name, before.pids[f.Name], f.Status.PID)
		}
	}
	r.MustApply(ctx, t, other)
	filtered(ctx, t, r)
}

// declaredOf is what is declared with another chain: a change that was refused while the store was away may have been done all the same.
func declaredOf(declared, chain string) string {
	return strings.ReplaceAll(declared, "fw | w1 | tap:mon | w2", chain)
}
