package inspect

import (
	"errors"
	"math/bits"
)

// sink takes content, piece by piece.
type sink interface{ write(p []byte) error }

var errCoding = errors.New("content is not coded as its header says")

// errInflated is also what a bomb gives.
var errInflated = errors.New("decoded content is too long")

// inflater decodes gzip (RFC 1952), zlib (RFC 1950) and raw deflate (RFC 1951), and gives each byte as soon as it can be known. The standard library's reader
// keeps what it has decoded until a block ends, which would be too late: the receiver has it by then. Checksums are not looked at.
type inflater struct {
	to   sink
	gzip bool
	left *int // bytes that may still come out
	work *int // counts those that did

	in         []byte // not read yet; a piece that breaks off in a symbol stays
	at         int
	buf        uint64 // bits taken from in
	n          uint
	state      inflateState
	last       bool
	stored     int
	lit, dist  huffman
	window     [32 << 10]byte
	pos, given int // in window
	total      int // written, up to the window's length
}

type inflateState int

const (
	inHeader inflateState = iota
	inBlock
	inStored
	inCodes
	inTrailer
	inRest // behind the end
	inJunk // behind it, and no member of gzip
)

// inflaterSize is what one needs, about.
const inflaterSize = 48 << 10

const maxGzipHeader = 8 << 10

