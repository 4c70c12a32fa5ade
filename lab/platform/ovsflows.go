package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb/ovsproc"
)

// flows is Open vSwitch as anybody can set it up: one bridge of the netdev datapath, and an entry from port to port for each joint, by ovs-ofctl. Weir has
// no part in it.
type flows struct {
	links
	process *ovsproc.Process
	mu      sync.Mutex
	numbers map[string]int       // of ports, by link
	waiting []string             // links that are no ports yet
	ports   map[string][2]string // in and out, by function
	ends    []string             // links of the stations
}

const switchName = "br0"

// switchQueue is the receive buffer of a port, in bytes: Weir's driver gives its ports as much.
const switchQueue = 8 << 20

func flowNetwork() networkMaker {
	return networkMaker{
		name: byFlows, about: "Open vSwitch (netdev) by hand: an entry from port to port", process: true, inherent: userSpaceSwitch(),
		check: func(Options) string {
			if err := errors.Join(ovsproc.Installed(), tools.Installed("ovs-ofctl")); err != nil {
				return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
			}
			return ""
		},
		open: func(ctx context.Context, l links, _ function) (network, error) {
			f := &flows{links: l, process: processOf(l), numbers: map[string]int{}, ports: map[string][2]string{}}
			if err := f.start(ctx); err != nil {
				return nil, errors.Join(err, f.close(ctx))
			}
			return f, nil
		},
		destroy: func(ctx context.Context, l links) error { return processOf(l).Destroy(ctx) },
	}
}

// userSpaceSwitch is what a switch in user space cannot have: it sends on what it gets.
func userSpaceSwitch() map[string]string {
	const why = "a switch in user space passes frames on as they are: their checksums have to be right, and no frame is longer than the MTU"
	return map[string]string{SettingTSO: why, SettingGSO: why, SettingChecksums: why, SettingRPS: "it forwards in a process: the kernel has nothing to steer to another CPU"}
}

func processOptions(l links) ovsproc.Options {
	return ovsproc.Options{Dir: filepath.Join(l.inst.Run, "ovs"), Netns: l.home}
}

func processOf(l links) *ovsproc.Process { return ovsproc.At(processOptions(l)) }

func (f *flows) start(ctx context.Context) error {
	if _, err := ovsproc.Start(ctx, processOptions(f.links)); err != nil {
		return err
	}
	return f.vsctl(ctx, "add-br", switchName, "--", "set", "bridge", switchName, "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13", "other-config:disable-in-band=true")
}

func (f *flows) station(_ context.Context, name, space string, address netip.Prefix) error {
	link, err := f.joinStation(name, space, address)
	if err != nil {
		return err
	}
	f.enlist(link.Name)
	f.ends = append(f.ends, link.Name)
	at, err := netns.At(space) // see userSpaceSwitch
	if err != nil {
		return err
	}
	return errors.Join(at.Offloads(Station, false), at.Close())
}

func (f *flows) add(_ context.Context, name, space string) error {
	in, out, err := f.joinFunction(name, space)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enlist(in.Name)
	f.enlist(out.Name)
	f.ports[name] = [2]string{in.Name, out.Name}
	return nil
}

// enlist a link that is to become a port, under a number of its own.
func (f *flows) enlist(link string) {
	if f.numbers[link] == 0 {
		f.numbers[link] = len(f.numbers) + 1
		f.waiting = append(f.waiting, link)
	}
}

func (f *flows) ready(context.Context, string, int) error { return nil }

func (f *flows) lead(ctx context.Context, functions []string) error {
	if err := f.plug(ctx); err != nil {
		return err
	}
	var entries strings.Builder
	join := func(one, other string) {
		a, b := f.numbers[one], f.numbers[other]
		fmt.Fprintf(&entries, "in_port=%d,actions=output:%d\nin_port=%d,actions=output:%d\n", a, b, b, a)
	}
	last := f.ends[0]
	for _, name := range functions {
		join(last, f.ports[name][0])
		last = f.ports[name][1]
	}
	join(last, f.ends[1])
	return f.run(ctx, entries.String(), "ovs-ofctl", "-O", "OpenFlow13", "replace-flows", "unix:"+f.process.Mgmt(switchName), "-")
}

// plug links that wait into the switch, all at once.
func (f *flows) plug(ctx context.Context) error {
	var argv []string
	for _, link := range f.waiting {
		argv = append(argv, "--", "add-port", switchName, link, "--", "set", "interface", link, fmt.Sprintf("ofport_request=%d", f.numbers[link]))
	}
	if len(argv) == 0 {
		return nil
	}
	if err := f.vsctl(ctx, argv[1:]...); err != nil {
		return err
	}
	f.waiting = nil
	return f.process.Widen(switchQueue)
}

func (f *flows) vsctl(ctx context.Context, argv ...string) error {
	return f.run(ctx, "", "ovs-vsctl", append([]string{"--db=" + f.process.DB(), "--timeout=30"}, argv...)...)
}

// run a program of Open vSwitch to its end.
func (f *flows) run(ctx context.Context, stdin, name string, argv ...string) error {
	cmd := exec.CommandContext(ctx, name, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+f.process.Dir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (f *flows) entry() string { return f.ends[0] }

func (f *flows) close(ctx context.Context) error { return f.process.Destroy(ctx) }
