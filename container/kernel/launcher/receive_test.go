package launcher

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors are taken as they come: one that is not there is no other file, and who waits ends when nobody is left to send them.
func TestReceive(t *testing.T) {
	for name, c := range map[string]struct {
		send, want int // descriptors; send -1: nothing is sent
		says       string
		code       int
	}{
		"all":                 {2, 2, "ab", 0},
		"fewer than wanted":   {1, 2, "a", 127},
		"none":                {0, 1, "", 127},
		"nobody is left":      {-1, 1, "", gone},
		"more than is wanted": {3, 1, "a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			socket := os.NewFile(uintptr(ends[0]), "socket")
			defer socket.Close()
			files, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			stdin, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p := New(FirstFile)
			for i, fd := range p.Receive("receive", FirstFile+1, c.want) {
				p.Call("write", unix.SYS_WRITE, fd, p.String("ab"[i:]), Int(1))
			}
			p.Exit(0)
			cmd, done, err := p.Command(t.Context(), nil, w, socket)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			cmd.Stdin = stdin
			if c.send >= 0 {
				var all []int
				for range c.send {
					all = append(all, int(files.Fd()))
				}
				if err := unix.Sendmsg(ends[1], []byte{1}, unix.UnixRights(all...), nil, unix.MSG_NOSIGNAL); err != nil {
					t.Fatal(err)
				}
			}
			unix.Close(ends[1])
			err = cmd.Run()
			w.Close()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(files.Name())
			if code := cmd.ProcessState.ExitCode(); err != nil || string(raw) != c.says || code != c.code {
				t.Errorf("%q, %v, exit code %d; want %q, %d", raw, err, code, c.says, c.code)
			}
		})
	}
}
