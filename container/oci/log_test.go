package oci

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
