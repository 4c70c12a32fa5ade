package survive

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
)

// disk is a file system of a rig's own, so that it can have errors.
type disk struct{ image, top string }

func sh(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// onDisk is a Weir whose state folder is on a disk of its own.
func onDisk(t *testing.T) (*rig.Rig, context.Context, disk) {
	t.Helper()
	d := disk{filepath.Join(t.TempDir(), "disk"), t.TempDir()}
	f, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(512<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	sh(t, "mkfs.ext4", "-q", "-F", d.image)
	d.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(d.top, unix.MNT_DETACH) })
	r, ctx := rig.Bare(t, rig.Options{})
	if err := os.Remove(r.Root); err != nil {
		t.Fatal(err)
	}
	r.Root = filepath.Join(d.top, "state")
	r.LogFile = filepath.Join(t.TempDir(), "log") // the disk is let go
	if err := os.Mkdir(r.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	return r, ctx, d
}

func (d disk) mount(t *testing.T) {
	t.Helper()
	sh(t, "mount", "-o", "loop,errors=remount-ro", d.image, d.top)
}

// fail makes the file system read-only as an error of its disk does.
func (d disk) fail(t *testing.T) {
	t.Helper()
	device := filepath.Base(sh(t, "findmnt", "-no", "SOURCE", d.top))
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", device, "trigger_fs_error"), []byte("by a test"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.top, "probe"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Fatalf("the disk can be written: %v", err)
	}
}

// dropping is a chain whose policy closes when it breaks.
var dropping = strings.ReplaceAll(chain, "{image: firewall, config: {allow: [udp, tcp, icmp]}}", "{image: firewall, on_fail: drop, config: {allow: [udp, tcp/80, icmp]}}")

// TestAStateFolderThatBecomesReadOnlyLosesNothing has the state folder's file system become read-only under a Weir that serves a chain. What is in force
// stays, changes are refused, whole, with the folder's name, and once the disk is repaired a new start goes on.
func TestAStateFolderThatBecomesReadOnlyLosesNothing(t *testing.T) {
	t.Parallel()
	r, ctx, d := onDisk(t)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+dropping)
	settled(ctx, t, r)
	want, before := declared(ctx, t, r), look(ctx, t, r)
	rig.Eventually(ctx, t, "the store is at rest", func() (bool, string) { // what etcd holds back for up to 5 s would stop it, and the daemon with a message
		info, err := os.Stat(filepath.Join(r.Root, "etcd", "member", "snap", "db"))
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(info.ModTime()) > 6*time.Second, "its database was just written"
	})
	d.fail(t)
	for name, change := range map[string][]string{
		"apply":  {"apply", "-f", "-"},
		"delete": {"delete", "policy", "guests"},
		"verb":   {"function", "stop", "fw"},
	} {
		_, err := r.WeirInput(ctx, r.Endpoints()+strings.Replace(dropping, "fw | w1 | tap:mon | w2", "fw | w1", 1), change...)
		var exit *rig.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: %v, want it to be refused", name, err)
		}
		says(t, exit, 10, filepath.Join(r.Root, "etcd"), "read-only file system", "nothing was changed", "traffic goes on meanwhile")
	}
	if have := declared(ctx, t, r); have != want {
		t.Errorf("after changes that were refused:\n%swant:\n%s", have, want)
	}
	filtered(ctx, t, r)

	var exit *rig.ExitError
	if _, err := r.Weir(ctx, "status"); !errors.As(err, &exit) || !strings.Contains(exit.Stderr, "the state cannot be written") {
		t.Errorf("weir status says %v", err)
	}

	// A function that dies meanwhile cannot be started: its files and its log are on that disk. Its policy is closed.
	if err := syscall.Kill(before.pids["fw"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	blocked(ctx, t, r)
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err == nil {
		t.Error("pings pass without the firewall")
	}
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	says(t, tryUp(ctx, t, r), 10, "read-only", r.Root, "make it writable")
	blocked(ctx, t, r)

	// The functions' files are on that disk, too: it is let go by all, as by a reboot, and repaired.
	if _, err := r.Weir(ctx, "down", "--keep-state"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(d.top, 0); err != nil {
		t.Fatal(err)
	}
	// A container that starts beside, of another Weir, has a copy of all mounts for some milliseconds; with it a new mount would be of the failed file system.
	rig.Eventually(ctx, t, "nobody has the disk mounted", func() (bool, string) {
		loops := sh(t, "losetup", "-j", d.image)
		return loops == "", loops
	})
	_ = exec.Command("e2fsck", "-fy", d.image).Run() // 1: errors were mended
	d.mount(t)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, r)
	if have := declared(ctx, t, r); have != want {
		t.Errorf("after the repair:\n%swant:\n%s", have, want)
	}
	filtered(ctx, t, r)
	r.MustApply(ctx, t, r.Endpoints()+strings.Replace(dropping, "fw | w1 | tap:mon | w2", "fw | w1", 1))
}

// filtered wants what the firewall allows to pass within a while, and what it does not to be blocked.
func filtered(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	rig.Eventually(ctx, t, "pings pass", func() (bool, string) {
		_, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02")
		if err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	blocked(ctx, t, r)
}

// blocked wants TCP to port 81, which the firewall does not allow, not to get through: not even the refusal of a station where nobody listens.
func blocked(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	out, err := r.Run(ctx, r.Alice(), "nc", "-z", "-w", "1", rig.BobAddr, "81")
	var exit *rig.ExitError
	if !errors.As(err, &exit) || strings.Contains(exit.Stderr, "refused") {
		t.Errorf("port 81 answers: %v %s", err, out)
	}
}
