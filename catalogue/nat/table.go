package main

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"time"

	"weir.dev/weir/catalogue/nf"
)

const icmp = 1

// tags are the VLANs that a frame is in; what is in one is nothing to another.
type tags = [2]uint16

// Both sides of a session. The port of an echo request is its identifier, and 0 at the remote end.
type (
	inner struct { // as clients see it
		proto          uint8
		tags           tags
		client, remote netip.AddrPort
	}
	outer struct { // as it is at out
		proto        uint8
		tags         tags
		pool, remote netip.AddrPort
	}
	place struct { // one end of them
		proto uint8
		tags  tags
		at    netip.AddrPort
	}
	station struct {
		tags tags
		addr netip.Addr
	}
)

// session is what passes between a client and a remote end.
type session struct {
	inner inner
	pool  netip.AddrPort
	mac   [6]byte // of the client
	seen  time.Time
	heard [2]bool // by direction
	ended [2]bool // by FIN
	reset reset
	acks  bool   // the client has acknowledged something in this connection
	acked uint32 // what it acknowledged last
	fin   uint32 // what acknowledges the last FIN from out

	unproven bool   // begun at out, where the sender's address may be forged: it has not acknowledged the client's SYN. UDP is never proven
	first    uint32 // sequence number of the client's SYN
	gone     bool
	noted    bool // in the table's changes
	at       int  // in the table's list

	seenOf  [2]uint8 // packets, by direction, up to settleAfter
	settled [2]bool  // by direction: the switch may translate the further packets, without telling
}

// reset says how sure it is that a reset has ended a connection.
type reset int

const (
	none   reset = iota
	likely       // its sequence number is in the window of 64 KiB behind what the client acknowledged
	sure         // it comes from the client, or has exactly the sequence number that the client expects
)

const window = 1 << 16

func (s *session) outer() outer {
	return outer{s.inner.proto, s.inner.tags, s.pool, s.inner.remote}
}

// mapping is the place in the pool that a client's place has, towards everybody (RFC 4787, REQ-1).
type mapping struct {
	pool     netip.AddrPort
	sessions int
}

// home is the address of the pool that a client has.
type home struct {
	addr     netip.Addr
	mappings int
}

// Bounds and times. Those of silence are the least that RFC 4787, 5382 and 5508 allow.
const (
	maxSessions = 1 << 16
	maxUnproven = 1024
	expireTicks = 8
	maxTries    = 256 // ports that are tried before there is none
	firstPort   = 1024

	silentUDP         = 2 * time.Minute
	silentDNS         = 10 * time.Second // to port 53
	silentICMP        = time.Minute
	silentOpening     = 4 * time.Minute
	silentEstablished = 2*time.Hour + 4*time.Minute
	silentClosed      = 10 * time.Second

	settleAfter  = 8               // packets in a direction: a question and its answer are not worth a word
	settledLasts = 5 * time.Minute // the switch then gives the session's next packet to the function
)

// table of sessions.
type table struct {
	cfg     *config
	all     []*session
	next    int // of them, that is looked at
	inner   map[inner]*session
	outer   map[outer]*session
	mapped  map[place]*mapping // by the client's place
	taken   map[place]bool     // of the pool
	clients map[netip.Addr]int // sessions in all VLANs together, without the unproven ones
	waiting []*session         // that were begun at out, the oldest first
	homes   map[station]*home
	macs    map[station][6]byte // by address of the pool: of the client that used it last. Only of those that are used
	used    map[station]int     // sessions, by address of the pool
	forward map[place]netip.AddrPort
	back    map[place]netip.AddrPort // of forwards, by the client's place; without tags
	full    uint64                   // sessions for which there was no room

	follows bool       // another table follows this one
	changes []*session // since it has looked, each once
}

