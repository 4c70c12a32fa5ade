// Package suite is the conformance suite of container runtimes: what container.Runtime promises, as tests.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/container"
)

// Driver is what the suite needs of a runtime under test. Its programs run in the containers that Spec describes.
type Driver struct {
	Runtime  container.Runtime
	Spec     container.Spec             // without ID and Args
	Wait     []string                   // runs until SIGTERM
	Stubborn []string                   // ignores SIGTERM
	Exit     func(code int) []string    // ends at once
	Print    func(text string) []string // prints a line; as a container's program it then goes on until SIGTERM
	Cat      []string                   // copies its input to its output, as a program of Exec
	// ExitCodes is false if an exit that happened before Wait may be reported as -1.
	ExitCodes bool
}

const (
	patience = 20 * time.Second
	longest  = 6 * time.Minute // a test on a busy machine: twelve virtual machines whose processors are emulated
)

type test struct {
	*testing.T
	Driver
	ctx context.Context
}

// cases are the suite's, by what they show.
func cases() map[string]func(*test) {
	return map[string]func(*test){
		"create prepares, start runs":                        createStart,
		"run does both":                                      run,
		"every method may be called twice":                   twice,
		"another spec under the same id is refused":          otherSpec,
		"a stopped container starts anew":                    startAgain,
		"an exit is seen with its code":                      exits,
		"stop ends a program that ignores SIGTERM":           stubborn,
		"stop of a created container ends it":                stopCreated,
		"unknown containers":                                 unknown,
		"a command that the image lacks leaves nothing":      noCommand,
		"output goes to the log":                             logs,
		"logs follow":                                        follow,
		"exec returns output and exit code":                  execute,
		"exec ends with its context":                         executeCancel,
		"a call whose context has ended leaves nothing":      cancelled,
		"containers are made and removed four at a time":     parallel,
		"the same container from many callers is made once":  contended,
		"destroy removes all":                                destroy,
		"wait returns when the container is deleted":         waitDelete,
		"list reports the states of all, in order of the id": list,
	}
}

// Cases are the names of the suite's tests, in order.
func Cases() []string { return slices.Sorted(maps.Keys(cases())) }

// Run runs the suite. Each test deletes the containers that it makes.
func Run(t *testing.T, open func(t *testing.T) Driver) {
	for name, f := range cases() {
		t.Run(name, func(t *testing.T) { with(t, open(t), f) })
	}
}

// with runs a test, and destroys all containers afterwards.
func with(t *testing.T, d Driver, f func(*test)) {
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	t.Cleanup(func() {
		if err := d.Runtime.Destroy(context.Background()); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	f(&test{T: t, Driver: d, ctx: ctx})
}

func (t *test) spec(id string, args ...string) container.Spec {
	s := t.Driver.Spec
	s.ID, s.Args = id, args
	return s
}

func (t *test) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (t *test) state(id string, want container.State) container.Status {
	t.Helper()
	s, err := t.Runtime.Status(t.ctx, id)
	t.must(err)
	if s.State != want {
		t.Fatalf("state of %s: got %s, want %s", id, s.State, want)
	}
	if alive := want != container.Stopped; alive != (s.PID > 0) {
		t.Fatalf("%s is %s with pid %d", id, s.State, s.PID)
	}
	return s
}

// ends waits for the end of a container.
func (t *test) ends(id string) container.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	s, err := t.Runtime.Wait(ctx, id)
	t.must(err)
	if s.State != container.Stopped {
		t.Fatalf("after wait %s is %s", id, s.State)
	}
	return s
}

func createStart(t *test) {
	t.must(t.Runtime.Create(t.ctx, t.spec("a", t.Driver.Print("hello")...)))
	before := t.state("a", container.Created)
	if !before.Started.IsZero() {
		t.Errorf("created, yet started %v", before.Started)
	}
	if text := t.log("a", container.LogOptions{}); text != "" {
		t.Errorf("it printed before start: %q", text)
	}
	t.must(t.Runtime.Start(t.ctx, "a"))
	after := t.state("a", container.Running)
	if after.PID != before.PID {
		t.Errorf("start changed the pid from %d to %d", before.PID, after.PID)
	}
	if after.Started.IsZero() {
		t.Error("started at no time")
	}
	t.prints("a", "hello\n")
}

func run(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	t.state("a", container.Running)
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	if s := t.state("a", container.Stopped); s.ExitCode != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0: was it killed?", s.ExitCode)
	}
}

