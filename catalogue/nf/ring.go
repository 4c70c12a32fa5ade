package nf

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is memory into which the kernel writes a port's frames (TPACKET_V2): to take one costs no system call and no copy. A slot has room for the small frames of which there may
// be very many. Of a longer one it has the begin, and the whole waits in the socket's queue, from where it is read as without a ring. There are many slots, since frames come in
// volleys: a process that waits for its turn on a processor for some milliseconds finds hundreds.
type ring struct {
	mem  []byte
	next int // the slot to read next
}

const (
	ringSlots = 1024
	slotSize  = 512
	ringBlock = 64 << 10
	slotAhead = 16 // bytes before a frame and its description that are ours: a VLAN tag is put back
)

// openRing of a socket that is not bound yet, and describes frames (PACKET_VNET_HDR).
func openRing(fd int) (*ring, error) {
	for _, o := range []struct{ option, value int }{{unix.PACKET_VERSION, unix.TPACKET_V2}, {unix.PACKET_RESERVE, slotAhead}, {unix.PACKET_COPY_THRESH, 1}} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.option, o.value); err != nil {
			return nil, fmt.Errorf("packet ring version 2: %w", err)
		}
	}
	req := unix.TpacketReq{Block_size: ringBlock, Block_nr: ringSlots * slotSize / ringBlock, Frame_size: slotSize, Frame_nr: ringSlots}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return nil, fmt.Errorf("packet ring of %d bytes: %w", ringSlots*slotSize, err)
	}
	mem, err := unix.Mmap(fd, 0, ringSlots*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{}) // frames come through the queue again
		return nil, fmt.Errorf("map packet ring: %w", err)
	}
	return &ring{mem: mem}, nil
}

func (r *ring) close() { _ = unix.Munmap(r.mem) }

// slot is the i-th from the next on.
func (r *ring) slot(i int) (*unix.Tpacket2Hdr, []byte) {
	at := (r.next + i) % ringSlots * slotSize
	b := r.mem[at : at+slotSize]
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&b[0])), b
}

// ready counts the frames that are there, most at most, and those of them of which the whole is in the queue.
func (r *ring) ready(most int) (n, queued int) {
	for ; n < most; n++ {
		h, _ := r.slot(n)
		status := atomic.LoadUint32(&h.Status)
		if status&unix.TP_STATUS_USER == 0 {
			break
		}
		if status&unix.TP_STATUS_COPY != 0 {
			queued++
		}
	}
	return n, queued
}

// release the next n slots: the kernel may write into them.
func (r *ring) release(n int) {
	for i := range n {
		h, _ := r.slot(i)
		atomic.StoreUint32(&h.Status, unix.TP_STATUS_KERNEL)
	}
	r.next = (r.next + n) % ringSlots
}

// came is when the kernel wrote the i-th frame, in nanoseconds of the clock.
func (r *ring) came(i int) int64 {
	h, _ := r.slot(i)
	return int64(h.Sec)*1e9 + int64(h.Nsec)
}

// placed says where a frame is.
type placed int

const (
	inSlot  placed = iota
	inQueue        // the whole is in the socket's queue
	nowhere        // there was no room in the queue
)

// frame gives the i-th frame with its description, its VLAN tag put back. nil: it is not in the slot, or has no Ethernet header.
func (r *ring) frame(i int) ([]byte, placed) {
	h, b := r.slot(i)
	switch {
	case h.Status&unix.TP_STATUS_COPY != 0:
		return nil, inQueue
	case h.Snaplen < h.Len:
		return nil, nowhere
	}
	start, end := int(h.Mac)-vnetHeader, int(h.Mac)+int(h.Snaplen)
	if h.Snaplen < ethernetHeader || start < int(unsafe.Sizeof(*h))+tagLength || end > len(b) {
		return nil, inSlot
	}
	raw := b[start-tagLength : end : end]
	if h.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return raw[tagLength:], inSlot
	}
	return retag(raw, h.Vlan_tpid, h.Vlan_tci), inSlot
}

// retag puts the VLAN tag back that the kernel took off. raw has room for it before the frame's description.
func retag(raw []byte, tpid, tci uint16) []byte {
	const macs = vnetHeader + 12
	copy(raw, raw[tagLength:tagLength+macs])
	binary.BigEndian.PutUint16(raw[macs:], tpid)
	binary.BigEndian.PutUint16(raw[macs+2:], tci)
	for _, field := range []int{2, 6} { // hdr_len and csum_start count from the frame's begin
		if v := binary.NativeEndian.Uint16(raw[field:]); v != 0 {
			binary.NativeEndian.PutUint16(raw[field:], v+tagLength)
		}
	}
	return raw
}
