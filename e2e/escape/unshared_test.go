package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
)

// disk is a directory that can become one of a file system without idmapped mounts, with what is in it.
type disk struct {
	base, dir string
	covered   bool
}

// newDisk has to be made before the rig that uses it.
func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{base: t.TempDir()}
	d.dir = filepath.Join(d.base, "disk")
	t.Cleanup(func() { // after the rig's end
		if !d.covered {
			return
		}
		err := unix.Unmount(d.dir, 0)
		for end := time.Now().Add(20 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(d.dir, 0) {
			time.Sleep(20 * time.Millisecond) // a container that starts beside, of another world, has a copy of all mounts for some milliseconds
		}
		if err != nil {
			t.Error(err)
		}
	})
	return d
}

// moveIn gives a rig a state directory there.
func (d *disk) moveIn(t *testing.T, r *rig.Rig) {
	t.Helper()
	if err := os.Remove(r.Root); err != nil {
		t.Fatal(err)
	}
	r.Root = filepath.Join(d.dir, "state")
	for _, dir := range []string{r.Root, filepath.Join(d.base, "upper"), filepath.Join(d.base, "work")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// cover mounts overlayfs over it, which knows no idmapped mounts.
func (d *disk) cover(t *testing.T) {
	t.Helper()
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", d.dir, filepath.Join(d.base, "upper"), filepath.Join(d.base, "work"))
	if err := unix.Mount("weir-test", d.dir, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	d.covered = true
}

// A host whose state directory comes to lie on a file system without idmapped mounts has no user namespaces for its functions. It says so, and no image
// gets a capability there that the operator does not allow by name; those without one, and those that are allowed theirs, work.
func TestWithoutUserNamespaces(t *testing.T) {
	d := newDisk(t)
	r, ctx := rig.Bare(t, rig.Options{})
	d.moveIn(t, r)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	says := func(ok bool, detail string) {
		t.Helper()
		rig.Eventually(ctx, t, "the host says it", func() (bool, string) { // after a start its former report stands for a moment
			var hosts api.List[api.Host]
			if err := r.Get(ctx, &hosts, "hosts"); err != nil || len(hosts.Items) != 1 {
				return false, fmt.Sprint(err, len(hosts.Items))
			}
			features := hosts.Items[0].Status.Features
			at := slices.IndexFunc(features, func(f api.Feature) bool { return f.Name == "user namespaces" })
			return at >= 0 && features[at].OK == ok && strings.Contains(features[at].Detail, detail), fmt.Sprintf("%+v; want %v, %q", features, ok, detail)
		})
		out, err := r.Weir(ctx, "check")
		word := map[bool]string{true: "ok", false: "missing"}[ok]
		if err != nil || !regexp.MustCompile(`user namespaces +`+word+` .*`+regexp.QuoteMeta(detail)).MatchString(out) {
			t.Errorf("weir check says %s %v; want user namespaces %s, %q", out, err, word, detail)
		}
		if left, _ := filepath.Glob(filepath.Join(d.dir, "*", ".weir-check-*")); len(left) > 0 {
			t.Errorf("weir check has left %v", left)
		}
	}
	root := func() string { // the user that root in the function is outside
		t.Helper()
		var f api.Function
		if err := r.Get(ctx, &f, "function", "fw"); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.Status.PID))
		if err != nil {
			t.Fatal(err)
		}
		return string(regexp.MustCompile(`Uid:\t(\d+)`).FindSubmatch(text)[1]) + " " + string(regexp.MustCompile(`CapEff:\t0*([0-9a-f]+)`).FindSubmatch(text)[1])
	}
	document := func(fw string) string {
		return r.Endpoints() + "functions:\n  fw: {image: firewall, on_fail: drop, config: {allow: [icmp]}" + fw + "}\nchains: {c: fw}\npolicies: {p: {from: alice, to: bob, chain: c}}\n"
	}
	ping := func() error {
		_, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.05")
		return err
	}
	r.MustApply(ctx, t, document(""))
	says(true, "each function has one of its own")
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	const netAdmin = "1000" // CAP_NET_ADMIN alone
	if got := root(); strings.HasPrefix(got, "0 ") || !strings.HasSuffix(got, " "+netAdmin) {
		t.Errorf("root in a function is user and capabilities %s, want nobody of the host, and %s", got, netAdmin)
	}

	// The same state, on a file system that knows no idmapped mounts, as after a move of the disk.
	if _, err := r.Weir(ctx, "down", "--keep-state"); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.cover(t)
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	const why = "functions run as root of this host, and get no capability that their spec does not allow: owners of image files cannot be shifted"
	says(false, why)
	rig.Eventually(ctx, t, "the function says why it does not start", func() (bool, string) {
		var f api.Function
		err := r.Get(ctx, &f, "function", "fw")
		m := f.Status.Message
		return err == nil && f.Status.State == api.FunctionFailed && strings.Contains(m, "image firewall asks for CAP_NET_ADMIN, which would count on host") &&
			strings.Contains(m, "owners of image files cannot be shifted") && strings.Contains(m, "write allow: [CAP_NET_ADMIN]"), fmt.Sprintf("%v %+v", err, f.Status)
	})
	if ping() == nil {
		t.Error("frames pass a policy whose function may not start")
	}

	var refused *rig.ExitError
	if _, err := r.Apply(ctx, document(", env: {A: b}")); !errors.As(err, &refused) || refused.Code != command.ExitInvalid || !strings.Contains(refused.Stderr, "write allow: [CAP_NET_ADMIN]") {
		t.Errorf("without the operator's word: %v", err)
	}
	if _, err := r.Apply(ctx, document(", allow: [CAP_NET_RAW]")); !errors.As(err, &refused) || refused.Code != command.ExitInvalid {
		t.Errorf("with another capability allowed: %v", err)
	}
	r.MustApply(ctx, t, document(", allow: [CAP_NET_ADMIN]"))
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	if got := root(); got != "0 "+netAdmin {
		t.Errorf("root in a function is user and capabilities %s, want 0 %s", got, netAdmin)
	}
	// What asks for nothing needs nobody's word.
	r.MustApply(ctx, t, r.Endpoints()+"functions: {w: {image: wire, on_fail: drop}}\nchains: {c: w}\npolicies: {p: {from: alice, to: bob, chain: c}}\n", "--prune")
	if err := ping(); err != nil {
		t.Fatal(err)
	}
}
