package steering

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// matchKey is a match in an identity.
func matchKey(m *flow.Match) string {
	b := make([]byte, 0, 96)
	b = append(b, m.SrcMAC[:]...)
	b = append(b, m.SrcMACMask[:]...)
	b = append(b, m.DstMAC[:]...)
	b = append(b, m.DstMACMask[:]...)
	for _, n := range [...]uint16{m.VLAN, m.EtherType, uint16(m.Unread)<<8 | uint16(m.Proto), m.SrcPorts.First, m.SrcPorts.Last, m.DstPorts.First, m.DstPorts.Last} {
		b = append(b, byte(n>>8), byte(n))
	}
	b = appendPrefix(b, m.Src)
	b = append(b, 0xff)
	b = appendPrefix(b, m.Dst)
	return string(b)
}

func appendPrefix(b []byte, p netip.Prefix) []byte {
	if !p.IsValid() {
		return b
	}
	if a := p.Addr(); a.Is4() {
		four := a.As4()
		b = append(b, four[:]...)
	} else {
		sixteen := a.As16()
		b = append(b, sixteen[:]...)
	}
	return append(b, byte(p.Bits()))
}

func (w *world) hostMatch(m *flow.Match) api.HostMatch {
	return api.HostMatch{
		VLAN: m.VLAN, EtherType: m.EtherType, Proto: m.Proto, SrcMAC: macText(m.SrcMAC, m.SrcMACMask), DstMAC: macText(m.DstMAC, m.DstMACMask),
		Src: w.prefixText(m.Src), Dst: w.prefixText(m.Dst), SrcPorts: w.rangeText(m.SrcPorts), DstPorts: w.rangeText(m.DstPorts),
		Unread: unreadText(m.Unread),
	}
}

// maxTexts bounds what is remembered of texts.
const maxTexts = 1 << 16

// prefixText remembers: many rules have the same.
func (w *world) prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	text, known := w.texts[p]
	if !known {
		if text = p.String(); len(w.texts) < maxTexts {
			w.texts[p] = text
		}
	}
	return text
}

func (w *world) termText(t api.Term) string {
	text, known := w.services[t]
	if !known {
		if text = t.String(); len(w.services) < maxTexts {
			w.services[t] = text
		}
	}
	return text
}

func unreadText(u flow.Unread) string {
	if u == flow.ReadAll {
		return ""
	}
	return u.String()
}

func macText(m, mask flow.MAC) string {
	switch mask {
	case flow.MAC{}:
		return ""
	case whole:
		return m.String()
	}
	return m.String() + "/" + mask.String()
}

func (w *world) rangeText(r flow.PortRange) string {
	if r.Any() {
		return ""
	}
	text, known := w.ranges[r]
	if !known {
		if text = strconv.Itoa(int(r.First)); r.First != r.Last {
			text += "-" + strconv.Itoa(int(r.Last))
		}
		if len(w.ranges) < maxTexts {
			w.ranges[r] = text
		}
	}
	return text
}

// cookieText is a host rule's identity as it is written.
func cookieText(id uint64) string {
	var b [8]byte
	var text [16]byte
	binary.BigEndian.PutUint64(b[:], id)
	hex.Encode(text[:], b[:])
	return string(text[:])
}
