package docker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/docker/dockerd"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

// victimEnv makes the test's program one that makes and removes containers until it is killed: NAME ROOT HOST SCRIPT ROOTFS.
const victimEnv = "WEIR_DOCKER_VICTIM"

func victim() {
	f := strings.Fields(os.Getenv(victimEnv))
	inst, err := instance.New(f[0], f[1])
	if err == nil {
		var r *kernel.Runtime
		if r, err = New(context.Background(), inst, Options{Host: f[2], Script: f[3]}); err == nil {
			fmt.Println("ready")
			churn(context.Background(), r, container.Spec{Rootfs: f[4], ReadOnly: true, Args: waiting}, func(error) {})
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// churn makes, stops and removes containers from several sides until ctx ends.
func churn(ctx context.Context, r *kernel.Runtime, spec container.Spec, failed func(error)) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := spec
			s.ID = fmt.Sprint("c", i)
			for ctx.Err() == nil {
				for _, f := range []func() error{
					func() error { return r.Create(ctx, s) }, func() error { return r.Start(ctx, s.ID) }, func() error { return r.Stop(ctx, s.ID, 0) },
					func() error { return r.Run(ctx, s) }, func() error { return r.Delete(ctx, s.ID) },
				} {
					if err := f(); err != nil && ctx.Err() == nil {
						failed(err)
						time.Sleep(10 * time.Millisecond)
					}
				}
			}
		})
	}
	wg.Wait()
}

// empty tells what an engine still has, or runs, that it should not.
func empty(t testing.TB, d *dockerd.Engine) (left []string) {
	t.Helper()
	left = append(left, strings.Fields(mustCLI(t, d, "ps", "--all", "--format", "{{.Names}}"))...)
	pids, err := d.Processes()
	must(t, err)
	for _, pid := range pids {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(args), "shim") {
			left = append(left, strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	dir := strings.TrimSuffix(strings.TrimPrefix(d.Host(), "unix://"), "/docker.sock")
	states, err := filepath.Glob(dir + "/exec/runtime-runc/moby/*")
	must(t, err)
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/data/overlay2/") && !strings.Contains(line, "-init/merged") { // an engine that is killed leaves these for good
			left = append(left, "mount "+line)
		}
	}
	return append(left, states...)
}

// settles waits until nothing is left in an engine.
func settles(t testing.TB, d *dockerd.Engine) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := empty(t, d)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left in the engine:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

const rounds = 20 // of kill -9

// Killed at any moment, a process of Weir's leaves only what the next one finds: every container is known and works, or is gone.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	d := private(t, "k", nil)
	inst := suite.NewInstance(t)
	o := optionsOf(d)
	spec := container.Spec{Rootfs: suite.Rootfs(t), ReadOnly: true, Args: waiting}
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+strings.Join([]string{inst.Name, inst.Root, o.Host, o.Script, spec.Rootfs}, " "))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		line := make([]byte, 256)
		n, err := out.Read(line)
		if err != nil || string(line[:n]) != "ready\n" {
			t.Fatalf("round %d: %q, %v", round, line[:n], err)
		}
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond) // any moment
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()

		r := opened(t, inst, d)
		list, err := r.List(t.Context())
		must(t, err)
		for _, s := range list {
			spec.ID = s.ID
			if s.State == container.Stopped {
				must(t, r.Start(t.Context(), s.ID))
			}
			must(t, r.Run(t.Context(), spec))
			now, err := r.Status(t.Context(), s.ID)
			if err == nil && now.State == container.Stopped && s.State == container.Running { // the engine has only now done what the killed process had asked for
				must(t, r.Run(t.Context(), spec))
				s.PID = 0
				now, err = r.Status(t.Context(), s.ID)
			}
			if err != nil || now.State != container.Running || s.State == container.Running && s.PID != 0 && now.PID != s.PID {
				t.Errorf("round %d: %+v, was %+v, %v", round, now, s, err)
			}
		}
		if round%2 == 1 {
			must(t, r.Destroy(t.Context()))
			settles(t, d)
		}
		must(t, r.Close())
	}
}

