package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// server accepts at a station; what a connection sends, serve decides.
func server(t *testing.T, at *rig.Station, serve func(net.Conn)) {
	t.Helper()
	serverAt(t, at, "[::]:53", serve)
}

func serverAt(t *testing.T, at *rig.Station, addr string, serve func(net.Conn)) {
	t.Helper()
	at.Serve(t, addr, func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(rig.Patience))
		serve(c)
	})
}

func dial(t *testing.T, r *rig.Rig, addr string) *net.TCPConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp", addr)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func receive(t *testing.T, c io.Reader) []byte {
	t.Helper()
	var head [2]byte
	_, err := io.ReadFull(c, head[:])
	must(t, err)
	b := make([]byte, binary.BigEndian.Uint16(head[:]))
	_, err = io.ReadFull(c, b)
	must(t, err)
	return b
}

// echoing answers each message with it, so that what comes back is what came.
func echoing(c net.Conn) { _, _ = io.Copy(c, c) }

// Messages of others come to the server and back as they are, whatever they are, and our answers stand between whole messages, in every way to send them.
func TestMessagesInAStream(t *testing.T) {
	r, _, _ := start(t, own)
	server(t, r.Server, echoing)
	mine := framed(ask("own.example.", dns.TypeA))
	others := [][]byte{
		framed(ask("other.example.", dns.TypeA)), framed(nil), framed([]byte("x")), framed(bytes.Repeat([]byte{7}, 65535)), framed(bytes.Repeat([]byte("no DNS at all"), 400)),
		framed(append(ask("other.example.", dns.TypeTXT), make([]byte, 50000)...)), // longer than any frame
	}
	for _, addr := range []string{"10.77.0.2:53", "[2001:db8:77::2]:53", "[fe80::2%client]:53"} {
		for name, send := range map[string]func(c net.Conn, b []byte) error{
			"at once":     func(c net.Conn, b []byte) error { _, err := c.Write(b); return err },
			"in crumbs":   func(c net.Conn, b []byte) error { return crumbs(c, b, 1, 300) },
			"in segments": func(c net.Conn, b []byte) error { return crumbs(c, b, 7000, 1000) },
		} {
			c := dial(t, r, addr)
			var stream, want []byte
			answers := 0
			for _, o := range others {
				stream = append(append(append(stream, mine...), o...), mine...)
				want = append(want, o...)
				answers += 2
			}
			sent := make(chan error, 1)
			go func() {
				err := send(c, stream)
				sent <- errors.Join(err, c.CloseWrite())
			}()
			var got []byte
			for range answers + len(others) {
				b := receive(t, c)
				var m dns.Msg
				if m.Unpack(b) == nil && m.Response {
					if strings.Join(addresses(&m), " ") != "10.77.0.11" {
						t.Errorf("%s, %s: %v", addr, name, m)
					}
					answers--
					continue
				}
				got = append(got, framed(b)...)
			}
			must(t, <-sent)
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				t.Errorf("%s, %s: behind the last message: % x, %v", addr, name, rest, err)
			}
			if answers != 0 || !bytes.Equal(got, want) {
				t.Errorf("%s, %s: %d answers too few; %d bytes of others came back, want %d", addr, name, answers, len(got), len(want))
			}
		}
	}
}

