package model

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// ParseMatch reads the addresses of a host rule's match; its ports are the caller's.
func ParseMatch(h api.HostMatch) (flow.Match, error) {
	m := flow.Match{Tag: h.Tag, VLAN: h.VLAN, EtherType: h.EtherType, Proto: h.Proto}
	var errs [7]error
	m.SrcMAC, m.SrcMACMask, errs[0] = parseMAC(h.SrcMAC)
	m.DstMAC, m.DstMACMask, errs[1] = parseMAC(h.DstMAC)
	if h.Src != "" {
		m.Src, errs[2] = netip.ParsePrefix(h.Src)
	}
	if h.Dst != "" {
		m.Dst, errs[3] = netip.ParsePrefix(h.Dst)
	}
	m.SrcPorts, errs[4] = parseRange(h.SrcPorts)
	m.DstPorts, errs[5] = parseRange(h.DstPorts)
	m.Unread, errs[6] = flow.ParseUnread(h.Unread)
	return m, errors.Join(errs[:]...)
}

func parseMAC(text string) (mac, mask flow.MAC, err error) {
	if text == "" {
		return mac, mask, nil
	}
	value, bits, masked := strings.Cut(text, "/")
	m, err := api.ParseMAC(value)
	mask = flow.MAC{255, 255, 255, 255, 255, 255}
	if masked && err == nil {
		var b [6]byte
		b, err = api.ParseMAC(bits)
		mask = b
	}
	return m, mask, err
}

func parseRange(text string) (flow.PortRange, error) {
	if text == "" {
		return flow.PortRange{}, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return flow.PortRange{First: uint16(a), Last: uint16(b)}, errors.Join(err1, err2)
}
