// Package identity makes the identities of rules and entries. They are of names, not of numbers that change with a restart, so that counters
// survive restarts and changes elsewhere.
package identity

import (
	"strconv"

	"weir.dev/weir/flow"
)

// entryBits is what the identity of an OpenFlow entry has: the upper bits are the controller's.
const entryBits = 1<<48 - 1

// Of is the identity of names.
func Of(names ...string) uint64 { return LabelOf(names...).Sum() }

// Entry is the identity of an OpenFlow entry.
func Entry(names ...string) uint64 { return LabelOf(names...).Entry() }

// Another is an OpenFlow entry's identity instead of one that is taken.
func Another(entry uint64) uint64 { return Mix(entry) & entryBits }

// Label is an identity that may go on: names with which many identities begin are gone through once. FNV-1a, with each name's length before it.
type Label uint64

const (
	unnamed  Label  = 14695981039346656037
	fnvPrime        = 1099511628211
	fnvCube  uint64 = fnvPrime * fnvPrime * fnvPrime & (1<<64 - 1) // three bytes of zero
)

// LabelOf is the label of names.
func LabelOf(names ...string) Label {
	h := unnamed
	for _, n := range names {
		h = h.With(n)
	}
	return h
}

// With goes on with a name.
func (l Label) With(name string) Label {
	h, n := uint64(l), uint32(len(name))
	if n < 256 {
		h = (h*fnvCube ^ uint64(n)) * fnvPrime
	} else {
		for shift := 24; shift >= 0; shift -= 8 {
			h = (h ^ uint64(byte(n>>shift))) * fnvPrime
		}
	}
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * fnvPrime
	}
	return Label(h)
}

// Port goes on with a number as a name: With(fmt.Sprint(p)).
func (l Label) Port(p flow.Port) Label {
	var b [10]byte
	text := strconv.AppendUint(b[:0], uint64(p), 10)
	h := (uint64(l)*fnvCube ^ uint64(len(text))) * fnvPrime
	for _, c := range text {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return Label(h)
}

// Sum is the identity.
func (l Label) Sum() uint64 { return Mix(uint64(l)) }

// Entry is the identity of an OpenFlow entry.
func (l Label) Entry() uint64 { return l.Sum() & entryBits }

// Mix finishes a hash as splitmix64 does: FNV's last step mixes badly.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