// crumbs sends the first part in pieces of a size.
func crumbs(c net.Conn, b []byte, size, most int) error {
	for range most {
		if len(b) <= size {
			break
		}
		if _, err := c.Write(b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	_, err := c.Write(b)
	return err
}

// A connection is at the server what it is at the client: addresses, end, refusal, a cut. Its half that ends says so, and the other goes on.
func TestConnectionsAreAsAtTheServer(t *testing.T) {
	r, p, _ := start(t, own)
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	if c, err := r.Client.Dial(ctx, "tcp", "10.77.0.2:53"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v, %v: want a refusal", c, err)
	}
	seen := make(chan string, 100)
	server(t, r.Server, func(c net.Conn) {
		all, err := io.ReadAll(c) // until the client has said all
		seen <- fmt.Sprintf("%s %d %v", c.RemoteAddr(), len(all), err)
		_, _ = c.Write(append(framed(ask("own.example.", dns.TypeA, func(m *dns.Msg) { m.Response = true })), framed([]byte("last words"))...))
	})
	c := dial(t, r, "10.77.0.2:53")
	_, err := c.Write(append(framed(ask("own.example.", dns.TypeA)), "\x00\x09half"...))
	must(t, err)
	receive(t, c)
	must(t, c.CloseWrite())
	if got, want := <-seen, "[::ffff:"+c.LocalAddr().(*net.TCPAddr).IP.String()+"]:"; !strings.Contains(got, c.LocalAddr().(*net.TCPAddr).IP.String()) || !strings.HasSuffix(got, " 6 <nil>") {
		t.Errorf("the server saw %q: want %s and 6 bytes", got, want)
	}
	if got := receive(t, c); string(got) != "last words" { // and not what it says about our name
		t.Errorf("% x", got)
	}
	if rest, err := io.ReadAll(c); len(rest) > 0 || err != nil {
		t.Errorf("% x, %v", rest, err)
	}
	c = dial(t, r, "[2001:db8:77::2]:53")
	_, err = c.Write([]byte{0, 50, 1})
	must(t, err)
	must(t, c.SetLinger(0))
	c.Close() // a reset
	if got := <-seen; !strings.Contains(got, "2001:db8:77::1") || strings.HasSuffix(got, "<nil>") {
		t.Errorf("the server saw %q: want an error", got)
	}
	// A new instance knows nothing of old connections and resets them, so that clients begin anew at once.
	c = dial(t, r, "10.77.0.2:53")
	_, err = c.Write(framed(ask("own.example.", dns.TypeA)))
	must(t, err)
	receive(t, c)
	p.Signal(syscall.SIGKILL)
	if p.End() == nil {
		t.Error("killed")
	}
	launch(t, r, own)
	rig.Eventually(t, "the old connection is reset", func() bool {
		_, err := c.Write(framed(ask("own.example.", dns.TypeA)))
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	})
	c = dial(t, r, "10.77.0.2:53")
	_, err = c.Write(framed(ask("own.example.", dns.TypeA)))
	must(t, err)
	receive(t, c)
}

// One client cannot take all connections, those of others are bounded, too, and all that end make room.
func TestConnectionsAreBounded(t *testing.T) {
	r, p, _ := start(t, own)
	server(t, r.Server, echoing)
	var conns []net.Conn
	for range maxPerClient {
		conns = append(conns, dial(t, r, "10.77.0.2:53"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := r.Client.Dial(ctx, "tcp", "10.77.0.2:53"); err == nil {
		t.Errorf("one connection too many: %v", c.LocalAddr())
	}
	dial(t, r, "[2001:db8:77::2]:53") // another client
	for _, c := range conns {
		_, err := c.Write(framed(ask("own.example.", dns.TypeA)))
		must(t, err)
		receive(t, c)
		c.Close()
	}
	for range 3 * maxPerClient { // one after another, at once behind the end of the one before
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		c, err := r.Client.Dial(ctx, "tcp", "10.77.0.2:53")
		cancel()
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
		_, err = c.Write(framed(ask("own.example.", dns.TypeA)))
		must(t, err)
		receive(t, c)
		c.Close()
	}
	p.Signal(syscall.SIGUSR1)
	p.Await("msg=counter")
	t.Log(p.Output()[strings.Index(p.Output(), "msg=counter"):])
}

// Who opens connections that end at once, one after another, takes nothing from others.
func TestEndedConnectionsTakeNoRoom(t *testing.T) {
	r, _, _ := start(t, own)
	serverAt(t, r.Server, "[2001:db8:77::2]:53", echoing)
	ctx, cancel := context.WithTimeout(t.Context(), 2*rig.Patience)
	defer cancel()
	for range maxFlows + 100 {
		if c, err := r.Client.Dial(ctx, "tcp", "10.77.0.2:53"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%v, %v: want a refusal", c, err)
		}
	}
	c := dial(t, r, "[2001:db8:77::2]:53") // another client
	_, err := c.Write(framed(ask("own.example.", dns.TypeA)))
	must(t, err)
	receive(t, c)
}

// Flows without a connection: a client has a part of them, the oldest goes first, and those with a connection stay.
func TestParkedFlows(t *testing.T) {
	var b balancer
	x, err := newProxy(&b.zone, &b.count, func(nf.Dir, []byte) {})
	must(t, err)
	frame := segment(t, nil)
	p := nf.Decode(frame)
	name := func(client, port int) flow {
		return flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, byte(client >> 8), byte(client)}), uint16(port)), netip.MustParseAddrPort("10.77.0.2:53")}
	}
	meet := func(f flow) {
		t.Helper()
		if !x.known(nf.Up, f, &p, frame, true) {
			t.Fatalf("no room for %v", f)
		}
		all := 0
		for _, c := range x.clients {
			all += c.parked.Len()
			if c.parked.Len() > maxParked {
				t.Fatalf("%d flows of a client", c.parked.Len())
			}
		}
		if all != x.parked.Len() || all+x.conns != len(x.flows) || len(x.flows) > maxFlows {
			t.Fatalf("%d, %d parked, %d connections, %d flows", all, x.parked.Len(), x.conns, len(x.flows))
		}
	}
	live, ended := name(1, 1), name(1, 2)
	for _, f := range []flow{live, ended} {
		meet(f)
		if !x.enter(f) {
			t.Fatal("it does not begin")
		}
	}
	x.leave(ended)
	for port := range 2 * maxParked {
		meet(name(2, 1+port))
	}
	if x.flows[ended] == nil || x.flows[name(2, 1)] != nil || x.clients[name(2, 1).client.Addr()].parked.Len() != maxParked {
		t.Error("a client's flows push out those of another one, or not its own")
	}
	for client := range 2 * maxFlows {
		meet(name(3+client, 1))
	}
	if x.flows[ended] != nil || x.flows[live] == nil || len(x.flows) != maxFlows {
		t.Errorf("%d flows; the oldest one is there, or the one with a connection is not", len(x.flows))
	}
	x.leave(live)
	for client := range 2 * maxFlows {
		meet(name(3+client, 2))
	}
	if x.flows[live] != nil || len(x.clients) > maxFlows || x.conns != 0 {
		t.Errorf("%d clients are remembered, %d connections", len(x.clients), x.conns)
	}
}

// A flood of connections from addresses that nobody has takes bounded memory, and the others' queries are answered meanwhile by UDP, and after it by TCP.
func TestAFloodOfConnections(t *testing.T) {
	r, p, _ := start(t, own)
	server(t, r.Server, echoing)
	frame := segment(t, ask("own.example.", dns.TypeA))
	at := nf.Decode(frame).Transport
	const frames = 30000
	for i := range frames {
		f := bytes.Clone(frame)
		copy(f[26:], []byte{10, 77, byte(1 + i>>13), byte(i >> 5)})
		binary.BigEndian.PutUint16(f[at:], uint16(1024+i))
		f[at+13] = map[bool]byte{true: nf.SYN, false: nf.ACK}[i%3 > 0] // and some of connections that there never were
		q := nf.Decode(f)
		q.Complete(f)
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], headerChecksum(f[14:34]))
		r.Client.Send(f)
		if i%1000 == 0 {
			got := resolve(t, r, "own.example.", dns.TypeA)
			for tries := 1; got == noAnswer && tries < 3; tries++ { // as resolvers do: a thousand frames may fill the port's ring before the function has its turn
				got = resolve(t, r, "own.example.", dns.TypeA)
			}
			if got != "10.77.0.11" {
				t.Errorf("during the flood: %s", got)
			}
		}
	}
	resident, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	must(t, err)
	kb := 0
	for line := range strings.Lines(string(resident)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err := fmt.Sscan(rest, &kb)
			must(t, err)
		}
	}
	t.Logf("%d frames: at most %d KB resident", frames, kb)
	if kb == 0 || kb > 100<<10 {
		t.Errorf("%d KB resident: want at most 100 MB", kb)
	}
	rig.Eventually(t, "TCP is answered again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp", "10.77.0.2:53")
		if err != nil {
			return false
		}
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
		_, err = c.Write(framed(ask("own.example.", dns.TypeA)))
		must(t, err)
		return len(receive(t, c)) > 0
	})
}

