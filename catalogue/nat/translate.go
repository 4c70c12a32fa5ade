package main

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// translator decides about frames. It is used by one goroutine.
type translator struct {
	cfg      *config
	table    *table
	send     func(nf.Dir, nf.Frame)
	copy     func(nf.Frame) nf.Frame // for send
	settler  settler
	now      func() time.Time
	parts    map[part]remembered
	pieces   map[netip.Addr]int // packets in pieces, by client
	pool     map[netip.Addr]bool
	targets  map[netip.Addr]bool // of forwarded ports
	stations map[station][6]byte // where these are
	asked    map[station]time.Time
	count    counters
}

// settler tells the switch what it can do by itself: an nf.Settler.
type settler interface {
	PassAt(d nf.Dir, frame []byte)
	RewriteAt(d nf.Dir, frame []byte, r nf.Rewrite)
	JudgeFlowAt(d nf.Dir, f nf.Flow)
}

// silent tells nobody.
type silent struct{}

func (silent) PassAt(nf.Dir, []byte)                {}
func (silent) RewriteAt(nf.Dir, []byte, nf.Rewrite) {}
func (silent) JudgeFlowAt(nf.Dir, nf.Flow)          {}

// counters of frames.
type counters struct {
	translated [2]uint64 // by direction
	dropped    [2]uint64
	passed     [2]uint64 // as they came
	answered   uint64    // requests for addresses of the pool
}

// part names the fragments of one packet, as they come.
type part struct {
	d        nf.Dir
	tags     tags
	src, dst netip.Addr
	proto    uint8
	id       uint16
}

type remembered struct {
	s     *session
	until time.Time
}

const (
	maxParts    = 4096
	maxPieces   = 256 // packets in pieces of a client
	partsLast   = 30 * time.Second
	maxStations = 4096
	maxAsked    = 8 // stations, for one question
	askedLasts  = 5 * time.Second

	macs        = 12
	etherLength = macs + 2
	etherARP    = 0x0806
	arpLength   = 28
)

func newTranslator(cfg *config, now func() time.Time, send func(nf.Dir, nf.Frame)) *translator {
	t := &translator{cfg: cfg, table: newTable(cfg), send: send, copy: nf.Frame.Clone, settler: silent{}, now: now, parts: map[part]remembered{}, pieces: map[netip.Addr]int{}, stations: map[station][6]byte{}, asked: map[station]time.Time{},
		pool: map[netip.Addr]bool{}, targets: map[netip.Addr]bool{}}
	for _, a := range cfg.Pool {
		t.pool[a] = true
	}
	for _, f := range cfg.Forward {
		t.targets[f.To.Addr()] = true
	}
	return t
}

// tick forgets what is over.
func (t *translator) tick(now time.Time) {
	t.table.expire(now)
	for k, r := range t.parts {
		if now.After(r.until) {
			t.forget(k, r)
		}
	}
	for k, at := range t.asked {
		if now.Sub(at) > askedLasts {
			delete(t.asked, k)
		}
	}
}

// handle a frame.
func (t *translator) handle(d nf.Dir, f nf.Frame) nf.Verdict {
	p := nf.Decode(f.Data)
	var done bool
	switch {
	case p.Type == etherARP:
		done = t.arp(d, &p, f.Data)
	case p.Type == nf.EtherIPv6:
	case p.Bad != "":
		done = true
		t.count.dropped[d]++
	case p.Type == nf.EtherIPv4 && d == nf.Up:
		done = t.up(&p, f)
	case p.Type == nf.EtherIPv4:
		done = t.down(&p, f)
	}
	if done {
		return nf.Drop
	}
	t.count.passed[d]++
	if t.untouched(d, &p) {
		t.settler.PassAt(d, f.Data)
	}
	return nf.Pass
}

// untouched tells whether all packets pass as they are that come in this direction between these addresses of IP. What passes since its frame is for a group is
// not meant: the switch knows a flow by IP, and another frame of it may be for one station.
func (t *translator) untouched(d nf.Dir, p *nf.Packet) bool {
	switch {
	case p.Type == nf.EtherIPv6:
		return true
	case p.Type != nf.EtherIPv4 || d == nf.Up && t.pool[p.Src] || d == nf.Down && t.pool[p.Dst]:
		return false
	case !host(p.Dst):
		return true
	case d == nf.Up:
		return !t.pool[p.Dst] && !t.cfg.client(p.Src)
	}
	return !t.cfg.client(p.Dst)
}

