package runtimes

import (
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestAWireByXDPInEachRuntime: a function that takes frames by AF_XDP sockets runs in every runtime whose functions are on the host's kernel. In a virtual machine it is
// refused before anything is changed, and the answer says why.
func TestAWireByXDPInEachRuntime(t *testing.T) {
	t.Setenv("DOCKER_HOST", rig.DockerEngine(t))
	r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--kvm-kernel", rig.MachineKernel(t)}})
	all := known(ctx, t, r)
	for _, name := range wanted {
		text := document(r, "f1", function(all[name], "wire-xdp"))
		if name == "kvm" {
			var before, after api.Function
			if err := r.Get(ctx, &before, "function", "f1"); err != nil {
				t.Fatal(err)
			}
			out, err := r.Apply(ctx, text, "--prune")
			if err == nil || !strings.Contains(err.Error()+out, "functions in the runtime kvm have a kernel of their own") {
				t.Errorf("in a virtual machine: %v\n%s", err, out)
			}
			if err := r.Get(ctx, &after, "function", "f1"); err != nil || after.Generation != before.Generation || after.Status.PID != before.Status.PID {
				t.Errorf("function f1 is %+v, %v, before %+v", after, err, before)
			}
			continue
		}
		if out, err := r.Apply(ctx, text, "--prune", "--timeout", "2m"); err != nil {
			events, _ := r.Weir(ctx, "events")
			t.Errorf("%s: %v\n%s\n%s", name, err, out, events)
			continue
		}
		if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 5, "0.05"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if rate, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 1); err != nil || rate == 0 {
			t.Errorf("%s: a stream: %v, %v", name, rate, err)
		}
	}
}
