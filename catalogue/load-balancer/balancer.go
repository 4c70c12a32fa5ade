package main

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
	"weir.dev/weir/catalogue/nf/targets"
)

// balancer decides about frames. It is used by one goroutine, but for the MAC addresses of targets.
type balancer struct {
	cfg      *config
	services []*virtual
	at       map[place]*virtual // by the virtual place
	from     map[place]member   // by the target's, of those whose answers come back here
	virtual  map[netip.Addr]bool
	shared   map[netip.Addr]bool                   // virtual ones that targets have, too: those of services with direct return
	targets  map[netip.Addr]bool                   // as in from
	up       func(netip.Addr, *targets.Check) bool // nil: all are
	changes  func() uint64                         // counts changes of up
	seen     uint64
	table    *table
	parts    map[part]remembered
	pieces   map[netip.Addr]int // of parts, by client
	count    counters
	send     func(nf.Dir, nf.Frame)
	copy     func(nf.Frame) nf.Frame          // for send
	settle   func(nf.Dir, []byte, nf.Rewrite) // the switch does the same with the further frames of a flow
	unsettle func()                           // it does so with none any more
	// ours takes ARP, neighbour discovery and what is to our MAC address at in. mine: it goes no further. nil: nobody does.
	ours func(frame []byte, incomplete bool) (mine bool)
	// accept takes what is to a virtual address and of no service, and unicast requests for one: clients may know it by the MAC address of a former instance. nil: nobody does.
	accept func(frame []byte, incomplete bool)
	// own is the same at out, for the function's own addresses.
	own func(frame []byte, incomplete bool) (mine bool)
}

// counters of frames.
type counters struct {
	up, down  uint64 // rewritten
	passed    uint64 // as they came
	malformed uint64 // to a virtual address; dropped
	direct    uint64 // to a target's port beside the virtual one; dropped
	unplaced  uint64 // the target's MAC address is not known yet; dropped
	claims    uint64 // ARP and neighbour discovery of targets that tell of a virtual address; dropped
	answers   uint64 // of those that passed: answers of targets that answer by themselves
}

// place is an address and port of a protocol.
type place struct {
	proto uint8
	at    netip.AddrPort
}

// virtual is a service at work.
type virtual struct {
	name    string
	index   uint8
	place   place
	client  bool // a client has one target
	direct  bool // targets get packets as they are, and answer by themselves
	check   *targets.Check
	members []*backend
	fresh   *[slots]uint8 // for new connections
	known   *[slots]uint8 // for those that are older than this instance: with those that drain
	number  map[netip.AddrPort]uint8
}

type member struct {
	s     *virtual
	index uint8
}

// backend is a target.
type backend struct {
	at    netip.AddrPort
	drain bool
	mac   atomic.Pointer[[6]byte] // nil: not known
	fixed bool
}

// part names the fragments of one packet.
type part struct {
	d        nf.Dir
	src, dst netip.Addr
	proto    uint8
	id       uint32
}

type remembered struct {
	member
	client netip.Addr
	until  time.Time
}

const (
	maxParts  = 2048
	maxPieces = 64 // of one client
	partsLast = 30 * time.Second

	etherARP    = 0x0806
	etherLength = 14
	arpLength   = 28
)

func newBalancer(cfg *config, up func(netip.Addr, *targets.Check) bool, changes func() uint64, send func(nf.Dir, nf.Frame)) *balancer {
	b := &balancer{cfg: cfg, at: map[place]*virtual{}, from: map[place]member{}, virtual: map[netip.Addr]bool{}, shared: map[netip.Addr]bool{}, targets: map[netip.Addr]bool{}, pieces: map[netip.Addr]int{}, up: up, changes: changes, table: newTable(cfg.Connections), parts: map[part]remembered{}, send: send, copy: nf.Frame.Clone,
		settle: func(nf.Dir, []byte, nf.Rewrite) {}, unsettle: func() {}}
	for i, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		s := cfg.Services[name]
		v := &virtual{name: name, index: uint8(i), place: place{protocols[s.Protocol], netip.AddrPortFrom(s.Address, s.Port)}, client: s.By == byClient, direct: s.Return == returnDirect, check: s.Check, number: map[netip.AddrPort]uint8{}}
		for j, t := range s.Targets {
			m := &backend{at: netip.AddrPortFrom(t.Address, t.Port), drain: t.Drain}
			if mac, err := net.ParseMAC(t.MAC); err == nil {
				m.mac.Store((*[6]byte)(mac))
				m.fixed = true
			}
			v.members = append(v.members, m)
			v.number[m.at] = uint8(j)
			if !v.direct {
				b.from[place{v.place.proto, m.at}], b.targets[t.Address] = member{v, uint8(j)}, true
			}
		}
		b.services = append(b.services, v)
		b.at[v.place], b.virtual[s.Address] = v, true
		if v.direct {
			b.shared[s.Address] = true
		}
	}
	b.spread()
	return b
}

