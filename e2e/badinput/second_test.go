package badinput

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	before := look(ctx, t, r)
	elsewhere := func(c *exec.Cmd) { c.Args[1] = "--net=" + netns.Path(r.Alice()) }
	other := "o" + r.Name
	for _, c := range []struct {
		name   string
		change func(*exec.Cmd)
		args   []string
		say    []string
	}{
		{"same name", nil, nil, []string{"already running (process", "weir status", "another --name and --root"}},
		{"same name in the background", nil, []string{"--detach"}, []string{"is up already, at /run/weir/" + r.Name}},
		{"same name, another root", nil, []string{"--root", t.TempDir()}, []string{"already running (process"}},
		{"same root, another name", nil, []string{"--name", other, "--listen", "none"}, []string{"another instance that uses " + r.Root, "another --root"}},
		{"same name, another network namespace", elsewhere, nil, []string{"already running (process"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, try(ctx, r, c.change, append([]string{"up"}, c.args...)...), conflict, c.say...)
			if exists("/run/weir/" + other) {
				t.Error("the refused daemon left its run directory")
			}
			same(ctx, t, r, before)
			flowing(ctx, t, r)
		})
	}
	t.Run("after the first died, from another network namespace", func(t *testing.T) {
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		refused(t, try(ctx, r, elsewhere, "up"), conflict, "lives in another network namespace", "nsenter --net=/run/weir/"+r.Name+"/home-netns weir up")
		flowing(ctx, t, r)
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		settled(ctx, t, r)
		same(ctx, t, r, before)
	})
	t.Run("down of another name, same root", func(t *testing.T) {
		refused(t, try(ctx, r, nil, "down", "--name", other), conflict, "another instance that uses "+r.Root)
		same(ctx, t, r, before)
	})
}

// Open vSwitch forwards in user space once in a network namespace: a second Weir with it is refused there, and leaves nothing.
func TestSecondOpenVSwitch(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", "ovs"}})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	before := look(ctx, t, r)
	other, root := "o"+r.Name, filepath.Join(t.TempDir(), "root")
	refused(t, try(ctx, r, nil, "up", "--switch", "ovs", "--name", other, "--root", root, "--listen", "none"), conflict,
		"another Open vSwitch forwards in user space in this network namespace", "start this Weir in another namespace, or with --switch ebpf")
	for _, dir := range []string{"/run/weir/" + other, root} {
		if exists(dir) {
			t.Errorf("the refused daemon left %s", dir)
		}
	}
	same(ctx, t, r, before)
	flowing(ctx, t, r)
}

// only is the one file of a pattern: containers' names have the number of a start.
func only(t *testing.T, pattern string) string {
	t.Helper()
	if !strings.Contains(pattern, "*") {
		return pattern
	}
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v, want one file", pattern, found, err)
	}
	return found[0]
}

// A daemon that hangs or whose files are damaged has to go all the same, and soon.
func TestDownOfAHangingDaemon(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+chain)
	run := filepath.Join("/run/weir", r.Name)
	if err := syscall.Kill(r.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{"lock", "switch/switch.json", "switch/rules.0.json", "native/bundles/fw.*/record.json", "functions/fw/applied.json"} {
		path := only(t, filepath.Join(run, damaged))
		if !exists(path) {
			t.Errorf("%s is not there: damage what is", damaged)
		}
		write(t, path, []byte("{"))
	}
	if err := unix.Unmount(filepath.Join(run, "netns", "w1"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := try(ctx, r, func(c *exec.Cmd) { c.Env = append(c.Env, "PATH=/nonexistent") }, "down"); err != nil { // runc is gone too
		t.Fatal(err)
	}
	t.Logf("down after %s", time.Since(begin).Round(time.Millisecond))
	if exists(run) {
		t.Error("the run directory is still there")
	}
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
	text, err := r.Run(ctx, "", "ip", "-o", "link")
	if err != nil {
		t.Fatal(err)
	}
	if links := len(splitLines(text)); links != 1 {
		t.Errorf("only the loopback should be there:\n%s", text)
	}
}
