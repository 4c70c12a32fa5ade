package suite

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
)

// Launched is for an engine whose containers' first process is the launcher (package launcher) until it is their program.
func (k Kit) Launched(t *testing.T) {
	t.Run("nothing of the host is open", k.nothingOfTheHostIsOpen)
	t.Run("signals are as at boot", k.signalsAreAsAtBoot)
	t.Run("the daemon's OOM score is its own", k.daemonsOOMScoreIsItsOwn)
	t.Run("want of memory above a container is not its limit's", k.memoryIsShortAbove)
}

// Neither the process that waits nor the one that runs has anything of the host open, and nobody but the host's root can look into the one that waits.
func (k Kit) nothingOfTheHostIsOpen(t *testing.T) {
	r, s := k.fresh(t)
	s.ID, s.Args = "a", Waiting
	must(t, r.Create(t.Context(), s))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	fi, err := os.Stat(fmt.Sprintf("/proc/%d/environ", st.PID))
	must(t, err)
	if own, ok := fi.Sys().(*syscall.Stat_t); !ok || own.Uid != 0 {
		t.Errorf("the process that waits can be looked into: its files belong to %d", own.Uid)
	}
	waiting := openFiles(t, st.PID)
	if len(waiting) != 7 { // streams, launcher, list, two pipes
		t.Errorf("%d files: %v", len(waiting), waiting)
	}
	for _, f := range waiting {
		if fi, err := os.Stat(f); err == nil && fi.IsDir() {
			t.Errorf("%s is a directory", f)
		}
	}
	must(t, r.Start(t.Context(), "a"))
	if running := openFiles(t, st.PID); len(running) > 4 { // streams, and what the shell opens for itself
		t.Errorf("%d files: %v", len(running), running)
	}
	for _, f := range []string{"/proc/%d/cwd", "/proc/%d/root"} {
		fi, err := os.Stat(filepath.Join(fmt.Sprintf(f, st.PID), "bin/busybox"))
		must(t, err)
		image, err := os.Stat(filepath.Join(s.Rootfs, "bin/busybox"))
		must(t, err)
		if fi.Sys().(*syscall.Stat_t).Ino != image.Sys().(*syscall.Stat_t).Ino { // of another device where an overlay is between
			t.Errorf(f+" is not the image's root", st.PID)
		}
	}
}

func openFiles(t *testing.T, pid int) []string {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	return names
}

// Functions are no better than what else runs on the host when memory is short, however well the daemon is kept.
func (k Kit) daemonsOOMScoreIsItsOwn(t *testing.T) {
	const own = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(own)
	must(t, err)
	must(t, os.WriteFile(own, []byte("300"), 0)) // what a container would inherit: a lower one than it has nobody sets without CAP_SYS_RESOURCE
	defer func() { must(t, os.WriteFile(own, before, 0)) }()
	score := -500
	r, s := k.freshWith(t, kernel.Options{OOMScore: &score})
	s.ID, s.Args = "a", sh("cat /proc/self/oom_score_adj; echo -1 >/proc/self/oom_score_adj 2>/dev/null && echo lowered; sleep 1000")
	must(t, r.Run(t.Context(), s))
	var out bytes.Buffer
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/cat", own, "/proc/1/oom_score_adj"}, Stdout: &out})
	must(t, err)
	if out.String() != "0\n0\n" {
		t.Errorf("%q, want 0 for both", out.String())
	}
	l, err := r.Logs(t.Context(), "a", container.LogOptions{})
	must(t, err)
	defer l.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(l)
	must(t, err)
	if strings.Contains(text.String(), "lowered") {
		t.Error("it lowers its score")
	}
}

// FailingCreates is for an engine whose Exec has a child of ours in the container's group, the launcher: who removes another container that could not be made
// leaves its exit code to Exec.
func (k Kit) FailingCreates(t *testing.T) {
	r, s := k.fresh(t)
	s.ID, s.Args = "a", Waiting
	must(t, r.Run(t.Context(), s))
	var failing, execs sync.WaitGroup
	over := make(chan struct{})
	for i := range 8 {
		failing.Go(func() {
			bad := s
			bad.ID, bad.Args = fmt.Sprint("b", i), []string{"/no/such/program"}
			for {
				select {
				case <-over:
					return
				default:
					if err := r.Run(context.Background(), bad); err == nil {
						t.Error("a container without a program runs")
					}
				}
			}
		})
	}
	for range 8 {
		execs.Go(func() {
			for range 100 {
				if code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/sleep", "0"}}); code != 0 || err != nil {
					t.Errorf("exit code %d, %v", code, err)
				}
			}
		})
	}
	execs.Wait()
	close(over)
	failing.Wait()
}

// The group of the instance's containers stands here for a host whose memory is short.
func (k Kit) memoryIsShortAbove(t *testing.T) {
	r, s := k.fresh(t)
	s.ID, s.Memory = "a", 512<<20
	s.Mounts = []container.Mount{{Source: t.TempDir(), Target: "/run/weir"}}
	s.Args = sh("until [ -e /run/weir/go ]; do sleep 0.01; done; x=a; while :; do x=$x$x; done")
	must(t, r.Run(t.Context(), s))
	file, _ := limit(t, r, "", "memory", "memory.limit_in_bytes", "memory.max")
	must(t, os.WriteFile(file, []byte("33554432"), 0))
	must(t, os.WriteFile(filepath.Join(s.Mounts[0].Source, "go"), nil, 0o644))
	st, err := r.Wait(t.Context(), "a")
	must(t, err)
	if !st.OOM || st.Short != container.ShortHost {
		t.Errorf("%+v, want it killed for want of memory, but not by its own limit", st)
	}
}

// Programs find all signals as at boot, whatever the daemon ignores, but for the one that a full log sends (kernel.StartSparing).
func (k Kit) signalsAreAsAtBoot(t *testing.T) {
	ignored := []os.Signal{unix.SIGHUP, unix.SIGPIPE, unix.Signal(40), unix.Signal(64)}
	signal.Ignore(ignored...)
	defer signal.Reset(ignored...)
	r, s := k.fresh(t)
	s.ID, s.Args = "a", []string{"/bin/sleep", "1000"}
	must(t, r.Run(t.Context(), s))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.PID))
	must(t, err)
	var out bytes.Buffer
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"/bin/cat", "/proc/self/status"}, Stdout: &out})
	must(t, err)
	for name, text := range map[string]string{"first": string(raw), "one more": out.String()} {
		for _, want := range []string{"SigIgn:\t0000000000000000\n", "SigBlk:\t0000000001000000\n", "SigPnd:\t0000000000000000\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: want %q in\n%s", name, want, text)
			}
		}
	}
}
