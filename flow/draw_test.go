package flow

import (
	"net/netip"

	"pgregory.net/rapid"
)

// Small domains, so that random matches and frames meet often.

func drawPort(t *rapid.T) Port { return Port(rapid.IntRange(1, 3).Draw(t, "port")) }

func maybe(t *rapid.T) bool { return rapid.IntRange(0, 2).Draw(t, "named") == 0 }

func drawSmallMAC(t *rapid.T) MAC {
	return MAC{rapid.SampledFrom([]byte{0, 1, 2}).Draw(t, "mac first"), 0, 0, 0, 0, rapid.ByteRange(0, 2).Draw(t, "mac last")}
}

func drawAddr(t *rapid.T, six bool) netip.Addr {
	last := rapid.ByteRange(0, 3).Draw(t, "addr")
	if six {
		return netip.AddrFrom16([16]byte{0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, rapid.ByteRange(0, 1).Draw(t, "net"), last})
}

func drawPrefix(t *rapid.T, six bool) netip.Prefix {
	a := drawAddr(t, six)
	return netip.PrefixFrom(a, a.BitLen()-rapid.SampledFrom([]int{0, 1, 8, 32}).Draw(t, "host bits")).Masked()
}

var someProtos = []uint8{ProtoTCP, ProtoUDP, ProtoSCTP, ProtoICMP, ProtoICMPv6, extAuth}

func drawMatch(t *rapid.T) Match {
	var m Match
	if maybe(t) {
		m.InPort = drawPort(t)
	}
	if maybe(t) {
		m.OutPort = drawPort(t)
	}
	masks := []MAC{{255, 255, 255, 255, 255, 255}, {1}, {5: 2}}
	if maybe(t) {
		m.SrcMACMask = rapid.SampledFrom(masks).Draw(t, "mask")
		m.SrcMAC = drawSmallMAC(t).and(m.SrcMACMask)
	}
	if maybe(t) {
		m.DstMACMask = rapid.SampledFrom(masks).Draw(t, "mask")
		m.DstMAC = drawSmallMAC(t).and(m.DstMACMask)
	}
	if maybe(t) {
		m.Tag = drawTag(t)
	}
	if maybe(t) {
		m.VLAN = rapid.SampledFrom([]uint16{VLANNone, 1, 2}).Draw(t, "vlan")
	}
	if maybe(t) {
		m.EtherType = rapid.SampledFrom([]uint16{EtherTypeIPv4, EtherTypeIPv6, EtherTypeARP, EtherTypeVLAN, 0x88b5}).Draw(t, "ethertype")
	}
	ip := m.EtherType == 0 || m.EtherType == EtherTypeIPv4 || m.EtherType == EtherTypeIPv6
	if !ip {
		return m
	}
	six := m.EtherType == EtherTypeIPv6 || m.EtherType == 0 && rapid.Bool().Draw(t, "six")
	if maybe(t) {
		m.Src = drawPrefix(t, six)
	}
	if maybe(t) {
		m.Dst = drawPrefix(t, six)
	}
	if maybe(t) {
		m.Proto = rapid.SampledFrom(someProtos).Draw(t, "proto")
	}
	if hasPorts(m.Proto) && maybe(t) {
		m.DstPorts = drawRange(t)
	}
	if hasPorts(m.Proto) && maybe(t) {
		m.SrcPorts = drawRange(t)
	}
	if maybe(t) {
		if w, ok := m.May(rapid.SampledFrom([]Unread{UnreadNetwork, UnreadUpper}).Draw(t, "unread")); ok {
			return w
		}
	}
	return m
}

func drawTag(t *rapid.T) uint16 { return TagFirst + rapid.Uint16Range(0, 1).Draw(t, "tag") }

func drawRange(t *rapid.T) PortRange {
	first := rapid.Uint16Range(0, 4).Draw(t, "first")
	return PortRange{first, first + rapid.Uint16Range(0, 2).Draw(t, "more")}
}

func drawKey(t *rapid.T) Key {
	k := Key{SrcMAC: drawSmallMAC(t), DstMAC: drawSmallMAC(t)}
	k.VLAN = rapid.SampledFrom([]uint16{VLANNone, VLANNone, 0, 1, 2}).Draw(t, "vlan")
	if maybe(t) {
		k.Tag = drawTag(t)
	}
	k.EtherType = rapid.SampledFrom([]uint16{EtherTypeIPv4, EtherTypeIPv4, EtherTypeIPv6, EtherTypeIPv6, EtherTypeARP, 0x88b5}).Draw(t, "ethertype")
	if rapid.IntRange(0, 4).Draw(t, "readable") == 0 {
		k.Unread = UnreadNetwork
		return k
	}
	if six := k.EtherType == EtherTypeIPv6; six || k.EtherType == EtherTypeIPv4 {
		k.HasIP = true
		k.Src, k.Dst = drawAddr(t, six), drawAddr(t, six)
		if six && rapid.IntRange(0, 3).Draw(t, "upper readable") == 0 {
			k.Unread = UnreadUpper
			return k
		}
		k.Proto = rapid.SampledFrom(someProtos).Draw(t, "proto")
		if hasPorts(k.Proto) && rapid.Bool().Draw(t, "ports") {
			k.HasPorts = true
			k.SrcPort, k.DstPort = rapid.Uint16Range(0, 6).Draw(t, "sport"), rapid.Uint16Range(0, 6).Draw(t, "dport")
		}
	}
	return k
}