func twice(t *test) {
	s := t.spec("a", t.Driver.Wait...)
	var pid int
	for i := range 2 {
		t.must(t.Runtime.Create(t.ctx, s))
		st := t.state("a", container.Created)
		if i > 0 && st.PID != pid {
			t.Errorf("the second create made another process")
		}
		pid = st.PID
	}
	for range 2 {
		t.must(t.Runtime.Start(t.ctx, "a"))
		t.must(t.Runtime.Run(t.ctx, s))
		t.must(t.Runtime.Create(t.ctx, s)) // as it exists already
		if st := t.state("a", container.Running); st.PID != pid {
			t.Errorf("a second call made another process")
		}
	}
	for range 2 {
		t.must(t.Runtime.Stop(t.ctx, "a", patience))
		t.state("a", container.Stopped)
	}
	for range 2 {
		t.must(t.Runtime.Delete(t.ctx, "a"))
		if _, err := t.Runtime.Status(t.ctx, "a"); !errors.Is(err, container.ErrNotFound) {
			t.Errorf("status after delete: %v", err)
		}
	}
}

func otherSpec(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	pid := t.state("a", container.Running).PID
	s := t.spec("a", t.Driver.Wait...)
	s.Env = append(s.Env, "X=1")
	if err := t.Runtime.Run(t.ctx, s); !errors.Is(err, container.ErrState) {
		t.Errorf("got %v, want ErrState", err)
	}
	if t.state("a", container.Running).PID != pid {
		t.Error("the running one was touched")
	}
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	t.must(t.Runtime.Run(t.ctx, s)) // a stopped one gives way
	t.state("a", container.Running)
}

func startAgain(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Print("hello")...)))
	t.prints("a", "hello\n")
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	t.must(t.Runtime.Start(t.ctx, "a"))
	t.state("a", container.Running)
	t.prints("a", "hello\nhello\n")
}

func exits(t *test) {
	for _, code := range []int{0, 7} {
		id := fmt.Sprint("exit", code)
		t.must(t.Runtime.Run(t.ctx, t.spec(id, t.Driver.Exit(code)...)))
		s := t.ends(id)
		if s.ExitCode != code && (t.ExitCodes || s.ExitCode != -1) {
			t.Errorf("exit code %d, want %d", s.ExitCode, code)
		}
		if s.Signal != 0 {
			t.Errorf("it exited by itself, not by signal %d", s.Signal)
		}
		if again := t.ends(id); !cmp.Equal(s, again) {
			t.Errorf("the second wait differs: %s", cmp.Diff(s, again))
		}
	}
	t.must(t.Runtime.Create(t.ctx, t.spec("late", t.Driver.Exit(3)...)))
	t.must(t.Runtime.Start(t.ctx, "late"))
	if s := t.ends("late"); s.ExitCode != 3 && (t.ExitCodes || s.ExitCode != -1) {
		t.Errorf("exit code %d, want 3", s.ExitCode)
	}
}

func stubborn(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Stubborn...)))
	t.must(t.Runtime.Stop(t.ctx, "a", 100*time.Millisecond))
	if s := t.state("a", container.Stopped); s.ExitCode != 137 || s.Signal != 9 || s.OOM {
		t.Errorf("%+v: want exit code 137, killed by signal 9", s)
	}
}

