package kernel

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// A former process that holds a lease on the log does not hold its successor up: the log begins anew.
func TestALeaseHoldsNoStartUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(path, []byte("old\n"), 0o600))
	holder, err := os.OpenFile(path, os.O_RDONLY, 0)
	must(t, err)
	defer holder.Close()
	signal.Ignore(unix.SIGIO) // that the lease is to end
	defer signal.Reset(unix.SIGIO)
	_, err = unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	must(t, err)
	f, err := startLog(path)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("new\n")
	must(t, err)
	for name, want := range map[string]string{path: "new\n", path + ".1": "old\n"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
}
