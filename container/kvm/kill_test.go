package kvm

import (
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	kit "weir.dev/weir/container/kernel/suite"
)

// The process that drives the machines is killed at any moment of their lives, and a machine's own is: all that is left is known, and can be used or
// removed.
func TestKilledOverAndOver(t *testing.T) {
	t.Parallel()
	inst := kit.NewInstance(t)
	image := kit.Rootfs(t)
	r := open(t, inst)
	steady := container.Spec{ID: "steady", Rootfs: image, ReadOnly: true, Args: waiting}
	if err := r.Run(t.Context(), steady); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		childIsKilled(t, inst.Name, inst.Root, image, time.Duration(rand.IntN(3000))*time.Millisecond)
		r = open(t, inst)
		all, err := r.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.ID != "steady" {
				if err := r.Delete(t.Context(), s.ID); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				continue
			}
			if s.State != container.Running {
				t.Fatalf("round %d: the steady machine is %+v", round, s)
			}
			if code, err := r.Exec(t.Context(), "steady", container.ExecSpec{Args: sh("exit 4")}); err != nil || code != 4 {
				t.Errorf("round %d: exec: %d, %v", round, code, err)
			}
			if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if s, err = r.Wait(t.Context(), "steady"); err != nil || s.ExitCode != 137 {
				t.Errorf("round %d: a killed machine: %+v, %v", round, s, err)
			}
			if err := r.Start(t.Context(), "steady"); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	if err := r.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Close()
	left, err := os.ReadDir(inst.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		t.Errorf("left: %s", filepath.Join(inst.Root, e.Name()))
	}
}

func childIsKilled(t *testing.T, name, root, image string, after time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), "WEIR_CHILD="+name, "WEIR_CHILD_KIT="+Name, "WEIR_CHILD_ROOT="+root, "WEIR_CHILD_IMAGE="+image)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 6)
	_, err = io.ReadFull(out, first)
	<-time.After(after)
	_ = cmd.Process.Kill()
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if err != nil || string(first) != "ready\n" || len(rest) > 0 {
		t.Errorf("the other process: %v, %s%s", err, first, rest)
	}
}

// An exit that nobody saw is found.
func TestExitWhileNobodyLooked(t *testing.T) {
	t.Parallel()
	inst := kit.NewInstance(t)
	r := open(t, inst)
	spec := container.Spec{Rootfs: kit.Rootfs(t), ReadOnly: true}
	for id, script := range map[string]string{"ends": "sleep 2; echo last words; exit 42", "dies": "sleep 2; kill -9 $$"} {
		spec.ID, spec.Args = id, sh(script)
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	var pids []int
	all, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		pids = append(pids, s.PID)
	}
	r.Close()
	eventually(t, "both machines have ended", func() bool {
		for _, pid := range pids {
			if pid > 0 && unix.Kill(pid, 0) == nil && !zombie(pid) {
				return false
			}
		}
		return true
	})
	r = open(t, inst)
	defer r.Close()
	for id, want := range map[string]container.Status{"ends": {ExitCode: 42}, "dies": {ExitCode: 137, Signal: 9}} {
		st, err := r.Wait(t.Context(), id)
		if err != nil || st.State != container.Stopped || st.ExitCode != want.ExitCode || st.Signal != want.Signal {
			t.Errorf("%s: %+v, %v", id, st, err)
		}
	}
	if got := logOf(t, r, "ends"); got != "last words\n" {
		t.Errorf("log %q", got)
	}
	if err := r.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// zombie tells a process that has ended and was not waited for: nobody here does.
func zombie(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(text), ") Z ")
}
