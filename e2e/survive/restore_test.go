package survive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// damage puts rubbish into the database of a Weir that does not run, where its values are.
func damage(t *testing.T, r *rig.Rig) {
	t.Helper()
	path := filepath.Join(r.Root, "etcd", "member", "snap", "db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := 0
	for at := strings.Index(string(b), `"chain"`); at >= 0 && at < len(b); {
		b[at+2] ^= 4
		flipped++
		next := strings.Index(string(b[at+1:]), `"chain"`)
		if next < 0 {
			break
		}
		at += 1 + next
	}
	if flipped == 0 {
		t.Fatal("no value to damage")
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// declared is all that is declared.
func declared(ctx context.Context, t *testing.T, r *rig.Rig) string {
	t.Helper()
	var out strings.Builder
	for _, kind := range []string{"endpoints", "functions", "chains", "policies"} {
		var list struct {
			Items []struct {
				Name string          `json:"name"`
				Spec json.RawMessage `json:"spec"`
			} `json:"items"`
		}
		if err := r.Get(ctx, &list, kind); err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Items {
			spec, err := json.Marshal(i.Spec)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "%s/%s: %s\n", kind, i.Name, spec)
		}
	}
	return out.String()
}

// tryUp runs `weir up` with arguments to its end.
func tryUp(ctx context.Context, t *testing.T, r *rig.Rig, args ...string) *rig.ExitError {
	t.Helper()
	_, err := r.Weir(ctx, append([]string{"up"}, args...)...)
	var exit *rig.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("weir up %v: %v, want it to refuse", args, err)
	}
	return exit
}

func says(t *testing.T, err *rig.ExitError, code int, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(err.Stderr, w) || err.Code != code || strings.Contains(err.Stderr, "goroutine ") {
			t.Errorf("exit code %d, want %d, and %q in:\n%s", err.Code, code, w, err.Stderr)
		}
	}
}

// restoring is rig.Up with a backup to restore.
func restoring(ctx context.Context, t *testing.T, r *rig.Rig, args ...string) {
	t.Helper()
	former := r.Args
	r.Args = append(append([]string{}, former...), args...)
	err := r.Up(ctx)
	r.Args = former
	if err != nil {
		t.Fatal(err)
	}
}

// TestADamagedStateIsRestored damages the store of a Weir that serves a chain. What is in force stays, the start says what is damaged and what to do, and
// doing that brings back what the backup has, secrets included, and the functions that run.
func TestADamagedStateIsRestored(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	if _, err := r.WeirInput(ctx, "hush", "secret", "set", "key"); err != nil {
		t.Fatal(err)
	}
	withSecret := strings.Replace(chain, "w1: {image: wire}", "w1: {image: wire, secrets: [key]}", 1)
	r.MustApply(ctx, t, r.Endpoints()+withSecret)
	settled(ctx, t, r)
	saved := filepath.Join(r.Root, "..", r.Name+".backup")
	t.Cleanup(func() { os.Remove(saved) })
	if out, err := r.Weir(ctx, "backup", saved); err != nil || !strings.Contains(out, "secrets") {
		t.Fatalf("%s, %v", out, err)
	}
	if info, err := os.Stat(saved); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the backup's mode is %v, %v: want 0600", info.Mode(), err)
	}
	if _, err := r.Weir(ctx, "backup", saved); err == nil {
		t.Error("a backup is overwritten")
	}
	want, before := declared(ctx, t, r), look(ctx, t, r)
	var seen struct {
		Revision int64 `json:"revision"`
	}
	r.MustApply(ctx, t, r.Endpoints()+strings.Replace(withSecret, "fw | w1 | tap:mon | w2", "fw | w1 | tap:mon", 1))
	if err := r.Get(ctx, &seen, "chains"); err != nil {
		t.Fatal(err)
	}

	if err := r.Kill(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Glob(filepath.Join(r.Root, "snapshots", "*.backup"))
	if err != nil || len(own) != 1 {
		t.Fatalf("backups that Weir made by itself: %v, %v: want one, of its end", own, err)
	}
	says(t, tryUp(ctx, t, r, "--restore", saved), 5, "not damaged", "--replace")
	damage(t, r)
	says(t, tryUp(ctx, t, r), 1, "the state is damaged", filepath.Join(r.Root, "etcd", "member", "snap", "db"), "weir up --restore "+own[0], "traffic goes on meanwhile")
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Errorf("while the state is damaged: %v", err)
	}
	if bad := saved + ".bad"; os.WriteFile(bad, []byte(flippedFile(t, saved)), 0o600) == nil {
		says(t, tryUp(ctx, t, r, "--restore", bad), 3, bad, "damaged", "nothing was changed")
		os.Remove(bad)
	}

	restoring(ctx, t, r, "--restore", saved)
	settled(ctx, t, r)
	if have := declared(ctx, t, r); have != want {
		t.Errorf("restored:\n%swant:\n%s", have, want)
	}
	after := look(ctx, t, r)
	for _, name := range []string{"fw", "w1", "mon"} { // w2 had left the chain, but was a function all the time
		if before.pids[name] != after.pids[name] {
			t.Errorf("function %s: pid %d before, %d after the restore", name, before.pids[name], after.pids[name])
		}
	}
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Errorf("restored: %v", err)
	}
	if aside, err := filepath.Glob(filepath.Join(r.Root, "replaced", "etcd-*")); err != nil || len(aside) != 1 || !strings.Contains(r.Log(200), aside[0]) {
		t.Errorf("the former state: %v, %v: want one, named in\n%s", aside, err, r.Log(20))
	}
	resyncs(ctx, t, r, seen.Revision)

	if err := r.Kill(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	restoring(ctx, t, r, "--restore", own[0], "--replace") // the later state, in which a secret's functions start, too
	settled(ctx, t, r)
	if have := declared(ctx, t, r); have == want || !strings.Contains(have, "key") {
		t.Errorf("restored from Weir's own backup:\n%s", have)
	}
	if out, err := r.Weir(ctx, "function", "restart", "w1"); err != nil {
		t.Errorf("a function with a secret does not start: %v %s", err, out)
	}
	settled(ctx, t, r)
}

func flippedFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	return string(b)
}

// resyncs wants a watch from a revision of the former state to be refused, so that its owner lists anew.
func resyncs(ctx context.Context, t *testing.T, r *rig.Rig, revision int64) {
	t.Helper()
	c, err := api.Dial(api.Options{Socket: filepath.Join("/run/weir", r.Name, "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if d := <-c.Chains().Watch(ctx, revision, api.ListOptions{}); d.Type != api.DeltaReset {
		t.Errorf("a watch from revision %d of the former state goes on in the restored one: %+v", revision, d)
	}
}

// TestARestoreThatIsKilledLeavesOneStateWhole kills a restore at many moments: the next start has the former state or the backup's.
func TestARestoreThatIsKilledLeavesOneStateWhole(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+"functions:\n  one: {image: wire}\n")
	saved := filepath.Join(r.Root, "..", r.Name+".backup")
	t.Cleanup(func() { os.Remove(saved) })
	if _, err := r.Weir(ctx, "backup", saved); err != nil {
		t.Fatal(err)
	}
	was := declared(ctx, t, r)
	r.MustApply(ctx, t, r.Endpoints()+"functions:\n  one: {image: wire}\n  two: {image: wire}\n")
	is := declared(ctx, t, r)
	if was == is {
		t.Fatal("nothing to tell them apart")
	}
	outcomes := map[string]int{}
	for round := range 12 {
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		former := r.Args
		r.Args = append(append([]string{}, former...), "--restore", saved, "--replace")
		soon, cancel := context.WithTimeout(ctx, time.Duration(50+rand.IntN(2000))*time.Millisecond)
		_ = r.Up(soon) // it may be up before
		cancel()
		r.Args = former
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		switch have := declared(ctx, t, r); have {
		case was:
			outcomes["the backup's"]++
		case is:
			outcomes["the former"]++
		default:
			t.Fatalf("round %d: neither state:\n%s", round, have)
		}
		if have := declared(ctx, t, r); have == was {
			r.MustApply(ctx, t, r.Endpoints()+"functions:\n  one: {image: wire}\n  two: {image: wire}\n")
		}
		if left, err := os.Stat(filepath.Join(r.Root, "etcd.restoring")); err == nil {
			t.Fatalf("round %d: %s is left", round, left.Name())
		}
	}
	t.Log(fmt.Sprint(outcomes))
}
