package main

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sizes. A frame of the memory that all sockets share holds one of the wire, with two VLAN tags; the kernel drops longer ones and counts them.
const (
	frameSize = 2048
	ringSize  = 1024                          // of each of a socket's rings, a power of two
	frames    = 2 * ringSize                  // half of them belong to what comes in at each port
	memory    = frames * frameSize            // bytes
	burst     = 64                            // frames that are handed on before the other port has its turn
	descSize  = unsafe.Sizeof(unix.XDPDesc{}) // of rings rx and tx
	addrSize  = unsafe.Sizeof(uint64(0))      // of rings fill and completion
)

// ring is one of a socket's, shared with the kernel: one side writes entries and the producer's index, the other one reads and moves the consumer's.
type ring struct {
	producer, consumer *atomic.Uint32
	entries            unsafe.Pointer
	entry              uintptr // bytes of one
	mapped             []byte
}

// at the i-th entry, whichever round it is.
func (r *ring) at(i uint32) unsafe.Pointer {
	return unsafe.Add(r.entries, uintptr(i&(ringSize-1))*r.entry)
}

// ready entries for who reads.
func (r *ring) ready() uint32 { return r.producer.Load() - r.consumer.Load() }

// room for who writes.
func (r *ring) room() uint32 { return ringSize - (r.producer.Load() - r.consumer.Load()) }

// socket of a port.
type socket struct {
	fd, index              int
	rx, tx, fill, complete ring
	received               atomic.Uint64 // frames that were handed on
}

// wire is both sockets over one memory, and the programs that lead frames into them.
type wire struct {
	umem    []byte
	sockets [2]*socket
	program [2]*ebpf.Program
	sock    [2]*ebpf.Map
	links   [2]netlink.Link
}

// openWire of the ports in and out. Frames that come from now on wait for run.
func openWire(in, out string) (_ *wire, err error) {
	w := &wire{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.umem, err = unix.Mmap(-1, 0, memory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("memory of %d bytes: %w", memory, err)
	}
	for i, name := range []string{in, out} {
		if err := w.open(i, name); err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
	}
	return w, nil
}

// open the socket of a port. The second one shares the first one's memory.
func (w *wire) open(i int, name string) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket AF_XDP: %w (kernel option CONFIG_XDP_SOCKETS; capability CAP_NET_RAW)", err)
	}
	s := &socket{fd: fd, index: ifi.Index}
	w.sockets[i] = s
	if i == 0 {
		reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&w.umem[0]))), Len: memory, Size: frameSize}
		if err := setsockopt(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
			return fmt.Errorf("register %d bytes: %w (capability CAP_IPC_LOCK)", memory, err)
		}
	}
	for _, option := range []int{unix.XDP_RX_RING, unix.XDP_TX_RING, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, ringSize); err != nil {
			return fmt.Errorf("ring: %w", err)
		}
	}
	if err := s.mapRings(); err != nil {
		return err
	}
	for n := range uint32(ringSize) { // of what comes in
		*(*uint64)(s.fill.at(n)) = uint64(i*ringSize+int(n)) * frameSize
	}
	s.fill.producer.Store(ringSize)
	a := &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(s.index)}
	if i > 0 {
		a.Flags, a.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(w.sockets[0].fd) // it copies as the first one
	}
	if err := unix.Bind(fd, a); err != nil {
		return fmt.Errorf("bind AF_XDP: %w", err)
	}
	return w.lead(i, name)
}

func setsockopt(fd, option int, p unsafe.Pointer, size uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(p), size, 0); e != 0 {
		return e
	}
	return nil
}

func getsockopt(fd, option int, p unsafe.Pointer, size uint32) error {
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(p), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
		return e
	}
	return nil
}

// mapRings of a socket.
func (s *socket) mapRings() error {
	var o unix.XDPMmapOffsets
	if err := getsockopt(s.fd, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&o), uint32(unsafe.Sizeof(o))); err != nil {
		return fmt.Errorf("offsets of rings: %w", err)
	}
	for _, r := range []struct {
		to    *ring
		at    unix.XDPRingOffset
		page  int64
		entry uintptr
	}{
		{&s.rx, o.Rx, unix.XDP_PGOFF_RX_RING, descSize}, {&s.tx, o.Tx, unix.XDP_PGOFF_TX_RING, descSize},
		{&s.fill, o.Fr, unix.XDP_UMEM_PGOFF_FILL_RING, addrSize}, {&s.complete, o.Cr, unix.XDP_UMEM_PGOFF_COMPLETION_RING, addrSize},
	} {
		m, err := unix.Mmap(s.fd, r.page, int(r.at.Desc)+ringSize*int(r.entry), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("map a ring: %w", err)
		}
		*r.to = ring{(*atomic.Uint32)(unsafe.Pointer(&m[r.at.Producer])), (*atomic.Uint32)(unsafe.Pointer(&m[r.at.Consumer])), unsafe.Pointer(&m[r.at.Desc]), r.entry, m}
	}
	return nil
}

