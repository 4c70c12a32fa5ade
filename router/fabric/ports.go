package fabric

import "weir.dev/weir/flow"

// MaxPorts bounds the entries that one with port ranges becomes (see PortMasks).
const MaxPorts = 256

// exactPorts is the width of a range up to which each of its ports is matched by itself, as every OpenFlow 1.3 switch can; wider ones are
// matched under masks, as Open vSwitch and most others can (OpenFlow 1.3.5, table 12, does not ask for it).
const exactPorts = 8

// PortMasks appends the masks under which a range is matched: disjoint, at most 30, one that is zero for any port.
func PortMasks(to []flow.PortMask, r flow.PortRange) []flow.PortMask {
	if r.Any() || width(r) > exactPorts {
		return r.AppendMasks(to)
	}
	for p := int(r.First); p <= int(r.Last); p++ {
		to = append(to, flow.PortMask{Port: uint16(p), Mask: 0xffff})
	}
	return to
}

// Size is how many entries of a switch a match takes: one for each pair of masks of its ranges of ports.
func Size(m *flow.Match) int {
	if m.Unread != flow.ReadAll {
		return len(Headers(m))
	}
	return masks(m.SrcPorts) * masks(m.DstPorts)
}

func masks(r flow.PortRange) int {
	if n := width(r); n <= exactPorts { // nearly always
		return n
	}
	return len(PortMasks(nil, r))
}

// width is how many ports a range has; 1 for any.
func width(r flow.PortRange) int {
	if r.Any() {
		return 1
	}
	return int(r.Last) - int(r.First) + 1
}
