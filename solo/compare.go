package solo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Fields that a comparison may leave out.
const (
	IgnoreMAC      = "mac"      // both addresses
	IgnoreTTL      = "ttl"      // and hop limit, and the checksum of the IPv4 header that depends on it
	IgnoreChecksum = "checksum" // of IPv4, TCP, UDP, ICMP
	IgnoreID       = "ip-id"    // identification of IPv4, and the checksum of the header
)

// Ignorable are all of them.
func Ignorable() []string { return []string{IgnoreChecksum, IgnoreID, IgnoreMAC, IgnoreTTL} }

// maxCells bounds the work of finding which frame is which. Beyond it frames are compared one by one.
const maxCells = 4 << 20

// Difference between frames that were expected at a port and those that came.
type Difference struct {
	Port string `json:"port"`
	Kind string `json:"kind"` // missing, unexpected, differs
	// Numbers of the frames, from 1; 0: there is none.
	Expected int `json:"expected,omitempty"`
	Got      int `json:"got,omitempty"`
	// Offset of the first byte that differs.
	Offset      int    `json:"offset,omitempty"`
	Field       string `json:"field,omitempty"` // where that is
	ExpectedIs  string `json:"expected_is,omitempty"`
	GotIs       string `json:"got_is,omitempty"`
	ExpectedHex string `json:"expected_hex,omitempty"` // around the byte
	GotHex      string `json:"got_hex,omitempty"`
}

// Kinds of differences.
const (
	Missing    = "missing"
	Unexpected = "unexpected"
	Differs    = "differs"
)

// Compare frames in order. Frames that are equal in both, in order, are taken for the same; what is left between them is paired one by one.
func Compare(port string, want, got []Frame, ignore []string) (out []Difference) {
	w, g := maskAll(want, ignore), maskAll(got, ignore)
	i, j := 0, 0
	gap := func(toI, toJ int) {
		for ; i < toI && j < toJ; i, j = i+1, j+1 {
			if at := firstDifference(w[i], g[j]); at >= 0 {
				out = append(out, Difference{Port: port, Kind: Differs, Expected: i + 1, Got: j + 1, Offset: at, Field: fieldAt(want[i].Data, at),
					ExpectedIs: Summary(want[i].Data), GotIs: Summary(got[j].Data), ExpectedHex: around(want[i].Data, at), GotHex: around(got[j].Data, at)})
			}
		}
		for ; i < toI; i++ {
			out = append(out, Difference{Port: port, Kind: Missing, Expected: i + 1, ExpectedIs: Summary(want[i].Data)})
		}
		for ; j < toJ; j++ {
			out = append(out, Difference{Port: port, Kind: Unexpected, Got: j + 1, GotIs: Summary(got[j].Data)})
		}
	}
	for _, m := range matches(w, g) {
		gap(m[0], m[1])
		i, j = m[0]+1, m[1]+1
	}
	gap(len(w), len(g))
	return out
}

// matches is a longest common subsequence, as pairs of indexes.
func matches(w, g [][]byte) (pairs [][2]int) {
	begin := 0
	for begin < len(w) && begin < len(g) && bytes.Equal(w[begin], g[begin]) {
		pairs = append(pairs, [2]int{begin, begin})
		begin++
	}
	w, g = w[begin:], g[begin:]
	end := 0
	for end < len(w) && end < len(g) && bytes.Equal(w[len(w)-1-end], g[len(g)-1-end]) {
		end++
	}
	mw, mg := len(w)-end, len(g)-end
	if (mw+1)*(mg+1) <= maxCells {
		lengths := make([]int32, (mw+1)*(mg+1))
		at := func(i, j int) *int32 { return &lengths[i*(mg+1)+j] }
		for i := mw - 1; i >= 0; i-- {
			for j := mg - 1; j >= 0; j-- {
				if bytes.Equal(w[i], g[j]) {
					*at(i, j) = *at(i+1, j+1) + 1
				} else {
					*at(i, j) = max(*at(i+1, j), *at(i, j+1))
				}
			}
		}
		for i, j := 0, 0; i < mw && j < mg; {
			switch {
			case bytes.Equal(w[i], g[j]):
				pairs = append(pairs, [2]int{begin + i, begin + j})
				i, j = i+1, j+1
			case *at(i+1, j) >= *at(i, j+1):
				i++
			default:
				j++
			}
		}
	}
	for k := range end {
		pairs = append(pairs, [2]int{begin + mw + k, begin + mg + k})
	}
	return pairs
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// around is some bytes from shortly before an offset on.
func around(b []byte, at int) string {
	from := max(at-4, 0)
	return fmt.Sprintf("%d: % x", from, b[from:min(len(b), from+16)])
}

func maskAll(frames []Frame, ignore []string) [][]byte {
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = mask(f.Data, ignore)
	}
	return out
}

