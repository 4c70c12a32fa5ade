package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/bpf"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
)

// least is the least that a chain of containers without queues can be: the namespaces, veths, tcx links and wires that Weir has, and at each
// port one hash look-up that says where to. It has no rules, no counters, no marks, no probes, no failure handling and no ordinary
// switching: what Weir takes longer is what those cost.
type least struct {
	spaces
	hub   string
	next  *ebpf.Map // by interface index in the hub: that of the port to go out of
	host  *ebpf.Program
	wire  bpf.WireObjects
	links []link.Link
}

const (
	leastMark  = "weir-bench:least"
	leastChain = "the least chain"
)

// newLeast builds a chain of n wires from station lsrc (10.7.0.1) to station ldst (10.7.0.2).
func newLeast(r *rig.Rig, n int) (*least, error) {
	l := &least{spaces: spaces{rig: r}}
	if err := l.build(n); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *least) path() platform.Path {
	return platform.Path{
		From: l.rig.Name + "-lsrc", To: l.rig.Name + "-ldst", Source: netip.MustParseAddr("10.7.0.1"), Address: netip.MustParseAddr("10.7.0.2"), Space: l.hub, Link: "lsrc",
	}
}

func (l *least) load() (err error) {
	if l.next, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 4096}); err != nil {
		return fmt.Errorf("make the least chain's map: %w", err)
	}
	const ifindex = 40 // of struct __sk_buff
	l.host, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, ifindex, asm.Word),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, l.next.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "steered"),
		asm.Mov.Imm(asm.R0, -1), // TCX_NEXT
		asm.Return(),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.Word).WithSymbol("steered"),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirectPeer.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load the least chain's program: %w", err)
	}
	if err := bpf.LoadWireObjects(&l.wire, nil); err != nil {
		return fmt.Errorf("load the wire: %w", err)
	}
	return nil
}

func (l *least) build(n int) (err error) {
	if err := l.load(); err != nil {
		return err
	}
	if l.hub, err = l.add("lhub"); err != nil {
		return err
	}
	prev, err := l.station("lsrc", "10.7.0.1/24")
	if err != nil {
		return err
	}
	for i := range n {
		space, err := l.add(fmt.Sprintf("l%d", i))
		if err != nil {
			return err
		}
		var ends [2]int
		for at, name := range []string{"in", "out"} {
			p, err := l.pair(space, fmt.Sprintf("%s%d", name, i), netns.VethOptions{PeerName: name, PeerIndex: 1024 + at, Quiet: true})
			if err != nil {
				return err
			}
			if err := l.attach(space, p.Peer.Index, l.wire.Wire); err != nil {
				return err
			}
			ends[at] = p.Host.Index
		}
		if err := l.join(prev, ends[0]); err != nil {
			return err
		}
		prev = ends[1]
	}
	last, err := l.station("ldst", "10.7.0.2/24")
	if err != nil {
		return err
	}
	return l.join(prev, last)
}

func (l *least) pair(space, host string, o netns.VethOptions) (netns.Pair, error) {
	o.HostName, o.HostMAC, o.Alias = host, mac(host), leastMark
	return netns.Veth(l.hub, space, o)
}

// station makes a station and gives the index of its port.
func (l *least) station(name, address string) (int, error) {
	space, err := l.add(name)
	if err != nil {
		return 0, err
	}
	p, err := l.pair(space, name, netns.VethOptions{PeerName: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix(address)}})
	return p.Host.Index, err
}

// join leads what comes in at each of two ports out of the other.
func (l *least) join(a, b int) error {
	for from, to := range map[int]int{a: b, b: a} {
		if err := l.next.Put(uint32(from), uint32(to)); err != nil {
			return fmt.Errorf("join ports %d and %d: %w", from, to, err)
		}
		if err := l.attach(l.hub, from, l.host); err != nil {
			return err
		}
	}
	return nil
}

func (l *least) attach(space string, index int, p *ebpf.Program) error {
	return netns.Do(space, func() error {
		hook, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attach to interface %d in %s: %w", index, space, err)
		}
		l.links = append(l.links, hook)
		return nil
	})
}

func (l *least) close() error {
	errs := []error{l.spaces.close()}
	for _, hook := range l.links {
		errs = append(errs, hook.Close())
	}
	return errors.Join(append(errs, l.wire.Close(), l.host.Close(), l.next.Close())...)
}