func newTable(cfg *config) *table {
	t := &table{cfg: cfg, inner: map[inner]*session{}, outer: map[outer]*session{}, mapped: map[place]*mapping{}, taken: map[place]bool{}, clients: map[netip.Addr]int{},
		homes: map[station]*home{}, macs: map[station][6]byte{}, used: map[station]int{}, forward: map[place]netip.AddrPort{}, back: map[place]netip.AddrPort{}}
	for _, f := range cfg.Forward {
		at := netip.AddrPortFrom(f.Address, f.Port)
		t.forward[place{proto: protocols[f.Protocol], at: at}] = f.To
		if to := (place{proto: protocols[f.Protocol], at: f.To}); !t.back[to].IsValid() {
			t.back[to] = at
		}
	}
	return t
}

// up is the session of a packet from a client, made if there is none. nil: there is no room.
func (t *table) up(k inner, mac [6]byte, now time.Time) *session {
	if s := t.inner[k]; s != nil {
		return s
	}
	if !t.room(k, true) {
		return nil
	}
	client := place{k.proto, k.tags, k.client}
	pool := t.back[place{proto: k.proto, at: k.client}]
	if m := t.mapped[client]; m != nil {
		pool = m.pool
	} else if !pool.IsValid() {
		if pool = t.allocate(client, mac); !pool.IsValid() {
			t.full++
			return nil
		}
	}
	return t.add(&session{inner: k, pool: pool, seen: now})
}

// down is the session of a packet to the pool, made if its port is forwarded. nil: there is none.
func (t *table) down(k outer, now time.Time) *session {
	if s := t.outer[k]; s != nil {
		return s
	}
	to, ok := t.forward[place{proto: k.proto, at: k.pool}]
	if !ok {
		return nil
	}
	in := inner{k.proto, k.tags, to, k.remote}
	if t.inner[in] != nil { // two ports of the pool lead to one of the client, and the remote end uses both from one
		return nil
	}
	// A flood of forged beginnings takes room from one another, and not from the client.
	if len(t.waiting) >= maxUnproven {
		if s := t.waiting[0]; s.unproven && !s.gone {
			t.remove(s)
		}
		t.waiting = t.waiting[1:]
	}
	if !t.room(in, false) {
		return nil
	}
	s := t.add(&session{inner: in, pool: k.pool, seen: now, unproven: true})
	t.waiting = append(t.waiting, s)
	return s
}

// room for one more session, which may count as the client's.
func (t *table) room(k inner, counts bool) bool {
	if len(t.inner) < maxSessions && (!counts || t.clients[k.client.Addr()] < t.cfg.Sessions) {
		return true
	}
	t.full++
	return false
}

// prove a session if a packet from out acknowledges the client's SYN. false: there is no room, and the session is over.
func (t *table) prove(s *session, p *nf.Packet) bool {
	if !s.unproven || p.Proto != nf.TCP || p.Part == nf.Later || !s.heard[nf.Up] || p.Flags&(nf.ACK|nf.RST) != nf.ACK || p.Ack != s.first+1 {
		return true
	}
	if !t.room(s.inner, true) {
		t.remove(s)
		return false
	}
	s.unproven = false
	t.clients[s.inner.client.Addr()]++
	return true
}

func (t *table) add(s *session) *session {
	t.change(s)
	k := s.inner
	s.at = len(t.all)
	t.all = append(t.all, s)
	t.inner[k], t.outer[s.outer()] = s, s
	if !s.unproven {
		t.clients[k.client.Addr()]++
	}
	client := place{k.proto, k.tags, k.client}
	m := t.mapped[client]
	if m == nil {
		m = &mapping{pool: s.pool}
		t.mapped[client] = m
		t.taken[place{k.proto, k.tags, s.pool}] = true
		if h := t.homes[station{k.tags, k.client.Addr()}]; h != nil && !t.forwarded(k.proto, s.pool) {
			h.mappings++
		}
	}
	m.sessions++
	t.used[station{k.tags, s.pool.Addr()}]++
	return s
}

func (t *table) forwarded(proto uint8, pool netip.AddrPort) bool {
	_, is := t.forward[place{proto: proto, at: pool}]
	return is
}

