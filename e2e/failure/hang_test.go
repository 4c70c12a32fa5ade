package failure

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
)

// own is a layout with the blocker alone, which forwards by raw sockets in a process: if that stands still nothing comes out.
func own(ctx context.Context, t *testing.T) (layout string) {
	t.Helper()
	r, err := image.LoadRecipe(filepath.Join("..", "..", "examples", "blocker"))
	if err != nil {
		t.Fatal(err)
	}
	layout = filepath.Join(t.TempDir(), "images")
	if _, err := r.Build(ctx, layout); err != nil {
		t.Fatal(err)
	}
	return layout
}

// state of a function in the data plane.
func state(ctx context.Context, t *testing.T, r *rig.Rig, name string) string {
	t.Helper()
	var c api.Counters
	if err := r.Get(ctx, &c, "counters"); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Ports {
		if p.Name == "function/"+name+"/in" {
			return string(p.State)
		}
	}
	t.Fatalf("no port of %s: %+v", name, c.Ports)
	return ""
}

// A function's process stands still: within a second the data plane does what on_fail says, whether traffic flows or not, and when the process
// goes on the function is up again.
func TestAHungFunctionIsDownWithinASecond(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.Bare(t, rig.Options{Args: []string{"--switch", sw}})
			r.Images = own(ctx, t)
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			r.MustApply(ctx, t, r.Endpoints()+`
functions:
  f: {image: blocker, on_fail: bypass, config: {port: 1}}
chains:
  c: f
policies:
  p: {from: alice, to: bob, match: [udp, icmp], chain: c}
`)
			pid := function(ctx, t, r, "f").Status.PID
			for _, traffic := range []bool{false, true} {
				var s *rig.Stream
				var err error
				if traffic {
					if s, err = rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9000, rate); err == nil {
						err = s.Await(ctx, rate/2)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				begin := time.Now()
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				for state(ctx, t, r, "f") != "down" { // until ctx ends
				}
				took := time.Since(begin)
				if took > time.Second+looking {
					t.Errorf("traffic %v: down after %s", traffic, took)
				}
				if traffic {
					if err := s.Await(ctx, rate/2); err != nil {
						t.Fatal(err)
					}
				}
				if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				rig.Eventually(ctx, t, "up again", func() (bool, string) {
					f := function(ctx, t, r, "f")
					return f.Status.Healthy && f.Status.PID == pid, fmt.Sprintf("%+v", f.Status)
				})
				if !traffic {
					fmt.Printf("%s: a function that hung without traffic was down after %s\n", sw, took.Round(time.Millisecond))
					continue
				}
				o, err := s.Stop()
				if err != nil {
					t.Fatal(err)
				}
				fmt.Printf("%s: a function hung, longest gap in traffic %s\n", sw, o.LongestGap.Round(time.Millisecond))
				if o.LongestGap > time.Second {
					t.Errorf("traffic stood still for %s", o.LongestGap)
				}
			}
			if n := len(events(ctx, t, r, "FunctionUnhealthy", "f")); n != 2 {
				t.Errorf("%d events FunctionUnhealthy, want 2", n)
			}
		})
	}
}

// looking is how long this test may take to find out what it sees, by a command of its own.
const looking = 300 * time.Millisecond

// A firewall that lets nothing of a flood through, and a machine whose processors are all busy: no function is taken for one that hangs, and
// nothing forbidden passes although on_fail says bypass.
func TestBusyIsNotHung(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			doc := r.Endpoints() + "functions:\n  fw: {image: firewall, on_fail: bypass, config: {allow: [udp/9000]}}\n"
			for i := range 10 {
				doc += fmt.Sprintf("  f%d: {image: firewall, config: {allow: [udp]}}\n", i)
			}
			doc += "chains:\n  c: fw\npolicies:\n  p: {from: alice, to: bob, match: [udp, icmp], chain: c}\n"
			r.MustApply(ctx, t, doc)
			forbidden, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 9001, 20*rate)
			if err != nil {
				t.Fatal(err)
			}
			var busy []*exec.Cmd
			for range 4 * runtime.NumCPU() {
				c := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				busy = append(busy, c)
			}
			err = forbidden.Await(ctx, 100_000)
			for _, c := range busy {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
			if err != nil {
				t.Fatal(err)
			}
			o, err := forbidden.Stop()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("%s: %d of %d forbidden datagrams passed a firewall on a busy machine\n", sw, o.Received, o.Sent)
			if o.Received > 0 {
				t.Errorf("%d of %d forbidden datagrams passed", o.Received, o.Sent)
			}
			out, err := r.Weir(ctx, "events", "--limit", "500")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(out, "FunctionUnhealthy") {
				t.Errorf("a function was taken for one that hangs:\n%s", out)
			}
		})
	}
}
