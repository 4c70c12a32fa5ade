package escape

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/e2e/rig"
)

// tried is a line of the hostile function's log.
var tried = regexp.MustCompile(`(?m)ESCAPE (\S+) (refused|harmless|ESCAPED)(.*)$`)

// Nothing that the function tries reaches anything that is not its own, but for what its runtime's passes are.
func TestNothingGetsOut(t *testing.T) {
	t.Parallel()
	shareMemory(t)
	for _, rt := range runtimes {
		t.Run(rt.name, func(t *testing.T) {
			t.Parallel()
			for _, g := range rt.grants {
				t.Run(g.name, func(t *testing.T) { nothingGetsOut(t, rt, g) })
			}
		})
	}
}

// shareMemory has a segment of shared memory on the host, which no function may see.
func shareMemory(t *testing.T) {
	t.Helper()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
}

func nothingGetsOut(t *testing.T, rt runtime, g grant) {
	d := newDisk(t)
	o := options{grant: g}
	if g.unshared {
		o.change = func(_ context.Context, r *rig.Rig) error {
			d.moveIn(t, r)
			d.cover(t)
			return nil
		}
	}
	r, ctx := world(t, rt, o)
	before := look(ctx, t, r)
	var text string
	rig.Eventually(ctx, t, "the hostile function has tried all", func() (bool, string) {
		var err error
		text, err = r.Weir(ctx, "function", "logs", "evil")
		return err == nil && strings.Contains(text, "ESCAPE done"), fmt.Sprint(text, err)
	})
	judge(t, rt, g, text)
	if rt.name == "bare" {
		held(ctx, t, r)
	}
	asBefore(ctx, t, r, before)
	unharmed(ctx, t, r, "the attempts")
}

// judge looks at what the function says of its attempts.
func judge(t *testing.T, rt runtime, g grant, text string) {
	t.Helper()
	found := tried.FindAllStringSubmatch(text, -1)
	if len(found) < 75 {
		t.Errorf("%d attempts, want at least 75:\n%s", len(found), text)
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, m := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\n", m[1], m[2], strings.TrimSpace(m[3]))
		switch {
		case g.unshared && m[1] == "host-ids": // that it is root of the host is what is missing here
		case m[2] == "ESCAPED" && rt.passes[m[1]] == "":
			t.Errorf("%s: escaped:%s", m[1], m[3])
		case m[2] == "harmless" && !rt.free && !slices.Contains(g.mayPass, m[1]) && !slices.Contains(g.mayPass, "*"):
			t.Errorf("%s: went through:%s", m[1], m[3])
		}
	}
	_ = w.Flush()
	t.Logf("%d attempts\n%s", len(found), table.String())
}

// held is what of a bare function is kept apart, as the host sees it.
func held(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	var f api.Function
	rig.Eventually(ctx, t, "the hostile function runs", func() (bool, string) {
		err := r.Get(ctx, &f, "function", "evil")
		return err == nil && f.Status.PID != 0, fmt.Sprint(f.Status, err)
	})
	proc := fmt.Sprintf("/proc/%d/", f.Status.PID)
	for ns, own := range map[string]bool{"net": true, "mnt": true, "user": false, "pid": false, "ipc": false, "uts": false} {
		theirs, err := os.Readlink(proc + "ns/" + ns)
		ours, err2 := os.Readlink("/proc/self/ns/" + ns)
		if err != nil || err2 != nil || (theirs != ours) != own {
			t.Errorf("its %s namespace is %s, the host's is %s (%v); one of its own: want %v", ns, theirs, ours, errors.Join(err, err2), own)
		}
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("its status has no %q:\n%s", want, status)
		}
	}
	groups, err := os.ReadFile(proc + "cgroup")
	if err != nil || !strings.Contains(string(groups), "/weir/"+r.Name+"@bare/evil.") {
		t.Errorf("its groups: %s, %v", groups, err)
	}
	var near api.Function
	if err := r.Get(ctx, &near, "function", "near"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"signal-others", "enter-others", "look-into-others", "trace-others"} { // it sees one that has ids of its own
		out, err := r.Weir(ctx, "function", "exec", "-e", fmt.Sprint("OTHER=", near.Status.PID), "evil", "--", "/usr/bin/hostile", name)
		if err != nil || !strings.HasPrefix(out, "refused ") || strings.Contains(out, "no process") {
			t.Errorf("%s, of a function in a container: %s, %v", name, out, err)
		}
	}
	if l := f.Status.Limits; l.MemoryBytes <= 0 || l.Processes <= 0 {
		t.Errorf("its limits: %+v", l)
	}
}

// The runtime bare runs nothing but what comes with Weir, with its own command, unless the host's operator says so.
func TestBareIsForTheCatalogue(t *testing.T) {
	t.Parallel()
	r, ctx := rig.Bare(t, rig.Options{})
	build(ctx, t, r, "")
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	for spec, want := range map[string]string{
		"{image: hostile, runtime: bare}":                                 "the image is none of the catalogue",
		"{image: monitor, runtime: bare, command: [/bin/sh, -c, \"id\"]}": "its command is not the image's",
	} {
		var refused *rig.ExitError
		if _, err := r.Apply(ctx, "functions:\n  evil: "+spec+"\n"); !errors.As(err, &refused) || refused.Code != command.ExitInvalid ||
			!strings.Contains(refused.Stderr, want) || !strings.Contains(refused.Stderr, "--allow-bare") {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
	var all api.List[api.Function]
	if err := r.Get(ctx, &all, "functions"); err != nil || len(all.Items) != 0 {
		t.Errorf("there are %+v, %v", all.Items, err)
	}
}