// remove a session; safe to call twice.
func (t *table) remove(s *session) {
	if s.gone {
		return
	}
	t.change(s)
	k := s.inner
	delete(t.inner, k)
	delete(t.outer, s.outer())
	s.gone = true
	last := t.all[len(t.all)-1]
	t.all[s.at], last.at = last, s.at
	t.all[len(t.all)-1] = nil
	t.all = t.all[:len(t.all)-1]
	who, at := station{k.tags, k.client.Addr()}, station{k.tags, s.pool.Addr()}
	if t.used[at]--; t.used[at] == 0 {
		delete(t.used, at)
		delete(t.macs, at)
	}
	if !s.unproven {
		if t.clients[who.addr]--; t.clients[who.addr] == 0 {
			delete(t.clients, who.addr)
		}
	}
	client := place{k.proto, k.tags, k.client}
	m := t.mapped[client]
	if m.sessions--; m.sessions > 0 {
		return
	}
	delete(t.mapped, client)
	delete(t.taken, place{k.proto, k.tags, m.pool})
	if h := t.homes[who]; h != nil && !t.forwarded(k.proto, m.pool) {
		if h.mappings--; h.mappings == 0 {
			delete(t.homes, who)
		}
	}
}

// settle a client at an address of the pool (RFC 4787, REQ-2): the one that a hash of its own says, or the next one that no client with another MAC
// address has. Each is asked for by a MAC address of a client, and a switch that knows several clients' ports sends it to that client's.
func (t *table) settle(who station, mac [6]byte) *home {
	if h := t.homes[who]; h != nil {
		return h
	}
	sum := fnv.New64a()
	b := who.addr.As4()
	_, _ = sum.Write(b[:])
	n := uint64(len(t.cfg.Pool))
	first := sum.Sum64() % n
	h := &home{addr: t.cfg.Pool[first]}
	for i := range n {
		at := t.cfg.Pool[(first+i)%n]
		if is, known := t.macs[station{who.tags, at}]; !known || is == mac || t.used[station{who.tags, at}] == 0 {
			h.addr = at
			break
		}
	}
	t.homes[who] = h
	return h
}

// met a client in a session, which uses an address of the pool.
func (t *table) met(s *session, mac [6]byte) {
	s.mac = mac
	if k := (station{s.inner.tags, s.pool.Addr()}); t.macs[k] != mac {
		t.macs[k] = mac
	}
}

// allocate a place in the pool: a client keeps its port, or gets one that a hash says. So a new instance, which knows nothing of the old one's sessions,
// gives nearly all clients' places the same again.
func (t *table) allocate(client place, mac [6]byte) netip.AddrPort {
	who := station{client.tags, client.at.Addr()}
	h := t.settle(who, mac)
	sum := fnv.New64a()
	b := client.at.Addr().As4()
	_, _ = sum.Write(binary.BigEndian.AppendUint16(append(b[:], client.proto), client.at.Port()))
	next := uint32(sum.Sum64())
	port := client.at.Port()
	for range maxTries {
		at := netip.AddrPortFrom(h.addr, port)
		if !t.forwarded(client.proto, at) && !t.taken[place{client.proto, client.tags, at}] && (port > 0 || client.proto == icmp) {
			return at
		}
		next = next*1664525 + 1013904223
		port = uint16(firstPort + (next>>8)%(65536-firstPort))
	}
	if h.mappings == 0 {
		delete(t.homes, who)
	}
	return netip.AddrPort{}
}

