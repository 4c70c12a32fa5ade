package kvm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// mostLinks of a sandbox: in and out, or tap, and room for what comes.
const mostLinks = 4

// port joins one link of the sandbox with one interface of the machine: a tap, and two programs that hand each frame from one to the other. They live
// as long as somebody has their files open, which is the machine's process alone.
type port struct {
	name  string // of the link, and of the interface in the machine
	mac   net.HardwareAddr
	mtu   int
	tap   *os.File
	hold  []*os.File // the programs' attachments
	vhost *os.File   // nil: this host has none
}

func (p *port) close() {
	for _, f := range append(p.hold, p.tap, p.vhost) {
		if f != nil {
			f.Close()
		}
	}
}

func closeAll(ports []*port) {
	for _, p := range ports {
		p.close()
	}
}

// join makes a port of every veth in a namespace, in the order of their indexes.
func join(space string) (ports []*port, err error) {
	s, err := netns.At(space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	links, err := s.Links("")
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(l netns.Link) bool { return l.Kind != "veth" })
	slices.SortFunc(links, func(a, b netns.Link) int { return a.Index - b.Index })
	if len(links) > mostLinks {
		return nil, fmt.Errorf("%s has %d links, want at most %d", s, len(links), mostLinks)
	}
	err = s.Do(func() error {
		for _, l := range links {
			p, err := joinOne(l)
			if p != nil {
				ports = append(ports, p)
			}
			if err != nil {
				return fmt.Errorf("join %s with the machine: %w", l.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		closeAll(ports)
		return nil, err
	}
	return ports, nil
}

// joinOne is called in the namespace.
func joinOne(l netns.Link) (*port, error) {
	p := &port{name: l.Name, mac: l.MAC[:], mtu: l.MTU}
	name := fmt.Sprintf("vm%d", l.Index)
	var err error
	if p.tap, err = openTap(name); err != nil {
		return p, err
	}
	if err := netns.DisableIPv6(name); err != nil { // it has nothing to say for itself
		return p, err
	}
	tap, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(tap, l.MTU)
	}
	if err == nil {
		err = netlink.LinkSetUp(tap)
	}
	if err != nil {
		return p, fmt.Errorf("tap %s: %w", name, err)
	}
	for from, to := range map[int]int{l.Index: tap.Attrs().Index, tap.Attrs().Index: l.Index} {
		held, err := redirect(from, to)
		if err != nil {
			return p, err
		}
		if held != nil {
			p.hold = append(p.hold, held)
		}
	}
	if f, err := os.OpenFile("/dev/vhost-net", os.O_RDWR, 0); err == nil {
		p.vhost = f
	}
	return p, nil
}

// openTap makes a tap in the thread's namespace that goes when its file is closed. Each frame comes with a header about checksums and segments, so that
// what is whole outside is whole inside.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w (kernel option CONFIG_TUN; try `modprobe tun`)", err)
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// redirect has all that comes in at one link of the thread's namespace leave by another, as it is. The file keeps it so; nil: the link does.
func redirect(from, to int) (*os.File, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "join", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	defer prog.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: from, Program: prog, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, classify(from, prog)
	}
	if err != nil {
		return nil, fmt.Errorf("attach program to link %d: %w", from, err)
	}
	defer l.Close()
	raw, ok := l.(interface{ FD() int })
	if !ok {
		return nil, fmt.Errorf("attachment %T has no descriptor", l)
	}
	fd, err := unix.FcntlInt(uintptr(raw.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "tcx"), nil
}

// classify attaches a program where there is no tcx (before Linux 6.6).
func classify(index int, prog *ebpf.Program) error {
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact at link %d: %w", index, err)
	}
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          prog.FD(), Name: "weir-join", DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("program at link %d: %w", index, err)
	}
	return nil
}
