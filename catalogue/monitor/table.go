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
	flags          [2]uint8  // of TCP, all that were seen
	name           string    // that the client asked for, by DNS or TLS
	told           flowTold
}

// flowTold is what was reported of a flow.
type flowTold struct {
	at             time.Time
	packets, bytes [2]uint64
}

// Reasons of a report, as IPFIX has them (flowEndReason).
const (
	reasonIdle   = 1
	reasonActive = 2
	reasonForced = 4
)

// report is what a flow did since it was reported last.
type report struct {
	first          packet
	began, seen    time.Time // of the flow
	packets, bytes [2]uint64 // since then
	flags          [2]uint8
	name           string
	reason         int
}

// line is a report in JSON.
func (r report) line() line {
	l := (&flow{first: r.first, name: r.name}).line("flow")
	l.Time, l.Start = r.seen, &r.began
	l.Packets, l.Bytes, l.ReplyPackets, l.ReplyBytes = r.packets[0], r.bytes[0], r.packets[1], r.bytes[1]
	l.Flags, l.ReplyFlags = letters(r.flags[0]), letters(r.flags[1])
	l.Reason = map[int]string{reasonIdle: "idle", reasonActive: "active", reasonForced: "stopped"}[r.reason]
	return l
}

// letters of TCP's flags.
func letters(flags uint8) (text string) {
	for i, c := range "FSRPAUEC" {
		if flags&(1<<i) != 0 {
			text += string(c)
		}
	}
	return text
}

// table is the flows of now, at most max. It knows no clock and no log but those that it is given.
type table struct {
	max       int
	idle      time.Duration
	active    time.Duration // after which a flow that goes on is reported
	emit      func(line)
	wants     func(time.Time) bool // asked before a line about a flow is made; nil: all are wanted
	report    func(report)
	talkers   *talkers
	flows     map[packet]*flow // by the first packet
	swept     time.Time
	total     uint64    // flows so far
	count     [2]amount // of flows, as their first packets went, and back
	untracked amount    // beyond max
}

// amount is packets and their bytes.
type amount struct{ packets, bytes uint64 }

func (a *amount) add(length int) {
	a.packets++
	a.bytes += uint64(length)
}

func newTable(cfg config, emit func(line), tell func(report)) *table {
	return &table{
		max: cfg.MaxFlows, idle: time.Duration(cfg.IdleS) * time.Second, active: time.Duration(cfg.ActiveS) * time.Second, emit: emit, report: tell,
		flows: map[packet]*flow{}, talkers: newTalkers(),
	}
}

func (t *table) wanted(now time.Time) bool { return t.wants == nil || t.wants(now) }

func (t *table) busy() bool { return len(t.flows) > 0 }

// add a packet. name is asked for the name in it if the flow has none yet.
func (t *table) add(p packet, flags uint8, length int, now time.Time, name func() string) {
	way := 0
	f := t.flows[p]
	if f == nil {
		if f = t.flows[p.reversed()]; f != nil {
			way = 1
		}
	}
	if f == nil {
		if len(t.flows) >= t.max {
			t.untracked.add(length)
			return
		}
		f = &flow{first: p, began: now, told: flowTold{at: now}}
		t.flows[p] = f
		t.total++
		if t.wanted(now) {
			l := f.line("new")
			l.Time = now
			t.emit(l)
		}
	}
	t.count[way].add(length)
	f.seen = now
	f.packets[way]++
	f.bytes[way] += uint64(length)
	f.flags[way] |= flags
	if f.name == "" && f.packets[0]+f.packets[1] <= namedWithin {
		f.name = name()
	}
}

// namedWithin so many packets a flow has its name, or none.
const namedWithin = 16

// sweep ends flows that were idle too long; it looks once a second at most.
func (t *table) sweep(now time.Time) {
	if now.Sub(t.swept) < sweepEvery {
		return
	}
	t.swept = now
	t.end(now, reasonIdle, func(f *flow) bool { return now.Sub(f.seen) >= t.idle })
	for _, f := range t.flows {
		if now.Sub(f.told.at) >= t.active {
			t.tell(f, now, reasonActive)
		}
	}
}

// tell what a flow did since it was told last.
func (t *table) tell(f *flow, now time.Time, reason int) {
	r := report{first: f.first, began: f.began, seen: f.seen, flags: f.flags, name: f.name, reason: reason}
	for way := range 2 {
		r.packets[way], r.bytes[way] = f.packets[way]-f.told.packets[way], f.bytes[way]-f.told.bytes[way]
	}
	f.told = flowTold{now, f.packets, f.bytes}
	if r.packets[0]+r.packets[1] == 0 {
		return
	}
	t.talkers.add(f.first.station(f.first.src), r.packets[0], r.bytes[0])
	t.talkers.add(f.first.station(f.first.dst), r.packets[1], r.bytes[1])
	t.report(r)
}

func (t *table) endAll(now time.Time) { t.end(now, reasonForced, func(*flow) bool { return true }) }

func (t *table) end(now time.Time, reason int, over func(*flow) bool) {
	var ended []*flow
	for _, f := range t.flows {
		if over(f) {
			ended = append(ended, f)
		}
	}
	slices.SortFunc(ended, func(a, b *flow) int { return cmp.Compare(a.began.UnixNano(), b.began.UnixNano()) })
	for _, f := range ended {
		delete(t.flows, f.first)
		t.tell(f, now, reason)
		if !t.wanted(now) {
			continue
		}
		l := f.line("end")
		l.Time = now
		l.Packets, l.Bytes, l.ReplyPackets, l.ReplyBytes = f.packets[0], f.bytes[0], f.packets[1], f.bytes[1]
		l.DurationNs = f.seen.Sub(f.began).Nanoseconds()
		t.emit(l)
	}
}

func (t *table) summary(now time.Time, dropped uint64) {
	for _, f := range t.flows { // so that talkers are those of now
		t.tell(f, now, reasonActive)
	}
	t.emit(line{
		Time: now, Event: "summary", Packets: t.count[0].packets + t.count[1].packets + t.untracked.packets, Bytes: t.count[0].bytes + t.count[1].bytes + t.untracked.bytes,
		Flows: t.total, Active: len(t.flows), Untracked: t.untracked.packets, Dropped: dropped, Talkers: t.talkers.top(),
	})
}

func (f *flow) line(event string) line {
	p := f.first
	return line{Event: event, Proto: p.protoName(), Src: p.text(p.src), SrcPort: p.sport, Dst: p.text(p.dst), DstPort: p.dport, VLAN: p.vlan, Name: f.name}
}