// lead what comes in at a port into its socket, by a program of six instructions. What has no socket passes to the kernel.
func (w *wire) lead(i int, name string) (err error) {
	if w.sock[i], err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err != nil {
		return fmt.Errorf("make the map of sockets: %w (capability CAP_BPF, outside of user namespaces)", err)
	}
	if err := w.sock[i].Put(uint32(0), uint32(w.sockets[i].fd)); err != nil {
		return fmt.Errorf("map of sockets: %w", err)
	}
	if w.program[i], err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R1, w.sock[i].FD()), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 2), // XDP_PASS
		asm.FnRedirectMap.Call(), asm.Return(),
	}}); err != nil {
		return fmt.Errorf("load the program: %w (capabilities CAP_BPF, CAP_NET_ADMIN)", err)
	}
	if w.links[i], err = netlink.LinkByName(name); err != nil {
		return err
	}
	// Generic XDP: the switch hands frames over behind the place of a driver's XDP.
	if err := netlink.LinkSetXdpFdWithFlags(w.links[i], w.program[i].FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
		w.links[i] = nil
		return fmt.Errorf("attach the program: %w", err)
	}
	return nil
}

// close everything: no frame passes any more.
func (w *wire) close() error {
	var errs []error
	for i := range 2 {
		if l := w.links[i]; l != nil {
			errs = append(errs, netlink.LinkSetXdpFdWithFlags(l, -1, unix.XDP_FLAGS_SKB_MODE))
		}
		if w.program[i] != nil {
			errs = append(errs, w.program[i].Close())
		}
		if w.sock[i] != nil {
			errs = append(errs, w.sock[i].Close())
		}
		if s := w.sockets[i]; s != nil {
			for _, r := range []ring{s.rx, s.tx, s.fill, s.complete} {
				if r.mapped != nil {
					errs = append(errs, unix.Munmap(r.mapped))
				}
			}
			errs = append(errs, unix.Close(s.fd))
		}
	}
	if w.umem != nil {
		errs = append(errs, unix.Munmap(w.umem))
	}
	return errors.Join(errs...)
}

// statistics of a socket, which the kernel counts.
func (s *socket) statistics() (st unix.XDPStatistics, err error) {
	err = getsockopt(s.fd, unix.XDP_STATISTICS, unsafe.Pointer(&st), uint32(unsafe.Sizeof(st)))
	return st, err
}

// hand on up to burst frames that came in at one port, and take back what the other one has sent.
func (w *wire) hand(from, to *socket) (n uint32, err error) {
	// A frame that was sent goes back to the ring from which it came. There is always room: it has as many entries as frames.
	for done := to.complete.ready(); done > 0; done-- {
		at := to.complete.consumer.Load()
		next := from.fill.producer.Load()
		*(*uint64)(from.fill.at(next)) = *(*uint64)(to.complete.at(at))
		to.complete.consumer.Store(at + 1)
		from.fill.producer.Store(next + 1)
	}
	ready := min(from.rx.ready(), burst)
	n = min(ready, to.tx.room())
	rx, tx := from.rx.consumer.Load(), to.tx.producer.Load()
	for i := range n {
		*(*unix.XDPDesc)(to.tx.at(tx + i)) = *(*unix.XDPDesc)(from.rx.at(rx + i))
	}
	from.rx.consumer.Store(rx + n)
	to.tx.producer.Store(tx + n)
	from.received.Add(uint64(n))
	if n == 0 && to.tx.ready() == 0 {
		return 0, nil
	}
	return n, to.kick()
}

// kick the kernel: it sends what is in the ring tx.
func (s *socket) kick() error {
	err := unix.Sendto(s.fd, nil, unix.MSG_DONTWAIT, nil)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.EINTR) {
		return nil // it goes on from there
	}
	return err
}
