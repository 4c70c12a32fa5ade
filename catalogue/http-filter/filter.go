package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

// Times after which a connection is forgotten.
const (
	openingFor  = 20 * time.Second // without an answer to its SYN
	endedFor    = 10 * time.Second // after its end
	blockedFor  = 30 * time.Second
	settledFor  = 15 * time.Minute
	pressedFor  = time.Minute // idle, where others need the room
	startingFor = time.Minute // connections that were there before the start are let through, if they are, when first seen within this time
)

const (
	flowSize   = 1 << 10  // of the budget
	decodeRate = 32 << 20 // bytes of content that are decoded for a client in a second, about; for all it is thrice that
	maxEvicted = 64       // connections that are tried to make room for a new one
	maxAnswers = 16       // packets of our own for one connection that was ended, in answer to its packets
	maxRepeats = 2        // of what ended it, a second apart
)

// key is a connection, from its client to its server.
type key struct {
	client, server netip.AddrPort
	tags           [2]uint16
}

type state int

const (
	opening state = iota
	open
	passing // not looked at
	blocked
)

// client is what has its share of the memory and of the connections, at most half of each: an IPv4 address, or an IPv6 network of 64 bits.
type client struct {
	budget inspect.Budget
	flows  int
	debt   int // bytes that were decoded for it, less what it may have in the time since
}

// flow is a connection.
type flow struct {
	client  *client
	state   state
	halves  [2]half
	conn    *inspect.Conn
	seen    time.Time
	over    bool // both sides have ended, or one has reset it
	cut     bool // one has reset it
	page    []byte
	pageAt  uint32 // its place in the server's stream
	got     uint32 // the client's data up to where the page answers them
	answers int
	ending  []ending // of a blocked connection: what ended it
	repeats int
	kept    int // bytes of them, of the budget
}

// filter decides about frames. It is used by one goroutine.
type filter struct {
	cfg     config
	policy  *inspect.Policy
	send    func(nf.Dir, nf.Frame)
	event   func(kind, text string)
	settle  func(frame []byte) // the flow of a frame need not be given to us any more
	flows   map[key]*flow
	clients map[netip.Prefix]*client
	budget  inspect.Budget
	started time.Time
	now     time.Time
	count   counters

	reading     *nf.Packet // what is being judged, and who sent it
	readingSide inspect.Side
	debt        int // of all clients
}

type counters struct {
	Connections, Blocked, Refused, Midstream, Fragments, Malformed, QUIC, Dropped uint64
}

func newFilter(cfg config, send func(nf.Dir, nf.Frame), event func(kind, text string), now time.Time) (*filter, error) {
	x := &filter{send: send, event: event, settle: func([]byte) {}, flows: map[key]*flow{}, clients: map[netip.Prefix]*client{}, started: now, now: now}
	return x, x.configure(cfg)
}

// configure other rules. Connections that are open are judged by the rules that were in force when they began.
func (x *filter) configure(cfg config) error {
	p, err := cfg.policy(func(h inspect.Hit) {
		x.event("alert "+h.Rule, fmt.Sprintf("rule %q: %s: %s: alert only", h.Rule, ends(x.reading, x.readingSide), describe(h)))
	})
	if err != nil {
		return err
	}
	x.cfg, x.policy = cfg, p
	x.budget.Limit = cfg.Limits.MemoryMB << 20
	return nil
}

// frame decides about one.
func (x *filter) frame(d nf.Dir, f nf.Frame) nf.Verdict {
	p := nf.Decode(f.Data)
	if p.Bad != "" {
		return x.bad(&p)
	}
	switch {
	case p.Network == 0 || p.Part == nf.Later: // a fragment is of no use without the first one
		return nf.Pass
	case p.Proto == nf.UDP && x.isQUIC(&p, f.Data):
		x.count.QUIC++
		return nf.Drop
	case p.Proto == nf.UDP && x.looksAtUDP(&p):
		return nf.Pass
	case p.Proto != nf.TCP || !x.cfg.Ports.has(p.SrcPort) && !x.cfg.Ports.has(p.DstPort):
		x.settle(f.Data)
		return nf.Pass
	case p.Part == nf.First:
		x.count.Fragments++
		return nf.Drop
	}
	return x.tcp(d, f, &p)
}

