package main

import (
	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

const (
	leastRing = 4 << 10
	keptRing  = 256 << 10 // what is longer is given back as soon as nothing is in it, the others after a pause
	maxAhead  = 64        // pieces that came before what precedes them
	maxBlind  = 64        // pieces that are not looked at, between such that are
	leastSkip = 4 << 10   // shorter pieces are kept as if they were looked at
	mostSkip  = 1 << 28

	memoryFull = "memory is full"
)

// before compares sequence numbers (RFC 9293, section 3.4).
func before(a, b uint32) bool { return int32(a-b) < 0 }

func earlier(a, b uint32) uint32 {
	if before(a, b) {
		return a
	}
	return b
}

func later(a, b uint32) uint32 {
	if before(a, b) {
		return b
	}
	return a
}

// span is a part of a stream: from start up to before end.
type span struct{ start, end uint32 }

// half is what one side of a connection sends.
//
// Whatever is forwarded at a place of the stream is what was judged there: bytes that came once are kept until their receiver has acknowledged them, and other bytes at
// the same place are dropped. So no overlap, bad checksum or short TTL gives the receiver a stream that was not judged, and a segment that comes before its
// predecessors can be forwarded at once: the receiver cannot use it before the one that closes the gap, with which both are judged.
type half struct {
	first uint32 // its SYN
	known bool   // it has come
	base  uint32 // all before was acknowledged by the receiver
	next  uint32 // all before was judged
	sent  uint32 // the end of what was forwarded
	ring  []byte // what came from base on, at its sequence number modulo the length
	ahead []span // what is in ring from next on
	blind []span // before next, but not in ring: anything may be forwarded there
	open  bool   // from next on nothing is looked at any more
	fin   bool
	end   uint32 // of the stream, if fin
	ended bool   // the receiver has acknowledged that
	dir   nf.Dir // which way its frames go
	ack   uint32 // the last that it has acknowledged itself
}

func (h *half) begin(seq uint32) {
	h.first, h.known = seq, true
	h.base, h.next, h.sent = seq+1, seq+1, seq+1
}

// pieces gives the parts of a span that are looked at: those that came before, and new ones.
func (h *half) pieces(s span, f func(s span, have bool) bool) bool {
next:
	for at := s.start; before(at, s.end); {
		end, have := s.end, before(at, h.next)
		if have {
			end = earlier(end, h.next)
			for _, b := range h.blind {
				if !before(at, b.start) && before(at, b.end) {
					at = b.end
					continue next
				}
				if before(at, b.start) {
					end = earlier(end, b.start)
				}
			}
		} else {
			for _, a := range h.ahead {
				if !before(at, a.start) && before(at, a.end) {
					have, end = true, earlier(end, a.end)
					break
				}
				if before(at, a.start) {
					end = earlier(end, a.start)
				}
			}
		}
		if !f(span{at, end}, have) {
			return false
		}
		at = end
	}
	return true
}

// admit tells whether data may be forwarded, as far as the stream goes, and keeps what is new. why says why not.
func (h *half) admit(seq uint32, data []byte, limit int, budget *inspect.Budget) (why string) {
	s := span{seq, seq + uint32(len(data))}
	if h.fin && before(h.end, s.end) {
		return "behind the end"
	}
	s.start = later(s.start, h.base)
	if h.open {
		s.end = earlier(s.end, h.next)
	}
	if !before(s.start, s.end) {
		return ""
	}
	fresh, need := 0, 0
	h.pieces(s, func(p span, have bool) bool {
		need = max(need, int(p.end-h.base))
		if need > limit {
			why = "beyond the window"
			return false
		}
		if have && !h.same(p.start, data[p.start-seq:p.end-seq]) {
			why = "other bytes than before"
			return false
		}
		if !have {
			fresh++
		}
		return true
	})
	if why != "" || fresh == 0 {
		return why
	}
	if len(h.ahead)+fresh > maxAhead {
		return "too many gaps"
	}
	if !h.grow(need, budget) {
		return memoryFull
	}
	h.pieces(s, func(p span, have bool) bool {
		if !have {
			h.put(p.start, data[p.start-seq:p.end-seq])
			h.insert(p)
		}
		return true
	})
	return ""
}

// same compares with what came before.
func (h *half) same(seq uint32, data []byte) bool {
	for _, part := range h.stored(span{seq, seq + uint32(len(data))}) {
		if string(part) != string(data[:len(part)]) {
			return false
		}
		data = data[len(part):]
	}
	return true
}

// stored is a span's bytes in ring.
func (h *half) stored(s span) [2][]byte {
	mask := uint32(len(h.ring) - 1)
	from, n := s.start&mask, s.end-s.start
	if rest := uint32(len(h.ring)) - from; n > rest {
		return [2][]byte{h.ring[from:], h.ring[:n-rest]}
	}
	return [2][]byte{h.ring[from : from+n], nil}
}

func (h *half) put(seq uint32, data []byte) {
	for _, part := range h.stored(span{seq, seq + uint32(len(data))}) {
		data = data[copy(part, data):]
	}
}

// grow so that ring has so many bytes from base on.
func (h *half) grow(need int, budget *inspect.Budget) bool {
	if need <= len(h.ring) {
		return true
	}
	size := max(leastRing, len(h.ring))
	for size < need {
		size *= 2
	}
	if !budget.Take(size) {
		return false
	}
	old := *h
	h.ring = make([]byte, size)
	if len(old.ring) > 0 {
		seq := h.base
		for _, part := range old.stored(span{seq, seq + uint32(len(old.ring))}) {
			h.put(seq, part)
			seq += uint32(len(part))
		}
	}
	budget.Give(len(old.ring))
	return true
}

// free the ring if nothing is in it.
func (h *half) free(budget *inspect.Budget) {
	if h.base == h.next && len(h.ahead) == 0 || h.open && !before(h.base, h.next) {
		budget.Give(len(h.ring))
		h.ring = nil
	}
}

// insert a span into ahead, which stays in order. Neighbours become one.
func (h *half) insert(s span) {
	i := 0
	for i < len(h.ahead) && before(h.ahead[i].start, s.start) {
		i++
	}
	switch {
	case i > 0 && h.ahead[i-1].end == s.start:
		i--
		h.ahead[i].end = s.end
	default:
		h.ahead = append(h.ahead, span{})
		copy(h.ahead[i+1:], h.ahead[i:])
		h.ahead[i] = s
	}
	if i+1 < len(h.ahead) && h.ahead[i].end == h.ahead[i+1].start {
		h.ahead[i].end = h.ahead[i+1].end
		h.ahead = append(h.ahead[:i+1], h.ahead[i+2:]...)
	}
}

// judge what follows without a gap.
func (h *half) judge(c *inspect.Conn, side inspect.Side) error {
	for {
		if n := c.Skip(side); n >= leastSkip && len(h.blind) < maxBlind && h.next-h.base < mostSkip {
			n = min(n, mostSkip) // the rest when this is behind us: numbers are compared within half of their range
			c.Skipped(side, n)
			if i := len(h.blind) - 1; i >= 0 && h.blind[i].end == h.next {
				h.blind[i].end += uint32(n)
			} else {
				h.blind = append(h.blind, span{h.next, h.next + uint32(n)})
			}
			h.advance(h.next + uint32(n))
			continue
		}
		if c.Done(side) {
			h.open, h.ahead = true, nil
			return nil
		}
		if len(h.ahead) == 0 || h.ahead[0].start != h.next {
			return nil
		}
		s := h.ahead[0]
		if n := c.Skip(side); n == 0 && s.end-s.start > leastSkip { // to notice what may be skipped
			s.end = s.start + leastSkip
		}
		for _, part := range h.stored(s) {
			if err := c.Feed(side, part); err != nil {
				return err
			}
		}
		h.advance(s.end)
	}
}

// advance to a place: all before is judged.
func (h *half) advance(to uint32) {
	h.next = to
	for len(h.ahead) > 0 && !before(to, h.ahead[0].end) {
		h.ahead = append(h.ahead[:0], h.ahead[1:]...)
	}
	if len(h.ahead) > 0 {
		h.ahead[0].start = later(h.ahead[0].start, to)
	}
}

// acknowledged by the receiver: all before a place.
func (h *half) acknowledged(ack uint32, budget *inspect.Budget) {
	if !before(h.base, ack) || before(h.sent, ack) {
		return
	}
	if h.fin && ack == h.end+1 {
		h.ended = true
	}
	if h.open {
		h.base = ack
		h.next = later(h.next, ack) // or it would be far behind some day
	} else {
		h.base = earlier(ack, h.next)
	}
	for len(h.blind) > 0 && !before(h.base, h.blind[0].end) {
		h.blind = append(h.blind[:0], h.blind[1:]...)
	}
	if len(h.blind) > 0 {
		h.blind[0].start = later(h.blind[0].start, h.base)
	}
	if len(h.ring) > keptRing {
		h.free(budget)
	}
}
