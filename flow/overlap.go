package flow

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Intersect gives the match of exactly the frames that both a and b select; ok is false when there are none. Both are valid.
func Intersect(a, b Match) (m Match, ok bool) {
	if m.InPort, ok = one(a.InPort, b.InPort); !ok {
		return Match{}, false
	}
	if m.OutPort, ok = one(a.OutPort, b.OutPort); !ok {
		return Match{}, false
	}
	if m.Tag = a.Tag; a.Tag != b.Tag { // 0 is no wildcard here
		return Match{}, false
	}
	if m.SrcMAC, m.SrcMACMask, ok = oneMAC(a.SrcMAC, a.SrcMACMask, b.SrcMAC, b.SrcMACMask); !ok {
		return Match{}, false
	}
	if m.DstMAC, m.DstMACMask, ok = oneMAC(a.DstMAC, a.DstMACMask, b.DstMAC, b.DstMACMask); !ok {
		return Match{}, false
	}
	if m.VLAN, ok = one(a.VLAN, b.VLAN); !ok {
		return Match{}, false
	}
	if m.EtherType, ok = one(a.family(), b.family()); !ok {
		return Match{}, false
	}
	if m.Src, ok = onePrefix(a.Src, b.Src); !ok {
		return Match{}, false
	}
	if m.Dst, ok = onePrefix(a.Dst, b.Dst); !ok {
		return Match{}, false
	}
	if m.Proto, ok = one(a.Proto, b.Proto); !ok {
		return Match{}, false
	}
	if m.SrcPorts, ok = oneRange(a.SrcPorts, b.SrcPorts); !ok {
		return Match{}, false
	}
	if m.DstPorts, ok = oneRange(a.DstPorts, b.DstPorts); !ok {
		return Match{}, false
	}
	if m.Unread, ok = one(a.Unread, b.Unread); !ok || m.hides() {
		return Match{}, false
	}
	if m.Proto != 0 && m.EtherType != 0 && m.EtherType != EtherTypeIPv4 && m.EtherType != EtherTypeIPv6 {
		return Match{}, false
	}
	return m, true
}

// family is the EtherType, also where only a prefix implies it.
func (m Match) family() uint16 {
	switch {
	case m.EtherType != 0:
		return m.EtherType
	case m.Src.IsValid():
		return Family(m.Src)
	case m.Dst.IsValid():
		return Family(m.Dst)
	}
	return 0
}

// one merges two fields of which zero means any.
func one[T comparable](a, b T) (T, bool) {
	var any T
	switch {
	case a == any:
		return b, true
	case b == any || a == b:
		return a, true
	}
	return any, false
}

func oneMAC(a, aMask, b, bMask MAC) (value, mask MAC, ok bool) {
	for i := range value {
		if (a[i]^b[i])&aMask[i]&bMask[i] != 0 {
			return MAC{}, MAC{}, false
		}
		value[i] = a[i] | b[i]
		mask[i] = aMask[i] | bMask[i]
	}
	return value, mask, true
}

func onePrefix(a, b netip.Prefix) (netip.Prefix, bool) {
	switch {
	case !a.IsValid():
		return b, true
	case !b.IsValid():
		return a, true
	case !a.Overlaps(b):
		return netip.Prefix{}, false
	case a.Bits() > b.Bits():
		return a, true
	}
	return b, true
}

func oneRange(a, b PortRange) (PortRange, bool) {
	if a.Any() {
		return b, true
	}
	if b.Any() {
		return a, true
	}
	m := PortRange{max(a.First, b.First), min(a.Last, b.Last)}
	if m.Any() { // port 0 alone cannot be told from any; no packet uses it
		return m, false
	}
	return m, m.First <= m.Last
}

// Overlap finds a frame that both matches select at one stage: well-formed, checksums included. ok is false when there is none.
// The key's String shows it to people.
func Overlap(a, b Match) (frame []byte, k Key, ok bool) {
	m, ok := Intersect(a, b)
	if !ok {
		return nil, Key{}, false
	}
	return Witness(m)
}

// Witness builds a frame that m selects (its ports apart); ok is false when there is none, for example a third tag behind no tag.
func Witness(m Match) (frame []byte, k Key, ok bool) {
	src, dst := MAC{0x02, 0, 0, 0, 0, 1}, MAC{0x02, 0, 0, 0, 0, 2}
	frame = append(frame, fill(dst, m.DstMAC, m.DstMACMask)...)
	frame = append(frame, fill(src, m.SrcMAC, m.SrcMACMask)...)
	etherType := m.family()
	if etherType == 0 {
		etherType = EtherTypeIPv4
		if m.Proto == ProtoICMPv6 || m.Unread == UnreadUpper {
			etherType = EtherTypeIPv6
		}
	}
	if m.Tag != 0 {
		frame = binary.BigEndian.AppendUint16(frame, EtherTypeQinQ)
		frame = binary.BigEndian.AppendUint16(frame, m.Tag)
	}
	frame = m.appendTags(frame, etherType)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	switch {
	case m.Unread == UnreadNetwork:
		frame = append(frame, make([]byte, 46)...) // no IP header begins like this
	case etherType == EtherTypeIPv4:
		frame = m.appendIPv4(frame)
	case etherType == EtherTypeIPv6:
		frame = m.appendIPv6(frame)
	case etherType == EtherTypeARP:
		frame = append(frame, 0, 1, 8, 0, 6, 4, 0, 1)
		frame = append(frame, frame[6:12]...)
		frame = append(frame, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2)
	default:
		frame = append(frame, make([]byte, 46)...)
	}
	decode := Decode
	if m.Tag != 0 {
		decode = DecodeFabric
	}
	k, ok = decode(frame)
	return frame, k, ok && m.Matches(k, m.InPort, m.OutPort)
}

