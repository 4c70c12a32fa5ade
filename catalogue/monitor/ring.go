package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// The ring: the kernel writes the heads of packets into memory that we share (TPACKET_V3), and wakes us once per block or after
// retireMs, not once per packet.
const (
	blockSize  = 128 << 10
	blockCount = 8
	snapLength = 192  // bytes of a packet: Ethernet, two tags, IPv6 with extension headers, ports
	nameLength = 2048 // of one that may ask for a name
	retireMs   = 50
)

type ring struct {
	fd    int
	mem   []byte
	next  int
	lost  uint64
	index int
}

func openRing(link string) (*ring, error) {
	ifi, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w (the tap must exist before the function starts)", link, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // nothing until bind
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w (kernel option CONFIG_PACKET; capability CAP_NET_RAW)", err)
	}
	r := &ring{fd: fd, index: ifi.Index}
	if err := r.setUp(); err != nil {
		r.close()
		return nil, fmt.Errorf("interface %s: %w", link, err)
	}
	return r, nil
}

func (r *ring) setUp() error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return fmt.Errorf("packet ring version 3: %w", err)
	}
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return fmt.Errorf("ignore outgoing packets: %w", err)
	}
	program := cut()
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
		return fmt.Errorf("cut packets: %w", err)
	}
	req := unix.TpacketReq3{Block_size: blockSize, Block_nr: blockCount, Frame_size: 2048, Frame_nr: blockSize * blockCount / 2048, Retire_blk_tov: retireMs}
	if err := unix.SetsockoptTpacketReq3(r.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("packet ring of %d bytes: %w", blockSize*blockCount, err)
	}
	var err error
	if r.mem, err = unix.Mmap(r.fd, 0, blockSize*blockCount, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map packet ring: %w", err)
	}
	if err := unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: r.index}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	mreq := unix.PacketMreq{Ifindex: int32(r.index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(r.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
		return fmt.Errorf("promiscuous mode: %w", err)
	}
	return nil
}

func (r *ring) close() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
	}
	unix.Close(r.fd)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// wait sleeps until packets, a signal (returned) or the timeout come.
func (r *ring) wait(wake *os.File, timeout time.Duration) (syscall.Signal, error) {
	if r.ready() {
		timeout = 0
	}
	ms := (timeout + time.Millisecond - 1).Milliseconds() // not too soon
	fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN | unix.POLLERR}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, max(0, int(ms))); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("wait for packets: %w", err)
	}
	if fds[0].Revents&unix.POLLERR != 0 {
		n, err := unix.GetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && n != 0 && syscall.Errno(n) != unix.ENETDOWN {
			return 0, fmt.Errorf("packet socket: %w", syscall.Errno(n))
		}
		if _, err := net.InterfaceByIndex(r.index); err != nil {
			return 0, fmt.Errorf("the tap is gone: %w", err)
		}
	}
	if fds[1].Revents&unix.POLLIN != 0 {
		b := make([]byte, 1)
		if _, err := wake.Read(b); err != nil {
			return 0, fmt.Errorf("wait for signals: %w", err)
		}
		return syscall.Signal(b[0]), nil
	}
	return 0, nil
}

// block is struct tpacket_block_desc with its version-1 header.
func (r *ring) block(i int) (*unix.TpacketHdrV1, []byte) {
	b := r.mem[i*blockSize : (i+1)*blockSize]
	return (*unix.TpacketHdrV1)(unsafe.Pointer(&b[8])), b // after version and offset_to_priv
}

func (r *ring) ready() bool {
	h, _ := r.block(r.next)
	return atomic.LoadUint32(&h.Block_status)&unix.TP_STATUS_USER != 0
}

// read gives every packet of the blocks that are full, with its length on the wire. The bytes are valid during the call only. It
// stops after a round through the ring, so that a flood cannot keep it.
func (r *ring) read(f func(head []byte, length int, vlan uint16)) {
	for range blockCount {
		if !r.ready() {
			return
		}
		h, b := r.block(r.next)
		at := int(h.Offset_to_first_pkt)
		for range h.Num_pkts {
			if at < 0 || at+int(unsafe.Sizeof(unix.Tpacket3Hdr{})) > len(b) {
				break
			}
			p := (*unix.Tpacket3Hdr)(unsafe.Pointer(&b[at]))
			start := at + int(p.Mac)
			end := start + int(p.Snaplen)
			if start < 0 || end < start || end > len(b) {
				break
			}
			vlan := uint16(0)
			if p.Status&unix.TP_STATUS_VLAN_VALID != 0 {
				vlan = uint16(p.Hv1.Vlan_tci)
			}
			f(b[start:end], int(p.Len), vlan)
			if p.Next_offset == 0 {
				break
			}
			at += int(p.Next_offset)
		}
		atomic.StoreUint32(&h.Block_status, unix.TP_STATUS_KERNEL)
		r.next = (r.next + 1) % blockCount
	}
}

// dropped counts the packets for which the ring had no room. The kernel's counter begins anew with each reading.
func (r *ring) dropped() uint64 {
	if s, err := unix.GetsockoptTpacketStatsV3(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		r.lost += uint64(s.Drops)
	}
	return r.lost
}

// cut is a program of classic BPF that takes every packet: of those to port 53 or 443 enough to read a name, of all others the head. It looks behind no second
// tag and no extension header; the first tag is not in the frame.
func cut() []unix.SockFilter {
	const (
		byteAt, halfAt, halfFrom = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		equal, anyBit, ret       = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		headerLength             = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
	)
	return []unix.SockFilter{
		0:  {Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
		1:  {Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 14 + 60 + 4, Jf: 17}, // what is shorter is whole anyway, and no load ends behind it
		2:  {Code: halfAt, K: 12},
		3:  {Code: equal, K: etherIPv4, Jf: 8},
		4:  {Code: byteAt, K: 14 + 9}, // protocol
		5:  {Code: equal, K: nf.TCP, Jt: 1},
		6:  {Code: equal, K: nf.UDP, Jf: 12},
		7:  {Code: halfAt, K: 14 + 6},
		8:  {Code: anyBit, K: 0x1fff, Jt: 10}, // a later fragment
		9:  {Code: headerLength, K: 14},
		10: {Code: halfFrom, K: 14 + 2}, // port
		11: {Code: unix.BPF_JMP | unix.BPF_JA, K: 5},
		12: {Code: equal, K: etherIPv6, Jf: 6},
		13: {Code: byteAt, K: 14 + 6},
		14: {Code: equal, K: nf.TCP, Jt: 1},
		15: {Code: equal, K: nf.UDP, Jf: 3},
		16: {Code: halfAt, K: 14 + 40 + 2},
		17: {Code: equal, K: portDNS, Jt: 2},
		18: {Code: equal, K: portTLS, Jt: 1},
		19: {Code: ret, K: snapLength},
		20: {Code: ret, K: nameLength},
	}
}