// up takes a packet from in. false: it passes as it is.
func (t *translator) up(p *nf.Packet, f nf.Frame) (done bool) {
	switch {
	case t.pool[p.Src]: // nobody at in has such an address
	case group(p):
		return false
	case t.pool[p.Dst]: // clients do not reach each other by the pool
	case t.translateUp(p, f):
		return true
	case !t.cfg.client(p.Src):
		return false
	}
	t.count.dropped[nf.Up]++
	return true
}

// everybody is the MAC address of all stations, and limited the address of IP.
var (
	everybody = bytes.Repeat([]byte{0xff}, 6)
	limited   = netip.AddrFrom4([4]byte{255, 255, 255, 255})
)

// group tells whether a packet is for several stations. That its frame is does not say so: stations take a packet that is for them alone from such a frame, too, and it would pass
// the translation by. Nor does an address say that it is a network's broadcast: which networks there are is not known.
func group(p *nf.Packet) bool { return p.Dst.IsMulticast() || p.Dst == limited }

func (t *translator) translateUp(p *nf.Packet, f nf.Frame) bool {
	now, mac := t.now(), [6]byte(f.Data[6:])
	if mac[0]&1 != 0 || !host(p.Dst) {
		return false
	}
	q, failed := nf.Quoted{}, false
	var s *session
	switch {
	case p.Part == nf.Later:
		s = t.whose(nf.Up, p, f.Data)
	case p.Proto == nf.TCP || p.Proto == nf.UDP:
		if t.cfg.client(p.Src) && p.SrcPort != 0 && p.DstPort != 0 {
			s = t.table.up(inner{p.Proto, p.Tags, netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}, mac, now)
		}
	case p.Proto == icmp && p.End >= p.Transport+icmpHeader:
		switch kind := f.Data[p.Transport]; {
		case echo(kind) && t.cfg.client(p.Src):
			k := inner{icmp, p.Tags, netip.AddrPortFrom(p.Src, binary.BigEndian.Uint16(f.Data[p.Transport+echoID:])), netip.AddrPortFrom(p.Dst, 0)}
			if kind == echoRequest {
				s = t.table.up(k, mac, now)
			} else {
				s = t.table.inner[k]
			}
		default:
			if q, failed = p.Quote(f.Data); failed {
				s = t.table.inner[inner{q.Proto, p.Tags, q.Target, remote(q.Proto, q.Source)}]
			}
		}
	}
	if s == nil || !t.remember(nf.Up, p, f.Data, s, now) {
		return false
	}
	t.table.change(s)
	c := t.copy(f)
	if failed {
		q.Requote(c.Data, p, nf.Target, s.pool)
		p.RewriteAddress(c.Data, nf.Source, s.pool.Addr())
	} else {
		p.Rewrite(c.Data, nf.Source, s.pool, f.ChecksumMissingAt(p.Transport))
		if p.Part != nf.Later {
			s.note(nf.Up, p, now)
		}
		if s.settled[nf.Down] && (s.mac != mac || s.reset == sure) { // to where the client was; or it is over
			t.judge(nf.Down, s)
		}
		t.table.met(s, mac)
		t.learn(p.Tags, p.Src, mac)
		if !tunnels(p, f) && s.settles(nf.Up, p) {
			t.settler.RewriteAt(nf.Up, f.Data, nf.Rewrite{End: nf.Source, To: s.pool})
		}
	}
	t.count.translated[nf.Up]++
	t.send(nf.Up, c)
	return true
}

// tunnels tells whether a checksum is missing in the frame, but not the one that changes: the switch cannot tell which.
func tunnels(p *nf.Packet, f nf.Frame) bool {
	return f.ChecksumMissing() && !f.ChecksumMissingAt(p.Transport)
}

// remote end of a session: echo requests have no port there.
func remote(proto uint8, a netip.AddrPort) netip.AddrPort {
	if proto == icmp {
		return netip.AddrPortFrom(a.Addr(), 0)
	}
	return a
}

// down takes a packet from out. false: it passes as it is.
func (t *translator) down(p *nf.Packet, f nf.Frame) (done bool) {
	if !t.pool[p.Dst] {
		// Clients' own addresses are not known at out; what comes for them all the same is not for us to hand on.
		if done = t.cfg.client(p.Dst) && !group(p); done {
			t.count.dropped[nf.Down]++
		}
		return done
	}
	if f.Data[0]&1 != 0 || !t.translateDown(p, f) {
		t.count.dropped[nf.Down]++
	}
	return true
}