func stopCreated(t *test) {
	t.must(t.Runtime.Create(t.ctx, t.spec("a", t.Driver.Wait...)))
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	t.state("a", container.Stopped)
}

func unknown(t *test) {
	t.must(t.Runtime.Stop(t.ctx, "nobody", time.Second))
	t.must(t.Runtime.Delete(t.ctx, "nobody"))
	for name, err := range map[string]error{
		"start":  t.Runtime.Start(t.ctx, "nobody"),
		"wait":   second(t.Runtime.Wait(t.ctx, "nobody")),
		"status": second(t.Runtime.Status(t.ctx, "nobody")),
		"exec":   second(t.Runtime.Exec(t.ctx, "nobody", container.ExecSpec{Args: t.Driver.Wait})),
		"logs":   second(t.Runtime.Logs(t.ctx, "nobody", container.LogOptions{})),
	} {
		if !errors.Is(err, container.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func noCommand(t *test) {
	for name, f := range map[string]func(context.Context, container.Spec) error{"create": t.Runtime.Create, "run": t.Runtime.Run} {
		err := f(t.ctx, t.spec("a", "no-such-program"))
		if name == "create" && err == nil { // some runtimes look for it at start only
			err = t.Runtime.Start(t.ctx, "a")
			t.must(t.Runtime.Delete(t.ctx, "a"))
		}
		if err == nil || !strings.Contains(err.Error(), "no-such-program") {
			t.Errorf("%s: got %v, want an error that names the command", name, err)
		}
		if all, err := t.Runtime.List(t.ctx); err != nil || len(all) != 0 {
			t.Errorf("%s: left %v (%v)", name, all, err)
		}
	}
}

func (t *test) log(id string, o container.LogOptions) string {
	t.Helper()
	l, err := t.Runtime.Logs(t.ctx, id, o)
	t.must(err)
	defer l.Close()
	text, err := io.ReadAll(l)
	t.must(err)
	return string(text)
}

// prints polls until the log is as wanted.
func (t *test) prints(id, want string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got := t.log(id, container.LogOptions{})
		if got == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("log of %s: %s", id, cmp.Diff(want, got))
		}
	}
}

func logs(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Print("one")...)))
	t.prints("a", "one\n")
	for range 2 {
		t.must(t.Runtime.Stop(t.ctx, "a", patience))
		t.must(t.Runtime.Start(t.ctx, "a"))
	}
	t.prints("a", "one\none\none\n")
	if got := t.log("a", container.LogOptions{Tail: 2}); got != "one\none\n" {
		t.Errorf("last two lines: %q", got)
	}
	if got := t.log("a", container.LogOptions{Tail: 2, Latest: true}); got != "one\n" {
		t.Errorf("of the last process: %q", got)
	}
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	if got := t.log("a", container.LogOptions{Tail: 9}); got != "one\none\none\n" {
		t.Errorf("log of a stopped container: %q", got)
	}
}

func follow(t *test) {
	t.must(t.Runtime.Create(t.ctx, t.spec("a", t.Driver.Print("hello")...)))
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	l, err := t.Runtime.Logs(ctx, "a", container.LogOptions{Follow: true})
	t.must(err)
	defer l.Close()
	t.must(t.Runtime.Start(t.ctx, "a"))
	buf := make([]byte, len("hello\n"))
	if _, err := io.ReadFull(l, buf); err != nil || string(buf) != "hello\n" {
		t.Fatalf("got %q, %v", buf, err)
	}
	cancel()
	if rest, err := io.ReadAll(l); err != nil || len(rest) != 0 {
		t.Errorf("after the context ended: %q, %v", rest, err)
	}
}

