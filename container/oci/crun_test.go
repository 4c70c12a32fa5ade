package oci

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
)

func needCrun(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("crun is not installed: apt-get install crun (make setup)")
	}
}

// crun passes what runc passes, on a host with cgroups of both versions, too.
func TestCrun(t *testing.T) {
	needCrun(t)
	t.Parallel()
	crunKit.Run(t)
}

// The processes of a container do not inherit a score that is better than the rest of the host's.
func TestCrunKeepsNoScoreOfTheDaemon(t *testing.T) {
	needCrun(t)
	const own = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(own)
	must(t, err)
	must(t, os.WriteFile(own, []byte("300"), 0)) // what a container would inherit
	defer func() { must(t, os.WriteFile(own, before, 0)) }()
	score := -500
	r, err := crunKit.Open(t.Context(), suite.NewInstance(t), kernel.Options{Adopt: true, OOMScore: &score})
	must(t, err)
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting}))
	var out bytes.Buffer
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"cat", own, "/proc/1/oom_score_adj"}, Stdout: &out})
	must(t, err)
	if out.String() != "0\n0\n" {
		t.Errorf("%q, want 0 for both", out.String())
	}
}

func TestCrunIsTold(t *testing.T) {
	for version, want := range map[string]bool{"crun version 1.8.1": true, "runc version 1.1.5+ds1": false, "runsc version release-20240212.0": false, "": false} {
		if isCrun(version) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
	if file := controllersOf(t.TempDir()); file != "" {
		t.Errorf("%s is of no mount of version 2", file)
	}
}

// Only the command that is started sees an empty file: not this process, and not what it starts next.
func TestOneCommandSeesAnEmptyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "controllers")
	must(t, os.WriteFile(file, []byte("hugetlb\n"), 0o644))
	space, err := os.Readlink("/proc/self/ns/mnt")
	must(t, err)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			var out bytes.Buffer
			cmd := exec.Command("cat", file)
			cmd.Stdout, cmd.Stderr = &out, &out
			err := startWithout(file, cmd)
			if err == nil {
				err = kernel.Wait(cmd)
			}
			if err != nil || out.Len() > 0 {
				t.Errorf("%v, %q: want nothing to be read", err, out.String())
			}
			if out, err := exec.Command("cat", file).Output(); err != nil || string(out) != "hugetlb\n" {
				t.Errorf("the next command reads %q, %v", out, err)
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the threads that have changed end in a moment
		other := ""
		tasks, err := filepath.Glob("/proc/self/task/*/ns/mnt")
		must(t, err)
		for _, task := range tasks {
			if got, err := os.Readlink(task); err == nil && got != space {
				other = task
			}
		}
		if other == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not %s", other, space)
		}
	}
	if raw, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(raw), file) {
		t.Errorf("it is mounted for this process (%v)", err)
	}
	err = startWithout("/no/such/file", exec.Command("cat"))
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "hide /no/such/file from") {
		t.Errorf("got %v", err)
	}
}

// withWaiting opens a runtime of crun's with a container "a" that waits.
func withWaiting(t *testing.T) *kernel.Runtime {
	t.Helper()
	needCrun(t)
	r, err := crunKit.Open(t.Context(), suite.NewInstance(t), kernel.Options{Adopt: true})
	must(t, err)
	t.Cleanup(func() {
		must(t, r.Destroy(context.Background()))
		must(t, r.Close())
	})
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting}))
	return r
}

// What crun could not execute stays behind as a zombie in the container's namespace, and is left to us. The container ends all the same when its program does.
func TestWhatCrunCannotExecuteHoldsNobodyUp(t *testing.T) {
	r := withWaiting(t)
	_, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"no-such-program"}})
	if err == nil || !strings.Contains(err.Error(), `command "no-such-program" not found in the image`) {
		t.Errorf("got %v", err)
	}
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"sh", "-c", "kill 1"}})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	st, err := r.Wait(ctx, "a")
	if err != nil || st.ExitCode != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// Nobody reads the output of an exec without streams: nobody waits for what keeps it open, and that can go on writing.
func TestNobodyWaitsForWhatCrunLeavesWithoutStreams(t *testing.T) {
	r := withWaiting(t)
	const script = `cat; (sleep 0.3; echo x && echo x >/dev/stderr && echo wrote >/tmp/wrote; sleep 1000) & exit 3`
	begin := time.Now()
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/sh", "-c", script}})
	if took := time.Since(begin); code != 3 || err != nil || took >= kernel.ExecGrace {
		t.Errorf("exit code %d, %v, after %v", code, err, took)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var out bytes.Buffer
		if _, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"cat", "/tmp/wrote"}, Stdout: &out}); err == nil && out.String() == "wrote\n" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("what was left cannot write")
		}
	}
}