func (t *translator) translateDown(p *nf.Packet, f nf.Frame) bool {
	now := t.now()
	q, failed := nf.Quoted{}, false
	var s *session
	switch {
	case !host(p.Src):
	case p.Part == nf.Later:
		s = t.whose(nf.Down, p, f.Data)
	case p.Proto == nf.TCP || p.Proto == nf.UDP:
		if p.SrcPort != 0 {
			s = t.table.down(outer{p.Proto, p.Tags, netip.AddrPortFrom(p.Dst, p.DstPort), netip.AddrPortFrom(p.Src, p.SrcPort)}, now)
		}
	case p.Proto == icmp && p.End >= p.Transport+icmpHeader:
		switch kind := f.Data[p.Transport]; {
		case kind == echoReply:
			s = t.table.outer[outer{icmp, p.Tags, netip.AddrPortFrom(p.Dst, binary.BigEndian.Uint16(f.Data[p.Transport+echoID:])), netip.AddrPortFrom(p.Src, 0)}]
		default:
			if q, failed = p.Quote(f.Data); failed {
				s = t.table.outer[outer{q.Proto, p.Tags, q.Source, remote(q.Proto, q.Target)}]
			}
		}
	}
	if s == nil {
		return false
	}
	t.table.change(s)
	if s.mac == [6]byte{} {
		mac, known := t.stations[station{p.Tags, s.inner.client.Addr()}]
		if !known { // the sender tries again
			t.who(p.Tags, f.Data[:etherLength+4*p.TagCount], s.inner.client.Addr())
			t.table.remove(s)
			return false
		}
		s.mac = mac
	}
	if !failed && !t.table.prove(s, p) || !t.remember(nf.Down, p, f.Data, s, now) {
		return false
	}
	c := t.copy(f)
	if failed {
		q.Requote(c.Data, p, nf.Source, s.inner.client)
		p.RewriteAddress(c.Data, nf.Target, s.inner.client.Addr())
	} else {
		p.Rewrite(c.Data, nf.Target, s.inner.client, f.ChecksumMissingAt(p.Transport))
		if p.Part != nf.Later {
			s.note(nf.Down, p, now)
			t.reset(s, p)
		}
		if !tunnels(p, f) && s.settles(nf.Down, p) {
			// The MAC address, even if this frame has it: the switch may know the flow by a frame that had another one.
			t.settler.RewriteAt(nf.Down, f.Data, nf.Rewrite{End: nf.Target, To: s.inner.client, MAC: s.mac})
		}
	}
	copy(c.Data, s.mac[:])
	t.count.translated[nf.Down]++
	t.send(nf.Down, c)
	return true
}

// reset takes note of one from out in a connection that the switch translates: what the client acknowledged last is not known then. If it goes on, the reset was forged.
func (t *translator) reset(s *session, p *nf.Packet) {
	if p.Proto != nf.TCP || p.Flags&nf.RST == 0 {
		return
	}
	s.settled[nf.Down], s.seenOf[nf.Down] = false, 0 // the switch took that back by itself
	if s.settled[nf.Up] {
		s.reset = max(s.reset, likely)
		t.judge(nf.Up, s)
	}
}

// judge has the function get the session's packets in a direction again.
func (t *translator) judge(d nf.Dir, s *session) {
	s.settled[d], s.seenOf[d] = false, 0 // so it is not said for each packet
	t.settler.JudgeFlowAt(d, s.flow(d))
}

func partOf(d nf.Dir, p *nf.Packet, frame []byte) part {
	return part{d, p.Tags, p.Src, p.Dst, p.Proto, binary.BigEndian.Uint16(frame[p.Network+4:])}
}

// whose a later fragment is. nil: its first one did not come, or the session has ended since.
func (t *translator) whose(d nf.Dir, p *nf.Packet, frame []byte) *session {
	if s := t.parts[partOf(d, p, frame)].s; s != nil && !s.gone {
		return s
	}
	return nil
}

func (t *translator) forget(k part, r remembered) {
	delete(t.parts, k)
	who := r.s.inner.client.Addr()
	if t.pieces[who]--; t.pieces[who] == 0 {
		delete(t.pieces, who)
	}
}

