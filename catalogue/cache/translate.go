package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// translator leads the connections that nginx is to have from the ports to the link and back. It never stops anything else: what it does not know, or has no
// room for, passes as it came.
type translator struct {
	ports      []uint16 // in order
	linkHeader []byte   // of frames to nginx
	now        func() time.Time
	send       func(nf.Dir, nf.Frame)
	short      shortcut  // nil: none
	resumes    time.Time // when the shortcut is to be used again, after it failed
	ended      []*conn   // that it has to forget
	accepted   table     // from clients
	dialled    table     // to servers
	clients    numbers
	servers    numbers
	count      counts
}

// shortcut hands on segments of clients' connections, for shortFor from add on.
type shortcut interface {
	add(*conn) error
	remove([]*conn) error
}

// shortSlack is how much longer than shortFor a shortcut may have a connection.
const shortSlack = time.Second

// pauseAfter is how long no connection is added to a shortcut that failed.
const pauseAfter = time.Minute

type counts struct {
	Connections uint64 // of clients, that nginx got
	Dialled     uint64 // to servers
	Full        uint64 // of clients, that went to the server since there was no room
	Shortened   uint64 // times that one was added to the shortcut
	Failed      uint64 // failures of the shortcut
	Dropped     uint64 // segments that do not belong where they came
}

func newTranslator(ports []uint16, stack net.HardwareAddr, now func() time.Time, send func(nf.Dir, nf.Frame)) *translator {
	link := slices.Concat(stack, stack, []byte{nf.EtherIPv4 >> 8, nf.EtherIPv4 & 0xff})
	link[6] ^= 4 // from another one
	t := &translator{
		ports: ports, linkHeader: link, now: now, send: send, accepted: newTable(true), dialled: newTable(false),
		clients: numbers{of: map[neighbour]*number{}, reuses: true}, servers: numbers{of: map[neighbour]*number{}},
	}
	t.accepted.removed = func(c *conn) {
		if t.now().Before(c.short.Add(shortSlack)) {
			t.ended = append(t.ended, c)
		}
	}
	return t
}

func (t *translator) tick(now time.Time) {
	t.accepted.tick(now)
	t.forget()
	t.dialled.tick(now)
	t.clients.tick(now)
	t.servers.tick(now)
}

// handle decides about a frame.
func (t *translator) handle(d nf.Dir, f nf.Frame) nf.Verdict {
	p := nf.Decode(f.Data)
	if p.Proto != nf.TCP || p.Transport == 0 {
		return nf.Pass
	}
	if d == nf.Side {
		t.fromStack(f, &p)
		return nf.Drop
	}
	serverPort := p.DstPort
	if d == nf.Down {
		serverPort = p.SrcPort
	}
	if _, ok := slices.BinarySearch(t.ports, serverPort); !ok {
		return nf.Pass
	}
	src, dst := station{p.Src, p.Tags, p.TagCount}, station{p.Dst, p.Tags, p.TagCount}
	k := key{src, dst, p.SrcPort, p.DstPort}
	if d == nf.Down {
		k = key{dst, src, p.DstPort, p.SrcPort}
	}
	mine, other := t.accepted.of[k], t.dialled.of[k]
	if d == nf.Down {
		mine, other = other, mine
	}
	whole := p.Bad == "" && p.Part == nf.Whole
	foreign := d == nf.Up && mine != nil && !bytes.Equal(f.Data[6:12], mine.header[6:12]) // of another who says that it is this client
	if d == nf.Up && whole && p.Flags&(nf.SYN|nf.ACK|nf.RST|nf.FIN) == nf.SYN && (mine == nil || mine.reset || mine.fin[0] || foreign && !mine.opened) {
		if mine != nil {
			t.accepted.remove(mine)
		}
		mine, foreign = t.accept(k, f, &p), false
	}
	switch {
	case mine != nil && whole && !foreign:
		mine.track(d == nf.Down, p.Flags, t.now())
		if d == nf.Up {
			t.shorten(mine)
		}
		t.toStack(mine, d, f, &p)
	case mine == nil && other == nil:
		return nf.Pass
	default: // a fragment of a connection that is nginx's, or one who speaks for nginx or for its client
		t.count.Dropped++
	}
	return nf.Drop
}

// shorten the way of a client's connection that lasts.
func (t *translator) shorten(c *conn) {
	now := c.seen
	if t.short == nil || !c.lasts() || now.Before(c.short) || now.Before(t.resumes) {
		return
	}
	if err := t.short.add(c); err != nil {
		t.failed(now)
		return
	}
	t.count.Shortened++
	c.short = now.Add(shortFor)
}