// headers are the offsets of a frame's headers; 0: it has none.
type headers struct {
	ip4, ip6  int
	transport int
	protocol  byte
}

func parse(f []byte) (h headers) {
	at := 12
	kind := func() uint16 {
		if len(f) < at+2 {
			return 0
		}
		return binary.BigEndian.Uint16(f[at:])
	}
	for range 2 {
		if k := kind(); k == 0x8100 || k == 0x88a8 {
			at += 4
		}
	}
	k := kind()
	at += 2
	switch {
	case k == 0x0800 && len(f) >= at+20 && f[at]>>4 == 4:
		h.ip4, h.protocol = at, f[at+9]
		if binary.BigEndian.Uint16(f[at+6:])&0x1fff == 0 {
			h.transport = at + int(f[at]&15)*4
		}
	case k == 0x86dd && len(f) >= at+40:
		h.ip6, h.protocol, h.transport = at, f[at+6], at+40
	}
	if h.transport >= len(f) {
		h.transport = 0
	}
	return h
}

// Protocols whose checksums are known, and where these are.
var checksums = map[byte]int{1: 2, 6: 16, 17: 6, 58: 2}

// mask is a frame with the fields zeroed that are not compared.
func mask(frame []byte, ignore []string) []byte {
	if len(ignore) == 0 {
		return frame
	}
	f := bytes.Clone(frame)
	zero := func(at, n int) {
		if at >= 0 && at+n <= len(f) {
			clear(f[at : at+n])
		}
	}
	h := parse(frame)
	if slices.Contains(ignore, IgnoreMAC) {
		zero(0, 12)
	}
	ttl, sum, id := slices.Contains(ignore, IgnoreTTL), slices.Contains(ignore, IgnoreChecksum), slices.Contains(ignore, IgnoreID)
	if h.ip4 > 0 {
		if ttl {
			zero(h.ip4+8, 1)
		}
		if id {
			zero(h.ip4+4, 2)
		}
		if ttl || sum || id {
			zero(h.ip4+10, 2)
		}
	}
	if h.ip6 > 0 && ttl {
		zero(h.ip6+7, 1)
	}
	if at, known := checksums[h.protocol]; known && sum && h.transport > 0 {
		zero(h.transport+at, 2)
	}
	return f
}

// fieldAt names the part of a frame where an offset is.
func fieldAt(f []byte, at int) string {
	h := parse(f)
	ip := max(h.ip4, h.ip6)
	switch {
	case at >= len(f):
		return "length"
	case at < 6:
		return "destination MAC"
	case at < 12:
		return "source MAC"
	case ip == 0:
		return "type or payload"
	case at < ip:
		return "ethertype or VLAN tag"
	case h.ip4 > 0 && at < ip+20:
		return "IPv4 " + part(at-ip, "version", 1, "TOS", 2, "length", 4, "identification", 6, "fragment offset", 8, "TTL", 9, "protocol", 10, "checksum", 12, "source", 16, "destination", 20)
	case h.ip6 > 0 && at < ip+40:
		return "IPv6 " + part(at-ip, "version, class, flow label", 4, "length", 6, "next header", 7, "hop limit", 8, "source", 24, "destination", 40)
	case h.transport == 0 || at < h.transport:
		return "IP options or payload"
	}
	at -= h.transport
	switch {
	case h.protocol == 6 && at < 20:
		return "TCP " + part(at, "source port", 2, "destination port", 4, "sequence number", 8, "acknowledgement", 12, "flags", 14, "window", 16, "checksum", 18, "urgent pointer", 20)
	case h.protocol == 17 && at < 8:
		return "UDP " + part(at, "source port", 2, "destination port", 4, "length", 6, "checksum", 8)
	}
	return "payload"
}

// part finds the name before the first end that is behind an offset.
func part(at int, table ...any) string {
	for i := 0; i+1 < len(table); i += 2 {
		if at < table[i+1].(int) {
			return table[i].(string)
		}
	}
	return ""
}

// CheckIgnore refuses what Compare does not know.
func CheckIgnore(fields []string) error {
	for _, f := range fields {
		if !slices.Contains(Ignorable(), f) {
			return fmt.Errorf("field %q: want some of %s", f, strings.Join(Ignorable(), ", "))
		}
	}
	return nil
}
