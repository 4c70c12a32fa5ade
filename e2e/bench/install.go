package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	"weir.dev/weir/openflow"
	"weir.dev/weir/ovsdb/ovsproc"
	"weir.dev/weir/router/control"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// Sizes of the network whose policies are installed.
const (
	installSpines   = 2
	installLeaves   = 8
	installSwitches = installSpines + installLeaves
	installStations = 80
	installPolicies = 1000
	installLeast    = 20 // ratio to the peer
)

// install: policies compiled and installed, until switches have answered the last barrier or bundle, beside os-ken, which gets the very same
// flow-mods ready-made. Into Open vSwitch as it is, where the switch's own work is part of the time, and into a sink, where it is not.
func (b *bench) install() error {
	in := leafSpine(installSpines, installLeaves, installStations, installPolicies)
	mods, err := control.FlowMods(steering.Compile(in))
	if err != nil {
		return err
	}
	file, done, err := oskenFile(mods)
	if err != nil {
		return err
	}
	defer done()
	python, err := oskenPython(b.ctx)
	if err != nil {
		b.missing(err)
	}
	n, err := newNetwork(b.ctx)
	if err != nil {
		return err
	}
	err = b.installInto(n, in, count(mods), python, file)
	return errors.Join(err, n.close())
}

func count(mods map[fabric.SwitchID][]openflow.FlowMod) (n int) {
	for _, ms := range mods {
		n += len(ms)
	}
	return n
}

// installed is what one controller reached, one value a round.
type installed struct{ policies, flows, cpu []float64 }

func (i *installed) add(mods int, d time.Duration, cpu float64) {
	i.policies = append(i.policies, installPolicies/d.Seconds())
	i.flows = append(i.flows, float64(mods)/d.Seconds())
	i.cpu = append(i.cpu, cpu/float64(mods)*1e6)
}

func (b *bench) installInto(n *network, in fabric.Input, mods int, python, file string) error {
	for _, to := range []struct {
		name string
		with func(port int, controller func() error) error
	}{{"Open vSwitch", n.withBridges}, {"a sink", n.withSink(mods)}} {
		var ours, theirs, alone installed
		for range b.Rounds {
			l, err := n.listen()
			if err != nil {
				return err
			}
			err = to.with(l.Addr().(*net.TCPAddr).Port, func() error {
				r, err := b.weirInstalls(l, in)
				if err != nil {
					return err
				}
				if r.mods != mods {
					return fmt.Errorf("weir installed %d flow-mods, want %d", r.mods, mods)
				}
				ours.add(mods, r.compiled+r.installed, r.cpu)
				alone.add(mods, r.installed, r.cpu)
				return nil
			})
			if err := errors.Join(err, l.Close()); err != nil {
				return fmt.Errorf("weir into %s: %w", to.name, err)
			}
			if python == "" {
				continue
			}
			port, err := n.freePort()
			if err != nil {
				return err
			}
			err = to.with(port, func() error {
				r, err := oskenRun(b.ctx, python, n.space, "serve", fmt.Sprint(port), file)
				if err == nil && r.FlowMods != mods {
					err = fmt.Errorf("%d flow-mods, want %d", r.FlowMods, mods)
				}
				theirs.add(mods, time.Duration(r.Seconds*1e9), r.CPU)
				return err
			})
			if err != nil {
				return fmt.Errorf("os-ken into %s: %w", to.name, err)
			}
		}
		b.add("policies compiled, into "+to.name, "1/s", ours.policies, theirs.policies, osken+", given the flow-mods", true, installLeast)
		b.add("flow-mods installed into "+to.name, "1/s", alone.flows, theirs.flows, osken, true, 0)
		b.add("its CPU, compiling included", "us/mod", ours.cpu, theirs.cpu, osken, false, 0)
	}
	b.Notes = append(b.Notes, fmt.Sprintf("%d policies, %d switches, %d flow-mods; Open vSwitch holds the same entries after both controllers",
		installPolicies, installSwitches, mods))
	return nil
}

// run is one installation by Weir.
type run struct {
	mods                int
	compiled, installed time.Duration
	cpu                 float64 // s
}

// weirInstalls waits for all switches, then compiles and installs.
func (b *bench) weirInstalls(l net.Listener, in fabric.Input) (r run, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conns := map[fabric.SwitchID]*openflow.Conn{}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for len(conns) < installSwitches {
		nc, err := l.Accept()
		if err != nil {
			return r, fmt.Errorf("%d of %d switches have come: %w", len(conns), installSwitches, errors.Join(err, context.Cause(ctx)))
		}
		c, err := openflow.Controller(ctx, nc, openflow.Options{})
		if err != nil {
			continue // Open vSwitch may drop its first connection to a new controller; it comes again
		}
		if err := c.Barrier(ctx); err != nil { // as the peer does
			return r, err
		}
		conns[switchID(c.Features().DatapathID)] = c
	}
	runtime.GC()
	cpu := cpuTime()
	begin := time.Now()
	out := steering.Compile(in)
	r.compiled = time.Since(begin)
	r.mods, err = control.Install(ctx, conns, out)
	r.installed = time.Since(begin) - r.compiled
	r.cpu = cpuTime() - cpu
	for name, perr := range out.Errors {
		err = errors.Join(err, fmt.Errorf("policy %s: %w", name, perr))
	}
	return r, err
}

