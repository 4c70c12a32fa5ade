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
	surelyOver  = 2 * time.Second  // after its end, where others need the room: what is on its way may still come
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
	over    bool   // both sides have ended, or one has reset it
	cut     bool   // one has reset it
	anew    uint32 // the client's SYN of another connection, which the server has not answered yet
	anewAt  time.Time
	former  uint32 // the server's SYN of the connection before, if hadOne: what still comes of it is no answer
	hadOne  bool
	page    []byte
	pageAt  uint32 // its place in the server's stream
	got     uint32 // the client's data up to where the page answers them
	answers int
	ending  []ending // of a blocked connection: what ended it
	repeats int
	kept    int // bytes of them, of the budget
}

// settler hears which flows need not be given to us any more: nf.Settler.
type settler interface {
	// Pass has the flow of a frame pass by, whichever port its frames come to: they are not looked at.
	Pass(frame []byte)
	// PassAt does so for the frames that go the same way and come to the same port. A connection has a client at one port and a server at the other: frames that
	// come to the wrong port in the name of either are dropped, so they must go on coming here.
	PassAt(d nf.Dir, frame []byte)
}

// unsettled gives all frames to us.
type unsettled struct{}

func (unsettled) Pass([]byte)           {}
func (unsettled) PassAt(nf.Dir, []byte) {}

// filter decides about frames. It is used by one goroutine.
type filter struct {
	cfg     config
	policy  *inspect.Policy
	send    func(nf.Dir, nf.Frame)
	event   func(kind, text string)
	settle  settler
	flows   map[key]*flow
	clients map[netip.Prefix]*client
	budget  inspect.Budget
	started time.Time
	now     time.Time
	count   counters

	reading     *nf.Packet // what is being judged, and who sent it
	readingSide inspect.Side
	debt        int // of all clients
	debtors     int // clients with debt
}

type counters struct {
	Connections, Blocked, Refused, Midstream, Fragments, Malformed, QUIC, Dropped uint64
}

func newFilter(cfg config, send func(nf.Dir, nf.Frame), event func(kind, text string), now time.Time) (*filter, error) {
	x := &filter{send: send, event: event, settle: unsettled{}, flows: map[key]*flow{}, clients: map[netip.Prefix]*client{}, started: now, now: now}
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
	case p.Part == nf.First && x.looksAtUDP(&p) && len(p.Data(f.Data)) < longHeader: // cut where nobody cuts, to hide what follows
		x.count.Fragments++
		return nf.Drop
	case x.isQUIC(&p, f):
		x.count.QUIC++
		return nf.Drop
	case x.looksAtUDP(&p):
		return nf.Pass
	case p.Proto != nf.TCP || !x.cfg.Ports.has(p.SrcPort) && !x.cfg.Ports.has(p.DstPort):
		x.settle.Pass(f.Data)
		return nf.Pass
	case p.Part == nf.First:
		x.count.Fragments++
		return nf.Drop
	}
	return x.tcp(d, f, &p)
}

// bad packets are dropped where a receiver might see TCP in them, or QUIC.
func (x *filter) bad(p *nf.Packet) nf.Verdict {
	ip := p.Network != 0 || p.TagCount > 0
	others := p.DstPort != 0 && !x.cfg.Ports.has(p.SrcPort) && !x.cfg.Ports.has(p.DstPort)
	if !ip || p.Transport != 0 && (others || p.Proto != nf.TCP && !(p.Proto == nf.UDP && x.dropsQUIC())) {
		return nf.Pass
	}
	x.count.Malformed++
	return nf.Drop
}

func (x *filter) dropsQUIC() bool { return x.cfg.QUIC == "drop" && x.policy.NamesHosts() }

func (x *filter) looksAtUDP(p *nf.Packet) bool {
	return p.Proto == nf.UDP && x.dropsQUIC() && (x.cfg.Ports.has(p.DstPort) || x.cfg.Ports.has(p.SrcPort))
}