// bad packets are dropped where a receiver might see TCP in them.
func (x *filter) bad(p *nf.Packet) nf.Verdict {
	ip := p.Network != 0 || p.TagCount > 0
	if !ip || p.Transport != 0 && (p.Proto != nf.TCP || p.DstPort != 0 && !x.cfg.Ports.has(p.SrcPort) && !x.cfg.Ports.has(p.DstPort)) {
		return nf.Pass
	}
	x.count.Malformed++
	return nf.Drop
}

func (x *filter) looksAtUDP(p *nf.Packet) bool {
	return x.cfg.QUIC == "drop" && x.policy.NamesHosts() && (x.cfg.Ports.has(p.DstPort) || x.cfg.Ports.has(p.SrcPort))
}

// isQUIC: a long header of a known version (RFC 9000, section 17.2), as every connection begins with.
func (x *filter) isQUIC(p *nf.Packet, frame []byte) bool {
	b := p.Data(frame)
	return x.looksAtUDP(p) && len(b) >= 7 && b[0]&0xc0 == 0xc0 && (b[1]|b[2]|b[3] == 0 && b[4] == 1 || b[1] == 0x6b && b[2] == 0x33 && b[3] == 0x43 && b[4] == 0xcf || b[1] == 0xff && b[2]|b[3] == 0)
}

// lookup finds a packet's connection, and which side sends it.
func (x *filter) lookup(p *nf.Packet) (*flow, inspect.Side, key) {
	src, dst := netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)
	k := key{src, dst, p.Tags}
	if fl := x.flows[k]; fl != nil {
		return fl, inspect.Client, k
	}
	back := key{dst, src, p.Tags}
	if fl := x.flows[back]; fl != nil {
		return fl, inspect.Server, back
	}
	return nil, inspect.Client, k
}

func (x *filter) tcp(d nf.Dir, f nf.Frame, p *nf.Packet) nf.Verdict {
	fl, side, k := x.lookup(p)
	syn := p.Flags&(nf.SYN|nf.ACK|nf.RST) == nf.SYN
	if fl == nil {
		return x.unknown(d, f, p, k, syn)
	}
	fl.seen = x.now
	if h := &fl.halves[side]; h.known && h.dir != d { // somebody at the other port in its name
		x.count.Dropped++
		return nf.Drop
	}
	if side == inspect.Client && syn && p.Seq != fl.halves[inspect.Client].first {
		return x.again(d, f, p, k, fl)
	}
	switch fl.state {
	case passing:
		fl.follow(side, p)
		x.settle(f.Data)
		return nf.Pass
	case blocked:
		x.answer(fl, side, p, f)
		return nf.Drop
	}
	switch {
	case p.Flags&nf.RST != 0:
		x.reset(fl, side, p)
		return nf.Pass
	case p.Flags&nf.SYN != 0:
		if !x.synchronise(fl, side, p, d) {
			x.count.Dropped++
			return nf.Drop
		}
	case fl.state == opening || fl.cut:
		if fl.state == opening && side == inspect.Client {
			x.event("one way", fmt.Sprintf("%s -> %s: the server's answer to SYN did not come through here, so no data pass; is the policy symmetric?", k.client, k.server))
		}
		if p.Payload == p.End && p.Flags&nf.FIN == 0 {
			return nf.Pass
		}
		x.count.Dropped++
		return nf.Drop
	}
	return x.segment(fl, side, p, f)
}

