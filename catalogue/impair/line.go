package main

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// line is one direction. It is pure: times are given.
type line struct {
	path
	buffer  uint64
	random  *rand.Rand
	burst   bool      // in a burst of losses
	busy    time.Time // until then the rate sends what came before
	last    time.Time // when the last frame that keeps its place leaves
	waiting queue
	bytes   uint64 // that wait
	number  uint64
	count   counters
}

// counters of a direction, in frames.
type counters struct {
	taken, lost, doubled, held, queueFull, bufferFull uint64
}

// frame that waits.
type frame struct {
	at     time.Time
	number uint64
	f      nf.Frame
}

const (
	overhead  = 256     // bytes that a frame takes beside its own
	leastWait = 2 << 16 // bytes that may always wait for a rate: two frames of 64 KiB, as local senders make such
)

// streams of random numbers of the directions.
const (
	streamUp   = 0x7570
	streamDown = 0x646f
)

func newLine(p path, c *config, stream uint64) *line {
	return &line{path: p, buffer: uint64(c.Buffer), random: rand.New(rand.NewPCG(c.Seed, stream))}
}

// take decides about a frame and keeps a copy until its time. true: it passes now.
//
// Each frame takes the same random numbers, whatever becomes of it: so the n-th one's fate follows from the seed alone. Only what queues have no room for
// follows from the time, too.
func (l *line) take(f nf.Frame, now time.Time) (pass bool) {
	l.count.taken++
	loss, double, hold, jitter := l.random.Float64(), l.random.Float64(), l.random.Float64(), l.random.Float64()
	if l.loses(loss) {
		l.count.lost++
		return false
	}
	at, room := l.sent(now, len(f.Data))
	if !room {
		l.count.queueFull++
		return false
	}
	at = at.Add(time.Duration(l.Delay) + time.Duration((2*jitter-1)*float64(l.Jitter)))
	held := hold < float64(l.Reorder)
	switch {
	case held:
		l.count.held++
		at = at.Add(time.Duration(l.Hold))
	case l.keepsOrder():
		if at.Before(l.last) {
			at = l.last
		}
		l.last = at
	}
	copies := 1
	if double < float64(l.Duplicate) {
		copies = 2
	}
	if copies == 1 && !at.After(now) && len(l.waiting) == 0 {
		return true
	}
	for i := range copies {
		if l.bytes+uint64(len(f.Data))+overhead > l.buffer {
			l.count.bufferFull++
			break
		}
		if i > 0 {
			l.count.doubled++
		}
		l.number++
		l.bytes += uint64(len(f.Data)) + overhead
		heap.Push(&l.waiting, &frame{at, l.number, f.Clone()})
	}
	return false
}

// loses decides about a loss by a number of 0 to 1. Bursts are a chain of two states (Gilbert): in one all are lost, in the other none.
func (l *line) loses(number float64) bool {
	p := float64(l.Loss)
	if l.LossBurst <= 1 {
		return number < p
	}
	if l.burst {
		l.burst = number >= 1/l.LossBurst
	} else {
		l.burst = number < p/((1-p)*l.LossBurst)
	}
	return l.burst
}

// sent tells when the rate has sent a frame that comes now. room: it may wait for that.
func (l *line) sent(now time.Time, length int) (at time.Time, room bool) {
	if l.Rate == 0 {
		return now, true
	}
	took := func(bytes int) time.Duration {
		return time.Duration(float64(bytes) * 8 / float64(l.Rate) * float64(time.Second))
	}
	start := now
	if l.busy.After(start) {
		start = l.busy
	}
	if start.Sub(now) > max(time.Duration(l.Queue), took(leastWait)) {
		return at, false
	}
	l.busy = start.Add(took(length))
	return l.busy, true
}

// due gives the next frame whose time has come; nil: there is none, and next is when there will be, if anything waits.
func (l *line) due(now time.Time) (f *frame, next time.Time) {
	if len(l.waiting) == 0 {
		return nil, time.Time{}
	}
	if first := l.waiting[0]; first.at.After(now) {
		return nil, first.at
	}
	f = heap.Pop(&l.waiting).(*frame)
	l.bytes -= uint64(len(f.f.Data)) + overhead
	return f, now
}

// queue is a heap by time, and by number for one time.
type queue []*frame

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].number < q[j].number
	}
	return q[i].at.Before(q[j].at)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*frame)) }
func (q *queue) Pop() any {
	n := len(*q) - 1
	f := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	return f
}
