// Package xsk leads what comes in at a link into AF_XDP sockets, by a program of XDP and a map of sockets by receive queue. A frame of a queue without a
// socket passes to the kernel. Both are held by the link alone: they outlive the process that made them and go with the link, so nothing is pinned.
//
// The kernel is the only record of what is attached. Its functions act in the network namespace of the calling thread.
package xsk

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// name of the program and its map, by which they are known again.
const name = "weir_xsk"

// maxQueues bounds a map, whatever a link has.
const maxQueues = 256

// ErrOccupied says that a link has a program of XDP that is not of this package.
var ErrOccupied = errors.New("another program of XDP is attached")

// Supported tells why this kernel has no AF_XDP sockets of which can be told where they are; nil: it has.
func Supported() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("AF_XDP sockets: %w (kernel option CONFIG_XDP_SOCKETS)", err)
	}
	defer unix.Close(fd)
	if _, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return fmt.Errorf("network namespaces of AF_XDP sockets: %w (kernel 5.14)", err)
	}
	return nil
}

// Queue of a link.
type Queue struct {
	Link string
	N    uint32
	// Generic: the program stands behind the driver, where frames come that bpf_redirect_peer puts into a namespace. It does not see those that bpf_redirect has sent
	// (kernel 5.15). Otherwise it stands in the driver: in that of a veth it sees all frames that the other end sends, and no others.
	Generic bool
}

// Put leads the frames of a link's receive queue into an AF_XDP socket, in the place of any other. A socket takes frames of the link and the queue that it is
// bound to; the kernel drops those of others.
func Put(q Queue, socket int) error {
	link, queue := q.Link, q.N
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	queues := uint32(min(max(l.Attrs().NumRxQueues, 1), maxQueues))
	if queue >= queues {
		return fmt.Errorf("link %s: no receive queue %d: want 0 to %d", link, queue, queues-1)
	}
	m, err := attached(l)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	if m != nil {
		defer m.Close()
		return put(m, queue, socket)
	}
	if m, err = ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: queues}); err != nil {
		return fmt.Errorf("make the map of sockets: %w", err)
	}
	defer m.Close()
	if err := put(m, queue, socket); err != nil {
		return err
	}
	flags := unix.XDP_FLAGS_DRV_MODE
	if q.Generic {
		flags = unix.XDP_FLAGS_SKB_MODE
	}
	if err := attach(l, m, flags); err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	return nil
}

func put(m *ebpf.Map, queue uint32, socket int) error {
	if err := m.Put(queue, uint32(socket)); err != nil {
		return fmt.Errorf("map of sockets: %w", err)
	}
	return nil
}

// attach the program, which asks the map for the queue of each frame.
func attach(l netlink.Link, m *ebpf.Map, flags int) error {
	const rxQueue, pass = 16, 2 // offset of xdp_md.rx_queue_index; XDP_PASS, when the queue has no socket
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, rxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Imm(asm.R3, pass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("load the program: %w", err)
	}
	defer p.Close()
	err = netlink.LinkSetXdpFdWithFlags(l, p.FD(), flags|unix.XDP_FLAGS_UPDATE_IF_NOEXIST)
	if errors.Is(err, unix.ERANGE) {
		return fmt.Errorf("attach the program: %w (the MTU of the link's other end, or of this one, %d, is too large for XDP: about 3,500 at most)", err, l.Attrs().MTU)
	}
	if err != nil {
		return fmt.Errorf("attach the program: %w", err)
	}
	return nil
}

// attached is the map of the program that a link has; nil: it has none.
func attached(l netlink.Link) (*ebpf.Map, error) {
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil, nil
	}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId))
	if err != nil {
		return nil, fmt.Errorf("program %d of XDP: %w", x.ProgId, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("program %d of XDP: %w", x.ProgId, err)
	}
	ids, _ := info.MapIDs()
	if info.Name != name || len(ids) != 1 {
		return nil, fmt.Errorf("%w: %d, %q", ErrOccupied, x.ProgId, info.Name)
	}
	m, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		return nil, fmt.Errorf("map %d of XDP: %w", ids[0], err)
	}
	if m.Type() != ebpf.XSKMap {
		return nil, errors.Join(fmt.Errorf("%w: %d, %q", ErrOccupied, x.ProgId, info.Name), m.Close())
	}
	return m, nil
}

// Remove takes the program from a link. None, or another one: nothing to do.
func Remove(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	m, err := attached(l)
	if errors.Is(err, ErrOccupied) || err == nil && m == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	m.Close()
	flags := unix.XDP_FLAGS_DRV_MODE
	if l.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		flags = unix.XDP_FLAGS_SKB_MODE
	}
	if err := netlink.LinkSetXdpFdWithFlags(l, -1, flags); err != nil {
		return fmt.Errorf("link %s: detach the program: %w", link, err)
	}
	return nil
}
