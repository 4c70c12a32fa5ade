package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	containers "weir.dev/weir/container/drivers"
	"weir.dev/weir/flow"
	"weir.dev/weir/lab/tied"
	"weir.dev/weir/portkind"
)

// polling is what Open vSwitch with DPDK has besides: threads that poll its ports, each on a processor of its own, and memory in hugepages. Ports are sockets of
// vhost-user for functions whose program can have such (virtio-user) and for virtual machines; all others are packet sockets (net_af_packet) at the same links as elsewhere.
type polling struct {
	program string // ovs-vswitchd with DPDK
	threads int
}

// mostPolling threads that a network of the lab has.
const mostPolling = 3

// pagesOfSwitch are its hugepages of 2 MiB, beside those for each function.
const pagesOfSwitch = 128

// withDPDK are places of an ovs-vswitchd with DPDK: beside others in the path, or where Debian puts it.
func withDPDK() (string, error) {
	const debian = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
	if path, err := exec.LookPath(filepath.Base(debian)); err == nil {
		return path, nil
	}
	return exec.LookPath(debian)
}

func pollingNetwork(threads int) networkMaker {
	name := fmt.Sprint(byPolling, threads)
	return networkMaker{
		name: name, process: true, splits: true, threads: threads, inherent: userSpaceSwitch(),
		about: fmt.Sprintf("Open vSwitch with DPDK (netdev), %d polling, by hand: an entry from port to port", threads),
		check: func(Options) string {
			if why := cmp.Or(checkOVS(), checkHugepages()); why != "" {
				return why
			}
			if _, err := withDPDK(); err != nil {
				return "Open vSwitch with DPDK is not installed (make peers, or apt-get install openvswitch-switch-dpdk)"
			}
			if n := len(processors()); n < threads {
				return fmt.Sprintf("%d polling threads need %d CPUs, each one of its own: this process has %d", threads, threads, n)
			}
			return ""
		},
		open: func(ctx context.Context, l links, f function) (network, error) {
			program, err := withDPDK()
			if err != nil {
				return nil, err
			}
			if err := hugepagesOf(l.inst).more(pagesOfSwitch); err != nil {
				return nil, errors.Join(err, hugepagesOf(l.inst).giveBack())
			}
			return openFlows(ctx, newFlows(l, f, inUserSpace, &polling{program, threads}))
		},
		destroy: destroyFlows,
	}
}

// pollsOf a network and a function; see Kind.Polls.
func pollsOf(n networkMaker, f function) func(Layout) int {
	if n.threads == 0 && (f.program == nil || !f.program.polls) {
		return nil
	}
	return func(l Layout) int {
		if f.program == nil || !f.program.polls {
			return n.threads
		}
		return n.threads + l.side()*l.Chain
	}
}

// vhostOf tells why a machine cannot share memory with the switch; empty: it can, or need not.
func vhostOf(p Point, n networkMaker) string {
	if p.Runtime != virtual || n.threads == 0 || slices.Contains(vmPorts(), portkind.VhostUser) {
		return ""
	}
	return fmt.Sprintf("the runtime %s has no ports of kind %s (it has %s), by which a virtual machine would share memory with the switch", virtual, portkind.VhostUser, portkind.List(vmPorts()))
}

// vmPorts are the kinds of ports that virtual machines can have.
func vmPorts() []portkind.Kind {
	d, ok := containers.All()[virtual]
	if !ok {
		return nil
	}
	return d.About(context.Background(), containers.Options{}).Ports
}

// poll has the switch take its memory and start its threads.
func (f *flows) poll(ctx context.Context) error {
	cpus, _ := shareOut(processors(), f.polls.threads)
	mask := make([]byte, 256) // of 1024 processors, four bits a digit
	for _, cpu := range cpus {
		if cpu < 4*len(mask) {
			mask[len(mask)-1-cpu/4] |= 1 << (cpu % 4)
		}
	}
	digits := ""
	for _, d := range mask {
		digits += fmt.Sprintf("%x", d)
	}
	err := f.vsctl(ctx, "--no-wait", "set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x"+strings.TrimLeft(digits, "0"),
		fmt.Sprintf("other_config:dpdk-socket-mem=%d", pagesOfSwitch*2), fmt.Sprintf("other_config:dpdk-socket-limit=%d", pagesOfSwitch*2), "other_config:dpdk-extra=--no-pci --no-telemetry --in-memory --single-file-segments",
		"other_config:dpdk-init=true")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, upWithin)
	defer cancel()
	for { // the log: what the switch tells the database (dpdk_initialized) is lost if somebody else writes there at the same time
		log, err := f.log()
		if strings.Contains(log, "DPDK Enabled - initialized") {
			return nil
		}
		if err != nil || f.process.SwitchPID() == 0 || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("DPDK does not come up in Open vSwitch: %s", tied.Tail(log)), err, ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// upWithin is how long DPDK may take to come up: it clears its memory.
const upWithin = time.Minute

// log is what the switch wrote, but for its statistics of itself.
func (f *flows) log() (string, error) {
	text, err := os.ReadFile(filepath.Join(f.process.Dir(), "ovs-vswitchd.log"))
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.Contains(line, "|coverage|") })
	return strings.Join(lines, "\n"), err
}

// shares tells whether functions share memory with the switch: their ports are sockets.
func (f *flows) shares() bool { return f.polls != nil && (f.fn.machine || f.fn.direct()) }

// sockets is the directory of a function's sockets.
func (f *flows) sockets(name string) string { return filepath.Join(f.inst.Run, "vhost", name) }

// makeSockets prepares them: the function makes the sockets, and the switch is their client. The ports are called by function and side.
func (f *flows) makeSockets(name string) (in, out string, err error) {
	if err := os.MkdirAll(f.sockets(name), 0o700); err != nil {
		return "", "", err
	}
	for _, side := range []flow.Side{flow.In, flow.Out} {
		if err := os.Remove(filepath.Join(f.sockets(name), side.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
	}
	if !f.fn.machine { // whose memory is QEMU's
		err = hugepagesOf(f.inst).more(pagesPerFunction)
	}
	return portOf(name, flow.In), portOf(name, flow.Out), err
}

func portOf(name string, side flow.Side) string { return name + "-" + side.String() }

// device of a port, as arguments of ovs-vsctl.
func (f *flows) device(port string) []string {
	for name, ports := range f.ports {
		for i, side := range []flow.Side{flow.In, flow.Out} {
			if f.shares() && ports[i] == port {
				return []string{"type=dpdkvhostuserclient", "options:vhost-server-path=" + filepath.Join(f.sockets(name), side.String())}
			}
		}
	}
	return []string{"type=dpdk", fmt.Sprintf(`options:dpdk-devargs="net_af_packet%d,iface=%s,qdisc_bypass=1"`, f.numbers[port], port)}
}

// plugged tells which ports the switch could not open.
func (f *flows) plugged(ctx context.Context) error {
	text, err := f.ask(ctx, "--format=csv", "--no-headings", "--columns=name,error", "find", "interface", "error!=[]")
	if err != nil || text == "" {
		return err
	}
	return fmt.Errorf("ports of Open vSwitch with DPDK: %s", text)
}
