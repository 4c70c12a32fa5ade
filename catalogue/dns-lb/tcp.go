package main

import (
	"bufio"
	"bytes"
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// Bounds of what TCP may take.
const (
	maxFlows     = 2048 // connections, with those that end just now
	maxConns     = 512
	maxPerClient = 64
	maxParked    = 256 // flows of a client without a connection
	maxOpening   = 256 // that wait for the server or for the client's last word

	dialTimeout  = 5 * time.Second
	idleTimeout  = 60 * time.Second
	writeTimeout = 10 * time.Second
)

// proxy takes part in connections to port 53. Towards the client it is the server, towards the server it is the client, with their addresses, ports, MAC
// addresses and tags. It hands messages on in both directions, as they are, and answers those that are its own. A name can only be read from a message
// that is whole, and then its bytes are acknowledged already: so it has to be both ends.
type proxy struct {
	zone  *atomic.Pointer[zone]
	send  func(nf.Dir, []byte) // a frame; not for the loop's goroutine
	sides [2]side              // by the port where it is: clients' and servers'
	count *counters

	mu      sync.Mutex
	flows   map[flow]*link
	parked  *list.List // of flow: those without a connection, the oldest first. Frames of their ends still come and go
	clients map[netip.Addr]*account
	conns   int
}

// account of a station: what it has of the bounds.
type account struct {
	conns  int
	parked *list.List // as the proxy's
}

// side is one half of the connections: a stack that has everybody's addresses.
type side struct {
	stack *stack.Stack
	link  *channel.Endpoint
}

// flow names a connection.
type flow struct{ client, server netip.AddrPort }

// link is how the frames of a connection look.
type link struct {
	toServer []byte // the header of the link
	tags     [2]uint16
	used     bool          // by a connection
	all, own *list.Element // of the proxy's and the client's parked ones, if it is not used
}

func newProxy(z *atomic.Pointer[zone], count *counters, send func(nf.Dir, []byte)) (*proxy, error) {
	x := &proxy{zone: z, send: send, count: count, flows: map[flow]*link{}, parked: list.New(), clients: map[netip.Addr]*account{}}
	for i := range x.sides {
		l := channel.New(station.Queued, station.MTU, "")
		s, err := station.NewStack(l, false)
		if err != nil {
			return nil, err
		}
		s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: station.NIC}, {Destination: header.IPv6EmptySubnet, NIC: station.NIC}})
		if err := errors.Join(station.Failure(s.SetPromiscuousMode(station.NIC, true)), station.Failure(s.SetSpoofing(station.NIC, true))); err != nil {
			return nil, err
		}
		x.sides[i] = side{s, l}
	}
	f := tcp.NewForwarder(x.sides[nf.Up].stack, station.Buffer, maxOpening, x.open)
	x.sides[nf.Up].stack.SetTransportProtocolHandler(tcp.ProtocolNumber, f.HandlePacket)
	return x, nil
}

// run sends what the stacks say, until ctx ends.
func (x *proxy) run(ctx context.Context) {
	var both sync.WaitGroup
	for d := range x.sides {
		both.Go(func() { station.Pump(ctx, x.sides[d].link, func(ip []byte) { x.emit(nf.Dir(d), ip) }) })
	}
	both.Wait()
	for d := range x.sides {
		x.sides[d].link.Close() // what is still said goes nowhere
		x.sides[d].stack.Close()
	}
}