const longHeader = 7 // bytes at least, with lengths of both ids

// isQUIC: one of the frame's datagrams has a long header of a known version (RFC 9000, section 17.2), as every connection begins with.
func (x *filter) isQUIC(p *nf.Packet, f nf.Frame) bool {
	if !x.looksAtUDP(p) {
		return false
	}
	for b := range f.Datagrams(p.Data(f.Data)) {
		if len(b) >= longHeader && b[0]&0xc0 == 0xc0 && (b[1]|b[2]|b[3] == 0 && b[4] == 1 || b[1] == 0x6b && b[2] == 0x33 && b[3] == 0x43 && b[4] == 0xcf || b[1] == 0xff && b[2]|b[3] == 0) {
			return true
		}
	}
	return false
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

// isProper tells whether all receivers read a segment's flags alike: one of SYN, RST and ACK is there, and SYN stands without FIN, RST and data. Who sends
// data with SYN (TCP Fast Open) sends SYN again without.
func isProper(p *nf.Packet) bool {
	if p.Flags&nf.SYN != 0 {
		return p.Flags&(nf.FIN|nf.RST) == 0 && p.Payload == p.End
	}
	return p.Flags&(nf.RST|nf.ACK) != 0
}

func (x *filter) tcp(d nf.Dir, f nf.Frame, p *nf.Packet) nf.Verdict {
	if !isProper(p) {
		x.count.Malformed++
		return nf.Drop
	}
	fl, side, k := x.lookup(p)
	syn := p.Flags&(nf.SYN|nf.ACK) == nf.SYN
	switch {
	case fl == nil:
		return x.unknown(d, f, p, k, syn)
	case syn && side == inspect.Server:
		return x.reversed(d, f, p, k, fl)
	}
	h := &fl.halves[side]
	if h.dir != d { // somebody at the other port in its name
		return x.drop()
	}
	fl.seen = x.now
	same := h.known && p.Seq == h.first
	switch {
	case syn && (fl.over && fl.state != opening || !same && (fl.state == opening || fl.state == blocked)):
		return x.again(d, f, p, k, k, fl)
	case syn && same && fl.state != opening && (fl.state != open || h.sent != h.first+1): // late, or it would begin what is taken for the old connection
		return x.drop()
	case syn && !same: // perhaps the client has crashed. The old connection goes on until the server begins the new one
		fl.anew, fl.anewAt = p.Seq, x.now
		return nf.Pass
	case p.Flags&nf.SYN != 0 && side == inspect.Server && !same && fl.awaits(x.now) && p.Ack == fl.anew+1:
		return x.renew(d, f, p, k, fl)
	}
	switch fl.state {
	case passing:
		if p.Flags&nf.SYN != 0 && (fl.halves[inspect.Client].known || x.cfg.Ports.has(p.SrcPort)) && (!same || !x.synchronise(fl, side, p)) {
			return x.drop()
		}
		fl.follow(side, p)
		if !fl.awaits(x.now) {
			x.settle.PassAt(d, f.Data)
		}
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
		if !x.synchronise(fl, side, p) {
			return x.drop()
		}
	case fl.state == opening || fl.cut:
		if fl.state == opening && side == inspect.Client {
			x.event("one way", fmt.Sprintf("%s -> %s: the server's answer to SYN did not come through here, so no data pass; is the policy symmetric?", k.client, k.server))
		}
		if p.Payload == p.End && p.Flags&nf.FIN == 0 {
			return nf.Pass
		}
		return x.drop()
	}
	return x.segment(fl, side, p, f)
}

func (x *filter) drop() nf.Verdict {
	x.count.Dropped++
	return nf.Drop
}

// awaits the server's answer to another SYN of the client.
func (fl *flow) awaits(now time.Time) bool {
	return !fl.anewAt.IsZero() && now.Sub(fl.anewAt) < openingFor
}

// unknown: no connection is known to which a packet belongs.
func (x *filter) unknown(d nf.Dir, f nf.Frame, p *nf.Packet, k key, syn bool) nf.Verdict {
	switch {
	case syn:
		fl := x.begin(d, k, p.Seq)
		if fl == nil {
			x.count.Refused++
			x.event("full", "memory is full, or there are too many connections: new ones are "+map[bool]string{true: "let through unread", false: "refused"}[x.cfg.Full == "pass"])
			if x.cfg.Full == "pass" {
				return nf.Pass
			}
			x.send(d.Back(), p.MakeTCP(f.Data, nf.Segment{Back: true, Ack: p.Seq + 1, Flags: nf.RST | nf.ACK}))
			return nf.Drop
		}
		if fl.state == passing {
			return nf.Pass
		}
		return x.segment(fl, inspect.Client, p, f)
	case p.Flags&nf.RST != 0:
		return nf.Pass
	case x.cfg.Midstream == "pass" && p.Flags&nf.SYN == 0 && x.now.Sub(x.started) < startingFor, x.cfg.Full == "pass" && (x.budget.Used+flowSize > x.budget.Limit || len(x.flows) >= x.cfg.Limits.Connections):
		if fl := x.add(d, k); fl != nil {
			x.pass(fl)
		}
		return nf.Pass
	}
	x.count.Midstream++
	if x.cfg.Midstream == "pass" && p.Flags&nf.SYN != 0 { // an answer to a SYN from before the start, which the client repeats
		return nf.Drop
	}
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

// begin to follow a connection, from its client's SYN; nil: there is no room.
func (x *filter) begin(d nf.Dir, k key, seq uint32) *flow {
	fl := x.add(d, k)
	switch {
	case fl == nil:
	case !x.cfg.Ports.has(k.server.Port()): // only the client's port is one of those
		x.pass(fl)
	default:
		fl.halves[inspect.Client].begin(seq)
		fl.conn = x.policy.NewConn(&fl.client.budget, k.server.Addr())
	}
	return fl
}

// add a connection whose client's frames go in a direction; nil: there is no room.
func (x *filter) add(d nf.Dir, k key) *flow {
	at := share(k.client.Addr())
	c := x.clients[at]
	if c == nil {
		c = &client{budget: inspect.Budget{Limit: x.budget.Limit / 2, Parent: &x.budget}}
	}
	isFull := func() bool {
		return len(x.flows) >= x.cfg.Limits.Connections || c.flows >= max(1, x.cfg.Limits.Connections/2)
	}
	if isFull() {
		x.evict()
	}
	if isFull() || !c.budget.Take(flowSize) {
		return nil
	}
	c.flows++
	x.clients[at] = c
	fl := &flow{client: c, seen: x.now}
	fl.halves[inspect.Client].dir, fl.halves[inspect.Server].dir = d, d.Back()
	x.flows[k] = fl
	x.count.Connections++
	return fl
}

// evict connections that have not begun, have ended, or are idle: a flood of them must not keep others out.
func (x *filter) evict() {
	n := 0
	for k, fl := range x.flows {
		idle := x.now.Sub(fl.seen)
		if fl.state == opening && !fl.hadOne || (fl.over || fl.cut || fl.state == opening) && idle >= surelyOver || fl.state == blocked || idle >= pressedFor && (fl.state != passing || idle >= settledFor) {
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

// follow a connection that is not looked at, to its end. Its places are not known, so that anybody's RST may look like its end.
func (fl *flow) follow(side inspect.Side, p *nf.Packet) {
	if p.Flags&nf.FIN != 0 {
		fl.halves[side].ended = true
	}
	fl.cut = p.Flags&nf.RST != 0
	fl.over = fl.halves[0].ended && fl.halves[1].ended
}

// again: a connection begins anew with a pair of ports. What was judged of the former one says nothing about it.
func (x *filter) again(d nf.Dir, f nf.Frame, p *nf.Packet, before, k key, fl *flow) nf.Verdict {
	former, hadOne := fl.former, fl.hadOne
	if h := &fl.halves[inspect.Server]; h.known {
		former, hadOne = h.first, true
	}
	x.remove(before, fl)
	v := x.unknown(d, f, p, k, true)
	if fl := x.flows[k]; fl != nil {
		fl.former, fl.hadOne = former, hadOne
	}
	return v
}

// renew: the server answers another SYN of the client, so for it the old connection is no more.
func (x *filter) renew(d nf.Dir, f nf.Frame, p *nf.Packet, k key, fl *flow) nf.Verdict {
	x.remove(k, fl)
	n := x.begin(d.Back(), k, fl.anew)
	switch {
	case n == nil:
		x.count.Refused++
		return nf.Drop
	case n.state == passing:
		return nf.Pass
	case !x.synchronise(n, inspect.Server, p):
		return x.drop()
	}
	return x.segment(n, inspect.Server, p, f)
}

// reversed: a SYN comes from what is the server of a known connection. Who sent that connection's SYN may not have been whom it named: only one that
// lives and was looked at from its begin keeps its place.
func (x *filter) reversed(d nf.Dir, f nf.Frame, p *nf.Packet, k key, fl *flow) nf.Verdict {
	if fl.halves[inspect.Client].known && !fl.over && (fl.state != opening || !x.cfg.Ports.has(p.DstPort)) {
		return x.drop()
	}
	return x.again(d, f, p, k, key{k.server, k.client, k.tags}, fl)
}

// reset by one side, if the other can take it for one. It passes in any case.
func (x *filter) reset(fl *flow, side inspect.Side, p *nf.Packet) {
	h, other := &fl.halves[side], &fl.halves[side.Other()]
	if !h.known && p.Flags&nf.ACK != 0 && p.Ack == other.next || h.known && p.Seq == h.sent {
		fl.over, fl.cut = true, true
	}
}

// synchronise tells whether a SYN fits. The server's must answer the client's that was seen last.
func (x *filter) synchronise(fl *flow, side inspect.Side, p *nf.Packet) bool {
	h, other := &fl.halves[side], &fl.halves[side.Other()]
	if h.known {
		isAnswer := p.Flags&nf.ACK != 0 && p.Ack == other.first+1
		return p.Seq == h.first && (side == inspect.Client && p.Flags&nf.ACK == 0 || side == inspect.Server && isAnswer)
	}
	if p.Flags&nf.ACK == 0 || p.Ack != other.first+1 || fl.hadOne && p.Seq == fl.former {
		return false
	}
	h.begin(p.Seq)
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
		if x.owesTooMuch(fl.client) { // it comes again
			return x.drop()
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
		x.owe(fl.client, fl.conn.Decoded())
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

const allDecodeRate = 3 * decodeRate

// owesTooMuch: a client waits for its own debt alone, or for that of all if its share is one of the larger ones.
func (x *filter) owesTooMuch(c *client) bool {
	return c.debt > decodeRate || x.debt > allDecodeRate && c.debt > allDecodeRate/x.debtors
}

func (x *filter) owe(c *client, n int) {
	if n > 0 && c.debt == 0 {
		x.debtors++
	}
	c.debt += n
	x.debt += n
}

// repay what a second is good for.
func (x *filter) repay() {
	each := allDecodeRate / max(3, x.debtors)
	x.debt, x.debtors = 0, 0
	for at, c := range x.clients {
		if c.debt = max(0, c.debt-each); c.debt > 0 {
			x.debtors++
			x.debt += c.debt
		} else if c.flows == 0 {
			delete(x.clients, at)
		}
	}
}

// tick forgets connections.
func (x *filter) tick(now time.Time) {
	x.now = now
	x.repay()
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
