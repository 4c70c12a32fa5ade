package entry

import (
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/steps"
	"weir.dev/weir/container/kernel/suite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine makes no namespaces: its program is what a test says.
type engine struct {
	*Tool
	plan func(x *Launch, c kernel.Container)
}

func (e *engine) Prepare(kernel.Container) error { return nil }
func (e *engine) Left() ([]string, error)        { return e.Home.Monitors() }
func (e *engine) Remove(ctx context.Context, id string) error {
	return e.Home.EndMonitor(ctx, id)
}

func (e *engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	return e.Tool.Launch(ctx, c, log, run, made, func(x *Launch) error {
		x.Begin(e.Home, c, 0)
		e.plan(x, c)
		return e.Home.MakeGroups(c.Spec)
	})
}

// Whatever fails on the way to a container's process is named: before the engine's program, by the program, and behind it.
func TestWhatFailsIsNamed(t *testing.T) {
	first := func(x *Launch, c kernel.Container) { // the program is the container's process itself
		x.Apart = Apart{Inside: Dir(c), Log: os.DevNull}
		x.Args = x.Apart.Command()
	}
	for name, c := range map[string]struct {
		plan func(x *Launch, c kernel.Container)
		args []string
		want string
	}{
		"no program":       {func(x *Launch, _ kernel.Container) { x.Args = []string{"/no/such"} }, []string{"x"}, "engine: execute /no/such: no such file or directory"},
		"a step before it": {func(x *Launch, _ kernel.Container) { x.Join("/no/group"); x.Args = []string{"/bin/true"} }, []string{"x"}, "engine: join cgroup /no/group: no such file or directory"},
		"a file":           {func(x *Launch, _ kernel.Container) { x.Open("/no/file"); x.Args = []string{"/bin/true"} }, []string{"x"}, "open /no/file: no such file or directory"},
		"what it says":     {func(x *Launch, _ kernel.Container) { x.Args = []string{"/bin/sh", "-c", "echo sorry >&2; exit 3"} }, []string{"x"}, "engine: sorry"},
		"nothing":          {func(x *Launch, _ kernel.Container) { x.Args = []string{"/bin/true"} }, []string{"x"}, "engine: it ended without a word"},
		"the command":      {first, []string{"nosuch"}, `engine: command "nosuch" not found in the image`},
		"none of it":       {first, []string{"/bin/sleep", "1000"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := kernel.New(t.Context(), suite.NewInstance(t), "entrytest", kernel.Options{Adopt: true}, func(h *kernel.Home) (kernel.Engine, error) {
				return &engine{&Tool{steps.Maker{Home: h, Dir: ownDir}, "engine"}, c.plan}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: c.args})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			if err := r.Destroy(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
