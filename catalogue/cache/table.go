package main

import (
	"container/list"
	"encoding/binary"
	"net/netip"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// Bounds of what is remembered, and for how long.
const (
	maxConnections = 8192 // of clients; nginx has as many more to servers
	mostOfOne      = 2048 // of one client
	maxStations    = 16384
	maxNumber      = 1<<24 - 2

	opensWithin = 10 * time.Second
	quietFor    = 15 * time.Minute // nginx asks silent clients each minute, and gives up silent servers after 10
	closesIn    = 5 * time.Second  // nginx makes a connection to the server for each answer that it does not have
	few         = 8                // segments of a client: those of a connection for one answer
	forgotten   = time.Hour        // a station without connections: it gets another number, so what is cached of it is not found again
)

// station is a client or a server: an address behind VLAN tags.
type station struct {
	addr netip.Addr
	tags [2]uint16
	n    int // of tags
}

// neighbour is a station behind a MAC address: its own, or that of a router. Who takes a station's address, but not its MAC address, is another one.
type neighbour struct {
	station
	mac [6]byte
}

// number of a neighbour, in the addresses of the link.
type number struct {
	who      neighbour
	id       uint32
	accepted int // connections of nginx from it
	conns    int // the same, with those that nginx makes
	seen     time.Time
	all      *numbers
	idle     *list.Element // nil: it has connections
}

// numbers of clients, or of servers. A server's is never given to another: what nginx has kept is found by it.
type numbers struct {
	of     map[neighbour]*number
	idle   list.List // those without connections, the longest first
	next   uint32
	reuses bool
	free   []uint32 // to be given again
}

// take the number of a neighbour; nil: there is no room. The one that has no connections for longest makes room.
func (n *numbers) take(who neighbour, now time.Time) *number {
	x := n.of[who]
	if x == nil {
		if oldest := n.idle.Front(); len(n.of) >= maxStations && oldest != nil {
			n.forget(oldest.Value.(*number))
		}
		id, ok := n.unused()
		if len(n.of) >= maxStations || !ok {
			return nil
		}
		x = &number{who: who, id: id, all: n}
		x.idle = n.idle.PushBack(x)
		n.of[who] = x
	}
	x.seen = now
	return x
}

func (n *numbers) unused() (id uint32, ok bool) {
	if len(n.free) > 0 {
		id, n.free = n.free[0], n.free[1:]
		return id, true
	}
	if n.next >= maxNumber {
		return 0, false
	}
	n.next++
	return n.next, true
}

func (n *numbers) forget(x *number) {
	n.idle.Remove(x.idle)
	delete(n.of, x.who)
	if n.reuses {
		n.free = append(n.free, x.id)
	}
}

func (n *numbers) tick(now time.Time) {
	for e := n.idle.Front(); e != nil && now.Sub(e.Value.(*number).seen) > forgotten; e = n.idle.Front() {
		n.forget(e.Value.(*number))
	}
}

// hold counts a connection, or with -1 that it is over.
func (x *number) hold(conns int) {
	x.conns += conns
	switch {
	case x.conns == 0:
		x.idle = x.all.idle.PushBack(x)
	case x.idle != nil:
		x.all.idle.Remove(x.idle)
		x.idle = nil
	}
}

// key of a connection, as frames from its client have it.
type key struct {
	client, server         station
	clientPort, serverPort uint16
}

// ends of a connection on the link: both numbers, the port that is nginx's client's or nginx's own, and the server's.
type ends struct {
	client, server         uint32
	clientPort, serverPort uint16
}

// conn is a connection of nginx: one that it accepts from a client, or one that it makes to a server.
type conn struct {
	key            key
	ends           ends
	header         []byte // of frames to the server: addresses, tags, EtherType
	ipv6           bool
	client, server *number
	seen           time.Time
	segments       int       // of the client, that were seen
	short          time.Time // until when a shortcut has it
	opened, reset  bool
	fin            [2]bool // from the client's side, from the server's
}

// track what a segment says about the connection's life.
func (c *conn) track(fromServer bool, flags uint8, now time.Time) {
	c.seen = now
	if !fromServer {
		c.segments++
	}
	if !fromServer && flags&(nf.SYN|nf.ACK) == nf.ACK {
		c.opened = true
	}
	if flags&nf.FIN != 0 {
		side := 0
		if fromServer {
			side = 1
		}
		c.fin[side] = true
	}
	c.reset = c.reset || flags&nf.RST != 0
}

// lasts tells whether a shortcut is worth its making, and possible.
func (c *conn) lasts() bool {
	return c.opened && c.segments > few && !c.reset && !c.fin[0] && !c.fin[1] && !c.ipv6 && c.key.client.n == 0
}

func (c *conn) over(now time.Time) bool {
	limit := quietFor
	switch {
	case c.reset || c.fin[0] && c.fin[1]:
		limit = closesIn
	case !c.opened:
		limit = opensWithin
	}
	return now.Sub(c.seen) > limit
}

// table of the connections of one kind.
type table struct {
	of      map[key]*conn
	link    map[ends]*conn
	pairs   map[pair]*latest
	accepts bool        // those from clients
	removed func(*conn) // is told
}

// pair of a client and a server, by their numbers.
type pair struct{ client, server uint32 }

// latest connection of a pair, and how many there are.
type latest struct {
	conn  *conn
	conns int
}

func newTable(accepts bool) table {
	return table{of: map[key]*conn{}, link: map[ends]*conn{}, pairs: map[pair]*latest{}, accepts: accepts, removed: func(*conn) {}}
}

func (t *table) add(c *conn) {
	c.client.hold(1)
	c.server.hold(1)
	t.of[c.key], t.link[c.ends] = c, c
	if t.accepts {
		c.client.accepted++
	}
	p := pair{c.ends.client, c.ends.server}
	if t.pairs[p] == nil {
		t.pairs[p] = &latest{}
	}
	t.pairs[p].conn = c
	t.pairs[p].conns++
}

// mostLooked bounds a look for what is over.
const mostLooked = 256

// hasRoom tells whether there is room for one more. A full table forgets one that both sides have ended, if it finds one.
func (t *table) hasRoom() bool {
	if len(t.of) < maxConnections {
		return true
	}
	looked := 0
	for _, c := range t.of { // in no order
		if c.reset || c.fin[0] && c.fin[1] {
			t.remove(c)
			return true
		}
		if looked++; looked == mostLooked {
			break
		}
	}
	return false
}

func (t *table) remove(c *conn) {
	t.removed(c)
	c.client.hold(-1)
	c.server.hold(-1)
	if t.accepts {
		c.client.accepted--
	}
	delete(t.of, c.key)
	delete(t.link, c.ends)
	p := pair{c.ends.client, c.ends.server}
	if t.pairs[p].conns--; t.pairs[p].conns == 0 {
		delete(t.pairs, p)
	}
}

func (t *table) tick(now time.Time) {
	for _, c := range t.of {
		if c.over(now) {
			t.remove(c)
		}
	}
}

// address on the link.
func address(first byte, id uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(first)<<24|id)
	return netip.AddrFrom4(b)
}

// split an address on the link.
func split(a netip.Addr) (first byte, id uint32) {
	b := a.As4()
	return b[0], binary.BigEndian.Uint32(b[:]) & 0xffffff
}
