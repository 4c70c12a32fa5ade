// Package xsk hands frames on, unchanged, between two ports by AF_XDP sockets in copy mode over one memory. Who leads frames into the sockets is the caller's to say:
// Lead asks the platform.
//
// It takes frames as they are on a wire, of at most MaxFrame bytes. AF_XDP has no description of what a sender on the same machine left to the hardware: longer frames
// are dropped and counted, a checksum that is missing stays missing, and a VLAN tag beside the frame is lost.
package xsk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxFrame is the longest frame that is handed on: one of the usual MTU with two VLAN tags, and more. The kernel keeps the rest of a frame's memory, XDP_PACKET_HEADROOM.
const MaxFrame = frameSize - 256

// Sizes. All sockets share the memory, which the kernel counts as locked.
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

// Wire is both sockets over one memory.
type Wire struct {
	umem    []byte
	sockets [2]*socket
}

// Open the sockets of the ports in and out. Frames that are led there from now on wait for Run.
func Open(in, out string) (_ *Wire, err error) {
	w := &Wire{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
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
func (w *Wire) open(i int, name string) error {
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
			return fmt.Errorf("register %d bytes: %w (%s)", memory, err, locked())
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
	if err := bind(fd, a); err != nil {
		return fmt.Errorf("bind AF_XDP: %w", err)
	}
	return nil
}

// bind waits a while for the socket of a process that has just ended: the kernel gives its queue free some time later.
func bind(fd int, a unix.Sockaddr) error {
	for deadline := time.Now().Add(freed); ; time.Sleep(freed / 100) {
		if err := unix.Bind(fd, a); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

const freed = 2 * time.Second

// locked says how much memory may be.
func locked() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("of locked memory %d bytes are allowed, RLIMIT_MEMLOCK", l.Cur)
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

// Socket of a port: 0 that of in, 1 that of out. It takes frames of the port's receive queue 0.
func (w *Wire) Socket(i int) int { return w.sockets[i].fd }

// Close everything: no frame passes any more.
func (w *Wire) Close() error {
	var errs []error
	for _, s := range w.sockets {
		if s == nil {
			continue
		}
		for _, r := range []ring{s.rx, s.tx, s.fill, s.complete} {
			if r.mapped != nil {
				errs = append(errs, unix.Munmap(r.mapped))
			}
		}
		errs = append(errs, unix.Close(s.fd))
	}
	if w.umem != nil {
		errs = append(errs, unix.Munmap(w.umem))
	}
	return errors.Join(errs...)
}

// Counters of a port.
type Counters struct {
	Received uint64 // frames that were handed on
	Dropped  uint64 // longer than MaxFrame, by the kernel; and those that came to a socket before it was bound
	Missed   uint64 // came faster than they were read
	Refused  uint64 // not sent: what the ring said of them was wrong
}

// Counters of the ports in and out.
func (w *Wire) Counters() (c [2]Counters, err error) {
	for i, s := range w.sockets {
		var st unix.XDPStatistics
		if err := getsockopt(s.fd, unix.XDP_STATISTICS, unsafe.Pointer(&st), uint32(unsafe.Sizeof(st))); err != nil {
			return c, fmt.Errorf("counters of AF_XDP: %w", err)
		}
		c[i] = Counters{s.received.Load(), st.Rx_dropped, st.Rx_ring_full + st.Rx_fill_ring_empty_descs, st.Tx_invalid_descs}
	}
	return c, nil
}

// Pauses of the loop: when nothing comes, and when a port does not take all that it was given.
const (
	idle = 100 * time.Millisecond
	full = time.Millisecond
)

// Run hands frames on until ctx ends, or a port is gone.
func (w *Wire) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fds := []unix.PollFd{{Fd: int32(w.sockets[0].fd), Events: unix.POLLIN}, {Fd: int32(w.sockets[1].fd), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		up, err := w.hand(w.sockets[0], w.sockets[1])
		if err != nil {
			return fmt.Errorf("send at out: %w", err)
		}
		down, err := w.hand(w.sockets[1], w.sockets[0])
		if err != nil {
			return fmt.Errorf("send at in: %w", err)
		}
		if up+down > 0 {
			continue
		}
		pause := idle
		if w.sockets[0].tx.ready()+w.sockets[1].tx.ready() > 0 {
			pause = full
			fds[0].Events, fds[1].Events = 0, 0
		} else {
			fds[0].Events, fds[1].Events = unix.POLLIN, unix.POLLIN
		}
		n, err := unix.Poll(fds, int(pause/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for frames: %w", err)
		}
		if n == 0 {
			if err := w.gone(); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone says that the kernel has unbound a socket, as its port is no more.
func (w *Wire) gone() error {
	for i, s := range w.sockets {
		if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
			return fmt.Errorf("port %s: %w", [...]string{"in", "out"}[i], unix.Errno(n))
		}
	}
	return nil
}

// hand on up to burst frames that came in at one port, and take back what the other one has sent.
func (w *Wire) hand(from, to *socket) (n uint32, err error) {
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