func fill(base, value, mask MAC) []byte {
	for i := range base {
		base[i] = base[i]&^mask[i] | value[i]
	}
	return base[:]
}

// appendTags: none unless the match names one, or names a tag's EtherType, which is seen only behind two others.
func (m Match) appendTags(frame []byte, etherType uint16) []byte {
	vlan, tags := m.VLAN, 0
	if vlan != 0 && vlan != VLANNone {
		tags = 1
	}
	if isTag(etherType) {
		tags = 2
	}
	if vlan == VLANNone {
		tags = 0
	}
	for range tags {
		if vlan == 0 {
			vlan = 1
		}
		frame = binary.BigEndian.AppendUint16(frame, EtherTypeVLAN)
		frame = binary.BigEndian.AppendUint16(frame, vlan)
		vlan = 1
	}
	return frame
}

func (m Match) appendIPv4(frame []byte) []byte {
	proto, upper := m.upper(ProtoICMP)
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 1, proto // TTL 1: no one on the way may take from it
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(upper)))
	copy(h[12:], host(m.Src, netip.AddrFrom4([4]byte{10, 0, 0, 1})).AsSlice())
	copy(h[16:], host(m.Dst, netip.AddrFrom4([4]byte{10, 0, 0, 2})).AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(0, h))
	checksumUpper(upper, proto, h[12:20])
	return append(append(frame, h...), upper...)
}

func (m Match) appendIPv6(frame []byte) []byte {
	proto, upper := m.upper(ProtoICMPv6)
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, proto, 1
	copy(h[8:], host(m.Src, netip.AddrFrom16([16]byte{0xfd, 15: 1})).AsSlice())
	copy(h[24:], host(m.Dst, netip.AddrFrom16([16]byte{0xfd, 15: 2})).AsSlice())
	checksumUpper(upper, proto, h[8:40])
	if m.Unread == UnreadUpper { // one header more than is passed
		var chain []byte
		for range maxExtensions {
			chain = append(chain, extDest, 0, 1, 4, 0, 0, 0, 0) // PadN of 6 bytes in all
		}
		h[6], upper = extDest, append(append(chain, proto, 0, 1, 4, 0, 0, 0, 0), upper...)
	}
	binary.BigEndian.PutUint16(h[4:], uint16(len(upper)))
	return append(append(frame, h...), upper...)
}

// host is an address of the prefix, not the network's own where there is room.
func host(p netip.Prefix, otherwise netip.Addr) netip.Addr {
	if !p.IsValid() {
		return otherwise
	}
	if p.Contains(otherwise) {
		return otherwise
	}
	if p.Bits() < p.Addr().BitLen()-1 {
		return p.Addr().Next()
	}
	return p.Addr()
}

// upper builds the upper layer: of the match's protocol, TCP when it names none.
func (m Match) upper(icmp uint8) (proto uint8, packet []byte) {
	if proto = m.Proto; proto == 0 {
		proto = ProtoTCP
	}
	src, dst := port16(m.SrcPorts, 1024), port16(m.DstPorts, 80)
	switch proto {
	case ProtoTCP:
		packet = make([]byte, 20)
		packet[12], packet[13] = 0x50, 0x02 // SYN
		binary.BigEndian.PutUint16(packet[14:], 0xffff)
	case ProtoUDP:
		packet = make([]byte, 8)
		packet[5] = 8
	case ProtoSCTP:
		packet = make([]byte, 12)
	case icmp:
		packet = make([]byte, 8)
		packet[0] = 8 // echo request
		if icmp == ProtoICMPv6 {
			packet[0] = 128
		}
	}
	if hasPorts(proto) {
		binary.BigEndian.PutUint16(packet, src)
		binary.BigEndian.PutUint16(packet[2:], dst)
	}
	return proto, packet
}

func port16(r PortRange, otherwise uint16) uint16 {
	if r.Any() || r.contains(otherwise) {
		return otherwise
	}
	return r.First
}

// checksumUpper sets the checksum of an upper layer that has one; addresses are those of its IP header.
func checksumUpper(p []byte, proto uint8, addresses []byte) {
	pseudo := uint32(proto) + uint32(len(p))
	for i := 0; i < len(addresses); i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(addresses[i:]))
	}
	switch proto {
	case ProtoTCP:
		binary.BigEndian.PutUint16(p[16:], checksum(pseudo, p))
	case ProtoUDP:
		binary.BigEndian.PutUint16(p[6:], checksum(pseudo, p))
	case ProtoICMPv6:
		if len(p) >= 4 {
			binary.BigEndian.PutUint16(p[2:], checksum(pseudo, p))
		}
	case ProtoICMP:
		if len(p) >= 4 {
			binary.BigEndian.PutUint16(p[2:], checksum(0, p))
		}
	case ProtoSCTP:
		binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	}
}

// checksum is that of the Internet (RFC 1071). No packet here sums to zero, for which UDP has another form.
func checksum(sum uint32, p []byte) uint16 {
	for i := 0; i+1 < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