// forget connections that are over, before others have their addresses and ports.
func (t *translator) forget() {
	if len(t.ended) == 0 {
		return
	}
	if err := t.short.remove(t.ended); err != nil {
		t.failed(t.now())
	}
	t.ended = nil
}

func (t *translator) failed(now time.Time) {
	t.count.Failed++
	t.resumes = now.Add(pauseAfter)
}

// accept a client's connection. nil: it goes to the server.
func (t *translator) accept(k key, f nf.Frame, p *nf.Packet) *conn {
	defer t.forget()
	if !unicast(p, f.Data) {
		return nil
	}
	now := t.now()
	client, server := t.clients.take(neighbour{k.client, [6]byte(f.Data[6:])}, now), t.servers.take(neighbour{k.server, [6]byte(f.Data)}, now)
	if client == nil || server == nil || client.accepted >= mostOfOne || !t.accepted.hasRoom() {
		t.count.Full++
		return nil
	}
	i, _ := slices.BinarySearch(t.ports, k.serverPort)
	c := &conn{
		key: k, ends: ends{client.id, server.id, k.clientPort, uint16(listenFrom + i)}, header: slices.Clone(f.Data[:p.Network]), ipv6: p.Type == nf.EtherIPv6,
		client: client, server: server,
	}
	t.accepted.add(c)
	t.count.Connections++
	return c
}

// unicast tells whether a frame goes from one station to one other, in plain Ethernet.
func unicast(p *nf.Packet, frame []byte) bool {
	one := func(a netip.Addr) bool { return !a.IsMulticast() && !a.IsUnspecified() && !a.IsLoopback() }
	return p.Network == 14+4*p.TagCount && frame[0]&1 == 0 && frame[6]&1 == 0 && one(p.Src) && one(p.Dst) && p.Src != p.Dst && p.SrcPort != 0
}

// toStack hands a frame from a port to nginx.
func (t *translator) toStack(c *conn, d nf.Dir, f nf.Frame, p *nf.Packet) {
	w := way{link: t.linkHeader, src: address(asClient, c.ends.client), dst: address(asServer, c.ends.server), dstPort: c.ends.serverPort}
	if d == nf.Down {
		w = way{link: t.linkHeader, src: address(dialled, c.ends.server), dst: address(bound, c.ends.client), dstPort: c.ends.clientPort}
	}
	t.send(nf.Side, w.put(f, p))
}

// fromStack hands a frame of nginx to where it belongs.
func (t *translator) fromStack(f nf.Frame, p *nf.Packet) {
	if p.Bad != "" || p.Part != nf.Whole || p.Type != nf.EtherIPv4 {
		return
	}
	from, src := split(p.Src)
	to, dst := split(p.Dst)
	d, back := nf.Up, false
	var c *conn
	switch {
	case from == asServer && to == asClient:
		d, back = nf.Down, true
		c = t.accepted.link[ends{dst, src, p.DstPort, p.SrcPort}]
	case from == bound && to == dialled:
		e := ends{src, dst, p.SrcPort, p.DstPort}
		if c = t.dialled.link[e]; p.Flags&(nf.SYN|nf.ACK|nf.RST|nf.FIN) == nf.SYN && (c == nil || c.reset || c.fin[0] || c.fin[1]) {
			if c != nil {
				t.dialled.remove(c)
			}
			if c = t.dial(e); c == nil { // nginx need not wait for what nobody answers
				t.send(nf.Side, p.MakeTCP(f.Data, nf.Segment{Back: true, Ack: binary.BigEndian.Uint32(f.Data[p.Transport+4:]) + 1, Flags: nf.RST | nf.ACK}))
			}
		}
	}
	if c == nil {
		t.count.Dropped++
		return
	}
	c.track(back, p.Flags, t.now())
	w := way{link: c.header, src: c.key.client.addr, dst: c.key.server.addr, srcPort: c.key.clientPort}
	if back {
		w = way{link: slices.Concat(c.header[6:12], c.header[:6], c.header[12:]), src: c.key.server.addr, dst: c.key.client.addr, srcPort: c.key.serverPort}
	}
	t.send(d, w.put(f, p))
}

// dial makes a connection of nginx to a server, in the name of a client that has one with it. nil: there is none, or no room.
func (t *translator) dial(e ends) *conn {
	l := t.accepted.pairs[pair{e.client, e.server}]
	if _, ok := slices.BinarySearch(t.ports, e.serverPort); !ok || l == nil || !t.dialled.hasRoom() {
		return nil
	}
	c := *l.conn
	d := &conn{key: c.key, ends: e, header: c.header, ipv6: c.ipv6, client: c.client, server: c.server}
	d.key.clientPort, d.key.serverPort = e.clientPort, e.serverPort
	t.dialled.add(d)
	t.count.Dialled++
	return d
}