// An engine that is killed at any moment and comes again loses nothing: what it was told to make is made at the next attempt, and nothing is left over.
func TestEngineKilledAtAnyMoment(t *testing.T) {
	for name, live := range map[string]bool{"containers outlive the engine": true, "containers end with the engine": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := private(t, fmt.Sprint("e", live)[:2], func(o *dockerd.Options) { o.LiveRestore = live })
			inst := suite.NewInstance(t)
			r := opened(t, inst, d)
			defer r.Close()
			spec := container.Spec{Rootfs: suite.Rootfs(t), ReadOnly: true, Args: waiting}
			for round := range rounds / 2 { // of each, so of both together as many
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); churn(ctx, r, spec, func(error) {}) }()
				time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond) // any moment
				must(t, d.Kill())
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				must(t, d.Restart(t.Context()))
				cancel()
				<-done
				for i := range 4 {
					spec.ID = fmt.Sprint("c", i)
					must(t, r.Run(t.Context(), spec))
					if s, err := r.Status(t.Context(), spec.ID); err != nil || s.State != container.Running {
						t.Errorf("round %d: %+v, %v", round, s, err)
					}
					must(t, r.Delete(t.Context(), spec.ID))
				}
				settles(t, d)
			}
			must(t, r.Destroy(t.Context()))
		})
	}
}

// While the engine is away containers run on, and can be looked at, entered and stopped. With live-restore they are the same afterwards; without it the
// engine ends them, which is noticed.
func TestEngineAway(t *testing.T) {
	for name, live := range map[string]bool{"live-restore": true, "no live-restore": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := private(t, fmt.Sprint("a", live)[:2], func(o *dockerd.Options) { o.LiveRestore = live })
			r, spec := fresh(t, d)
			spec.Args = waiting
			for _, id := range []string{"runs", "stops"} {
				spec.ID = id
				must(t, r.Run(t.Context(), spec))
			}
			spec.ID = "held"
			must(t, r.Create(t.Context(), spec))
			before, err := r.Status(t.Context(), "runs")
			must(t, err)
			must(t, d.Kill())
			if code, err := r.Exec(t.Context(), "runs", container.ExecSpec{Args: sh("exit 4")}); err != nil || code != 4 {
				t.Errorf("exec while the engine is away: %d, %v", code, err)
			}
			must(t, r.Start(t.Context(), "held"))
			must(t, r.Stop(t.Context(), "stops", 10*time.Second))
			spec.ID = "new"
			if err := r.Run(t.Context(), spec); !errors.Is(err, errAway) {
				t.Errorf("run while the engine is away: %v", err)
			}
			must(t, d.Restart(t.Context()))
			if live {
				for _, id := range []string{"runs", "held"} {
					if s, err := r.Status(t.Context(), id); err != nil || s.State != container.Running {
						t.Errorf("%s after the engine came again: %+v, %v", id, s, err)
					}
				}
				if s, err := r.Status(t.Context(), "runs"); err != nil || s.PID != before.PID {
					t.Errorf("another process: %+v, %v, was %+v", s, err, before)
				}
			} else {
				s, err := r.Wait(t.Context(), "runs")
				if err != nil || s.State != container.Stopped {
					t.Errorf("after the engine came again: %+v, %v", s, err)
				}
			}
			for _, id := range []string{"runs", "stops", "held", "new"} {
				spec.ID = id
				must(t, r.Run(t.Context(), spec))
				must(t, r.Delete(t.Context(), id))
			}
			settles(t, d)
		})
	}
}

// An engine that hangs when it is asked for a container may make it later, when it goes on: the error says that something may be left, and Delete removes it.
func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	d := private(t, "h", nil)
	r, spec := fresh(t, d)
	spec.ID, spec.Args = "a", waiting
	must(t, r.Run(t.Context(), spec)) // the engine has the image
	must(t, r.Delete(t.Context(), "a"))
	must(t, unix.Kill(d.PID(), unix.SIGSTOP))
	goOn := func() { must(t, unix.Kill(d.PID(), unix.SIGCONT)) }
	t.Cleanup(goOn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := r.Run(ctx, spec); !errors.Is(err, container.ErrLeft) || !errors.Is(err, errAway) {
		t.Errorf("run while the engine hangs: %v", err)
	}
	goOn()
	eventually(t, "the engine has made it", func() bool { return len(empty(t, d)) > 0 })
	must(t, r.Delete(t.Context(), "a"))
	settles(t, d)
}
