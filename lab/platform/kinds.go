package platform

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	containers "weir.dev/weir/container/drivers"
	switches "weir.dev/weir/datapath/drivers"
)

// Point is a platform as what it is made of.
type Point struct {
	Runtime  string // what a function runs in
	Network  string // what joins functions and stations
	Function string // what forwards inside a function
}

// joinPoint stands between a point's parts in the name of one that has no short name.
const joinPoint = "+"

func (p Point) String() string {
	return strings.Join([]string{p.Runtime, p.Network, p.Function}, joinPoint)
}

// Kind is a platform that there could be.
type Kind struct {
	Name string // as a study writes it
	Point
	About string
	// Check tells why it cannot be had on this machine; empty: it can.
	Check func(o Options) string
	Open  func(ctx context.Context, o Options) (Platform, error)
	// Least and Most functions that a path can have.
	Least, Most int
	// Skbs and Frames: what the lab's generator can put in, socket buffers as if just received (Path.Link) or XDP frames (Path.FrameLink).
	Skbs, Frames bool
	// Process: it forwards in a process of its own, not on the CPU where a frame enters.
	Process bool
	// Kernel: it has no process, though what it is compared with has one (Process).
	Kernel bool
	// Polls is how many threads on a path never wait for frames: each wants a processor of its own. nil: none.
	Polls func(l Layout) int
	// Splits: a path can have several chains side by side, each for a source MAC (Layout.Parallel).
	Splits bool
	// Inherent settings are what the platform is: it has no others. Name and reason. See Setting.
	Inherent map[string]string
	// Nothing tells why there is nothing between the stations of a path; empty: there is. nil: on every path there is.
	Nothing func(l Layout) string
}

// Absent tells why a path of the platform has nothing that could have a setting; empty: it has. What is there and cannot be read is not absent.
func (k Kind) Absent(l Layout, setting string) string {
	if setting == SettingWeight && (!k.Process || k.Kernel || l.Chain == 0) {
		return "nothing on the way forwards in a process"
	}
	if k.Nothing == nil || !strings.HasSuffix(setting, ofPorts) && !strings.HasPrefix(setting, settingShown) {
		return ""
	}
	return k.Nothing(l)
}

// PlatformHosts is the one that is not made for the lab.
const PlatformHosts = "hosts"

// PlatformDaemon and PlatformFormer are daemons of this and of another version.
const (
	PlatformDaemon = "weir"
	PlatformFormer = "former"
)

// none stands for a part that a point does not have.
const none = "none"

// Parts of points, beside the drivers of this program.
const (
	bare         = "bare"       // a network namespace, without a process
	byBridges    = "bridge"     // a Linux bridge
	byFlows      = "ovs-flows"  // Open vSwitch by hand, in user space
	byKernel     = "ovs-kernel" // the same with the kernel's datapath
	byBest       = "ovs-here"   // ovs-kernel where the kernel has a datapath, else ovs-flows
	byPolling    = "ovs-dpdk-"  // the same with DPDK, and how many threads poll
	byPcap       = "pcap"       // a process by libpcap
	byTestpmd    = "testpmd"    // a process of DPDK
	byPacket     = "packet"     // a process by packet sockets
	byXSK        = "af-xdp"     // a process by AF_XDP sockets
	byLinks      = "link"       // neighbours are the ends of one veth pair
	byDocker     = "docker"     // runtime and network
	wireFunction = "wire"       // a BPF program hands each frame on
	byRedirect   = "redirect"   // an XDP program does
	byLookup     = "lookup"     // the least that there can be
	byHosts      = "hosts"      // of a Weir that runs
	virtual      = "kvm"        // runtime
	byE1000      = "e1000"      // network
	xen, click   = "xen", "click"
)

// runtimes, networks and functions are what lab platforms are made of, in the order in which they are listed.
func runtimes() []runtimeMaker {
	out := []runtimeMaker{{name: bare, about: "in a network namespace without a process", check: free, open: openBare}}
	drivers := containers.All()
	delete(drivers, bare) // the driver; here it is a namespace without a process, and the process would forward nothing
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		out = append(out, containerRuntime(name))
	}
	return out
}

func networks() []networkMaker {
	drivers := switches.All()
	var out []networkMaker
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		out = append(out, switchNetwork(name, drivers[name]))
	}
	out = append(out, bridgeNetwork(), flowNetwork(), kernelNetwork(), bestNetwork())
	for threads := 1; threads <= mostPolling; threads++ {
		out = append(out, pollingNetwork(threads))
	}
	return append(out, lookupNetwork())
}

