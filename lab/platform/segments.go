package platform

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	switches "weir.dev/weir/datapath/drivers"
	"weir.dev/weir/netns"
)

// segment joins members: each reaches each other one, as on one Ethernet segment. Its methods are called from one goroutine.
type segment interface {
	// station joins a member's namespace; the interface there is Station.
	station(ctx context.Context, name, space string, address netip.Prefix) error
	// meet lets all members reach each other that were joined.
	meet(ctx context.Context) error
	close(ctx context.Context) error
}

// segmentMaker makes segments of one kind.
type segmentMaker struct {
	name, about string
	check       func(o Options) string
	process     bool              // it forwards in a process of its own, which is in no member's cgroup
	inherent    map[string]string // see Kind
	open        func(ctx context.Context, l links) (segment, error)
	// destroy removes what a crashed run has left. It is safe where another segment was, or none.
	destroy func(ctx context.Context, l links) error
}

// Networks that members can have, beside the names of those that chains have, too.
const (
	byMacvlan   = "macvlan"
	byOVSNetdev = "ovs-netdev" // Open vSwitch by hand, its process forwards
	byEBPF      = "ebpf"       // Weir's
)

func segments() []segmentMaker {
	return []segmentMaker{
		segmentOf(bridgeNetwork(), byBridges, "one Linux bridge"),
		macvlanSegment(),
		segmentOf(kernelNetwork(), byKernel, "Open vSwitch by hand as a learning switch; its datapath is the kernel's"),
		segmentOf(flowNetwork(), byOVSNetdev, "Open vSwitch by hand as a learning switch; its datapath is that in user space (netdev)"),
		segmentOf(switchNetwork(byEBPF, switches.All()[byEBPF]), byEBPF, "Weir's switch ebpf"),
	}
}

// segmentOf a network that chains have, too: without functions it is one.
func segmentOf(n networkMaker, name, about string) segmentMaker {
	return segmentMaker{
		name: name, about: about, check: n.check, process: n.process, inherent: n.inherent, destroy: n.destroy,
		open: func(ctx context.Context, l links) (segment, error) {
			net, err := n.open(ctx, l, function{})
			if err != nil {
				return nil, err
			}
			return net.(segment), nil
		},
	}
}

func (b *bridged) meet(context.Context) error {
	return netns.Do(b.home, func() error {
		if b.joints == 0 {
			if err := makeBridge(joint(0), b.inst.Alias(joint(0))); err != nil {
				return err
			}
			b.joints = 1
		}
		for _, link := range b.stations {
			if _, there := b.at[link]; there {
				continue
			}
			if err := moveTo(joint(0), link); err != nil {
				return err
			}
			b.at[link] = 0
		}
		return nil
	})
}

// meet: without rules a switch of Weir's is a learning bridge.
func (s *switched) meet(ctx context.Context) error { return s.lead(ctx, nil) }

// meet has the switch learn addresses.
func (f *flows) meet(ctx context.Context) error {
	if err := f.plug(ctx); err != nil {
		return err
	}
	return f.run(ctx, "actions=NORMAL\n", "ovs-ofctl", "-O", "OpenFlow13", "replace-flows", "unix:"+f.process.Mgmt(switchName), "-")
}

// SegmentNames are the networks that members can have.
func SegmentNames() (names []string) {
	for _, s := range segments() {
		names = append(names, s.name)
	}
	return names
}

func findSegment(name string) (segmentMaker, error) {
	return find("network", name, segments(), func(s segmentMaker) string { return s.name })
}

// SegmentInherent are the settings that a network of members cannot have otherwise, with the reason; see Kind.
func SegmentInherent(name string) map[string]string {
	s, err := findSegment(name)
	if err != nil {
		return nil
	}
	return s.inherent
}

// SegmentAbsent tells why a network of members has nothing that could have a setting; empty: it has. See Kind.Absent.
func SegmentAbsent(name, setting string) string {
	if why, ok := SegmentInherent(name)[setting]; ok && name == byMacvlan {
		return why
	}
	return ""
}

// SegmentForwards tells whether a network of members forwards in a process of its own.
func SegmentForwards(name string) bool {
	return slices.ContainsFunc(segments(), func(s segmentMaker) bool { return s.name == name && s.process })
}

// Segments says of each network of members what it is, and why it cannot be had here; empty: it can.
func Segments(o Options) (names []string, about, missing map[string]string) {
	about, missing = map[string]string{}, map[string]string{}
	for _, s := range segments() {
		names = append(names, s.name)
		about[s.name], missing[s.name] = fmt.Sprintf("members joined by %s", s.about), s.check(o)
	}
	return names, about, missing
}