// spread makes the tables anew: of the targets that are up, or of all if none is.
func (b *balancer) spread() {
	for _, v := range b.services {
		ts := b.cfg.Services[v.name].Targets
		names, fresh, known, all := make([]string, len(ts)), make([]int, len(ts)), make([]int, len(ts)), make([]int, len(ts))
		for i, t := range ts {
			names[i], all[i] = v.members[i].at.String(), t.Weight
			if b.up != nil && !b.up(t.Address, v.check) {
				continue
			}
			if known[i] = t.Weight; !t.Drain {
				fresh[i] = t.Weight
			}
		}
		if slices.Max(known) == 0 {
			known = all
		}
		if slices.Max(fresh) == 0 { // better one that drains or looks down than none
			fresh = known
		}
		v.fresh, v.known = maglev(names, fresh), maglev(names, known)
	}
}

// tick forgets what is over and takes notice of targets that went down or up.
func (b *balancer) tick(now time.Time) {
	b.table.expire(now)
	for k, r := range b.parts {
		if now.After(r.until) {
			b.forget(k, r)
		}
	}
	b.notice()
}

func (b *balancer) notice() {
	if b.changes == nil {
		return
	}
	if n := b.changes(); n != b.seen {
		b.seen = n
		b.spread()
	}
}

// handle a frame.
func (b *balancer) handle(d nf.Dir, f nf.Frame, now time.Time) nf.Verdict {
	p := nf.Decode(f.Data)
	if p.Tags != [2]uint16{} { // a priority tag, of id 0, is in no VLAN: stations take its frames as those without
		b.count.passed++
		return nf.Pass
	}
	done := false
	if p.Bad != "" && p.TagCount > 0 && !p.Src.IsValid() {
		b.count.malformed++
		done = true
	} else if d == nf.Up {
		done = b.fromClient(&p, f, now)
	} else {
		done = b.fromTarget(&p, f, now)
	}
	if done {
		return nf.Drop
	}
	b.count.passed++
	return nf.Pass
}

// fromClient takes a frame from in. false: it passes as it is.
func (b *balancer) fromClient(p *nf.Packet, f nf.Frame, now time.Time) (done bool) {
	if !p.Src.IsValid() || !b.virtual[p.Dst] {
		if b.ours != nil && b.ours(f.Data, f.ChecksumMissing()) {
			return true
		}
		if asked, ok := arpTarget(p, f.Data); ok {
			if done = b.virtual[asked]; done && f.Data[0]&1 == 0 && p.TagCount == 0 && b.accept != nil {
				b.accept(f.Data, false)
			}
			return done // nobody behind us has it
		}
		if p.Bad != "" && b.targets[p.Dst] { // the target may read it otherwise
			b.count.malformed++
			return true
		}
		if direct := p.Transport > 0 && b.from[place{p.Proto, netip.AddrPortFrom(p.Dst, p.DstPort)}].s != nil; direct {
			b.count.direct++
			return true
		}
		return false
	}
	if p.Bad != "" || f.Data[0]&1 != 0 || f.Data[6]&1 != 0 || !station.Single(p.Src) || b.virtual[p.Src] {
		b.count.malformed++
		return true
	}
	if q, ok := p.Quote(f.Data); ok {
		b.errorUp(p, f, &q)
		return true
	}
	m, settles := member{}, false
	if p.Part == nf.Later {
		m = b.parts[partOf(nf.Up, p)].member
	} else if v := b.at[place{p.Proto, netip.AddrPortFrom(p.Dst, p.DstPort)}]; v != nil && p.SrcPort != 0 {
		c := b.choose(v, p, now)
		m, settles = member{v, c.target}, b.table.settles(c, nf.Up, p)
		b.remember(nf.Up, p, m, now)
	}
	if m.s == nil {
		if p.Part != nf.Whole || p.TagCount > 0 || b.accept == nil {
			b.count.malformed++
		} else {
			b.accept(f.Data, f.ChecksumMissing())
		}
		return true
	}
	to := m.s.members[m.index]
	mac := to.mac.Load()
	if mac == nil { // the client tries again
		b.count.unplaced++
		return true
	}
	at := to.at
	c := b.copy(f)
	if m.s.direct {
		at = m.s.place.at
	} else {
		p.Rewrite(c.Data, nf.Target, at, f.ChecksumMissingAt(p.Transport))
	}
	copy(c.Data, mac[:])
	b.count.up++
	b.send(nf.Up, c)
	if settles {
		b.settle(nf.Up, f.Data, nf.Rewrite{End: nf.Target, To: at, MAC: *mac})
		if *to.mac.Load() != *mac { // found elsewhere meanwhile, and all taken back perhaps before this was said
			b.unsettle()
		}
	}
	return true
}

