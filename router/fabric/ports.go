package fabric

import (
	"math/bits"

	"weir.dev/weir/flow"
)

// exactPorts is the width of a range up to which each of its ports is matched by itself, as every OpenFlow 1.3 switch can; wider ones are
// matched under masks, as Open vSwitch and most others can (OpenFlow 1.3.5, table 12, does not ask for it).
const exactPorts = 8

// PortMask matches the ports p with p & Mask == Port.
type PortMask struct{ Port, Mask uint16 }

// PortMasks are disjoint matches that together match a range: none for any port, at most 30 otherwise.
func PortMasks(r flow.PortRange) []PortMask {
	if r.Any() {
		return nil
	}
	var out []PortMask
	exact := width(r) <= exactPorts
	for next, last := uint32(r.First), uint32(r.Last); next <= last; {
		n := uint32(1) // of the block of ports that begins at next
		if !exact {
			if n = 1 << 16; next != 0 {
				n = 1 << bits.TrailingZeros32(next)
			}
			for next+n-1 > last {
				n /= 2
			}
		}
		out = append(out, PortMask{uint16(next), uint16(0x10000 - n)})
		next += n
	}
	return out
}

// size is how many entries of a switch a match takes: one for each pair of masks of its ranges of ports.
func size(m *flow.Match) int {
	if m.Unread != flow.ReadAll {
		return len(Headers(m))
	}
	return masks(m.SrcPorts) * masks(m.DstPorts)
}

func masks(r flow.PortRange) int {
	if n := width(r); n <= exactPorts { // nearly always
		return n
	}
	return len(PortMasks(r))
}

// width is how many ports a range has; 1 for any.
func width(r flow.PortRange) int {
	if r.Any() {
		return 1
	}
	return int(r.Last) - int(r.First) + 1
}
