package fabric

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"weir.dev/weir/flow"
)

// cookieBits is what an identity has: the upper bits are the controller's.
const cookieBits = 1<<48 - 1

// identity of an entry is of names, not of numbers that change with a restart.
func identity(parts ...string) uint64 { return digest(parts...) & cookieBits }

// Identity is that of an entry that others make.
func Identity(parts ...string) uint64 { return identity(parts...) }

// cookieText is a host rule's identity as it is written.
func cookieText(id uint64) string {
	var b [8]byte
	var text [16]byte
	binary.BigEndian.PutUint64(b[:], id)
	hex.Encode(text[:], b[:])
	return string(text[:])
}

// digest is a 64 bit identity of names.
func digest(parts ...string) uint64 {
	h := unnamed
	for _, p := range parts {
		h = h.with(p)
	}
	return h.digest()
}

// label is a digest that may go on: names with which many identities begin are gone through once. FNV-1a, with each name's length before it.
type label uint64

const (
	unnamed  label  = 14695981039346656037
	fnvPrime        = 1099511628211
	fnvCube  uint64 = fnvPrime * fnvPrime * fnvPrime & (1<<64 - 1) // three bytes of zero
)

func labelOf(parts ...string) label {
	h := unnamed
	for _, p := range parts {
		h = h.with(p)
	}
	return h
}

func (l label) with(name string) label {
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
	return label(h)
}

// port is with(decimal(p)).
func (l label) port(p flow.Port) label {
	var b [10]byte
	text := strconv.AppendUint(b[:0], uint64(p), 10)
	h := (uint64(l)*fnvCube ^ uint64(len(text))) * fnvPrime
	for _, c := range text {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return label(h)
}

func (l label) digest() uint64 { return mix(uint64(l)) }

func (l label) identity() uint64 { return l.digest() & cookieBits }

// mix finishes a hash as splitmix64 does.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