func headerChecksum(h []byte) uint16 {
	sum := uint32(0)
	for ; len(h) > 0; h = h[2:] {
		sum += uint32(binary.BigEndian.Uint16(h))
	}
	return ^uint16(sum + sum>>16)
}

// segment of TCP, from the client's port 4000. Its flags are still to be set and its checksums wrong.
func segment(t *testing.T, data []byte, tags ...uint16) []byte {
	t.Helper()
	f := datagram(t, append(make([]byte, 12), data...), false, tags...)
	p := nf.Decode(f)
	f[p.Network+9] = nf.TCP
	clear(f[p.Transport+4 : p.Transport+20])
	f[p.Transport+12] = 5 << 4
	return f
}

// The frames of a connection carry its VLAN tags on both sides, and who is in another VLAN has no part in it.
func TestVLANsAreApart(t *testing.T) {
	var b balancer
	all := [2]chan []byte{make(chan []byte, 100), make(chan []byte, 100)} // by direction: each has a pump of its own
	x, err := newProxy(&b.zone, &b.count, func(d nf.Dir, f []byte) { all[d] <- f })
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { x.run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	take := func(d nf.Dir, flags byte, ack uint32, tags ...uint16) []byte {
		t.Helper()
		f := segment(t, nil, tags...)
		p := nf.Decode(f)
		if d == nf.Down {
			copy(f[p.Network+12:], append(p.Dst.AsSlice(), p.Src.AsSlice()...))
			binary.BigEndian.PutUint32(f[p.Transport:], 53<<16|4000)
			back(f, bytes.Clone(f))
			binary.BigEndian.PutUint32(f[p.Transport+8:], ack)
		}
		f[p.Transport+13], f[p.Transport+14] = flags, 0x7f
		clear(f[p.Network+10 : p.Network+12])
		binary.BigEndian.PutUint16(f[p.Network+10:], headerChecksum(f[p.Network:p.Transport]))
		p = nf.Decode(f)
		if !x.take(d, &p, f, true) {
			t.Fatal("it is not taken")
		}
		return f
	}
	expect := func(d nf.Dir, flags byte, link []byte) nf.Packet {
		t.Helper()
		select {
		case f := <-all[d]:
			p := nf.Decode(f)
			if p.Flags != flags || !bytes.Equal(f[:p.Network], link) || !p.Intact(f) {
				t.Errorf("%v: % x: want flags %x and % x before it", d, f, flags, link)
			}
			return p
		case <-time.After(rig.Patience):
			t.Fatal("no frame comes")
			return nf.Packet{}
		}
	}
	syn := take(nf.Up, nf.SYN, 0, 7, 42)
	p := expect(nf.Up, nf.SYN, syn[:22])
	for _, tags := range [][]uint16{{7, 43}, {42}, nil} {
		take(nf.Up, nf.ACK, 0, tags...)
		take(nf.Down, nf.SYN|nf.ACK, p.Seq+1, tags...)
	}
	if n := b.count.tcpDropped.Load(); n != 6 || len(all[nf.Up])+len(all[nf.Down]) > 0 {
		t.Errorf("%d of 6 frames from other VLANs were dropped, %d frames answer them", n, len(all[nf.Up])+len(all[nf.Down]))
	}
	answer := take(nf.Down, nf.SYN|nf.ACK, p.Seq+1, 7, 42)
	expect(nf.Up, nf.ACK, syn[:22])
	expect(nf.Down, nf.SYN|nf.ACK, answer[:22])
}
