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

// The launcher of an Exec is in the container's group of version 2. Whoever collects what another Exec has left leaves it to who waits for it.
func TestOrphansOfAContainerAreOfItsNamespace(t *testing.T) {
	for id, own := range map[string]bool{"a": true, "": false} {
		r := of(t)
		groups, err := r.Groups(Container{Spec: container.Spec{ID: "a"}})
		must(t, err)
		groups.Close()
		t.Cleanup(func() {
			must(t, r.removeCgroup(context.Background(), "a"))
			must(t, r.removeCgroupRoots())
		})
		c, end := child(t)
		for _, entrance := range r.Entrances("a") {
			must(t, os.WriteFile(entrance, []byte(strconv.Itoa(c.Process.Pid)), 0))
		}
		must(t, end.Close())
		deadline := time.Now().Add(10 * time.Second)
		for st, err := readStat(c.Process.Pid); err != nil || st.state != 'Z'; st, err = readStat(c.Process.Pid) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v, %v: want a zombie", st, err)
			}
			time.Sleep(time.Millisecond)
		}
		r.reapOrphans(id)
		if err := c.Wait(); err == nil != own {
			t.Errorf("orphans of %q: %v; want its own parent to collect it: %v", id, err, own)
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
