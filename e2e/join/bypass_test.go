package join

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// frames that each case counts at least: more with FRAMES=N, as in e2e/bypass.
var frames = func() int {
	if n, err := strconv.Atoi(os.Getenv("FRAMES")); err == nil && n > 0 {
		return n
	}
	return 1000
}()

// away is two hosts: stations at h1, the function of their policy at h2. What it forbids is sent all the time.
type away struct {
	*testing.T
	*world
	ctx                context.Context
	stations, function *host
	allowed, forbidden *rig.Stream
}

func (a *away) document(fw, at string) string {
	return "endpoints:\n" +
		"  alice: {netns: " + a.Alice() + ", interface: eth0, address: " + rig.AliceAddr + "/24, host: h1}\n" +
		"  bob: {netns: " + a.Bob() + ", interface: eth0, address: " + rig.BobAddr + "/24, host: h1}\n" +
		"functions:\n  fw: {image: firewall, on_fail: drop, config: {allow: [" + fw + "]}, host: " + at + "}\n" +
		"chains: {c: fw}\npolicies:\n  p: {from: alice, to: bob, match: [udp], chain: c}\n"
}

// apply does not wait: whom it concerns may be away.
func (a *away) apply(fw, at string) {
	a.Helper()
	if _, err := a.Apply(a.ctx, a.document(fw, at), "--wait=false"); err != nil {
		a.Fatal(err)
	}
}

func (a *away) more(n int) {
	a.Helper()
	if err := a.forbidden.Await(a.ctx, n); err != nil {
		a.Fatal(err)
	}
}

// flows waits until what is allowed passes again.
func (a *away) flows() {
	a.Helper()
	before := a.allowed.Received()
	rig.Eventually(a.ctx, a.T, "what is allowed passes", func() (bool, string) {
		return a.allowed.Received() > before+50, fmt.Sprint(a.allowed.Received(), " of ", a.allowed.Sent(), "\n", a.stations.tail())
	})
}

func (a *away) killManager() {
	a.Helper()
	if err := a.Kill(syscall.SIGKILL); err != nil {
		a.Fatal(err)
	}
}

func (a *away) manager() {
	a.Helper()
	if err := a.Up(a.ctx); err != nil {
		a.Fatal(err)
	}
}

// killFunction ends the function's process, which the manager need not be there for.
func (a *away) killFunction(pid int) {
	a.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		a.Fatal(err)
	}
}

func (a *away) pid() int {
	a.Helper()
	var f api.Function
	rig.Eventually(a.ctx, a.T, "the function's process", func() (bool, string) {
		err := a.Get(a.ctx, &f, "function", "fw")
		return err == nil && f.Status.PID > 0, fmt.Sprint(err)
	})
	return f.Status.PID
}

func (a *away) link(state string) {
	a.Helper()
	if _, err := a.world.Run(a.ctx, a.function.netns, "ip", "link", "set", "eth9", state); err != nil {
		a.Fatal(err)
	}
}

// Whatever becomes of manager, agents and the function's host, nothing that the policy closes passes.
func TestNothingPassesAPolicyWhoseHostOrManagerVanishes(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			w, ctx := newWorld(t, "--underlay", "vxlan")
			a := &away{T: t, world: w, ctx: ctx}
			arguments := map[*host][]string{}
			for _, name := range []string{"h1", "h2"} {
				h := w.host(ctx, t, name)
				arguments[h] = []string{"--switch", sw, "--underlay-address", h.address}
				h.start(t, append([]string{"--token-file", w.token(ctx, t)}, arguments[h]...)...)
				w.state(ctx, t, name, "ready")
			}
			a.stations, a.function = w.hosts[0], w.hosts[1]
			again := func(h *host) { h.start(a.T, arguments[h]...) }
			w.MustApply(ctx, t, a.document("udp/9000", "h2"))
			var err error
			if a.allowed, err = rig.NewStream(w.Alice(), w.Bob(), rig.BobAddr, 9000, 500); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = a.allowed.Stop() }()
			if a.forbidden, err = rig.NewStream(w.Alice(), w.Bob(), rig.BobAddr, 9001, 2000); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = a.forbidden.Stop() }()
			for _, c := range []struct {
				name string
				do   func()
			}{
				{"the manager is killed, and then the function", func() {
					pid := a.pid()
					a.killManager()
					a.killFunction(pid)
					a.more(frames / 2)
					a.flows() // the agent alone brings it back
					a.manager()
				}},
				{"the manager is killed while the document changes", func() {
					a.apply("udp/9000, tcp/80", "h2")
					a.killManager()
					a.more(frames / 2)
					a.manager()
				}},
				{"the agent is killed without a manager, and the function", func() {
					pid := a.pid()
					a.killManager()
					a.function.kill(a.T)
					a.killFunction(pid)
					a.more(frames / 2)
					again(a.function)
					a.flows()
					a.manager()
					w.state(ctx, a.T, "h2", "ready")
				}},
				{"the stations' agent is killed", func() {
					a.stations.kill(a.T)
					a.more(frames / 2)
					again(a.stations)
					w.state(ctx, a.T, "h1", "ready")
				}},
				{"the function's host loses its link", func() {
					a.link("down")
					w.state(ctx, a.T, "h2", "lost")
					a.more(frames / 2)
					a.link("up")
					w.state(ctx, a.T, "h2", "ready")
				}},
				{"the function's host vanishes, and its function moves", func() {
					pid := a.pid()
					a.function.kill(a.T)
					a.killFunction(pid)
					a.link("down")
					w.state(ctx, a.T, "h2", "lost")
					a.more(frames / 2)
					a.apply("udp/9000", "h1")
					a.flows()
					a.link("up")
					again(a.function)
					w.state(ctx, a.T, "h2", "ready")
					a.more(frames / 4)
					a.apply("udp/9000", "h2")
				}},
			} {
				ok := t.Run(c.name, func(t *testing.T) {
					a.T = t
					w.MustApply(ctx, t, a.document("udp/9000", "h2"))
					a.flows()
					sent, passed := a.forbidden.Sent(), a.forbidden.Received()
					c.do()
					if n := a.forbidden.Sent() - sent; n < frames {
						a.more(frames - n)
					}
					a.flows()
					passed = a.forbidden.Received() - passed
					fmt.Printf("%-5s %-58s %6d sent %6d passed\n", sw, c.name, a.forbidden.Sent()-sent, passed)
					if passed > 0 {
						t.Errorf("%d forbidden datagrams passed", passed)
					}
				})
				if !ok {
					return // who is there is not known any more
				}
			}
			rig.Eventually(ctx, t, "the policy is in force in the end", func() (bool, string) { // the router has just taken it over
				out, err := w.Weir(ctx, "get", "policies")
				return err == nil && strings.Contains(out, "active"), fmt.Sprint(err, out)
			})
		})
	}
}