// note a packet of a session. Packets from out may be forged. So they end a connection only with numbers that the client has confirmed.
func (s *session) note(d nf.Dir, p *nf.Packet, now time.Time) {
	s.seen = now
	if s.inner.proto != nf.TCP {
		s.heard[d] = true
		return
	}
	if p.Flags&(nf.SYN|nf.ACK) == nf.SYN && (d == nf.Up || s.closed()) { // a new connection with the ports of an old one
		s.heard, s.ended, s.acks, s.fin, s.reset = [2]bool{}, [2]bool{}, false, 0, none
	}
	s.heard[d] = true
	fin := p.Flags&nf.FIN != 0
	switch {
	case d == nf.Down:
		if fin {
			s.fin = p.Seq + uint32(p.End-p.Payload) + 1
		}
		s.noteReset(p)
		return
	case p.Flags&nf.SYN != 0:
		s.first = p.Seq
	}
	if p.Flags&nf.ACK != 0 {
		s.acks, s.acked = true, p.Ack
		s.ended[nf.Down] = s.ended[nf.Down] || s.fin != 0 && p.Ack == s.fin
	}
	s.ended[nf.Up] = s.ended[nf.Up] || fin
	s.reset = none
	if p.Flags&nf.RST != 0 {
		s.reset = sure
	}
}

// noteReset from out, or that there was none.
func (s *session) noteReset(p *nf.Packet) {
	switch {
	case p.Flags&nf.RST == 0:
		s.reset = none // the one before was forged
	case s.acks && p.Seq == s.acked, !s.acks && p.Flags&nf.ACK != 0 && s.heard[nf.Up] && p.Ack == s.first+1: // RFC 5961, RFC 9293
		s.reset = sure
	case s.acks && p.Seq-s.acked < window:
		s.reset = max(s.reset, likely)
	}
}

// closed by both ends, or by a reset.
func (s *session) closed() bool { return s.reset == sure || s.ended[nf.Up] && s.ended[nf.Down] }

// settles tells whether the switch can translate the further packets in the direction of this one, which belongs to the session: of a TCP connection that is
// established, and of UDP but queries of names. What was begun at out is not settled before it is proven, as it may have to make room.
func (s *session) settles(d nf.Dir, p *nf.Packet) bool {
	if p.Part != nf.Whole || p.TagCount > 1 || s.unproven { // the switch knows no flows within two VLANs
		return false
	}
	switch s.inner.proto {
	case nf.TCP:
		if !s.established() {
			return false
		}
	case nf.UDP:
		if s.inner.remote.Port() == 53 {
			return false
		}
	default:
		return false
	}
	if s.seenOf[d] < settleAfter {
		s.seenOf[d]++
		return false
	}
	s.settled[d] = true
	return true
}

// flow is what the session is to the switch where packets in a direction enter.
func (s *session) flow(d nf.Dir) nf.Flow {
	f := nf.Flow{Proto: s.inner.proto, Src: s.inner.client, Dst: s.inner.remote, VLAN: nf.NoVLAN}
	if d == nf.Down {
		f.Src, f.Dst = s.inner.remote, s.pool
	}
	if id := s.inner.tags[0]; id != 0 {
		f.VLAN = int(id)
	}
	return f
}

// established TCP connection.
func (s *session) established() bool {
	return s.heard[nf.Up] && s.heard[nf.Down] && !s.ended[nf.Up] && !s.ended[nf.Down] && s.reset == none
}

// lasts is how long a session may be silent: longer where the switch may translate its packets.
func (s *session) lasts() time.Duration {
	if (s.settled[nf.Up] || s.settled[nf.Down]) && !s.closed() {
		return s.silence() + settledLasts
	}
	return s.silence()
}

func (s *session) silence() time.Duration {
	switch s.inner.proto {
	case nf.TCP:
		switch {
		case s.closed():
			return silentClosed
		case s.established():
			return silentEstablished
		}
		return silentOpening
	case nf.UDP:
		if s.inner.remote.Port() == 53 {
			return silentDNS
		}
		return silentUDP
	}
	return silentICMP
}

// expire sessions that were silent for too long. It looks at a part of them, and at each within some ticks, so that frames need not wait for long.
func (t *table) expire(now time.Time) {
	for range min(len(t.all), len(t.all)/expireTicks+256) {
		if t.next >= len(t.all) {
			t.next = 0
		}
		if s := t.all[t.next]; now.Sub(s.seen) > s.lasts() {
			t.remove(s) // another one takes its place
		} else {
			t.next++
		}
		if len(t.all) == 0 {
			return
		}
	}
}
