package flow

import "math/bits"

// PortMask matches the ports p with p & Mask == Port.
type PortMask struct{ Port, Mask uint16 }

// AppendMasks appends disjoint masks that together match the range, in rising order and as few as possible, so at most 30. Any is one mask, zero.
func (r PortRange) AppendMasks(to []PortMask) []PortMask {
	if r.Any() {
		return append(to, PortMask{})
	}
	for at, end := uint32(r.First), uint32(r.Last)+1; at < end; {
		size := uint32(1) << min(bits.TrailingZeros32(at|1<<16), bits.Len32(end-at)-1)
		to = append(to, PortMask{uint16(at), uint16(-size)})
		at += size
	}
	return to
}