// take a frame of TCP that is to port 53 (Up) or from it (Down). It does not block. false: it is none of ours.
func (x *proxy) take(d nf.Dir, p *nf.Packet, frame []byte, incomplete bool) bool {
	opens := p.Flags&(nf.SYN|nf.ACK) == nf.SYN
	f := flow{netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
	if d == nf.Down {
		if opens { // a server that is a client of somebody
			return false
		}
		f = flow{f.server, f.client}
	}
	if p.Bad != "" || p.Part != nf.Whole || !single(p, frame) || !x.known(d, f, p, frame, opens) {
		x.count.tcpDropped.Add(1)
		return true
	}
	b := bytes.Clone(frame[:p.End])
	if incomplete {
		p.Complete(b)
	}
	station.Inject(x.sides[d].link, station.Protocol(p.Src), b[p.Network:])
	return true
}

// known notes how the frames of a flow look. false: the frame is from another VLAN than the flow.
func (x *proxy) known(d nf.Dir, f flow, p *nf.Packet, frame []byte, opens bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.flows[f]
	if l != nil && (l.used || !opens) {
		return l.tags == p.Tags
	}
	if l == nil {
		if len(x.flows) >= maxFlows {
			x.forget(x.parked.Front()) // there is one: maxConns are fewer
		}
		l = &link{}
		x.flows[f] = l
		x.park(f, l)
	} else if opens {
		x.unpark(f, l)
		x.park(f, l)
	}
	l.tags, l.toServer = p.Tags, append(l.toServer[:0], frame[:p.Network]...)
	if d == nf.Down { // of a connection that we do not know: it is reset
		back(l.toServer, frame)
	}
	return true
}

// park a flow that has no connection, or none any more. One too many of the client pushes out its oldest.
func (x *proxy) park(f flow, l *link) {
	c := x.account(f)
	l.all, l.own = x.parked.PushBack(f), c.parked.PushBack(f)
	if c.parked.Len() > maxParked {
		x.forget(c.parked.Front())
	}
}

// forget a parked flow. If its ends still have something to say, the next frame of the client makes it known again.
func (x *proxy) forget(e *list.Element) {
	f := e.Value.(flow)
	l := x.flows[f]
	delete(x.flows, f)
	x.unpark(f, l)
	x.settle(f)
}

func (x *proxy) unpark(f flow, l *link) {
	x.parked.Remove(l.all)
	x.account(f).parked.Remove(l.own)
}

// account of the client of a flow; settle forgets it when it has nothing left.
func (x *proxy) account(f flow) *account {
	a := station.Owner(f.client.Addr())
	c := x.clients[a]
	if c == nil {
		c = &account{parked: list.New()}
		x.clients[a] = c
	}
	return c
}

func (x *proxy) settle(f flow) {
	if c := x.account(f); c.conns == 0 && c.parked.Len() == 0 {
		delete(x.clients, station.Owner(f.client.Addr()))
	}
}

// emit a packet that a side sends: by the port where it is.
func (x *proxy) emit(at nf.Dir, ip []byte) {
	frame := make([]byte, etherLength, etherLength+len(ip))
	binary.BigEndian.PutUint16(frame[macs:], nf.EtherIPv4)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(frame[macs:], nf.EtherIPv6)
	}
	p := nf.Decode(append(frame, ip...))
	if p.Proto != nf.TCP || p.Bad != "" {
		return
	}
	f := flow{netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
	if at == nf.Up {
		f = flow{f.server, f.client}
	}
	x.mu.Lock()
	l := x.flows[f]
	if l == nil {
		x.mu.Unlock()
		return
	}
	frame = append(make([]byte, 0, len(l.toServer)+len(ip)), l.toServer...)
	x.mu.Unlock()
	if at == nf.Up { // to the client
		back(frame, bytes.Clone(frame))
	}
	x.send(at.Back(), append(frame, ip...))
}

// open a connection that a client asks for: first to the server, so that the client finds a port open or closed as it is there.
func (x *proxy) open(r *tcp.ForwarderRequest) {
	id := r.ID()
	f := flow{netip.AddrPortFrom(from(id.RemoteAddress), id.RemotePort), netip.AddrPortFrom(from(id.LocalAddress), id.LocalPort)}
	if !x.enter(f) {
		x.count.tcpRefused.Add(1)
		r.Complete(false)
		return
	}
	defer x.leave(f)
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	server, err := x.dial(ctx, f)
	if err != nil {
		r.Complete(ctx.Err() == nil) // as silent as the server was
		return
	}
	defer server.Close()
	var queue waiter.Queue
	ep, failed := r.CreateEndpoint(&queue)
	r.Complete(false)
	if failed != nil {
		server.ep.Abort()
		return
	}
	client := end{gonet.NewTCPConn(&queue, ep), ep}
	defer client.Close()
	x.count.tcpConns.Add(1)
	x.relay(f.client.Addr(), client, server)
}

// end of a connection.
type end struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// dial the server as the client. A client may have connections to several servers from one port.
func (x *proxy) dial(ctx context.Context, f flow) (end, error) {
	var queue waiter.Queue
	ep, err := x.sides[nf.Down].stack.NewEndpoint(tcp.ProtocolNumber, station.Protocol(f.server.Addr()), &queue)
	if err != nil {
		return end{}, station.Failure(err)
	}
	ep.SocketOptions().SetReuseAddress(true)
	ep.SocketOptions().SetReusePort(true)
	opened, told := waiter.NewChannelEntry(waiter.WritableEvents)
	queue.EventRegister(&opened)
	defer queue.EventUnregister(&opened)
	if err = ep.Bind(station.Full(f.client)); err == nil {
		err = ep.Connect(station.Full(f.server))
	}
	if _, ok := err.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-ctx.Done():
			ep.Abort()
			return end{}, ctx.Err()
		case <-told:
			err = ep.LastError()
		}
	}
	if err != nil {
		ep.Abort()
		return end{}, station.Failure(err)
	}
	return end{gonet.NewTCPConn(&queue, ep), ep}, nil
}

func from(a tcpip.Address) netip.Addr {
	b, _ := netip.AddrFromSlice(a.AsSlice())
	return b
}

func (x *proxy) enter(f flow) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.flows[f]
	if l == nil || l.used || x.conns >= maxConns {
		return false
	}
	c := x.account(f)
	if c.conns >= maxPerClient {
		return false
	}
	x.unpark(f, l)
	l.used = true
	x.conns++
	c.conns++
	return true
}

func (x *proxy) leave(f flow) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.flows[f] // a used one is not forgotten
	l.used = false
	x.conns--
	x.account(f).conns--
	x.park(f, l)
}

