package platform

import (
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"

	"weir.dev/weir/flow"
)

// program is a process that forwards frames between the two ports of a function. In a container it is the image's entrypoint.
type program struct {
	image  string // that has it
	config string // JSON, where a function of the catalogue finds it; empty: none
	// host is the program for a function without a container; root is where the image is mounted. nil: it needs one.
	host func(root string) (string, error)
	// arguments of the program for its ports; nil: none.
	arguments func(p ports) []string
	whole     bool // it wants frames as they are on a wire: no segments, no checksums that are missing
	sockets   bool // its ports can be sockets of vhost-user, too
	polls     bool // it never waits for frames: see Resting
	inherent  map[string]string
}

// ports of a function's program: the links in and out of its namespace, or sockets of vhost-user.
type ports struct {
	sockets string   // directory of the sockets in and out; empty: there are none
	seen    string   // where the program sees that directory
	devices []string // on PCI, in a machine, in their place
	cpu     int      // that it polls on
}

// socket of a side, as the program sees it.
func (p ports) socket(s flow.Side) string { return path.Join(p.seen, s.String()) }

// socketsInside is where a container has the sockets of its ports.
const socketsInside = "/run/vhost"

const (
	pcapImage    = "pcap-bridge"
	packetImage  = "wire-packet"
	xskImage     = "wire-xsk"
	testpmdImage = "testpmd"
	testpmdHost  = "dpdk-testpmd"
)

// direct tells whether the program, of all, drives ports that share memory with a switch itself.
func (f function) direct() bool { return f.program != nil && f.program.sockets }

// argumentsFor ports.
func (p program) argumentsFor(at ports) []string {
	if p.arguments == nil {
		return nil
	}
	return p.arguments(at)
}

// builtBy says where the images of programs come from.
const builtBy = "make peers"

// copies is what a program in user space cannot have: it sends on what it got.
func copies() map[string]string {
	const why = "a function in user space passes frames on as they are: their checksums have to be right, and no frame is longer than the MTU"
	return map[string]string{SettingTSO: why, SettingGSO: why, SettingChecksums: why, SettingRPS: "functions forward in processes: the kernel has nothing to steer to another CPU"}
}

// pcapFunction is a bridge in user space by libpcap; see lab/functions.
func pcapFunction() function {
	return function{name: byPcap, about: "a bridge in user space by libpcap", program: &program{
		image: pcapImage, whole: true, host: func(root string) (string, error) { return filepath.Join(root, "usr/bin", pcapImage), nil },
		arguments: func(ports) []string { return []string{flow.In.String(), flow.Out.String()} }, inherent: copies(),
	}}
}

// testpmdFunction is DPDK's testpmd, which hands frames from port to port unchanged (mode io) and polls without a pause.
func testpmdFunction() function {
	return function{name: byTestpmd, about: "DPDK's testpmd (io) polling, over virtio-user (in a virtual machine: virtio-net) where the network has vhost-user, else over packet sockets", program: &program{
		image: testpmdImage, whole: true, host: func(string) (string, error) { return exec.LookPath(testpmdHost) }, arguments: testpmdArguments, sockets: true, polls: true,
		inherent: copies(),
	}}
}

// packetFunction is the catalogue's wire by packet sockets: it keeps segments and what is left to the hardware.
func packetFunction() function {
	return function{name: byPacket, about: "a wire in user space by packet sockets", program: &program{
		image: packetImage, host: func(root string) (string, error) { return filepath.Join(root, "usr/bin", packetImage), nil },
		inherent: map[string]string{SettingRPS: copies()[SettingRPS]},
	}}
}

// xskFunction is a wire in user space by AF_XDP sockets; see lab/functions. It loads its program itself, which only root of the machine may.
func xskFunction() function {
	return function{name: byXSK, about: "a wire in user space by AF_XDP sockets (copy mode)", program: &program{
		image: xskImage, whole: true, host: func(root string) (string, error) { return filepath.Join(root, "usr/bin", xskImage), nil }, inherent: copies(),
	}}
}

// fiveFunction is five working functions of the catalogue in turns, without a Weir that hears what they settle.
func fiveFunction() function {
	f := function{name: five, about: "in turns firewall, http-filter, ids, dns-lb and nat", neighbours: true}
	for _, j := range fiveJobs() {
		f.turns = append(f.turns, &program{image: j.image, config: j.config, inherent: map[string]string{SettingRPS: copies()[SettingRPS]}})
	}
	f.program = f.turns[0]
	return f
}

// pagesPerFunction of 2 MiB are those of a function that shares memory with a switch.
const pagesPerFunction = 32

// testpmdArguments: memory of its own, no device but its two ports, one thread that forwards.
func testpmdArguments(p ports) []string {
	args := []string{"--lcores", fmt.Sprintf("0@%d,1@%d", p.cpu, p.cpu), "--main-lcore", "0", "--no-telemetry"}
	switch {
	case len(p.devices) > 0: // they read and write where memory truly is
		args = append(args, "--in-memory", "-m", "48", "--iova-mode=pa")
		for _, at := range p.devices {
			args = append(args, "-a", at)
		}
	case p.sockets != "":
		args = append(args, "--no-pci", "--iova-mode=va", "--in-memory", "--single-file-segments", "-m", strconv.Itoa(pagesPerFunction*2))
	default:
		args = append(args, "--no-pci", "--iova-mode=va", "--no-huge", "-m", "64", "--no-shconf")
	}
	for i, side := range []flow.Side{flow.In, flow.Out} {
		switch {
		case len(p.devices) > 0:
		case p.sockets != "":
			args = append(args, "--vdev", fmt.Sprintf("net_virtio_user%d,path=%s,server=1,queue_size=1024", i, p.socket(side)))
		default:
			args = append(args, "--vdev", fmt.Sprintf("net_af_packet%d,iface=%s,qdisc_bypass=1", i, side))
		}
	}
	return append(args, "--", "--forward-mode=io", "--auto-start", "--stats-period=3600", "--nb-cores=1", "--txd=512", "--rxd=512",
		"--total-num-mbufs=4096", "--no-mlockall", "--no-lsc-interrupt")
}