func (z *inflater) write(p []byte) error {
	z.in = append(z.in, p...)
	for {
		more, err := z.step()
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if err := z.give(); err != nil {
		return err
	}
	z.at -= int(z.n / 8) // between two pieces there is less than a byte in buf
	z.n &= 7
	z.buf &= 1<<z.n - 1
	z.in = append(z.in[:0], z.in[z.at:]...)
	z.at = 0
	return nil
}

// step goes on as far as it can in one state. more: there is more to do.
func (z *inflater) step() (more bool, err error) {
	switch z.state {
	case inHeader:
		return z.header()
	case inBlock:
		return z.block()
	case inStored:
		n := min(z.stored, len(z.in)-z.at)
		for _, b := range z.in[z.at : z.at+n] {
			if err := z.put(b); err != nil {
				return false, err
			}
		}
		z.at += n
		if z.stored -= n; z.stored > 0 {
			return false, nil
		}
		z.endBlock()
		return true, nil
	case inCodes:
		return z.codes()
	case inTrailer:
		length := 4
		if z.gzip {
			length = 8
		}
		if len(z.in)-z.at < length {
			return false, nil
		}
		z.at += length
		z.state = inRest
		return true, nil
	}
	rest := z.in[z.at:]
	if z.gzip && z.state == inRest { // another member?
		switch {
		case len(rest) == 0 || len(rest) == 1 && rest[0] == 0x1f:
			return false, nil
		case len(rest) > 1 && rest[0] == 0x1f && rest[1] == 0x8b:
			z.state = inHeader
			return true, nil
		}
	}
	z.state = inJunk
	if err := z.give(); err != nil || len(rest) == 0 {
		return false, err
	}
	z.at = len(z.in)
	return false, z.to.write(rest) // some take it for content
}

func (z *inflater) header() (bool, error) {
	b := z.in[z.at:]
	if !z.gzip {
		if len(b) < 2 {
			return false, nil
		}
		if b[0]&15 == 8 && (int(b[0])<<8|int(b[1]))%31 == 0 { // else raw
			if b[1]&0x20 != 0 {
				return false, errCoding // a dictionary that nobody has
			}
			z.at += 2
		}
		z.state = inBlock
		return true, nil
	}
	if len(b) >= 1 && b[0] != 0x1f || len(b) >= 2 && b[1] != 0x8b || len(b) >= 3 && b[2] != 8 {
		return false, errCoding
	}
	n := gzipHeader(b)
	if n < 0 {
		if len(b) > maxGzipHeader {
			return false, errCoding
		}
		return false, nil
	}
	z.at += n
	z.state = inBlock
	return true, nil
}

// gzipHeader is the length of the header; -1: there is more to come.
func gzipHeader(b []byte) int {
	if len(b) < 10 {
		return -1
	}
	flags, at := b[3], 10
	if flags&4 != 0 {
		if len(b) < at+2 {
			return -1
		}
		at += 2 + int(b[at]) + int(b[at+1])<<8
	}
	for _, text := range []byte{8, 16} { // name, comment
		if flags&text == 0 {
			continue
		}
		for ; ; at++ {
			if at >= len(b) {
				return -1
			}
			if b[at] == 0 {
				break
			}
		}
		at++
	}
	if flags&2 != 0 {
		at += 2
	}
	if at > len(b) {
		return -1
	}
	return at
}

// need tells whether so many bits are there.
func (z *inflater) need(k uint) bool {
	for z.n < k {
		if z.at == len(z.in) {
			return false
		}
		z.buf |= uint64(z.in[z.at]) << z.n
		z.at++
		z.n += 8
	}
	return true
}

func (z *inflater) take(k uint) int {
	v := int(z.buf & (1<<k - 1))
	z.buf >>= k
	z.n -= k
	return v
}

// mark is a place to go back to when input breaks off.
type mark struct {
	at  int
	buf uint64
	n   uint
}

func (z *inflater) mark() mark  { return mark{z.at, z.buf, z.n} }
func (z *inflater) back(m mark) { z.at, z.buf, z.n = m.at, m.buf, m.n }

// align gives whole bytes back and forgets the rest of a byte.
func (z *inflater) align() {
	z.take(z.n & 7)
	z.at -= int(z.n / 8)
	z.buf, z.n = 0, 0
}

func (z *inflater) endBlock() {
	z.state = inBlock
	if z.last {
		z.align()
		z.state = inTrailer
	}
}

func (z *inflater) block() (bool, error) {
	m := z.mark()
	if !z.need(3) {
		z.back(m)
		return false, nil
	}
	z.last = z.take(1) == 1
	switch z.take(2) {
	case 0:
		z.align()
		if len(z.in)-z.at < 4 {
			z.back(m)
			return false, nil
		}
		b := z.in[z.at:]
		z.stored = int(b[0]) | int(b[1])<<8
		if z.stored^0xffff != int(b[2])|int(b[3])<<8 {
			return false, errCoding
		}
		z.at += 4
		z.state = inStored
	case 1:
		z.lit, z.dist = fixedLit, fixedDist
		z.state = inCodes
	case 2:
		ok, err := z.tables()
		if err != nil {
			return false, err
		}
		if !ok { // it is at most some 300 bytes long
			z.back(m)
			return false, nil
		}
		z.state = inCodes
	default:
		return false, errCoding
	}
	return true, nil
}

var lengthOrder = [19]int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

const tablesWork = 1 << 10 // to make tables takes as long as to decode so many bytes, about

// tables of a dynamic block. false: they break off.
func (z *inflater) tables() (bool, error) {
	*z.work += tablesWork
	if !z.need(14) {
		return false, nil
	}
	lits, dists, codes := z.take(5)+257, z.take(5)+1, z.take(4)+4
	if lits > 286 || dists > 30 {
		return false, errCoding
	}
	var lengths [286 + 30]uint8
	for i := range codes {
		if !z.need(3) {
			return false, nil
		}
		lengths[lengthOrder[i]] = uint8(z.take(3))
	}
	var h huffman
	if !h.build(lengths[:19]) {
		return false, errCoding
	}
	clear(lengths[:])
	for i := 0; i < lits+dists; {
		symbol, ok := z.symbol(&h)
		if !ok {
			return false, nil
		}
		repeat, value := 1, uint8(0)
		switch {
		case symbol < 0 || symbol == 16 && i == 0:
			return false, errCoding
		case symbol < 16:
			value = uint8(symbol)
		default:
			extra := [3]uint{2, 3, 7}[symbol-16]
			if !z.need(extra) {
				return false, nil
			}
			repeat = [3]int{3, 3, 11}[symbol-16] + z.take(extra)
			if symbol == 16 {
				value = lengths[i-1]
			}
		}
		if i+repeat > lits+dists {
			return false, errCoding
		}
		for range repeat {
			lengths[i] = value
			i++
		}
	}
	if lengths[256] == 0 || !z.lit.build(lengths[:lits]) || !z.dist.build(lengths[lits:lits+dists]) {
		return false, errCoding
	}
	return true, nil
}

var (
	lengthBase  = [29]int{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258}
	lengthExtra = [29]uint{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
	distBase    = [30]int{1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577}
	distExtra   = [30]uint{0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13}
)

func (z *inflater) codes() (bool, error) {
	for {
		m := z.mark()
		symbol, ok := z.symbol(&z.lit)
		switch {
		case !ok:
			z.back(m)
			return false, nil
		case symbol < 0 || symbol > 285:
			return false, errCoding
		case symbol < 256:
			if err := z.put(byte(symbol)); err != nil {
				return false, err
			}
			continue
		case symbol == 256:
			z.endBlock()
			return true, nil
		}
		symbol -= 257
		if !z.need(lengthExtra[symbol]) {
			z.back(m)
			return false, nil
		}
		length := lengthBase[symbol] + z.take(lengthExtra[symbol])
		d, ok := z.symbol(&z.dist)
		if ok && (d < 0 || d > 29) {
			return false, errCoding
		}
		if !ok || !z.need(distExtra[d]) {
			z.back(m)
			return false, nil
		}
		distance := distBase[d] + z.take(distExtra[d])
		if distance > z.total {
			return false, errCoding
		}
		for range length {
			if err := z.put(z.window[(z.pos-distance)&(len(z.window)-1)]); err != nil {
				return false, err
			}
		}
	}
}

// put a byte out.
func (z *inflater) put(b byte) error {
	if *z.left == 0 {
		return errInflated
	}
	*z.left--
	z.window[z.pos] = b
	z.total = min(z.total+1, len(z.window))
	if z.pos++; z.pos == len(z.window) {
		if err := z.give(); err != nil {
			return err
		}
		z.pos, z.given = 0, 0
	}
	return nil
}

// give on what is new.
func (z *inflater) give() error {
	p := z.window[z.given:z.pos]
	z.given = z.pos
	if len(p) == 0 {
		return nil
	}
	*z.work += len(p)
	return z.to.write(p)
}

const fastBits = 9

// huffman is a canonical code.
type huffman struct {
	fast   [1 << fastBits]uint16 // symbol<<4 | length, by the next bits; 0: longer
	count  [16]uint16            // codes of each length
	symbol [288]uint16           // in the order of codes
}

// build it from the lengths of the symbols' codes. Codes must be complete, but one code alone may be.
func (h *huffman) build(lengths []uint8) bool {
	*h = huffman{}
	for _, l := range lengths {
		h.count[l]++
	}
	used := len(lengths) - int(h.count[0])
	h.count[0] = 0
	left := 1
	for _, n := range h.count[1:] {
		if left = left<<1 - int(n); left < 0 {
			return false
		}
	}
	if left > 0 && (used > 1 || used == 1 && h.count[1] != 1) {
		return false
	}
	var place, code [16]uint16
	for l := 1; l < 15; l++ {
		place[l+1] = place[l] + h.count[l]
		code[l+1] = (code[l] + h.count[l]) << 1
	}
	for s, l := range lengths {
		if l == 0 {
			continue
		}
		h.symbol[place[l]] = uint16(s)
		place[l]++
		if l <= fastBits {
			for i := bits.Reverse16(code[l]) >> (16 - l); i < 1<<fastBits; i += 1 << l {
				h.fast[i] = uint16(s)<<4 | uint16(l)
			}
		}
		code[l]++
	}
	return true
}

// symbol reads one. false: input breaks off; -1: there is no such code.
func (z *inflater) symbol(h *huffman) (int, bool) {
	z.need(15) // as many as there are
	if e := h.fast[z.buf&(1<<fastBits-1)]; e != 0 {
		if l := uint(e & 15); l <= z.n {
			z.take(l)
			return int(e >> 4), true
		}
		return 0, false
	}
	code, first, index := 0, 0, 0
	for l := uint(1); l <= 15; l++ {
		if l > z.n {
			return 0, false
		}
		code |= int(z.buf>>(l-1)) & 1
		n := int(h.count[l])
		if code-n < first {
			z.take(l)
			return int(h.symbol[index+code-first]), true
		}
		index += n
		first = (first + n) << 1
		code <<= 1
	}
	return -1, true
}

var fixedLit, fixedDist = fixed()

func fixed() (lit, dist huffman) {
	var l [288]uint8
	for i := range l {
		switch {
		case i < 144:
			l[i] = 8
		case i < 256:
			l[i] = 9
		case i < 280:
			l[i] = 7
		default:
			l[i] = 8
		}
	}
	lit.build(l[:])
	var d [32]uint8
	for i := range d {
		d[i] = 5
	}
	dist.build(d[:])
	return lit, dist
}
