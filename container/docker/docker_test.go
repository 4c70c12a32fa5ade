package docker

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir.dev/weir/container"
	"weir.dev/weir/container/docker/dockerd"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

var shared *dockerd.Engine // of all tests that do not end it

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
		return
	}
	if os.Getenv("WEIR_CHILD") != "" || os.Getenv("WEIR_EXEC_CHILD") != "" {
		os.Exit(m.Run())
	}
	code := func() int {
		var err error
		if shared, err = dockerd.Start(context.Background(), engineOptions("s")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv(hostEnv, optionsOf(shared).Host)
		os.Setenv(scriptEnv, optionsOf(shared).Script)
		code := m.Run()
		if err := shared.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func engineOptions(name string) dockerd.Options {
	dir := fmt.Sprintf("/run/weir-dockerd-%x-%s", os.Getpid()&0xffff, name)
	return dockerd.Options{Dir: dir, Name: filepath.Base(dir), Runtimes: map[string]string{runtimeName: filepath.Join(dir, "weir-runtime")}}
}

// private is an engine of one test. Whatever is left in it at the end is an error.
func private(t testing.TB, name string, change func(*dockerd.Options)) *dockerd.Engine {
	t.Helper()
	o := engineOptions(name)
	if change != nil {
		change(&o)
	}
	d, err := dockerd.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func optionsOf(d *dockerd.Engine) Options {
	return Options{Host: d.Host(), Script: filepath.Join(strings.TrimSuffix(strings.TrimPrefix(d.Host(), "unix://"), "/docker.sock"), "weir-runtime")}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func opened(t testing.TB, inst instance.Instance, d *dockerd.Engine) *kernel.Runtime {
	t.Helper()
	r, err := New(context.Background(), inst, optionsOf(d))
	must(t, err)
	return r
}

// fresh opens a runtime whose instance is destroyed at the end.
func fresh(t testing.TB, d *dockerd.Engine) (*kernel.Runtime, container.Spec) {
	t.Helper()
	inst := suite.NewInstance(t)
	r := opened(t, inst, d)
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, container.Spec{Rootfs: suite.Rootfs(t), ReadOnly: true}
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

var waiting = suite.Waiting

// The children of some tests need to know where the engine of their parent is.
const hostEnv, scriptEnv = "WEIR_DOCKER_HOST", "WEIR_DOCKER_SCRIPT"

var kit = suite.Kit{Name: Name, Together: true, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return New(ctx, inst, Options{Options: o, Host: os.Getenv(hostEnv), Script: os.Getenv(scriptEnv)})
}}

func TestEngine(t *testing.T)    { kit.Run(t) }
func TestChild(t *testing.T)     { kit.Child(t) }
func TestExecChild(t *testing.T) { kit.ExecChild(t) }

// eventually polls to a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// printed is a container's log.
func printed(t testing.TB, r *kernel.Runtime, id string) string {
	t.Helper()
	l, err := r.Logs(t.Context(), id, container.LogOptions{})
	must(t, err)
	defer l.Close()
	text, err := io.ReadAll(l)
	must(t, err)
	return string(text)
}
