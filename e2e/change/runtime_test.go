package change

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/portkind"
)

func ofRuntime(r *rig.Rig, runtime string) string {
	return r.Endpoints() + `
functions:
  w: {image: wire}
  fw: {image: firewall` + runtime + `, config: {default: accept, deny: [udp/9001]}}
chains:
  c: w | fw
policies:
  p: {from: alice, to: bob, match: [udp], chain: c}
`
}

func runsIn(ctx context.Context, t *testing.T, r *rig.Rig, runtime string) api.Function {
	t.Helper()
	var f api.Function
	if err := r.Get(ctx, &f, "function", "fw"); err != nil {
		t.Fatal(err)
	}
	if f.Status.Runtime != runtime {
		t.Errorf("fw runs in %q, want %q", f.Status.Runtime, runtime)
	}
	return f
}

// named is how a function names a runtime. Without user namespaces the firewall gets its capability by our word only.
func named(x api.HostRuntime) string {
	if x.Userns {
		return ", runtime: " + x.Name
	}
	return ", runtime: " + x.Name + ", allow: [CAP_NET_ADMIN]"
}

// runtimesOf is the host when it knows all of its runtimes.
func runtimesOf(ctx context.Context, t *testing.T, r *rig.Rig) (h api.Host) {
	t.Helper()
	rig.Eventually(ctx, t, "the host says which runtimes it has", func() (bool, string) {
		err := r.Get(ctx, &h, "host", "local")
		d, _ := h.Status.RuntimeOf("")
		unknown := func(x api.HostRuntime) bool { return x.Why == "not known yet" }
		return err == nil && d.Userns && !slices.ContainsFunc(h.Status.Runtimes, unknown), fmt.Sprint(err, h.Status.Runtimes)
	})
	return h
}

// everyRuntime is a Weir whose host has all runtimes but rkt, which no distribution has: a Docker engine of its own, at docker, and a kernel for machines.
func everyRuntime(t *testing.T) (r *rig.Rig, ctx context.Context, docker string) {
	t.Helper()
	docker = rig.DockerEngine(t)
	r, ctx = rig.Bare(t, rig.Options{Args: []string{"--kvm-kernel", rig.MachineKernel(t)}})
	r.Extra = []string{"DOCKER_HOST=" + docker}
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	return r, ctx, docker
}

// there are the runtimes by which functions can be joined with the host's switch: all but rkt.
func there(t *testing.T, h api.Host) (out []api.HostRuntime) {
	t.Helper()
	for _, x := range h.Status.Runtimes {
		switch {
		case x.Available && portkind.Join(x.Ports, h.Status.SwitchPorts) != "":
			out = append(out, x)
		case x.Name != "rkt":
			t.Errorf("runtime %s: %s", x.Name, x.Why)
		}
	}
	return out
}

