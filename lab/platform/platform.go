// Package platform builds what the lab compares: paths of N wires between two stations, by Weir's own drivers, by the hosts of a Weir that
// runs, and by what others have. But for these hosts everything stands in network namespaces of its own; nothing is made in the one that the program
// runs in.
package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// Options of all platforms.
type Options struct {
	Name   string   // of the lab's run: 8 characters, of which everything's name begins
	Images []string // layouts with the image "wire"
	API    API      // of the Weir whose hosts are the platform hosts
	Where  Where    // a path is to be, for Check
	// Program is the Weir of the lab's own daemons; empty: this program.
	Program string
	// Former is another version of Weir, beside which this one is measured; empty: none.
	Former Former
}

// Path leads from one station to another.
type Path struct {
	From, To string     // namespaces; the interface is eth0 in both
	Address  netip.Addr // of To
	Source   netip.Addr // of From
	// Space and Link are where frames of From enter the platform, as if just received; empty: they cannot be put in there.
	Space, Link string
	// FrameSpace and FrameLink are where XDP frames leave towards the platform; empty: it takes none.
	FrameSpace, FrameLink string
}

// Station is the name of the stations' interfaces.
const Station = "eth0"

// Platform makes paths of N wires. Its methods are called from one goroutine.
type Platform interface {
	// Path gives the path of n wires and puts it in force. What was made once stays until Close.
	Path(ctx context.Context, n int) (Path, error)
	Close() error
}

// Kind is a platform that there could be.
type Kind struct {
	Name  string
	About string
	// Check tells why it cannot be had on this machine; empty: it can.
	Check func(o Options) string
	Open  func(ctx context.Context, o Options) (Platform, error)
	// Least and Most wires that a path can have.
	Least, Most int
	// Skbs and Frames: what the lab's generator can put in, socket buffers as if just received (Path.Link) or XDP frames (Path.FrameLink).
	Skbs, Frames bool
	// Process: it forwards in a process of its own, not on the CPU where a frame enters.
	Process bool
}

// Kinds of platforms, those too that this machine may not have.
func Kinds() []Kind {
	return []Kind{
		{Name: "ebpf", About: "Weir: eBPF switch, containers by runc, image wire", Check: checkWeir, Open: openEBPF, Most: maxWires, Skbs: true},
		{Name: "ovs", About: "Weir: Open vSwitch, containers by runc, image wire", Check: checkOVS, Open: openOVS, Most: maxWires, Skbs: true, Process: true},
		{Name: "bridges", About: "a Linux bridge in each of N namespaces, joined by Linux bridges", Check: free, Open: openBridges, Most: maxWires, Skbs: true},
		{Name: "ovs-chain", About: "a Linux bridge in each of N namespaces, joined by an Open vSwitch (netdev) by hand: an entry from port to port", Check: checkSwitched, Open: openSwitched,
			Most: maxWires, Skbs: true, Process: true},
		{Name: "veth", About: "a veth pair between the stations and nothing else", Check: free, Open: openVeth, Frames: true},
		{Name: "xdp", About: "XDP redirect by hand: N namespaces, each with a program that redirects frames from one veth to another", Check: free, Open: openXDP, Most: maxWires, Frames: true},
		{Name: "least", About: "minimal veth chain: namespaces, veths, tcx links and wires as Weir's, and at each port one hash look-up for the next port", Check: checkLeast, Open: openLeast, Most: maxWires, Skbs: true},
		{Name: PlatformDaemon, About: "Weir as users run it: this program's daemon, started for the lab, eBPF switch", Check: checkWeir, Open: openDaemon(false), Most: maxWires, Skbs: true},
		{Name: PlatformFormer, About: "another version's daemon, from a clone of it (--before DIR)", Check: checkFormer, Open: openDaemon(true), Most: maxWires, Skbs: true},
		{Name: "docker", About: "two containers on Docker's own bridge", Check: checkDocker, Open: openDocker},
		{Name: PlatformHosts, About: "hosts of a Weir that runs, driven through its API (--socket, --url)", Check: checkHosts, Open: openHosts, Most: api.MaxHops},
		{Name: "clickos", About: "ClickOS", Check: never("needs a Xen hypervisor and ClickOS images: this lab has no driver for them"), Least: 1, Most: maxWires},
		{Name: "vm-virtio", About: "a virtual machine's bridge, virtio NICs", Check: checkKVM, Least: 1, Most: 1},
		{Name: "vm-e1000", About: "a virtual machine's bridge, e1000 NICs", Check: checkKVM, Least: 1, Most: 1},
	}
}

// PlatformDaemon and PlatformFormer are daemons of this and of another version.
const (
	PlatformDaemon = "weir"
	PlatformFormer = "former"
)

// PlatformHosts is the one that is not made for the lab.
const PlatformHosts = "hosts"

const maxWires = 500

// Find a kind by its name.
func Find(name string) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// Names of all kinds.
func Names() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

func never(reason string) func(Options) string { return func(Options) string { return reason } }

func free(Options) string { return "" }

func checkKVM(Options) string {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return "no KVM on this machine (/dev/kvm): a virtual machine would be emulated"
	}
	return "this lab has no driver for virtual machines yet"
}

// Address of the stations on every platform; each has namespaces of its own.
var (
	sourceAddress = netip.MustParsePrefix("10.9.0.1/24")
	targetAddress = netip.MustParsePrefix("10.9.0.2/24")
)

// Dir is where a platform keeps its namespaces.
func dir(o Options, suffix string) string { return filepath.Join(Run, o.Name+suffix) }

// Run is the directory of what the lab makes while it runs.
const Run = "/run/weir"

// Try sends a few echoes through a path: caches and tables have then seen it, and it is known to carry.
func (p Path) Try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		r, err := tools.RunPing(ctx, p.From, tools.PingOptions{To: p.Address, Count: 3, Interval: 10 * time.Millisecond})
		if err == nil && r.Received == r.Sent {
			return nil
		}
		if err != nil && errors.Is(err, tools.ErrMissing) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no echo from %s comes back: %w", p.Address, errors.Join(err, ctx.Err()))
		}
	}
}

// MACs of the stations.
func (p Path) MACs() (from, to [6]byte, err error) {
	read := func(space string, out *[6]byte) error {
		return netns.Do(space, func() error {
			ifi, err := net.InterfaceByName(Station)
			if err != nil {
				return err
			}
			copy(out[:], ifi.HardwareAddr)
			return nil
		})
	}
	return from, to, errors.Join(read(p.From, &from), read(p.To, &to))
}

// spaces are namespaces of one platform under one directory.
type spaces struct {
	dir  string
	made []string
}

func (s *spaces) add(name string, quiet bool) (string, error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(s.dir, name)
	if err := netns.Create(path, netns.Options{Quiet: quiet}); err != nil {
		return "", err
	}
	s.made = append(s.made, path)
	return path, nil
}

func (s *spaces) close() error {
	var errs []error
	for _, p := range s.made {
		errs = append(errs, netns.Delete(p))
	}
	s.made = nil
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
