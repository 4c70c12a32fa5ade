// Package runtimes runs chains of functions in every runtime, and of several in one chain, on both switches.
package runtimes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// wanted are the runtimes that this project's machines have; rkt has no package anywhere.
var wanted = []string{"native", "oci", "docker", "lxc", "nspawn", "kvm", "bare"}

// known waits until the host knows its runtimes.
func known(ctx context.Context, t *testing.T, r *rig.Rig) map[string]api.HostRuntime {
	t.Helper()
	all := map[string]api.HostRuntime{}
	rig.Eventually(ctx, t, "the host says which runtimes it has", func() (bool, string) {
		var h api.Host
		err := r.Get(ctx, &h, "host", "local")
		for _, x := range h.Status.Runtimes {
			all[x.Name] = x
		}
		unknown := func(x api.HostRuntime) bool { return x.Why == "not known yet" }
		return err == nil && len(all) > 0 && !slices.ContainsFunc(h.Status.Runtimes, unknown), fmt.Sprint(err, h.Status.Runtimes)
	})
	for _, name := range wanted {
		if x := all[name]; !x.Available {
			t.Errorf("runtime %s: %s", name, x.Why)
		}
	}
	return all
}

// function is one of a document. What a runtime without user namespaces wants to be told of the firewall, it is told.
func function(x api.HostRuntime, image string) string {
	out := "{image: " + image + ", runtime: " + x.Name + ", memory: 128M"
	if image == "firewall" {
		out += ", config: {default: accept, deny: [udp/9001]}"
	}
	if !x.Userns {
		out += ", allow: [CAP_NET_ADMIN, CAP_NET_RAW]"
	}
	return out + "}"
}

func document(r *rig.Rig, path string, functions ...string) string {
	text := r.Endpoints() + "functions:\n"
	for i, f := range functions {
		text += fmt.Sprintf("  f%d: %s\n", i+1, f)
	}
	return text + "chains:\n  c: \"" + path + "\"\npolicies:\n  p: {from: alice, to: bob, match: [icmp, tcp, udp], chain: c}\n"
}

// chain applies a document and tries its traffic: what is allowed passes unchanged and whole, what is forbidden does not, and functions are where it says.
func chain(ctx context.Context, t *testing.T, r *rig.Rig, text string, runtimes ...string) {
	t.Helper()
	if out, err := r.Apply(ctx, text, "--prune", "--timeout", "3m"); err != nil {
		events, _ := r.Weir(ctx, "events")
		t.Fatalf("%v\n%s\n%s", err, out, events)
	}
	for i, want := range runtimes {
		var f api.Function
		if err := r.Get(ctx, &f, "function", fmt.Sprintf("f%d", i+1)); err != nil || f.Status.Runtime != want {
			t.Errorf("function f%d runs in %q (%v), want %q", i+1, f.Status.Runtime, err, want)
		}
		if want == "kvm" && !strings.Contains(f.Status.RuntimeNote, ", machine ") { // what came up in the trial
			t.Errorf("function f%d does not say what its machine is: %q", i+1, f.Status.RuntimeNote)
		}
	}
	if _, err := r.Ping(ctx, r.Alice(), rig.BobAddr, 5, "0.05"); err != nil {
		t.Fatal(err)
	}
	same(t, r)
	rate, err := r.Iperf(ctx, r.Alice(), r.Bob(), rig.BobAddr, 5201, 1)
	if err != nil {
		t.Fatal(err)
	}
	if rate <= 0 {
		t.Error("no TCP passes")
	}
}

// same sends frames of several sizes through the chain, and one that is forbidden.
func same(t *testing.T, r *rig.Rig) {
	t.Helper()
	alice, bob := station(t, r, r.Alice(), rig.AliceAddr), station(t, r, r.Bob(), rig.BobAddr)
	there, err := rig.Listen(r.Bob(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	from, err := rig.NewSender(r.Alice(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	var sent [][]byte
	mark := fmt.Sprintf("same-%d-", time.Now().UnixNano())
	for i, size := range []int{20, 100, 700, 1400} {
		payload := mark + fmt.Sprint(i) + "."
		payload += strings.Repeat("x", max(0, size-len(payload)))
		sent = append(sent, rig.Packet{Proto: 17, Src: 1000, Dst: 9000, TTL: 1, Payload: payload}.Bytes(alice, bob))
	}
	forbidden := rig.Packet{Proto: 17, Src: 1000, Dst: 9001, TTL: 1, Payload: mark + "forbidden"}.Bytes(alice, bob)
	for _, f := range append(slices.Clone(sent), forbidden) {
		if err := from.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	came := func() (n int, other bool) {
		for _, f := range there.Seen() {
			switch {
			case f.Outgoing || !bytes.Contains(f.Data, []byte(mark)):
			case slices.ContainsFunc(sent, func(s []byte) bool { return bytes.Equal(s, f.Data) }):
				n++
			default:
				other = true
			}
		}
		return n, other
	}
	deadline := time.Now().Add(10 * time.Second)
	for n, _ := came(); n < len(sent) && time.Now().Before(deadline); n, _ = came() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // what comes twice, or is forbidden, would be here by now
	if n, other := came(); n != len(sent) || other {
		t.Errorf("%d of %d frames came as they were sent; others too: %v", n, len(sent), other)
	}
}

func station(t *testing.T, r *rig.Rig, space, addr string) rig.Station {
	t.Helper()
	out, err := r.Run(t.Context(), space, "ip", "-o", "link", "show", "eth0")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(out, "link/ether ")
	mac, err := net.ParseMAC(strings.Fields(after + " ?")[0])
	if err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return rig.Station{MAC: mac, Addr: netip.MustParseAddr(addr)}
}

// Every runtime runs firewall | wire | tap:monitor, on both switches. And one chain is of a container, a machine and a container of LXC. A firewall takes a new rule as it
// runs; what it denies, and what the monitor sees, is told.
func TestChains(t *testing.T) {
	t.Setenv("DOCKER_HOST", rig.DockerEngine(t))
	linux := rig.MachineKernel(t)
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw, "--kvm-kernel", linux}})
			all := known(ctx, t, r)
			for i, name := range wanted {
				t.Run(name, func(t *testing.T) {
					x := all[name]
					text := document(r, "f1 | f2 | tap:f3", function(x, "firewall"), function(x, "wire"), function(x, "monitor"))
					begun := time.Now()
					chain(ctx, t, r, text, name, name, name)
					changed(ctx, t, r, sw, text, "f1", name)
					seen(ctx, t, r, "f3", uint16(2000+i))
					if sw == "ebpf" { // another switch has no part in what a function says of itself
						told(ctx, t, r, "f1", begun)
					}
				})
			}
			t.Run("mixed", func(t *testing.T) {
				text := document(r, "f1 | f2 | f3 | tap:f4", function(all["native"], "wire"), function(all["kvm"], "firewall"), function(all["lxc"], "firewall"),
					function(all["docker"], "monitor"))
				chain(ctx, t, r, text, "native", "kvm", "lxc", "docker")
				changed(ctx, t, r, sw, text, "f2", "kvm")
				seen(ctx, t, r, "f4", uint16(2000+len(wanted)))
			})
			t.Run("down leaves nothing", func(t *testing.T) {
				if _, err := r.Weir(ctx, "down"); err != nil {
					t.Fatal(err)
				}
				left, err := os.ReadDir(r.Root)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range left {
					if e.Name() != "daemon.log" { // what the rig has its daemon print
						t.Errorf("in the state directory: %v", e)
					}
				}
			})
		})
	}
}