// portNames are those of the function's ports, as the switch has them.
func portNames(ctx context.Context, t *testing.T, r *rig.Rig) string {
	t.Helper()
	var c api.Counters
	if err := r.Get(ctx, &c, "ports"); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range c.Ports {
		if strings.HasPrefix(p.Name, "function/") {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, " ")
}

// A function moves from its host's default to each other runtime that the host has, and back, while traffic flows: nothing is lost, nothing forbidden
// passes, its ports are the same.
func TestAFunctionChangesItsRuntime(t *testing.T) {
	r, ctx, _ := everyRuntime(t)
	r.MustApply(ctx, t, ofRuntime(r, ""))
	h := runtimesOf(ctx, t, r)
	if is, ok := h.Status.RuntimeOf("oci"); !ok || !is.Available || is.Version == "" {
		t.Errorf("of oci it says %+v, %v", is, ok)
	}
	runsIn(ctx, t, r, h.Status.Runtime)
	ports := portNames(ctx, t, r)
	for _, x := range there(t, h) {
		there, back, forbidden := counted(ctx, t, r, func() { r.MustApply(ctx, t, ofRuntime(r, named(x))) })
		if there.Lost+back.Lost+there.Duplicated+back.Duplicated != 0 || forbidden.Received != 0 {
			t.Errorf("to %s: there %+v, back %+v, %d forbidden passed", x.Name, there, back, forbidden.Received)
		}
		runsIn(ctx, t, r, x.Name)
		if now := portNames(ctx, t, r); now != ports {
			t.Errorf("in %s its ports are %s, were %s", x.Name, now, ports)
		}
		fmt.Printf("runtime %s: %d datagrams there, %d back, %d lost\n", x.Name, there.Sent, back.Sent, there.Lost+back.Lost)
	}
	r.MustApply(ctx, t, ofRuntime(r, ""))
	runsIn(ctx, t, r, h.Status.Runtime)
}

// Daemons that are killed at any moment of a change of runtime leave one container for each function, and nothing in the other runtimes.
func TestKilledWhileARuntimeChanges(t *testing.T) {
	t.Parallel()
	r, ctx, docker := everyRuntime(t)
	r.MustApply(ctx, t, ofRuntime(r, ""))
	there := there(t, runtimesOf(ctx, t, r))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range max(20, 2*len(there)) {
		if _, err := r.Apply(ctx, ofRuntime(r, named(there[i%len(there)])), "--wait=false"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond) // the moment to die is the point
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.MustApply(ctx, t, ofRuntime(r, named(there[0])))
	runsIn(ctx, t, r, there[0].Name)
	rig.Eventually(ctx, t, "one container for each function is left", func() (bool, string) {
		written, err := os.ReadDir(filepath.Join("/run/weir", r.Name, "runtimes"))
		boxes, berr := os.ReadDir(filepath.Join("/run/weir", r.Name, "sandboxes"))
		bundles, gerr := filepath.Glob(filepath.Join("/run/weir", r.Name, "*/bundles/*"))
		return err == nil && berr == nil && gerr == nil && len(written) == 2 && len(boxes) == 2 && len(bundles) <= 2, fmt.Sprint(written, boxes, bundles, err, berr, gerr)
	})
	rig.Eventually(ctx, t, "no machine, and no container in the engine, is left", func() (bool, string) {
		list, err := r.Run(ctx, "", "docker", "--host", docker, "ps", "--all", "--quiet")
		groups, gerr := filepath.Glob("/sys/fs/cgroup/*/weir/" + r.Name + "@kvm/*/cgroup.procs")
		procs := ""
		for _, g := range groups {
			raw, _ := os.ReadFile(g)
			procs += string(raw)
		}
		return err == nil && gerr == nil && list+procs == "", fmt.Sprint(list, groups, procs, err, gerr)
	})
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 3, "0.02"); err != nil {
		t.Error(err)
	}
}

// A host whose program is given by --runtime runs oci with it, for functions that name no runtime and for those that name oci. A runtime that it has not
// is refused, with the reason, and nothing changes. All is found again by the next daemon, also if nothing is written down of whose a container is, as a
// former version left it.
func TestARuntimeGivenByItsProgram(t *testing.T) {
	t.Parallel()
	r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--runtime", "runc"}})
	r.MustApply(ctx, t, ofRuntime(r, ", runtime: oci"))
	before := runsIn(ctx, t, r, "oci")
	h := runtimesOf(ctx, t, r)
	if is, _ := h.Status.RuntimeOf(""); is.Name != "oci" || !is.Default || !is.Available {
		t.Errorf("by default it has %+v", is)
	}
	for _, name := range api.Runtimes() {
		if slices.ContainsFunc(h.Status.Runtimes, func(x api.HostRuntime) bool { return x.Name == name && x.Available }) {
			continue
		}
		_, err := r.Apply(ctx, ofRuntime(r, ", runtime: "+name))
		if err == nil || !strings.Contains(err.Error(), "functions.fw.runtime: host local has no runtime "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if is, ok := h.Status.RuntimeOf(api.RuntimeBare); ok && is.Available { // the host itself runs what comes with Weir, as it comes
		_, err := r.Apply(ctx, ofRuntime(r, ", runtime: bare, allow: [CAP_NET_ADMIN], command: [/bin/busybox, sleep, '9']"))
		for _, part := range []string{"functions.fw.runtime: the runtime bare runs image firewall as processes of host local itself", "its command is not the image's", "--allow-bare"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("bare with another command: %v: lacks %q", err, part)
			}
		}
	}
	for _, kept := range []string{"written down", "of a former version"} {
		if err := r.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if kept != "written down" {
			if _, err := r.Run(ctx, "", "rm", "-r", filepath.Join("/run/weir", r.Name, "runtimes")); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		r.MustApply(ctx, t, ofRuntime(r, ", runtime: oci"))
		if after := runsIn(ctx, t, r, "oci"); after.Status.PID != before.Status.PID {
			t.Errorf("%s: process %d, was %d", kept, after.Status.PID, before.Status.PID)
		}
	}
}
