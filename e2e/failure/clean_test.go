package failure

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// mess is a function that leaves much in its network namespace, and cannot start where that is already.
const mess = `[/bin/busybox, sh, -ec, 'ip link add br0 type bridge; ip link add old type bridge; ip addr add 10.1.2.3/24 dev br0; ip link set in master br0;
  ip link set out master br0; ip link set br0 up; ip route add 10.8.0.0/16 via 10.1.2.4; exec sleep 1000000']`

// Every start of a function finds a pristine namespace behind the same ports: after a crash, a restart, another command, another image. A bridge
// that the former process has left would hand frames on for the new one.
func TestEveryStartFindsAPristineNamespace(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.Bare(t, rig.Options{Args: []string{"--switch", sw}})
			r.Images = hole(ctx, t)
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			document := func(f string) string {
				return r.Endpoints() + "\nfunctions: {f: {on_fail: drop, " + f + "}}\nchains: {c: f}\npolicies: {p: {from: alice, to: bob, match: [udp], chain: c}}\n"
			}
			r.MustApply(ctx, t, document("image: firewall, command: "+mess))
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 500)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = s.Stop() }()
			passes := func() {
				t.Helper()
				if err := s.Await(ctx, 100); err != nil {
					t.Fatal(err)
				}
			}
			passes()
			ports := function(ctx, t, r, "f").Status.Ports
			kill(ctx, t, r, "f")
			passes()
			if now := function(ctx, t, r, "f").Status.Ports; now != ports {
				t.Errorf("ports %+v, were %+v", now, ports)
			}
			if _, err := r.Weir(ctx, "function", "restart", "f"); err != nil { // which takes ports of its own, and gives the former ones back
				t.Fatal(err)
			}
			passes()
			if _, err := r.Weir(ctx, "function", "stop", "f"); err != nil {
				t.Fatal(err)
			}
			at := s.Received()
			r.MustApply(ctx, t, document("image: hole, state: started"))
			rig.Eventually(ctx, t, "the other image runs", func() (bool, string) {
				f := function(ctx, t, r, "f")
				return f.Status.State == api.FunctionStarted && f.Status.Healthy && strings.HasPrefix(f.Status.Image, "sha256:"), fmt.Sprintf("%+v", f.Status)
			})
			sent := s.Sent()
			rig.Eventually(ctx, t, "frames go in", func() (bool, string) { return s.Sent() > sent+500, fmt.Sprint(s.Sent()) })
			if came := s.Received() - at; came > 0 {
				t.Errorf("%d datagrams passed a function that hands nothing on", came)
			}
			out, err := r.Weir(ctx, "function", "exec", "f", "--", "/bin/busybox", "ls", "/sys/class/net")
			if err != nil || strings.Join(strings.Fields(out), " ") != "in lo out" {
				t.Errorf("its interfaces: %q, %v", out, err)
			}
		})
	}
}

// The functions of an agent that is killed while they start anew come up, each in one sandbox, and nothing is left of the others.
func TestNothingIsLeftOfStartsThatWereInterrupted(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	r.MustApply(ctx, t, r.Endpoints()+`
functions: {fw: {image: firewall, config: {default: accept}}, w: {image: wire}}
chains: {c: fw | w}
policies: {p: {from: alice, to: bob, match: [udp], chain: c}}
`)
	for i := range 6 {
		for _, f := range []string{"fw", "w"} {
			if _, err := r.Weir(ctx, "function", "restart", f, "--wait=false"); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Duration(i) * 15 * time.Millisecond) // somewhere in the middle
		if err := r.Kill(9); err != nil {
			t.Fatal(err)
		}
		if err := r.Up(ctx); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(ctx, t, "all is up, and once", func() (bool, string) {
			var boxes, want []string
			for _, f := range []string{"fw", "w"} {
				if s := function(ctx, t, r, f).Status; !s.Healthy || s.State != api.FunctionStarted {
					return false, fmt.Sprintf("%+v", s)
				}
			}
			for _, b := range dir(t, "/run/weir/"+r.Name+"/sandboxes") {
				name, _, _ := strings.Cut(b, ".") // one that is being made or removed may have another name
				boxes = append(boxes, name)
				want = append(want, b)
			}
			bundles := dir(t, "/run/weir/"+r.Name+"/native/bundles")
			links, err := r.Run(ctx, r.Netns, "ip", "-o", "link")
			if err != nil {
				t.Fatal(err)
			}
			n := strings.Count(links, "alias weir:"+r.Name+":function/")
			return strings.Join(boxes, " ") == "fw w" && strings.Join(bundles, " ") == strings.Join(want, " ") && n == 4, fmt.Sprint(boxes, bundles, links)
		})
	}
	s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, 200); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}

func dir(t *testing.T, path string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