// choose the connection of a packet of a client, and with it the target.
func (b *balancer) choose(v *virtual, p *nf.Packet, now time.Time) *connection {
	k := key{v.index, netip.AddrPortFrom(p.Src, p.SrcPort)}
	begins := p.Proto == nf.TCP && p.Flags&(nf.SYN|nf.ACK) == nf.SYN
	c := b.table.find(k, now)
	if c != nil {
		lost := b.up != nil && !b.up(v.members[c.target].at.Addr(), v.check)
		if again := begins && (c.phase == closing || c.guessed || lost); again || p.Proto == nf.UDP && lost { // a new connection of the same port, or one that goes nowhere
			b.table.remove(c)
			c = nil
		}
	}
	if c != nil && v.direct {
		c.answered = true // its client goes on: what the target says does not come here
	}
	if c == nil {
		b.notice()
		hash := v.hash(k.client)
		slot := v.fresh[hash%slots]
		if p.Proto == nf.TCP && !begins {
			slot = v.known[hash%slots]
		}
		c = b.table.add(k, slot, opening, now)
	}
	c.guessed = false
	b.advance(c, p, now)
	return c
}

func (v *virtual) hash(client netip.AddrPort) uint64 {
	if v.client {
		client = netip.AddrPortFrom(station.Owner(client.Addr()), 0)
	}
	return hashOf(client)
}

// advance a connection by a packet of its client.
func (b *balancer) advance(c *connection, p *nf.Packet, now time.Time) {
	switch {
	case p.Proto == nf.UDP:
		if c.answered {
			b.table.touch(c, datagrams, now)
		}
	case p.Flags&(nf.FIN|nf.RST) != 0:
		b.table.touch(c, closing, now)
	case c.phase == opening && c.answered && p.Flags&nf.SYN == 0:
		b.table.touch(c, open, now)
	}
}

// fromTarget takes a frame from out. false: it passes as it is.
func (b *balancer) fromTarget(p *nf.Packet, f nf.Frame, now time.Time) (done bool) {
	if b.claims(p, f.Data) {
		b.count.claims++
		return true
	}
	if b.own != nil && b.own(f.Data, f.ChecksumMissing()) {
		return true
	}
	if !p.Src.IsValid() {
		return false
	}
	if p.Bad != "" {
		if done = b.virtual[p.Src]; done {
			b.count.malformed++
		}
		return done
	}
	if q, ok := p.Quote(f.Data); ok {
		return b.errorDown(p, f, &q)
	}
	m, settles := member{}, false
	if p.Part == nf.Later {
		m = b.parts[partOf(nf.Down, p)].member
	} else if m = b.from[place{p.Proto, netip.AddrPortFrom(p.Src, p.SrcPort)}]; m.s != nil {
		b.remember(nf.Down, p, m, now)
		settles = b.answered(m, p, now)
	}
	if m.s == nil {
		if v := b.at[place{p.Proto, netip.AddrPortFrom(p.Src, p.SrcPort)}]; v != nil && v.direct {
			b.count.answers++
		}
		return false
	}
	c := b.copy(f)
	p.Rewrite(c.Data, nf.Source, m.s.place.at, f.ChecksumMissingAt(p.Transport))
	b.count.down++
	b.send(nf.Down, c)
	if settles {
		b.settle(nf.Down, f.Data, nf.Rewrite{End: nf.Source, To: m.s.place.at})
	}
	return true
}