// unknown: no connection is known to which a packet belongs.
func (x *filter) unknown(d nf.Dir, f nf.Frame, p *nf.Packet, k key, syn bool) nf.Verdict {
	switch {
	case syn:
		fl := x.add(k)
		if fl == nil {
			x.count.Refused++
			x.event("full", "memory is full, or there are too many connections: new ones are "+map[bool]string{true: "let through unread", false: "refused"}[x.cfg.Full == "pass"])
			if x.cfg.Full == "pass" {
				return nf.Pass
			}
			x.send(d.Back(), p.MakeTCP(f.Data, nf.Segment{Back: true, Ack: p.Seq + 1, Flags: nf.RST | nf.ACK}))
			return nf.Drop
		}
		fl.halves[inspect.Client].dir, fl.halves[inspect.Server].dir = d, d.Back()
		if !x.cfg.Ports.has(p.DstPort) { // only the client's port is one of those
			x.pass(fl)
			return nf.Pass
		}
		fl.halves[inspect.Client].begin(p.Seq)
		fl.conn = x.policy.NewConn(&fl.client.budget, p.Dst)
		return x.segment(fl, inspect.Client, p, f)
	case p.Flags&nf.RST != 0:
		return nf.Pass
	case x.cfg.Midstream == "pass" && x.now.Sub(x.started) < startingFor, x.cfg.Full == "pass" && (x.budget.Used+flowSize > x.budget.Limit || len(x.flows) >= x.cfg.Limits.Connections):
		if fl := x.add(k); fl != nil {
			fl.halves[inspect.Client].dir, fl.halves[inspect.Server].dir = d, d.Back()
			x.pass(fl)
		}
		return nf.Pass
	}
	x.count.Midstream++
	if p.Payload == p.End && p.Flags&nf.ACK != 0 && p.Flags&(nf.SYN|nf.FIN) == 0 { // the last of a connection that is forgotten; it carries nothing
		x.send(d.Back(), p.MakeTCP(f.Data, nf.Segment{Back: true, Seq: p.Ack, Flags: nf.RST}))
		return nf.Drop
	}
	x.event("midstream", fmt.Sprintf("%s -> %s: a connection whose begin was not seen is reset", k.client, k.server))
	if p.Flags&nf.ACK != 0 {
		x.send(d.Back(), p.MakeTCP(f.Data, nf.Segment{Back: true, Seq: p.Ack, Flags: nf.RST}))
		x.send(d, p.MakeTCP(f.Data, nf.Segment{Seq: p.Seq, Ack: p.Ack, Flags: nf.RST | nf.ACK}))
	}
	return nf.Drop
}

func share(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.Prefix(bits) // of a proper address
	return p
}

// add a connection; nil: there is no room.
func (x *filter) add(k key) *flow {
	if len(x.flows) >= x.cfg.Limits.Connections {
		x.evict()
	}
	at := share(k.client.Addr())
	c := x.clients[at]
	if c == nil {
		c = &client{budget: inspect.Budget{Limit: x.budget.Limit / 2, Parent: &x.budget}}
	}
	if len(x.flows) >= x.cfg.Limits.Connections || c.flows >= max(1, x.cfg.Limits.Connections/2) || !c.budget.Take(flowSize) {
		return nil
	}
	c.flows++
	x.clients[at] = c
	fl := &flow{client: c, seen: x.now}
	x.flows[k] = fl
	x.count.Connections++
	return fl
}

// evict connections that have not begun, have ended, or are idle: a flood of them must not keep others out.
func (x *filter) evict() {
	n := 0
	for k, fl := range x.flows {
		idle := x.now.Sub(fl.seen)
		if fl.state == opening || fl.over || fl.state == blocked || idle >= pressedFor && (fl.state != passing || idle >= settledFor) {
			x.remove(k, fl)
		}
		if n++; n == maxEvicted {
			return
		}
	}
}

// remove a connection.
func (x *filter) remove(k key, fl *flow) {
	x.strip(fl)
	fl.client.budget.Give(flowSize + fl.kept)
	if fl.client.flows--; fl.client.flows == 0 && fl.client.debt == 0 {
		delete(x.clients, share(k.client.Addr()))
	}
	delete(x.flows, k)
}

// strip frees what is needed only to look at a connection.
func (x *filter) strip(fl *flow) {
	if fl.conn != nil {
		fl.conn.Close()
		fl.conn = nil
	}
	for s := range fl.halves {
		h := &fl.halves[s]
		fl.client.budget.Give(len(h.ring))
		h.ring, h.ahead, h.blind = nil, nil, nil
	}
}

func (x *filter) pass(fl *flow) {
	x.strip(fl)
	fl.state = passing
}

// follow a connection that is not looked at, to its end.
func (fl *flow) follow(side inspect.Side, p *nf.Packet) {
	if p.Flags&nf.FIN != 0 {
		fl.halves[side].ended = true
	}
	fl.over = fl.over || p.Flags&nf.RST != 0 || fl.halves[0].ended && fl.halves[1].ended
}

// again: a client begins anew with a pair of ports. What was judged of the former connection says nothing about the new one.
func (x *filter) again(d nf.Dir, f nf.Frame, p *nf.Packet, k key, fl *flow) nf.Verdict {
	if fl.state == open && !fl.over { // perhaps the client has crashed. If not, its data would be read at places of the wrong connection
		x.block(fl, inspect.Client, p, f, &inspect.Block{Hit: inspect.Hit{Why: "a second SYN"}})
		fl.over = true
		return nf.Drop
	}
	x.remove(k, fl)
	return x.unknown(d, f, p, k, true)
}

