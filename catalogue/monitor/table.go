package main

import (
	"cmp"
	"slices"
	"time"
)

const sweepEvery = time.Second

// flow is both directions of a conversation; first is its first packet.
type flow struct {
	first          packet
	began, seen    time.Time
	packets, bytes [2]uint64 // as the first packet went, and back
}

// table is the flows of now, at most max. It knows no clock and no log but those that it is given.
type table struct {
	max       int
	idle      time.Duration
	emit      func(line)
	flows     map[packet]*flow // by the first packet
	swept     time.Time
	total     uint64 // flows so far
	packets   uint64
	bytes     uint64
	untracked uint64
}

func newTable(maxFlows int, idle time.Duration, emit func(line)) *table {
	return &table{max: maxFlows, idle: idle, emit: emit, flows: map[packet]*flow{}}
}

func (t *table) busy() bool { return len(t.flows) > 0 }

func (t *table) add(p packet, length int, now time.Time) {
	t.packets++
	t.bytes += uint64(length)
	way := 0
	f := t.flows[p]
	if f == nil {
		if f = t.flows[p.reversed()]; f != nil {
			way = 1
		}
	}
	if f == nil {
		if len(t.flows) >= t.max {
			t.untracked++
			return
		}
		f = &flow{first: p, began: now}
		t.flows[p] = f
		t.total++
		l := f.line("new")
		l.Time = now
		t.emit(l)
	}
	f.seen = now
	f.packets[way]++
	f.bytes[way] += uint64(length)
}

// sweep ends flows that were idle too long; it looks once a second at most.
func (t *table) sweep(now time.Time) {
	if now.Sub(t.swept) < sweepEvery {
		return
	}
	t.swept = now
	t.end(now, func(f *flow) bool { return now.Sub(f.seen) >= t.idle })
}

func (t *table) endAll(now time.Time) { t.end(now, func(*flow) bool { return true }) }

func (t *table) end(now time.Time, over func(*flow) bool) {
	var ended []*flow
	for _, f := range t.flows {
		if over(f) {
			ended = append(ended, f)
		}
	}
	slices.SortFunc(ended, func(a, b *flow) int { return cmp.Compare(a.began.UnixNano(), b.began.UnixNano()) })
	for _, f := range ended {
		delete(t.flows, f.first)
		l := f.line("end")
		l.Time = now
		l.Packets, l.Bytes, l.ReplyPackets, l.ReplyBytes = f.packets[0], f.bytes[0], f.packets[1], f.bytes[1]
		l.DurationNs = f.seen.Sub(f.began).Nanoseconds()
		t.emit(l)
	}
}

func (t *table) summary(now time.Time, dropped uint64) {
	t.emit(line{
		Time: now, Event: "summary", Packets: t.packets, Bytes: t.bytes, Flows: t.total, Active: len(t.flows),
		Untracked: t.untracked, Dropped: dropped,
	})
}

func (f *flow) line(event string) line {
	p := f.first
	return line{Event: event, Proto: p.protoName(), Src: p.text(p.src), SrcPort: p.sport, Dst: p.text(p.dst), DstPort: p.dport, VLAN: p.vlan}
}