func functions() []function {
	return []function{wire(), bridgeFunction(), packetFunction(), xskFunction(), pcapFunction(), testpmdFunction(), fiveFunction()}
}

// named are the points that have a short name, and those that only one maker can make.
func named() []Kind {
	return []Kind{
		{Name: "ebpf", Point: Point{"oci", "ebpf", wireFunction}},
		{Name: "ovs", Point: Point{"oci", "ovs", wireFunction}},
		{Name: "bridges", Point: Point{bare, byBridges, byBridges}},
		{Name: "ovs-chain", Point: Point{bare, byFlows, byBridges}},
		{Name: "five-judged", Point: Point{"oci", "ebpf", five}},
		{Name: "five-bridged", Point: Point{"oci", byBridges, five}},
		{Name: "veth", Point: Point{bare, byLinks, none}, About: "a veth pair between the stations and nothing else", Check: free, Open: openVeth, Frames: true, Nothing: onePair},
		{Name: "xdp", Point: Point{bare, byLinks, byRedirect}, About: "XDP redirect by hand: in each namespace a program redirects frames from one veth to another",
			Check: free, Open: openXDP, Most: maxWires, Frames: true, Inherent: xdpInherent(), Nothing: onePair},
		{Name: "least", Point: Point{bare, byLookup, wireFunction}},
		{Name: PlatformDaemon, Point: Point{"daemon", "ebpf", wireFunction}, About: "Weir as users run it: this program's daemon, started for the lab, eBPF switch",
			Check: checkDaemon, Open: openDaemon(false), Most: maxWires, Skbs: true},
		{Name: PlatformFormer, Point: Point{"former", "ebpf", wireFunction}, About: "another version's daemon, from a clone of it (--before DIR)",
			Check: checkFormer, Open: openDaemon(true), Most: maxWires, Skbs: true},
		{Name: "docker", Point: Point{byDocker, byDocker, none}, About: "two containers on Docker's own bridge", Check: checkDocker, Open: openDocker},
		{Name: PlatformHosts, Point: Point{byHosts, byHosts, wireFunction}, About: "hosts of a Weir that runs, driven through its API (--socket, --url)",
			Check: checkHosts, Open: openHosts, Most: api.MaxHops},
		{Name: "clickos", Point: Point{xen, byBridges, click}, About: "ClickOS", Check: never("needs a Xen hypervisor and ClickOS images: this lab has no driver for them"),
			Least: 1, Most: maxWires},
		{Name: "vm-virtio", Point: Point{virtual, byBridges, byBridges}},
		{Name: "vm-e1000", Point: Point{virtual, byE1000, byBridges}, About: "a virtual machine's bridge, e1000 NICs",
			Check: never("the runtime kvm gives its machines virtio interfaces only"), Least: 1, Most: 1},
	}
}

// Kinds of platforms, those too that this machine may not have: first the points with a short name, then all others that the lab can make.
func Kinds() []Kind {
	kinds, parts := named(), makers{runtimes(), networks(), functions()}
	for i, k := range kinds {
		if k.Check == nil {
			made, err := parts.kind(k.Point)
			if err != nil { // this program lacks a driver
				made = Kind{Point: k.Point, About: err.Error(), Check: never(err.Error())}
			}
			made.Name = k.Name
			kinds[i] = made
		}
	}
	short := kinds
	for i := range parts.networks {
		parts.networks[i].check = remembered(parts.networks[i].check)
	}
	for _, r := range parts.runtimes {
		r.check = remembered(r.check)
		for _, n := range parts.networks {
			for _, f := range parts.functions {
				p := Point{r.name, n.name, f.name}
				if slices.ContainsFunc(short, func(k Kind) bool { return k.Point == p }) {
					continue
				}
				if k, err := kindOf(r, n, f); err == nil {
					kinds = append(kinds, k)
				}
			}
		}
	}
	return append(kinds, working()...)
}

// remembered asks a check of a part once for the same images: a part is in many kinds.
func remembered(check func(Options) string) func(Options) string {
	var mu sync.Mutex
	answers := map[string]string{}
	return func(o Options) string {
		mu.Lock()
		defer mu.Unlock()
		images := strings.Join(o.Images, "\n")
		why, known := answers[images]
		if !known {
			why = check(o)
			answers[images] = why
		}
		return why
	}
}

// makers of the parts of points.
type makers struct {
	runtimes  []runtimeMaker
	networks  []networkMaker
	functions []function
}

