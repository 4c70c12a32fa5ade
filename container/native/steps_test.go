package native

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/steps"
	"weir.dev/weir/container/kernel/suite"
)

// fresh opens a runtime and the engine under it.
func fresh(t *testing.T) (*kernel.Runtime, *Engine, container.Spec) {
	t.Helper()
	var e *Engine
	r, err := kernel.New(t.Context(), suite.NewInstance(t), Name, kernel.Options{Adopt: true}, func(h *kernel.Home) (kernel.Engine, error) {
		e = &Engine{steps.Maker{Home: h}}
		return e, nil
	})
	must(t, err)
	t.Cleanup(func() {
		must(t, r.Destroy(context.Background()))
		must(t, r.Close())
	})
	return r, e, container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The list in DESIGN.md is what programs do, no more and no less.
func TestSystemCalls(t *testing.T) {
	r, e, s := fresh(t)
	must(t, r.Run(t.Context(), s))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	s.UID, s.Capabilities = 65534, []string{"CAP_NET_ADMIN"}
	s.Mounts = []container.Mount{{Source: t.TempDir(), Target: "/etc/weir"}}
	c := kernel.Container{Spec: s, Bundle: t.TempDir(), Root: s.Rootfs, PID: st.PID}
	var got []string
	info, err := arch.GetInfo("")
	must(t, err)
	groups, err := e.Home.OpenGroups("a")
	must(t, err)
	defer groups.Close()
	b, err := e.creation(c, groups, false)
	must(t, err)
	defer b.Close()
	x, err := e.Further(c, groups, container.ExecSpec{Args: []string{"sh"}, TTY: true})
	must(t, err)
	defer x.Close()
	for _, p := range []*steps.List{b, x} {
		for _, n := range p.Numbers() {
			got = append(got, info.SyscallNumbers[n])
		}
	}
	slices.Sort(got)
	got = slices.Compact(got)
	design, err := os.ReadFile("DESIGN.md")
	must(t, err)
	list := regexp.MustCompile(`(?s)A test compares this list.*?\n\n(.*?)\n\n`).FindStringSubmatch(string(design))
	if list == nil {
		t.Fatal("DESIGN.md has no list")
	}
	want := strings.FieldsFunc(list[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DESIGN.md and the programs differ:\n%s", diff)
	}
}

// An image whose mount points are symbolic links could have mounts made elsewhere.
func TestMountPointsThatAreLinksAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ at, to string }{
		"proc":          {"proc", "/"},
		"dev":           {"dev", "/proc/self/fd/7"},
		"configuration": {"etc/weir", "/usr"},
		"a parent":      {"etc", "/usr/etc"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, s := fresh(t)
			s.Mounts = []container.Mount{{Source: t.TempDir(), Target: "/etc/weir"}}
			must(t, os.MkdirAll(filepath.Join(s.Rootfs, "usr/etc/weir"), 0o755))
			must(t, os.RemoveAll(filepath.Join(s.Rootfs, c.at)))
			must(t, os.Symlink(c.to, filepath.Join(s.Rootfs, c.at)))
			if err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "/"+c.at+" of the image is a symbolic link") && !strings.Contains(err.Error(), "the image has no") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Without a user namespace devices could be made.
func TestMknodWithoutAUserNamespaceIsRefused(t *testing.T) {
	r, _, s := fresh(t)
	s.Capabilities = []string{"CAP_MKNOD"}
	if err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "CAP_MKNOD") {
		t.Errorf("got %v", err)
	}
}