// half is one end of a relayed connection, which counts as idle only when the other end is, too.
type half struct {
	end
	heard *atomic.Int64 // when a byte came last, by either end
}

func (h half) Read(b []byte) (int, error) {
	for {
		_ = h.SetReadDeadline(time.Now().Add(idleTimeout))
		n, err := h.TCPConn.Read(b)
		if n > 0 {
			h.heard.Store(time.Now().UnixNano())
		}
		var timeout net.Error
		if n == 0 && errors.As(err, &timeout) && timeout.Timeout() {
			if time.Since(time.Unix(0, h.heard.Load())) < idleTimeout {
				continue
			}
			return 0, os.ErrDeadlineExceeded
		}
		return n, err
	}
}

func (h half) Write(b []byte) (int, error) {
	_ = h.SetWriteDeadline(time.Now().Add(writeTimeout))
	return h.TCPConn.Write(b)
}

// relay until both ends have said all, or one fails or falls silent.
func (x *proxy) relay(from netip.Addr, c, s end) {
	var heard atomic.Int64
	heard.Store(time.Now().UnixNano())
	client, server := half{c, &heard}, half{s, &heard}
	var toClient sync.Mutex // a message at a time
	tell := func(msg []byte) error {
		toClient.Lock()
		defer toClient.Unlock()
		_, err := client.Write(msg)
		return err
	}
	both := make(chan error, 2)
	var asked transfer
	go func() {
		err := x.queries(client, server, from, tell, &asked)
		if err == nil {
			err = server.CloseWrite()
		}
		both <- err
	}()
	go func() {
		err := x.answers(server, tell, &asked)
		if err == nil {
			err = client.CloseWrite()
		}
		both <- err
	}()
	for range 2 {
		if <-both != nil { // a reset is one at the other end, too, and wakes who waits there
			c.ep.Abort()
			s.ep.Abort()
		}
	}
}

// transfer of a zone that a client has asked for last. The answer is in several messages, and only the first has to have the question (RFC 5936, section 2.2).
type transfer struct{ id atomic.Uint32 } // of the query, and a bit above that it has one

const isTransfer = 1 << 16

// ask takes note of a query that goes to the server.
func (t *transfer) ask(msg []byte) {
	var q names.Question
	if q.Read(msg) && (q.Kind == dns.TypeAXFR || q.Kind == dns.TypeIXFR) {
		t.id.Store(isTransfer | uint32(binary.BigEndian.Uint16(msg)))
	}
}

// goesOn tells whether an answer without a question is of the transfer.
func (t *transfer) goesOn(msg []byte) bool {
	return len(msg) >= names.HeaderLength && questions(msg) == 0 && t.id.Load() == isTransfer|uint32(binary.BigEndian.Uint16(msg))
}

const framing = 2 // bytes before each message: its length (RFC 1035, 4.2.2)

// queries of the client: those that are not ours go to the server. nil: it has said all.
func (x *proxy) queries(client io.Reader, server io.Writer, from netip.Addr, tell func([]byte) error, asked *transfer) error {
	r := bufio.NewReaderSize(client, framing+maxQuery+1)
	for {
		b, err := r.Peek(framing)
		if err != nil {
			return x.rest(r, server, err)
		}
		n := int(binary.BigEndian.Uint16(b))
		b, err = r.Peek(framing + min(n, maxQuery+1))
		if err != nil {
			return x.rest(r, server, err)
		}
		reply, fate := x.zone.Load().query(b[framing:], from, 1<<16-1)
		if fate == passes {
			asked.ask(b[framing:])
			if _, err := io.CopyN(server, r, int64(framing+n)); err != nil {
				return err
			}
			continue
		}
		if _, err := r.Discard(framing + n); err != nil {
			return err
		}
		x.count.decided(fate)
		if fate == answered {
			if err := tell(framed(reply)); err != nil {
				return err
			}
		}
	}
}

// rest hands on what is no whole message, when no more comes.
func (x *proxy) rest(r *bufio.Reader, server io.Writer, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	b, _ := r.Peek(r.Buffered())
	if len(b) > 0 {
		_, err := server.Write(b)
		return err
	}
	return nil
}

func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, framing+len(msg)), uint16(len(msg))), msg...)
}

// answers of the server, each whole, so that ours come between them. nil: it has said all.
func (x *proxy) answers(server io.Reader, tell func([]byte) error, asked *transfer) error {
	r := bufio.NewReader(server)
	for {
		var head [framing]byte
		n, err := io.ReadFull(r, head[:])
		msg := append(make([]byte, 0, framing+int(binary.BigEndian.Uint16(head[:]))), head[:n]...)
		if err == nil {
			var m int
			m, err = io.ReadFull(r, msg[framing:cap(msg)])
			msg = msg[:framing+m]
		}
		whole := err == nil
		if !whole && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if whole && !asked.goesOn(msg[framing:]) && x.zone.Load().foreign(msg[framing:]) {
			x.count.foreign.Add(1)
			continue
		}
		if len(msg) > 0 {
			if err := tell(msg); err != nil {
				return err
			}
		}
		if !whole {
			return nil
		}
	}
}
