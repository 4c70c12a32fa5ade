package steps

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
)

// carry has the launcher carry out a list, and returns what its last program printed and what went wrong.
func carry(t *testing.T, l *List, command string) (string, error) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer l.Close()
	cmd, done, err := l.Command(t.Context(), nil, append([]*os.File{write, write}, l.All()...)...)
	if err != nil {
		return "", err
	}
	defer done()
	var out bytes.Buffer
	cmd.Stdout, cmd.Dir = &out, t.TempDir()
	_ = cmd.Run() // what it says tells more
	write.Close()
	_, err = l.Hear(read, func(launcher.Said) bool { return false })
	return out.String(), launcher.Explain(err, []string{command})
}

// process is one that keeps nothing.
func process(args []string, env ...string) *specs.Process {
	return &specs.Process{Args: args, Env: env, Cwd: "/", Capabilities: &specs.LinuxCapabilities{}}
}

func TestStepsAreCarriedOut(t *testing.T) {
	dir := t.TempDir()
	l := New()
	l.Hide()
	l.MakeDir(filepath.Join(dir, "a/b/c"))
	l.MakeDir(filepath.Join(dir, "a/b"))
	l.MakeFile(filepath.Join(dir, "a/b/c/file"))
	l.MakeFile(filepath.Join(dir, "a/b/c/file"))
	l.Write("write", filepath.Join(dir, "a/b/c/file"), "text")
	p := process([]string{"sh", "-c", "cat c/file; pwd; echo $ONE,$TWO; ulimit -c; umask; grep -E 'NoNewPrivs|CapBnd' /proc/self/status"}, "PATH=/nowhere:/usr/bin:/bin", "ONE=1", "TWO=")
	p.Cwd, p.Rlimits = filepath.Join(dir, "a/b"), []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	l.confine(p, nil, false)
	l.Look(p.Args, p.Env)
	l.Execute(p.Args, p.Env)
	out, err := carry(t, l, "sh")
	if want := "text" + dir + "/a/b\n1,\n0\n0022\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n"; out != want || err != nil {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestFailingStepIsNamed(t *testing.T) {
	command := func(args []string, env ...string) func(*List) {
		return func(l *List) {
			p := process(args, env...)
			l.confine(p, nil, false)
			l.Look(p.Args, p.Env)
			l.Execute(p.Args, p.Env)
		}
	}
	for name, c := range map[string]struct {
		command string
		list    func(*List)
		want    string
	}{
		"a directory": {"", func(l *List) {
			p := process(nil)
			p.Cwd = "/no/such"
			l.confine(p, nil, false)
		}, `enter working directory "/no/such" of the image: no such file`},
		"a step behind others":  {"", func(l *List) { l.Hide(); l.Join("/no/group") }, "join cgroup /no/group: no such file"},
		"a mount":               {"", func(l *List) { l.Unshare(unix.CLONE_NEWNS); l.Mount("tmpfs", "/no/place", "tmpfs", 0, "") }, "mount /no/place: no such file"},
		"a command":             {"cmd", command([]string{"cmd"}, "PATH=/bin"), `command "cmd" not found in the image`},
		"without PATH":          {"sh", command([]string{"sh"}), `command "sh" not found in the image`},
		"what is no program":    {"/etc", command([]string{"/etc"}, "PATH=/bin"), `command "/etc" is not executable`},
		"what is no file":       {"/etc/passwd", command([]string{"/etc/passwd"}, "PATH=/bin"), `command "/etc/passwd" is not executable`},
		"arguments without end": {"", command([]string{"sh", strings.Repeat("x", 9<<20)}, "PATH=/bin"), "arguments and environment take"},
		"too many arguments":    {"", command([]string{"sh", strings.Repeat("x", 1<<18)}, "PATH=/bin"), "argument list too long"},
	} {
		t.Run(name, func(t *testing.T) {
			l := New()
			c.list(l)
			_, err := carry(t, l, c.command)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

// A first process that another daemon has taken hold of before it waited is started by one that has not made its list.
func TestAStepThatFailsAtTheStartIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		keep bool
		want string
	}{
		"while it prepares itself": {true, "join cgroup /no/group: no such file"},
		"when it waited":           {false, `command "sh" not found in the image`}, // then there is only that
	} {
		t.Run(name, func(t *testing.T) {
			m, box := &Maker{}, kernel.Container{Spec: container.Spec{ID: "a", Args: []string{"sh"}}, Bundle: t.TempDir()}
			if err := m.MakePipes(box, 0o600); err != nil {
				t.Fatal(err)
			}
			l := New()
			defer l.Close()
			l.Call("wait", unix.SYS_READ, launcher.Int(GoFD), l.Bytes(make([]byte, 8)), launcher.Int(1))
			l.Join("/no/group")
			l.Execute([]string{"sh"}, []string{"PATH=/bin"})
			if c.keep {
				if err := m.KeepSteps(box, l); err != nil {
					t.Fatal(err)
				}
			}
			said, write, err := m.OpenSaid(box)
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			start, err := os.OpenFile(m.Path(box, GoFile), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			cmd, done, err := l.Command(t.Context(), nil, write, start)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			err = cmd.Start()
			write.Close()
			start.Close()
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Start(t.Context(), box); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			_ = cmd.Wait()
		})
	}
}

// Who has been told to go on may still prepare himself. It is not found running before it does.
func TestWhoIsToldToGoOnIsFoundWhenItDoes(t *testing.T) {
	m, box := &Maker{}, kernel.Container{Spec: container.Spec{ID: "a"}, Bundle: t.TempDir(), PID: os.Getpid()}
	if err := m.MakePipes(box, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(m.Path(box, GoFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := m.Find(t.Context(), box); err != nil || found.State != container.Created {
		t.Errorf("it waits, and is %+v, %v", found, err)
	}
	if err := m.LetGo(box); err != nil {
		t.Fatal(err)
	}
	found := make(chan kernel.Found, 1)
	go func() {
		f, _ := m.Find(context.Background(), box)
		found <- f
	}()
	select {
	case f := <-found:
		t.Fatalf("it prepares itself, and is %+v", f)
	case <-time.After(100 * time.Millisecond):
	}
	reader.Close() // as the execution of the command does
	if f := <-found; f.State != container.Running {
		t.Errorf("it is the command, and is %+v", f)
	}
}