// reset by one side, if the other can take it for one. It passes in any case.
func (x *filter) reset(fl *flow, side inspect.Side, p *nf.Packet) {
	h, other := &fl.halves[side], &fl.halves[side.Other()]
	if !h.known && p.Flags&nf.ACK != 0 && p.Ack == other.next || h.known && p.Seq == h.sent {
		fl.over, fl.cut = true, true
	}
}

// synchronise tells whether a SYN fits. The server's must answer the client's that was seen last.
func (x *filter) synchronise(fl *flow, side inspect.Side, p *nf.Packet, d nf.Dir) bool {
	h, other := &fl.halves[side], &fl.halves[side.Other()]
	if h.known {
		return p.Seq == h.first && (side == inspect.Client) == (p.Flags&nf.ACK == 0)
	}
	if p.Flags&nf.ACK == 0 || p.Ack != other.first+1 && p.Ack != other.next {
		return false
	}
	h.begin(p.Seq)
	h.dir = d
	fl.state, fl.over, fl.cut = open, false, false
	return true
}

// segment of a connection that is followed.
func (x *filter) segment(fl *flow, side inspect.Side, p *nf.Packet, f nf.Frame) nf.Verdict {
	h, other := &fl.halves[side], &fl.halves[side.Other()]
	seq, data := p.Seq, p.Data(f.Data)
	if p.Flags&nf.SYN != 0 {
		seq++
	}
	if p.Flags&nf.URG != 0 { // receivers take the urgent byte out of the stream, or leave it in
		return x.block(fl, side, p, f, &inspect.Block{Hit: inspect.Hit{Why: "urgent data"}})
	}
	end := seq + uint32(len(data))
	if len(data) > 0 {
		if c := fl.client; c.debt > decodeRate || c.debt > 0 && x.debt > 3*decodeRate { // it comes again
			x.count.Dropped++
			return nf.Drop
		}
		why := h.admit(seq, data, x.cfg.Limits.WindowKB<<10, &fl.client.budget)
		if why == memoryFull {
			return x.full(fl, side, p, f)
		}
		if why != "" {
			x.count.Dropped++
			return nf.Drop
		}
		x.reading, x.readingSide = p, side
		err := h.judge(fl.conn, side)
		n := fl.conn.Decoded()
		fl.client.debt += n
		x.debt += n
		if err != nil {
			var b *inspect.Block
			errors.As(err, &b)
			if b.Full {
				return x.full(fl, side, p, f)
			}
			return x.block(fl, side, p, f, b)
		}
	}
	if p.Flags&nf.FIN != 0 {
		if h.fin && h.end != end || len(h.ahead) > 0 && before(end, h.ahead[len(h.ahead)-1].end) {
			x.count.Dropped++
			return nf.Drop
		}
		h.fin, h.end = true, end
		end++
	}
	h.sent = later(h.sent, end)
	if p.Flags&nf.ACK != 0 && other.known {
		h.ack = p.Ack
		other.acknowledged(p.Ack, &fl.client.budget)
	}
	fl.over = fl.over || h.ended && other.ended
	if h.open && other.open && h.known && other.known && h.base == h.next && other.base == other.next {
		x.pass(fl)
	}
	return nf.Pass
}

// tick forgets connections.
func (x *filter) tick(now time.Time) {
	x.now = now
	x.debt = max(0, x.debt-3*decodeRate)
	for at, c := range x.clients {
		if c.debt = max(0, c.debt-decodeRate); c.debt == 0 && c.flows == 0 {
			delete(x.clients, at)
		}
	}
	for k, fl := range x.flows {
		if fl.state == blocked && fl.repeats < maxRepeats {
			fl.repeats++
			x.sendEnding(fl)
		}
		limit := time.Duration(x.cfg.Limits.IdleS) * time.Second
		switch {
		case fl.state == blocked:
			limit = blockedFor
		case fl.over:
			limit = endedFor
		case fl.state == opening:
			limit = openingFor
		case fl.state == passing: // perhaps the switch passes it by, for minutes
			limit = max(limit, settledFor)
		}
		if now.Sub(fl.seen) >= limit {
			x.remove(k, fl)
			continue
		}
		if now.Sub(fl.seen) >= 2*time.Second {
			fl.halves[inspect.Client].free(&fl.client.budget)
			fl.halves[inspect.Server].free(&fl.client.budget)
		}
	}
}
