package daemon

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A killed process leaves a child that still has its lock: the lock is waited for. The lock of a living process is not.
func TestTheLockOfADeadProcessIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	// A process locks file 9 and ends; sleep has inherited the file.
	c := exec.Command("sh", "-c", `exec 9>"$0"; flock 9; sleep 0.5 >/dev/null 2>&1 & exit`, path)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := open()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("the child does not have the lock: %v", err)
	}
	begin := time.Now()
	if err := lockLingering(f); err != nil {
		t.Fatalf("after %v: %v", time.Since(begin), err)
	}
	begin = time.Now()
	if err := lockLingering(open()); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("the lock of this process: %v", err)
	}
	if took := time.Since(begin); took > lingers {
		t.Errorf("the lock of a living process was waited for: %v", took)
	}
}