// remember whose the fragments behind a first one are. false: there is no room.
func (t *translator) remember(d nf.Dir, p *nf.Packet, frame []byte, s *session, now time.Time) bool {
	if p.Part != nf.First {
		return true
	}
	k := partOf(d, p, frame)
	if r, known := t.parts[k]; known {
		t.forget(k, r)
	}
	who := s.inner.client.Addr()
	if len(t.parts) >= maxParts || t.pieces[who] >= maxPieces {
		return false
	}
	t.parts[k] = remembered{s, now.Add(partsLast)}
	t.pieces[who]++
	return true
}

// learn where a station is that ports are forwarded to.
func (t *translator) learn(v tags, a netip.Addr, mac [6]byte) {
	if mac[0]&1 != 0 || !t.targets[a] {
		return
	}
	k := station{v, a}
	if _, known := t.stations[k]; !known && len(t.stations) >= maxStations {
		for other := range t.stations { // any one: it is learned again from its next packet, or asked for
			delete(t.stations, other)
			break
		}
	}
	t.stations[k] = mac
}

// arp takes requests for the pool's addresses at out, and answers to our own at in. false: it passes as it is.
func (t *translator) arp(d nf.Dir, p *nf.Packet, frame []byte) (done bool) {
	at := etherLength + 4*p.TagCount
	if len(frame) < at+arpLength || !bytes.Equal(frame[at:at+6], []byte{0, 1, 8, 0, 6, 4}) {
		return false
	}
	a := frame[at:]
	op, from, to := binary.BigEndian.Uint16(a[6:]), netip.AddrFrom4([4]byte(a[14:])), netip.AddrFrom4([4]byte(a[24:]))
	if d == nf.Up {
		t.learn(p.Tags, from, [6]byte(a[8:]))
		k := station{p.Tags, from}
		_, ours := t.asked[k]
		if ours = ours && op == 2 && to.IsUnspecified(); ours {
			delete(t.asked, k)
		}
		return t.pool[from] || ours
	}
	if op != 1 || !t.pool[to] {
		return false
	}
	if mac, known := t.place(p.Tags, to, frame[:at]); known {
		t.count.answered++
		t.send(nf.Up, arpFrame(frame[:at], a[8:14], mac[:], 2, to, from, a[8:14]))
	}
	return true
}

// place is the MAC address by which an address of the pool can be reached: that of the client that used it last. So switches know where it is, and an
// answer to one client is not flooded to all stations. Nobody has one that no client used. What ports of it are forwarded to is asked for.
func (t *translator) place(v tags, pool netip.Addr, like []byte) (mac [6]byte, known bool) {
	if mac, known = t.table.macs[station{v, pool}]; known {
		return mac, true
	}
	asked := map[netip.Addr]bool{}
	for _, f := range t.cfg.Forward {
		if f.Address != pool || asked[f.To.Addr()] {
			continue
		}
		if mac, known = t.stations[station{v, f.To.Addr()}]; known {
			return mac, true
		}
		if len(asked) < maxAsked {
			asked[f.To.Addr()] = true
			t.who(v, like, f.To.Addr())
		}
	}
	return mac, false
}

// who asks for a station at in, in place of the station that a frame with this header is from. The question comes from no address, as a probe does
// (RFC 5227), so nobody learns anything wrong from it. It comes once in a second.
func (t *translator) who(v tags, header []byte, a netip.Addr) {
	k, now := station{v, a}, t.now()
	if at, before := t.asked[k]; before && now.Sub(at) < time.Second || !before && len(t.asked) >= maxStations {
		return
	}
	t.asked[k] = now
	link := bytes.Clone(header)
	binary.BigEndian.PutUint16(link[len(link)-2:], etherARP)
	t.send(nf.Down, arpFrame(link, everybody, header[6:12], 1, netip.IPv4Unspecified(), a, make([]byte, 6)))
}

func arpFrame(link, dst, mac []byte, op byte, from, to netip.Addr, toMAC []byte) nf.Frame {
	f := append(bytes.Clone(link), 0, 1, 8, 0, 6, 4, 0, op)
	f = append(append(f, mac...), from.AsSlice()...)
	f = append(append(f, toMAC...), to.AsSlice()...)
	copy(f, dst)
	copy(f[6:], mac)
	return nf.NewFrame(f)
}
