package oci

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// The end of a log is found soon also in a file that a container has made longer than anybody can read.
func TestTailOfAnEndlessLog(t *testing.T) {
	for name, x := range map[string]struct{ text, want string }{
		"nothing after the hole": {"", strings.Repeat("\x00", 8192)},
		"a line after the hole":  {"\nlast words\n", "last words\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "log"))
			must(t, err)
			must(t, f.Truncate(1<<40))
			_, err = f.WriteAt([]byte(x.text), 1<<40)
			must(t, err)
			l := &logReader{ctx: t.Context(), files: []*os.File{f}}
			defer l.Close()
			must(t, l.seekTail(1, 8192))
			text, err := io.ReadAll(l)
			must(t, err)
			if string(text) != x.want {
				t.Errorf("%d bytes, %q", len(text), text[:min(len(text), 20)])
			}
		})
	}
}

// What a container prints is cut now and then; before that, it cannot fill the disk.
func TestLogIsBoundedBetweenTwoLooks(t *testing.T) {
	inst := newInstance(t)
	r := open(t, inst, Options{})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	spec := container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: sh("/bin/busybox truncate -s 2000000000 /proc/self/fd/1; echo beyond: $?; sleep 1000")}
	must(t, r.Run(t.Context(), spec))
	last := ""
	eventually(t, "what came of it", func() bool {
		l, err := r.Logs(t.Context(), "a", container.LogOptions{Tail: 1})
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		last = string(text)
		return strings.Contains(last, "beyond: ")
	})
	if fi, err := os.Stat(r.logFile("a")); err != nil || fi.Size() > maxLog || strings.HasSuffix(last, "beyond: 0\n") {
		t.Errorf("%d bytes, %v; %q", fi.Size(), err, last[max(0, len(last)-20):])
	}
}

// Nobody cuts the log, as the daemon is gone. The flood comes from children of the first process: the kernel spares only that one signals by itself.
func TestEndlessOutputFillsNoDiskAndEndsNobody(t *testing.T) {
	inst := newInstance(t)
	first := open(t, inst, Options{})
	done := filepath.Join(t.TempDir(), "done")
	must(t, os.Mkdir(done, 0o755))
	flood := "i=0; worst=0; while [ $i -lt 32 ]; do dd if=/dev/zero bs=1M count=64 2>/dev/null; c=$?; [ $c -gt $worst ] && worst=$c; i=$((i+1)); done; " +
		"touch /run/done/it; while :; do echo after: $worst; sleep 0.1; done" // 2 GiB
	must(t, first.Run(t.Context(), container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: sh(flood), Mounts: []container.Mount{{Source: done, Target: "/run/done"}}}))
	must(t, first.Close())
	eventually(t, "the end of the flood", func() bool {
		_, err := os.Stat(filepath.Join(done, "it"))
		return err == nil
	})
	if got := diskUse(t, first.logsDir()); got > 33<<20 {
		t.Errorf("the log takes %d MiB of disk", got>>20)
	}

	r := open(t, inst, Options{})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	st, err := r.List(t.Context()) // cuts it
	must(t, err)
	if len(st) != 1 || st[0].State != container.Running {
		t.Errorf("the container is no more: %+v", st)
	}
	read := func(o container.LogOptions) string {
		l, err := r.Logs(t.Context(), "a", o)
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		return string(text)
	}
	last := ""
	eventually(t, "a line after the cut", func() bool {
		last = read(container.LogOptions{Tail: 1})
		return strings.HasPrefix(last, "after: ") && strings.HasSuffix(last, "\n")
	})
	if last != "after: 1\n" { // 1: told that it could not write; more than 128: ended by a signal
		t.Errorf("%q", last)
	}
	all := read(container.LogOptions{})
	for _, say := range []string{"[weir: 25165824 bytes before this are lost", "[weir: lines after this are lost: the log was full, at 32 MiB"} {
		if !strings.Contains(all, say) {
			t.Errorf("the log does not say %q", say)
		}
	}
	if got := diskUse(t, r.logsDir()); got > 9<<20 {
		t.Errorf("after the cut the log takes %d MiB of disk", got>>20)
	}
}

func diskUse(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	sum := int64(0)
	for _, d := range entries {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, d.Name()), &st))
		sum += st.Blocks * 512
	}
	return sum
}
