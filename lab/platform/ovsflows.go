package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/container/kvm"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/ovsdb/ovsproc"
)

// flows is Open vSwitch as anybody can set it up: one bridge, and an entry from port to port for each joint, by ovs-ofctl. Weir has no part in it. Its datapath
// is in user space, in the kernel (network ovs-kernel), or in user space with DPDK (ovsdpdk.go).
type flows struct {
	links
	kind    string   // of the datapath, as Open vSwitch calls it
	polls   *polling // nil: without DPDK
	fn      function
	options ovsproc.Options
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

// Kinds of datapaths.
const (
	inUserSpace = "netdev"
	inKernel    = "system"
)

func flowNetwork() networkMaker {
	return networkMaker{
		name: byFlows, about: "Open vSwitch (netdev, its datapath in user space) by hand: an entry from port to port", process: true, splits: true, inherent: userSpaceSwitch(),
		check: func(Options) string { return checkOVS() },
		open: func(ctx context.Context, l links, f function) (network, error) {
			return openFlows(ctx, newFlows(l, f, inUserSpace, nil))
		},
		destroy: destroyFlows,
	}
}

// kernelNetwork is what the paper and most people have: packets are forwarded in the kernel.
func kernelNetwork() networkMaker {
	return networkMaker{
		name: byKernel, about: "Open vSwitch (the kernel's datapath) by hand: an entry from port to port", splits: true,
		check: func(Options) string {
			if why := checkOVS(); why != "" {
				return why
			}
			return checkKernel()
		},
		open: func(ctx context.Context, l links, f function) (network, error) {
			return openFlows(ctx, newFlows(l, f, inKernel, nil))
		},
		destroy: destroyFlows,
	}
}

// checkKernel tells why there is no datapath of the kernel; empty: there is.
var checkKernel = sync.OnceValue(func() string {
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err != nil {
		return "this kernel lacks Open vSwitch's datapath (CONFIG_OPENVSWITCH, modprobe openvswitch): " + byFlows + " has one in user space"
	}
	return ""
})

// bestNetwork is the Open vSwitch that a machine has: that of the kernel, or else the one in user space.
func bestNetwork() networkMaker {
	n := kernelNetwork()
	if checkKernel() != "" {
		n = flowNetwork()
	}
	n.name = byBest
	return n
}

func checkOVS() string {
	if err := errors.Join(ovsproc.Installed(), tools.Installed("ovs-ofctl")); err != nil {
		return "Open vSwitch is not installed (apt-get install openvswitch-switch)"
	}
	return ""
}

func newFlows(l links, fn function, kind string, p *polling) *flows {
	o := processOptions(l)
	o.Kernel = kind == inKernel
	if p != nil {
		o.Switch, o.Polls = p.program, true
	}
	return &flows{links: l, fn: fn, kind: kind, polls: p, options: o, process: ovsproc.At(o), numbers: map[string]int{}, ports: map[string][2]string{}}
}

func openFlows(ctx context.Context, f *flows) (network, error) {
	if err := f.start(ctx); err != nil {
		return nil, errors.Join(err, f.close(ctx))
	}
	return f, nil
}

// userSpaceSwitch is what a switch in user space cannot have: it sends on what it gets.
func userSpaceSwitch() map[string]string {
	const why = "a switch in user space passes frames on as they are: their checksums have to be right, and no frame is longer than the MTU"
	return map[string]string{SettingTSO: why, SettingGSO: why, SettingChecksums: why, SettingRPS: "it forwards in a process: the kernel has nothing to steer to another CPU"}
}

func processOptions(l links) ovsproc.Options {
	return ovsproc.Options{Dir: filepath.Join(l.inst.Run, "ovs"), Netns: l.home}
}

// destroyFlows ends what a crashed run has left, and gives back what it took.
func destroyFlows(ctx context.Context, l links) error {
	return errors.Join(ovsproc.At(processOptions(l)).Destroy(ctx), hugepagesOf(l.inst).giveBack())
}

func (f *flows) start(ctx context.Context) error {
	if _, err := ovsproc.Start(ctx, f.options); err != nil {
		return err
	}
	if f.polls != nil {
		if err := f.poll(ctx); err != nil {
			return err
		}
	}
	return f.vsctl(ctx, "add-br", switchName, "--", "set", "bridge", switchName, "datapath_type="+f.kind, "fail_mode=secure", "protocols=OpenFlow13", "other-config:disable-in-band=true")
}

func (f *flows) station(_ context.Context, name, space string, address netip.Prefix) error {
	link, err := f.joinStation(name, space, address)
	if err != nil {
		return err
	}
	f.enlist(link.Name)
	f.ends = append(f.ends, link.Name)
	if f.kind == inKernel {
		return nil
	}
	return wholeFrames(space, Station) // see userSpaceSwitch
}

func (f *flows) add(ctx context.Context, name, space string) error {
	in, out, err := f.portsFor(name, space)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enlist(in)
	f.enlist(out)
	f.ports[name] = [2]string{in, out}
	if f.shares() && f.fn.machine { // it comes up only when the switch serves its ports
		return f.plug(ctx)
	}
	return nil
}

// portsFor a function: links of its namespace, or sockets.
func (f *flows) portsFor(name, space string) (in, out string, err error) {
	if f.shares() {
		return f.makeSockets(name)
	}
	a, b, err := f.joinFunction(name, space)
	return a.Name, b.Name, err
}

// enlist a link that is to become a port, under a number of its own.
func (f *flows) enlist(link string) {
	if f.numbers[link] == 0 {
		f.numbers[link] = len(f.numbers) + 1
		f.waiting = append(f.waiting, link)
	}
}

func (f *flows) ready(context.Context, string, int) error { return nil }

func (f *flows) lead(ctx context.Context, chains [][]string) error {
	if err := f.plug(ctx); err != nil {
		return err
	}
	return f.run(ctx, f.entries(chains), "ovs-ofctl", "-O", "OpenFlow13", "replace-flows", "unix:"+f.process.Mgmt(switchName), "-")
}

// entries from port to port. Where chains part, what comes from a source of another chain than the first has an entry of a higher priority.
func (f *flows) entries(chains [][]string) string {
	var out strings.Builder
	join := func(one, other, there, back string) {
		a, b := f.numbers[one], f.numbers[other]
		fmt.Fprintf(&out, "%sin_port=%d,actions=output:%d\n%sin_port=%d,actions=output:%d\n", there, a, b, back, b, a)
	}
	for i, functions := range chains {
		there, back := "", ""
		if i > 0 {
			source := SourceMAC(i)
			mac := net.HardwareAddr(source[:]).String()
			there, back = "priority=40000,dl_src="+mac+",", "priority=40000,dl_dst="+mac+","
		}
		last, first := f.ends[0], there
		for _, name := range functions {
			join(last, f.ports[name][0], first, "")
			last, first = f.ports[name][1], ""
		}
		join(last, f.ends[1], first, back)
	}
	return out.String()
}

// plug links that wait into the switch, all at once.
func (f *flows) plug(ctx context.Context) error {
	var argv []string
	for _, link := range f.waiting {
		argv = append(argv, "--", "add-port", switchName, link, "--", "set", "interface", link, fmt.Sprintf("ofport_request=%d", f.numbers[link]))
		if f.polls != nil {
			argv = append(argv, f.device(link)...)
		}
	}
	if len(argv) == 0 {
		return nil
	}
	if err := f.vsctl(ctx, argv[1:]...); err != nil {
		return err
	}
	f.waiting = nil
	switch {
	case f.polls != nil:
		return f.plugged(ctx)
	case f.kind == inKernel:
		return nil
	}
	return f.process.Widen(switchQueue)
}

func (f *flows) vsctl(ctx context.Context, argv ...string) error {
	_, err := f.ask(ctx, argv...)
	return err
}

// ask the database.
func (f *flows) ask(ctx context.Context, argv ...string) (string, error) {
	return f.output(ctx, "", "ovs-vsctl", append([]string{"--db=" + f.process.DB(), "--timeout=60"}, argv...)...)
}

// run a program of Open vSwitch to its end.
func (f *flows) run(ctx context.Context, stdin, name string, argv ...string) error {
	_, err := f.output(ctx, stdin, name, argv...)
	return err
}

func (f *flows) output(ctx context.Context, stdin, name string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+f.process.Dir())
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return text, nil
}

// conditions that the switch adds to what is measured.
func (f *flows) conditions() map[string]string {
	text := f.kind
	if f.polls != nil {
		cpus, _ := shareOut(processors(), f.polls.threads)
		text += fmt.Sprintf(" with DPDK, polling on CPUs %v", cpus)
		switch {
		case f.fn.machine && f.fn.direct():
			text += "; ports of machines: vhost-user to virtio-net, which DPDK drives in the machine (" + kvm.DirectDriver + ")"
		case f.fn.machine:
			text += "; ports of machines: vhost-user to virtio-net, which the machine's kernel drives"
		}
	}
	return map[string]string{"datapath": text}
}

func (f *flows) entry() string { return f.ends[0] }

func (f *flows) close(ctx context.Context) error {
	return errors.Join(f.process.Destroy(ctx), hugepagesOf(f.inst).giveBack())
}