// cpuTime is what this process has used, s.
func cpuTime() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// network is a namespace with bridges of a private Open vSwitch, where controllers listen at the loopback interface.
type network struct {
	ctx     context.Context
	dir     string
	space   string
	options ovsproc.Options
	proc    *ovsproc.Process
	entries []string // in the bridges after the first controller
}

func newNetwork(ctx context.Context) (*network, error) {
	if err := ovsproc.Installed(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return nil, err
	}
	n := &network{ctx: ctx, dir: dir, space: filepath.Base(dir)}
	n.options = ovsproc.Options{Dir: filepath.Join(dir, "ovs"), Netns: netns.Path(n.space)}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) build() (err error) {
	if err := netns.Create(n.options.Netns, netns.Options{}); err != nil {
		return err
	}
	if n.proc, err = ovsproc.Start(n.ctx, n.options); err != nil {
		return err
	}
	return n.bridges(func(i int, name string) []string {
		return []string{"add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13",
			fmt.Sprintf("other-config:datapath-id=%016x", i), "other-config:disable-in-band=true"}
	})
}

// bridges runs one ovs-vsctl for all of them.
func (n *network) bridges(what func(i int, name string) []string) error {
	args := []string{"--timeout=20", "--db=" + n.proc.DB()}
	for i := 1; i <= installSwitches; i++ {
		args = append(append(args, "--"), what(i, fmt.Sprint("s", i))...)
	}
	if out, err := exec.CommandContext(n.ctx, "ovs-vsctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ovs-vsctl: %w: %s", err, out)
	}
	return nil
}

func (n *network) close() error {
	errs := []error{ovsproc.At(n.options).Destroy(context.WithoutCancel(n.ctx))}
	errs = append(errs, netns.Delete(n.options.Netns))
	return errors.Join(append(errs, os.RemoveAll(n.dir))...)
}

func (n *network) listen() (l net.Listener, err error) {
	err = netns.Do(n.space, func() error {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	return l, err
}

func (n *network) freePort() (int, error) {
	l, err := n.listen()
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// withBridges has the bridges, which are empty, connect to a controller at a port while it runs; then they hold what the first controller
// left in them.
func (n *network) withBridges(port int, controller func() error) error {
	if _, err := n.dump(true); err != nil {
		return err
	}
	err := n.bridges(func(_ int, name string) []string {
		return []string{"set-controller", name, fmt.Sprintf("tcp:127.0.0.1:%d", port), "--", "set", "controller", name, "max_backoff=1000"}
	})
	if err == nil {
		err = controller()
	}
	if err := errors.Join(err, n.bridges(func(_ int, name string) []string { return []string{"del-controller", name} })); err != nil {
		return err
	}
	now, err := n.dump(false)
	if err != nil {
		return err
	}
	if n.entries == nil {
		n.entries = now
	}
	if !slices.Equal(n.entries, now) {
		i := 0
		for i < min(len(now), len(n.entries)) && n.entries[i] == now[i] {
			i++
		}
		at := func(s []string) string {
			if i < len(s) {
				return s[i]
			}
			return "none"
		}
		return fmt.Errorf("%d entries, the first controller left %d; the first that differs is %q, was %q", len(now), len(n.entries), at(now), at(n.entries))
	}
	return nil
}

// dump lists all entries of all bridges, sorted; forget removes them.
func (n *network) dump(forget bool) ([]string, error) {
	var all []string
	for i := 1; i <= installSwitches; i++ {
		c, err := openflow.Dial(n.ctx, "unix:"+n.proc.Mgmt(fmt.Sprint("s", i)), openflow.Options{})
		if err != nil {
			return nil, err
		}
		if forget {
			err = c.Transact(n.ctx, &openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.TableAll})
		} else {
			var flows []openflow.FlowStats
			flows, err = c.Flows(n.ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
			for _, f := range flows {
				all = append(all, fmt.Sprintf("s%d table=%d priority=%d cookie=%#x %s %s", i, f.Table, f.Priority, f.Cookie, f.Match.Normal(), openflow.InstructionString(f.Instructions)))
			}
		}
		if err := errors.Join(err, c.Close()); err != nil {
			return nil, fmt.Errorf("entries of s%d: %w", i, err)
		}
	}
	slices.Sort(all)
	return all, nil
}

// withSink has switches of a sink connect instead; they must have got all flow-mods.
func (n *network) withSink(mods int) func(port int, controller func() error) error {
	return func(port int, controller func() error) error {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(n.ctx, oskenTime)
		defer cancel()
		c := exec.CommandContext(ctx, "nsenter", "--net="+netns.Path(n.space), "--", exe, sinkArg, fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprint(installSwitches))
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		if err := c.Start(); err != nil {
			return err
		}
		err = controller()
		if err != nil {
			cancel()
		}
		if werr := c.Wait(); err == nil && werr != nil {
			err = fmt.Errorf("sink: %w: %s", werr, strings.TrimSpace(errs.String()))
		}
		if err != nil {
			return err
		}
		var got sinkCount
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			return fmt.Errorf("sink says %q: %w", out.String(), err)
		}
		if got.FlowMods != int64(mods) {
			return fmt.Errorf("the sink got %d flow-mods, want %d", got.FlowMods, mods)
		}
		return nil
	}
}