// answered notes that a target has spoken. A connection that is older than this instance becomes known by that. settles: see table.settles.
func (b *balancer) answered(m member, p *nf.Packet, now time.Time) (settles bool) {
	k := key{m.s.index, netip.AddrPortFrom(p.Dst, p.DstPort)}
	c := b.table.all[k]
	if c == nil && p.Proto == nf.TCP && p.Flags&(nf.SYN|nf.RST|nf.FIN) == 0 && station.Single(p.Dst) && p.DstPort != 0 {
		c = b.table.add(k, m.index, opening, now)
		c.guessed = true
	}
	if c == nil || c.target != m.index {
		return false
	}
	c.answered = true
	if p.Proto == nf.TCP && p.Flags&nf.RST != 0 {
		b.table.touch(c, closing, now)
	}
	return b.table.settles(c, nf.Down, p)
}

// errorUp takes an ICMP error of a client, or of a router on the way to it, about a packet of the virtual address.
func (b *balancer) errorUp(p *nf.Packet, f nf.Frame, q *nf.Quoted) {
	v := b.at[place{q.Proto, q.Source}]
	if v == nil {
		b.count.malformed++
		return
	}
	c := b.table.all[key{v.index, q.Target}]
	if c == nil {
		b.count.malformed++
		return
	}
	to := v.members[c.target]
	mac := to.mac.Load()
	if mac == nil {
		b.count.unplaced++
		return
	}
	out := b.copy(f)
	if !v.direct {
		q.Requote(out.Data, p, nf.Source, to.at)
		p.RewriteAddress(out.Data, nf.Target, to.at.Addr())
	}
	copy(out.Data, mac[:])
	b.count.up++
	b.send(nf.Up, out)
}

// errorDown takes an ICMP error of a target, or of a router on the way to it, about a packet of a client. false: it passes as it is.
func (b *balancer) errorDown(p *nf.Packet, f nf.Frame, q *nf.Quoted) (done bool) {
	m := b.from[place{q.Proto, q.Target}]
	if m.s == nil {
		return false
	}
	out := b.copy(f)
	q.Requote(out.Data, p, nf.Target, m.s.place.at)
	if p.Src == q.Target.Addr() {
		p.RewriteAddress(out.Data, nf.Source, m.s.place.at.Addr())
	}
	b.count.down++
	b.send(nf.Down, out)
	return true
}

func partOf(d nf.Dir, p *nf.Packet) part { return part{d, p.Src, p.Dst, p.Proto, p.ID} }

// remember where the fragments behind a first one go. Without room they are lost.
func (b *balancer) remember(d nf.Dir, p *nf.Packet, m member, now time.Time) {
	if p.Part != nf.First {
		return
	}
	k, client := partOf(d, p), station.Owner([2]netip.Addr{nf.Up: p.Src, nf.Down: p.Dst}[d])
	if r, known := b.parts[k]; known {
		b.forget(k, r)
	}
	if len(b.parts) < maxParts && b.pieces[client] < maxPieces {
		b.parts[k] = remembered{m, client, now.Add(partsLast)}
		b.pieces[client]++
	}
}

func (b *balancer) forget(k part, r remembered) {
	delete(b.parts, k)
	if b.pieces[r.client]--; b.pieces[r.client] == 0 {
		delete(b.pieces, r.client)
	}
}

// ICMPv6 types (RFC 4861).
const (
	icmpv6        = 58
	routerAsk     = 133
	neighbourAsk  = 135
	neighbourTell = 136
)

// claims tells whether a frame of a target says, by ARP or neighbour discovery, that a virtual address is there. A target that has it, too, must not: clients would go there.
func (b *balancer) claims(p *nf.Packet, frame []byte) bool {
	if len(b.shared) == 0 {
		return false
	}
	if at := etherLength + 4*p.TagCount; p.Type == etherARP && len(frame) >= at+arpLength {
		return b.shared[netip.AddrFrom4([4]byte(frame[at+14:]))]
	}
	if p.Proto != icmpv6 || p.Bad != "" || p.Transport == 0 || p.End-p.Transport < 8 {
		return false
	}
	switch m := frame[p.Transport:p.End]; m[0] {
	case routerAsk, neighbourAsk:
		return b.shared[p.Src]
	case neighbourTell:
		return b.shared[p.Src] || len(m) >= 24 && b.shared[netip.AddrFrom16([16]byte(m[8:24]))]
	}
	return false
}

// arpTarget is the address that an ARP request asks for.
func arpTarget(p *nf.Packet, frame []byte) (a netip.Addr, ok bool) {
	at := etherLength + 4*p.TagCount
	if p.Type != etherARP || len(frame) < at+arpLength || binary.BigEndian.Uint16(frame[at+6:]) != 1 {
		return a, false
	}
	return netip.AddrFrom4([4]byte(frame[at+24:])), true
}