func execute(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	var out bytes.Buffer
	code, err := t.Runtime.Exec(t.ctx, "a", container.ExecSpec{Args: t.Driver.Exit(5), Stdout: &out})
	if err != nil || code != 5 {
		t.Errorf("exit 5: got %d, %v", code, err)
	}
	code, err = t.Runtime.Exec(t.ctx, "a", container.ExecSpec{Args: t.Driver.Cat, Stdin: strings.NewReader("through"), Stdout: &out})
	if err != nil || code != 0 || out.String() != "through" {
		t.Errorf("cat: got %d, %v, %q", code, err, out.String())
	}
	_, err = t.Runtime.Exec(t.ctx, "a", container.ExecSpec{Args: []string{"no-such-program"}, Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("unknown command: got %v", err)
	}
	t.must(t.Runtime.Stop(t.ctx, "a", patience))
	if _, err = t.Runtime.Exec(t.ctx, "a", container.ExecSpec{Args: t.Driver.Exit(0)}); !errors.Is(err, container.ErrState) {
		t.Errorf("in a stopped container: got %v, want ErrState", err)
	}
}

func executeCancel(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	ctx, cancel := context.WithTimeout(t.ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := t.Runtime.Exec(ctx, "a", container.ExecSpec{Args: t.Driver.Wait}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	t.state("a", container.Running)
}

func cancelled(t *test) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	for name, f := range map[string]func(context.Context, container.Spec) error{"create": t.Runtime.Create, "run": t.Runtime.Run} {
		if err := f(ctx, t.spec("a", t.Driver.Wait...)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want the context's error", name, err)
		}
		if all, err := t.Runtime.List(t.ctx); err != nil || len(all) != 0 {
			t.Errorf("%s: left %v (%v)", name, all, err)
		}
	}
}

func parallel(t *test) {
	const workers, each = 4, 4
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("c%d-%d", w, i)
				if err := t.Runtime.Run(t.ctx, t.spec(id, t.Driver.Wait...)); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := t.Runtime.Delete(t.ctx, id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	all, err := t.Runtime.List(t.ctx)
	t.must(err)
	if len(all) != workers*each/2 {
		t.Errorf("%d containers, want %d: %v", len(all), workers*each/2, all)
	}
}

func contended(t *test) {
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if err := t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.state("a", container.Running)
}

func destroy(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	t.must(t.Runtime.Create(t.ctx, t.spec("b", t.Driver.Wait...)))
	for range 2 {
		t.must(t.Runtime.Destroy(t.ctx))
		if all, err := t.Runtime.List(t.ctx); err != nil || len(all) != 0 {
			t.Errorf("left %v (%v)", all, err)
		}
	}
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...))) // the runtime stays usable
	t.state("a", container.Running)
}

func waitDelete(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("a", t.Driver.Wait...)))
	done := make(chan container.Status, 1)
	go func() {
		s, err := t.Runtime.Wait(t.ctx, "a")
		if err != nil && !errors.Is(err, container.ErrNotFound) {
			t.Error(err)
		}
		done <- s
	}()
	select {
	case s := <-done:
		t.Fatalf("it does not wait: %+v", s)
	case <-time.After(100 * time.Millisecond):
	}
	t.must(t.Runtime.Delete(t.ctx, "a"))
	select {
	case s := <-done:
		if s.State != "" && s.State != container.Stopped { // "": it was not found any more
			t.Errorf("after the deletion it is %s", s.State)
		}
	case <-time.After(patience):
		t.Fatal("wait still waits")
	}
}

func list(t *test) {
	t.must(t.Runtime.Run(t.ctx, t.spec("c", t.Driver.Wait...)))
	t.must(t.Runtime.Create(t.ctx, t.spec("a", t.Driver.Wait...)))
	t.must(t.Runtime.Run(t.ctx, t.spec("b", t.Driver.Wait...)))
	t.must(t.Runtime.Stop(t.ctx, "b", patience))
	all, err := t.Runtime.List(t.ctx)
	t.must(err)
	var got []string
	for _, s := range all {
		got = append(got, s.ID+" "+string(s.State))
	}
	if diff := cmp.Diff([]string{"a created", "b stopped", "c running"}, got); diff != "" {
		t.Error(diff)
	}
}