// kind puts the makers of a point together.
func (m makers) kind(p Point) (Kind, error) {
	r, err := find("runtime", p.Runtime, m.runtimes, func(m runtimeMaker) string { return m.name })
	if err != nil {
		return Kind{}, err
	}
	n, err := find("network", p.Network, m.networks, func(m networkMaker) string { return m.name })
	if err != nil {
		return Kind{}, err
	}
	f, err := find("function", p.Function, m.functions, func(f function) string { return f.name })
	if err != nil {
		return Kind{}, err
	}
	return kindOf(r, n, f)
}

// kindOf makers. The error says why they do not go together.
func kindOf(r runtimeMaker, n networkMaker, f function) (Kind, error) {
	p := Point{r.name, n.name, f.name}
	if r.machine && f.name != byBridges && f.program == nil {
		return Kind{}, fmt.Errorf("runtime %s: what forwards in a virtual machine is a bridge, or a program: want another function, such as %s", p.Runtime, byBridges)
	}
	f.machine = r.machine
	if f.name == byXSK && r.name != bare {
		return Kind{}, fmt.Errorf("runtime %s: %s loads a BPF program, for which no container has the right: want the runtime %s", p.Runtime, f.name, bare)
	}
	return Kind{
		Name: p.String(), Point: p, About: fmt.Sprintf("each function %s, %s in it; joined by %s", r.about, f.about, n.about),
		Check: func(o Options) string {
			if os.Geteuid() != 0 {
				return "needs root"
			}
			return cmp.Or(n.check(o), f.check(o, p.Runtime == bare), vhostOf(p, n), r.check(o))
		},
		Open:  func(ctx context.Context, o Options) (Platform, error) { return openMade(ctx, o, r, n, f) },
		Least: len(f.turns), Most: maxWires, Skbs: true, Process: n.process || r.machine || f.program != nil, Splits: n.splits, Polls: pollsOf(n, f), Inherent: f.inherits(n.inherent),
	}, nil
}

// find a maker by its name.
func find[T any](what, name string, all []T, nameOf func(T) string) (T, error) {
	var names []string
	for _, x := range all {
		if nameOf(x) == name {
			return x, nil
		}
		names = append(names, nameOf(x))
	}
	var nobody T
	return nobody, fmt.Errorf("there is no %s %q that goes with any other part: %s", what, name, file.Choose(name, names))
}

// Find a kind by its name: a short one, or a point's three parts joined with +.
func Find(name string) (Kind, bool) {
	kinds := Kinds()
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name || k.Point.String() == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// With is the kind whose point has other parts in the place of those that are not empty. The error says why there is none.
func (k Kind) With(other Point) (Kind, error) {
	p := Point{cmp.Or(other.Runtime, k.Runtime), cmp.Or(other.Network, k.Network), cmp.Or(other.Function, k.Function)}
	if out, ok := Find(p.String()); ok {
		return out, nil
	}
	for _, one := range []struct {
		what, name string
		all        []string
	}{{"runtime", p.Runtime, Runtimes()}, {"network", p.Network, Networks()}, {"function", p.Function, Functions()}} {
		if !slices.Contains(one.all, one.name) {
			return Kind{}, fmt.Errorf("%s %q: %s", one.what, one.name, file.Choose(one.name, one.all))
		}
	}
	var with []string // one part is another
	for _, o := range Kinds() {
		if o.Runtime == p.Runtime && o.Network == p.Network || o.Runtime == p.Runtime && o.Function == p.Function || o.Network == p.Network && o.Function == p.Function {
			with = append(with, o.Name)
		}
	}
	return Kind{}, fmt.Errorf("nobody can make a platform of runtime %s, network %s and function %s: near it there are %s", p.Runtime, p.Network, p.Function, strings.Join(with, ", "))
}

// Names of all kinds.
func Names() (names []string) {
	for _, k := range Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// ShortNames are the names that are not a point's.
func ShortNames() (names []string) {
	for _, k := range named() {
		names = append(names, k.Name)
	}
	return names
}

// Runtimes, Networks and Functions are the parts that a kind may have.
func Runtimes() []string  { return parts(func(p Point) string { return p.Runtime }) }
func Networks() []string  { return parts(func(p Point) string { return p.Network }) }
func Functions() []string { return parts(func(p Point) string { return p.Function }) }

func parts(of func(Point) string) (names []string) {
	for _, k := range Kinds() {
		if name := of(k.Point); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func never(reason string) func(Options) string { return func(Options) string { return reason } }

func free(Options) string { return "" }
