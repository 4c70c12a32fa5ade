package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"weir.dev/weir/container"
	"weir.dev/weir/container/docker/dockerd"
	"weir.dev/weir/container/kernel/suite"
)

// cli runs the engine's client, as an operator does.
func cli(t testing.TB, d *dockerd.Engine, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", append([]string{"--host", d.Host()}, args...)...)
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func mustCLI(t testing.TB, d *dockerd.Engine, args ...string) string {
	t.Helper()
	out, err := cli(t, d, args...)
	if err != nil {
		t.Fatalf("docker %v: %v: %s", args, err, out)
	}
	return out
}

// hand is the name by which an operator finds a container.
func hand(t testing.TB, d *dockerd.Engine, id string) string {
	t.Helper()
	return mustCLI(t, d, "ps", "--all", "--filter", "label="+labelID+"="+id, "--format", "{{.Names}}")
}

// What an operator does to a container by hand is noticed, and the container starts anew.
func TestContainersEndedByHand(t *testing.T) {
	for name, tt := range map[string]struct {
		do   []string
		code int
	}{
		"removed":   {[]string{"rm", "--force"}, 137},
		"stopped":   {[]string{"stop"}, 0},
		"killed":    {[]string{"kill"}, 137},
		"restarted": {[]string{"restart"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, spec := fresh(t, shared)
			spec.ID, spec.Args = "a-"+name, sh("trap 'exit 0' TERM; echo ready; while :; do sleep 1000 & wait; done")
			must(t, r.Run(t.Context(), spec))
			done := make(chan container.Status, 1)
			go func() {
				s, err := r.Wait(t.Context(), spec.ID)
				if err != nil {
					t.Error(err)
				}
				done <- s
			}()
			eventually(t, "it can be asked to end", func() bool { return printed(t, r, spec.ID) == "ready\n" })
			out, err := cli(t, shared, append(tt.do, hand(t, shared, spec.ID))...)
			if name == "restarted" {
				if err == nil || !strings.Contains(out, "this container belongs to Weir, which starts it itself") {
					t.Errorf("docker restart: %v: %s", err, out)
				}
			} else if err != nil {
				t.Errorf("docker %v: %v: %s", tt.do, err, out)
			}
			select {
			case s := <-done:
				if s.State != container.Stopped || s.ExitCode != tt.code {
					t.Errorf("wait: %+v, want exit code %d", s, tt.code)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("wait still waits")
			}
			must(t, r.Start(t.Context(), spec.ID))
			if s, err := r.Status(t.Context(), spec.ID); err != nil || s.State != container.Running {
				t.Errorf("after start: %+v, %v", s, err)
			}
		})
	}
}

// A container that waits for its start is one that runs to the engine; it can be ended by hand, too.
func TestCreatedContainerEndedByHand(t *testing.T) {
	r, spec := fresh(t, shared)
	spec.ID, spec.Args = "held", waiting
	must(t, r.Create(t.Context(), spec))
	mustCLI(t, shared, "rm", "--force", hand(t, shared, spec.ID))
	s, err := r.Wait(t.Context(), spec.ID)
	if err != nil || s.State != container.Stopped {
		t.Errorf("%+v, %v", s, err)
	}
	must(t, r.Run(t.Context(), spec))
}

// all is what an engine has.
func all(t testing.TB, d *dockerd.Engine) []string {
	t.Helper()
	var out []string
	for _, args := range [][]string{{"ps", "--all", "--quiet", "--no-trunc"}, {"images", "--all", "--quiet", "--no-trunc"}, {"network", "ls", "--quiet", "--no-trunc"},
		{"volume", "ls", "--quiet"}} {
		out = append(out, strings.Fields(mustCLI(t, d, args...))...)
	}
	slices.Sort(out)
	return out
}

// What is the operator's own in the engine, also with names and labels like Weir's, is as it was after Destroy.
func TestForeignThingsAreNotTouched(t *testing.T) {
	d := private(t, "f", nil)
	mustImport(t, d, "op:1")
	inst := suite.NewInstance(t)
	r := opened(t, inst, d) // writes the runtime
	defer r.Close()
	for _, args := range [][]string{
		{"run", "-d", "--name", "plain", "--network", "none", "op:1", "sleep", "1000"},
		{"run", "-d", "--name", "by-weir-runtime", "--runtime", runtimeName, "--network", "none", "op:1", "sleep", "1000"},
		{"run", "-d", "--name", "other-instance", "--label", labelInstance + "=" + inst.Name + "x", "--label", labelID + "=a", "--network", "none",
			"op:1", "sleep", "1000"},
		{"create", "--name", "weir-" + inst.Name + "-taken", "op:1", "sleep", "1000"},
		{"create", "--name", "labelled", "--label", labelInstance + "=" + inst.Name, "--label", labelID + "=a", "op:1", "sleep", "1000"},
		{"volume", "create", "own"},
	} {
		mustCLI(t, d, args...)
	}
	before := all(t, d)
	spec := container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: waiting}
	must(t, r.Run(t.Context(), spec))
	must(t, r.Delete(t.Context(), "a"))
	spec.ID = "taken"
	if err := r.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "rename it") {
		t.Errorf("a name that is taken: %v", err)
	}
	must(t, r.Destroy(t.Context()))
	if after := all(t, d); !slices.Equal(before, after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
	for _, name := range []string{"plain", "by-weir-runtime", "other-instance"} {
		if got := mustCLI(t, d, "exec", name, "echo", "alive"); got != "alive" {
			t.Errorf("%s: %q", name, got)
		}
	}
	mustCLI(t, d, "rm", "--force", "plain", "by-weir-runtime", "other-instance")
}

// mustImport gives an engine an image with busybox.
func mustImport(t testing.TB, d *dockerd.Engine, name string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "root.tar")
	if out, err := exec.Command("tar", "-C", suite.Rootfs(t), "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	mustCLI(t, d, "import", file, name)
}

// The engine's own view of a container says what it is.
func TestEngineShowsContainers(t *testing.T) {
	r, spec := fresh(t, shared)
	spec.ID, spec.Args, spec.Image, spec.Memory, spec.CPUs, spec.CPUSet, spec.PIDs = "shown", waiting, "firewall:1", 32<<20, 0.5, "0", 40
	must(t, r.Run(t.Context(), spec))
	s, err := r.Status(t.Context(), spec.ID)
	must(t, err)
	got := mustCLI(t, shared, "inspect", "--format", `{{.State.Running}} {{.State.Pid}} {{index .Config.Labels "weir.image"}} {{with .HostConfig}}`+
		`{{.Memory}} {{.NanoCpus}} {{.CpusetCpus}} {{.PidsLimit}} {{.ReadonlyRootfs}} {{.CapDrop}}{{end}}`,
		hand(t, shared, spec.ID))
	if want := fmt.Sprintf("true %d firewall:1 33554432 500000000 0 40 true [ALL]", s.PID); got != want {
		t.Errorf("docker inspect: %s\nwant %s", got, want)
	}
	if got := mustCLI(t, shared, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", hand(t, shared, spec.ID)); !strings.Contains(got, "/ 32MiB") {
		t.Errorf("docker stats: %s", got)
	}
	if got := mustCLI(t, shared, "top", hand(t, shared, spec.ID)); !strings.Contains(got, "sleep 1000") {
		t.Errorf("docker top: %s", got)
	}
}

// Where the kernel does not tell the end of another's child, the engine does.
func TestEngineTellsExitCodes(t *testing.T) {
	r, spec := fresh(t, shared)
	spec.ID, spec.Args = "told", sh("exit 7")
	must(t, r.Run(t.Context(), spec))
	name := hand(t, shared, spec.ID)
	inst := strings.TrimSuffix(strings.TrimPrefix(name, "weir-"), "-told")
	c, err := client.New(client.WithHost(shared.Host()))
	must(t, err)
	defer c.Close()
	e := &engine{host: shared.Host(), api: c}
	e.inst.Name = inst
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if code, ok := e.ExitCode(ctx, "told"); !ok || code != 7 {
		t.Errorf("%d, %v, want 7", code, ok)
	}
	if code, ok := e.ExitCode(ctx, "unknown"); ok {
		t.Errorf("an unknown one: %d", code)
	}
}
