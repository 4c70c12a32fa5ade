package badinput

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// A crash or a bad disk leaves files half written. Either the daemon mends them, or it says which and what to do; what
// forwards goes on meanwhile, and the intent is never lost in silence.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	objects := look(ctx, t, r).Objects
	run := filepath.Join("/run/weir", r.Name)
	state := filepath.Join(r.Root, "etcd", "member")
	logs, err := filepath.Glob(filepath.Join(state, "wal", "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	cut := func(part int64) func(string) error {
		return func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()*part/100)
		}
	}
	garbage := func(path string) error {
		_ = os.Remove(path) // a socket cannot be written
		return os.WriteFile(path, []byte("{\"Slot\": 7, "), 0o600)
	}
	rubbish := func(path string) error { // in the middle, where etcd keeps what counts
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(strings.Repeat("rubbish!", 10<<10)), 4096)
		return first(err, f.Close())
	}
	unmount := func(path string) error { return unix.Unmount(path, unix.MNT_DETACH) }
	const mended = 0
	for _, c := range []struct {
		name, file string
		damage     func(string) error
		code       int
		say        []string
	}{
		{"lock", run + "/lock", garbage, mended, nil},
		{"lock of the state", r.Root + "/lock", garbage, mended, nil},
		{"socket is a file", run + "/api.sock", garbage, mended, nil},
		{"record of the home namespace", run + "/home-netns", unmount, mended, nil},
		{"function's applied spec", run + "/functions/fw/applied.json", garbage, mended, nil},
		{"function's config", run + "/functions/w1/etc/config.json", garbage, mended, nil},
		{"container's record", run + "/native/bundles/fw.*/record.json", cut(50), mended, nil},
		{"function's namespace", run + "/netns/w1", unmount, mended, nil},
		{"what was in force", r.Root + "/inforce.json", garbage, mended, nil},
		{"switch state", run + "/switch/switch.json", cut(50), failure, []string{run + "/switch/switch.json", "unexpected end of JSON", "remove the file"}},
		{"switch port", run + "/switch/endpoint.alice.json", cut(0), failure, []string{run + "/switch/endpoint.alice.json", "remove the file"}},
		{"switch function", run + "/switch/function.fw.json", garbage, failure, []string{run + "/switch/function.fw.json", "remove the file"}},
		{"token", r.Root + "/token", cut(50), failure, []string{r.Root + "/token holds", "want at least 32", "delete it"}},
		{"end of the log", logs[0], tear, mended, nil},
		{"log cut short", logs[0], cut(0), failure, []string{r.Root + "/etcd", "damaged", "restore it from a backup", "traffic goes on meanwhile"}},
		{"log with rubbish", logs[0], rubbish, failure, []string{r.Root + "/etcd", "damaged", "restore it from a backup"}},
		{"tree gone", state + "/snap/db", cut(0), mended, nil},
		{"tree cut short", state + "/snap/db", func(path string) error { return os.Truncate(path, 32<<10) }, failure, []string{r.Root + "/etcd", "damaged", "restore it from a backup"}},
		{"tree with rubbish", state + "/snap/db", rubbish, failure, []string{r.Root + "/etcd", "damaged", "restore it from a backup"}},
		{"log gone", state + "/wal", os.RemoveAll, failure, []string{"no log in " + state + "/wal", "restore it from a backup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := look(ctx, t, r)
			if err := r.Kill(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			c.file = only(t, c.file)
			backup := t.TempDir()
			if strings.HasPrefix(c.file, state) {
				if err := os.CopyFS(filepath.Join(backup, "member"), os.DirFS(state)); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.damage(c.file); err != nil {
				t.Fatal(err)
			}
			if c.code != mended {
				refused(t, try(ctx, r, nil, "up"), c.code, c.say...)
				flowing(ctx, t, r)
				// The remedy that was named.
				if strings.HasPrefix(c.file, state) {
					if err := first(os.RemoveAll(state), os.CopyFS(state, os.DirFS(filepath.Join(backup, "member")))); err != nil {
						t.Fatal(err)
					}
				} else if err := os.Remove(c.file); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			settled(ctx, t, r)
			rig.Eventually(ctx, t, "traffic flows again", func() (bool, string) {
				_, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02")
				return err == nil, fmt.Sprint(err)
			})
			unchanged(ctx, t, r, objects)
			if after := look(ctx, t, r); c.file == r.Root+"/inforce.json" && after.Version != before.Version {
				t.Errorf("rules were taken out of force: version %d, was %d", after.Version, before.Version)
			}
		})
	}
}

func unchanged(ctx context.Context, t *testing.T, r *rig.Rig, objects map[string]string) {
	t.Helper()
	now := look(ctx, t, r).Objects
	for name, o := range objects {
		if now[name] != o {
			t.Errorf("%s was %s, is %s", name, o, now[name])
		}
	}
	if len(now) != len(objects) {
		t.Errorf("%d objects, were %d", len(now), len(objects))
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// tear appends to etcd's log what a power cut may: a record that was begun. The log is preallocated with zeros behind its end.
func tear(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	end := len(strings.TrimRight(string(b), "\x00"))
	end = (end + 7) &^ 7 // records are padded
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{0x40, 0, 0, 0, 0, 0, 0, 0x80}, int64(end)) // the length of a record that never came
	return first(err, f.Close())
}

// reserve is what the store keeps free.
const reserve = 64 << 20

func TestDiskFull(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=176m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after Weir is down
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r, ctx := rig.Bare(t, rig.Options{})
	if err := os.Remove(r.Root); err != nil {
		t.Fatal(err)
	}
	r.Root = filepath.Join(disk, "root")
	if err := os.Mkdir(r.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, r.Endpoints()+chain)
	before := look(ctx, t, r)
	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(disk, "ballast")
	more := "functions: {w2: {image: wire}}\nchains: {x: w2}\npolicies: {more: {from: alice, to: bob, match: [tcp/90], chain: x}}"
	for _, left := range []int64{reserve / 2, 0} {
		fill(t, disk, ballast, left)
		_, err := r.Apply(ctx, more, "--timeout", "5s")
		refused(t, err, full, "the disk of "+r.Root+"/etcd", "nothing was changed; free some space and try again")
		_, err = r.Weir(ctx, "delete", "policy", "guests")
		refused(t, err, full, "free some space and try again")
		same(ctx, t, r, before)
	}
	t.Run("restart on a full disk", func(t *testing.T) {
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		unchanged(ctx, t, r, before.Objects)
		flowing(ctx, t, r)
		_, err = r.Apply(ctx, more, "--timeout", "5s")
		refused(t, err, full, "free some space and try again")
	})
	t.Run("first start on a full disk", func(t *testing.T) {
		refused(t, try(ctx, r, nil, "up", "--name", "f"+r.Name, "--root", disk+"/other", "--listen", "none"), full, disk+"/other", "free some space")
		if exists("/run/weir/f" + r.Name) {
			t.Error("the refused daemon left its run directory")
		}
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.MustApply(ctx, t, more)
	settled(ctx, t, r)
	o, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if o.Lost > 0 || o.Duplicated > 0 || o.Sent < 100 {
		t.Errorf("traffic noticed: %+v", o)
	}
	var p api.Policy
	if err := r.Get(ctx, &p, "policy", "more"); err != nil || p.Status.State != "active" {
		t.Errorf("after space was freed: %v %+v", err, p.Status)
	}
}

// fill leaves that much free on a disk.
func fill(t *testing.T, disk, ballast string, left int64) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(disk, &fs); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if more := int64(fs.Bavail)*fs.Bsize - left; more > 0 {
		if err := unix.Fallocate(int(f.Fd()), 0, info.Size(), more); err != nil {
			t.Fatal(err)
		}
	}
}
