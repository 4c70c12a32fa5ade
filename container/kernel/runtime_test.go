package kernel

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

// child is a process of ours that ends when the writer is closed.
func child(t *testing.T) (*exec.Cmd, io.Closer) {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	return c, in
}

// of opens no engine: the tests here need none.
func of(t *testing.T) *Runtime {
	t.Helper()
	hierarchies, err := findHierarchies()
	must(t, err)
	dir := t.TempDir()
	h := &Home{inst: instance.Instance{Name: "kernel-" + strconv.Itoa(os.Getpid()), Root: dir, Run: dir}, engine: "test", cgroups: hierarchies, defaults: container.Limits{PIDs: defaultPIDs}}
	return &Runtime{Home: h, adopts: true, containers: map[string]*entry{}}
}

// grouped are the groups of containers, as long as the test runs.
func grouped(t *testing.T, r *Runtime, ids ...string) {
	t.Helper()
	for _, id := range ids {
		groups, err := r.Groups(Container{Spec: container.Spec{ID: id}})
		must(t, err)
		groups.Close()
	}
	t.Cleanup(func() {
		for _, id := range ids {
			must(t, r.removeCgroup(context.Background(), id))
		}
		must(t, r.removeCgroupRoots())
	})
}

// zombie is a child of ours that has ended with exit code 7, in a container's groups.
func zombie(t *testing.T, r *Runtime, id string, start func(*exec.Cmd) error) *exec.Cmd {
	t.Helper()
	c := exec.Command("sh", "-c", "read x; exit 7")
	in, err := c.StdinPipe()
	must(t, err)
	must(t, start(c))
	for _, entrance := range r.Entrances(id) {
		must(t, os.WriteFile(entrance, []byte(strconv.Itoa(c.Process.Pid)), 0))
	}
	must(t, in.Close())
	deadline := time.Now().Add(10 * time.Second)
	for st, err := readStat(c.Process.Pid); err != nil || st.state != 'Z'; st, err = readStat(c.Process.Pid) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v: want a zombie", st, err)
		}
		time.Sleep(time.Millisecond)
	}
	return c
}

// What others have left to us is collected, and nothing that somebody waits for: the launcher of an Exec is in its container's group of version 2, and so is a
// first process that was not taken hold of yet.
func TestOrphansAreWhatNobodyWaitsFor(t *testing.T) {
	for _, id := range []string{"a", ""} {
		r := of(t)
		grouped(t, r, "a", "b")
		waited, left := zombie(t, r, "a", Start), zombie(t, r, "a", (*exec.Cmd).Start)
		first := zombie(t, r, "b", (*exec.Cmd).Start)
		r.containers["b"] = &entry{rec: record{Spec: container.Spec{ID: "b"}, Phase: phaseCreating}}
		r.reapOrphans(id)
		var exit *exec.ExitError
		if err := Wait(waited); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("orphans of %q: %v; want the exit code of what is waited for, 7", id, err)
		}
		if err := first.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("orphans of %q: %v; want the exit code of a container's process that is being made, 7", id, err)
		}
		if err := left.Wait(); !errors.Is(err, unix.ECHILD) && r.AnyUnified() {
			t.Errorf("orphans of %q: %v; want what nobody waits for to be collected", id, err)
		}
	}
}

// What others leave is collected now and then: with it in its namespace a container could not end.
func TestListCollectsWhatOthersHaveLeft(t *testing.T) {
	r := of(t)
	grouped(t, r, "a")
	left := zombie(t, r, "a", (*exec.Cmd).Start)
	_, err := r.List(t.Context())
	must(t, err)
	if err := left.Wait(); !errors.Is(err, unix.ECHILD) && r.AnyUnified() {
		t.Errorf("%v; want it to be collected", err)
	}
}

// Whoever kills all that is in a container's groups leaves the end of what somebody waits for to him.
func TestWhatIsKilledIsCollectedByWhoWaitsForIt(t *testing.T) {
	r := of(t)
	grouped(t, r, "a")
	c := exec.Command("sleep", "1000")
	must(t, Start(c))
	for _, entrance := range r.Entrances("a") {
		must(t, os.WriteFile(entrance, []byte(strconv.Itoa(c.Process.Pid)), 0))
	}
	must(t, r.killCgroup(t.Context(), "a"))
	if code, err := ExitCode(Wait(c)); code != 137 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// A child in the making, which may be held up, holds nobody up.
func TestAChildInTheMakingHoldsNobodyUp(t *testing.T) {
	r := of(t)
	grouped(t, r, "a")
	c := zombie(t, r, "a", (*exec.Cmd).Start)
	awaited.starting.RLock()
	defer awaited.starting.RUnlock()
	r.reapOrphans("a")
	if err := c.Wait(); errors.Is(err, unix.ECHILD) {
		t.Error("it was collected while nobody knew of a child in the making")
	}
}

// The last field of a line is a path; that of a group that was removed ends with a word.
func TestNameBelowAGroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/weir/x/a\n": "a", "0::/weir/x/a/below/it\n": "a", "0::/weir/x/a (deleted)\n": "a", "5:pids:/\n0::/weir/x/@a/begin\n": "a",
		"0::/weir/x\n": "", "0::/weir/xy/a\n": "", "0::/weir\n": "", "0::/\n": "", "": "", "garbage": "",
	} {
		if got, ok := nameBelow(text, "/weir/x"); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, ok, want)
		}
	}
}

// What could not be recorded is removed next, and that waits for its end.
func TestAProcessIsWatchedThoughItsRecordCannotBeWritten(t *testing.T) {
	r := of(t)
	c, end := child(t)
	p, _, err := OpenProcess(c.Process.Pid, 0)
	must(t, err)
	rec := record{Spec: container.Spec{ID: "a"}, Phase: phaseRunning}
	if err := r.keep(&entry{}, rec, p); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v: want no directory %s", err, filepath.Dir(r.Bundle("a")))
	}
	must(t, end.Close())
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		t.Error("nobody notices its end")
	}
}

type noEngine struct {
	Engine
	execs int
}

func (e *noEngine) Exec(context.Context, Container, container.ExecSpec) (int, error) {
	e.execs++
	return 0, nil
}

// A process that is being started may still be ours, with something of the host open, and its container half-made.
func TestNothingRunsInAContainerThatIsBeingStarted(t *testing.T) {
	r, engine := of(t), &noEngine{}
	r.engine = engine
	p := &Process{pid: 1, done: make(chan struct{})}
	for phase, want := range map[phase]int{phaseCreated: 0, phaseStarting: 0, phaseRunning: 1} {
		engine.execs = 0
		r.containers["a"] = &entry{rec: record{Spec: container.Spec{ID: "a"}, Phase: phase}, proc: p}
		_, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"true"}})
		if engine.execs != want || errors.Is(err, container.ErrState) != (want == 0) {
			t.Errorf("%s: %d runs, %v", phase, engine.execs, err)
		}
	}
}
