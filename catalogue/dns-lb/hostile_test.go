package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// ours tells whether a message asks for a name of own, or answers that.
func ours(msg []byte, response bool) bool {
	var q names.Question
	return q.Read(msg) && q.Response == response && (string(q.Text()) == "own.example" || strings.HasSuffix(string(q.Text()), ".wild.example"))
}

// dnsSeeds are queries and answers, by UDP and TCP, some of them where they are hard to find.
func dnsSeeds(t *testing.T) (all [][]byte) {
	response := func(m *dns.Msg) { m.Response = true }
	for _, v6 := range []bool{false, true} {
		for _, msg := range [][]byte{ask("own.example.", dns.TypeA), ask("x.wild.example.", dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(4096, true) }), ask("other.example.", dns.TypeA)} {
			f := datagram(t, msg, v6)
			all = append(all, f, datagram(t, msg, v6, 42))
			at := nf.Decode(f).Transport
			tcp := slices.Concat(f[:at], []byte{15, 160, 0, 53, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0}) // SYN
			tcp[map[bool]int{false: 23, true: 20}[v6]] = nf.TCP
			setLength(tcp, v6)
			data := slices.Concat(tcp, framed(msg))
			data[at+13] = nf.ACK | nf.PSH
			setLength(data, v6)
			all = append(all, tcp, data)
		}
		for _, msg := range [][]byte{ask("own.example.", dns.TypeA, response), ask("x.wild.example.", dns.TypeA, response), ask("other.example.", dns.TypeA, response)} {
			f := fromServer(datagram(t, msg, v6), v6)
			all = append(all, f, slices.Insert(bytes.Clone(f), 12, 0x81, 0, 0, 0, 0x81, 0, 0, 0, 0x81, 0, 0, 0))
			if v6 {
				all = append(all, withExtensions(f, 10), jumbo(f))
			}
		}
	}
	return all
}

// fromServer makes a client's datagram one of the server.
func fromServer(f []byte, v6 bool) []byte {
	f = bytes.Clone(f)
	at, n := 26, 4
	if v6 {
		at, n = 22, 16
	}
	src, dst := bytes.Clone(f[at:at+n]), bytes.Clone(f[at+n:at+2*n])
	copy(f[at:], dst)
	copy(f[at+n:], src)
	copy(f[at+2*n:], []byte{0, 53, 15, 160}) // the sums stay
	return f
}

func setLength(f []byte, v6 bool) {
	if v6 {
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
	} else {
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	}
}

// withExtensions has n headers of destination options of IPv6 before its upper layer.
func withExtensions(f []byte, n int) []byte {
	f = bytes.Clone(f)
	for range n {
		f = slices.Insert(f, 54, f[20], 0, 1, 4, 0, 0, 0, 0)
		f[20] = unix.IPPROTO_DSTOPTS
	}
	setLength(f, true)
	return f
}

// jumbo has a payload length of 0, as jumbograms have, and not their option: Linux takes all that is there.
func jumbo(f []byte) []byte {
	f = slices.Insert(bytes.Clone(f), 54, f[20], 0, 1, 4, 0, 0, 0, 0)
	f[18], f[19], f[20] = 0, 0, unix.IPPROTO_HOPOPTS
	return f
}

// What hides an answer for an own name from this function, and not from all receivers, does not reach a client.
func TestHiddenAnswers(t *testing.T) {
	b := balancerOf(t, own)
	response := func(m *dns.Msg) { m.Response = true }
	answer := func(name string, v6 bool) []byte {
		return fromServer(datagram(t, ask(name, dns.TypeA, response), v6), v6)
	}
	tags := func(f []byte, ids ...byte) []byte {
		f = bytes.Clone(f)
		for _, id := range ids {
			f = slices.Insert(f, 12, 0x81, 0, 0, id)
		}
		return f
	}
	later := func(f []byte, offset uint16) []byte { // in units of 8 bytes
		f = bytes.Clone(f)
		binary.BigEndian.PutUint16(f[20:], offset)
		return f
	}
	for name, tt := range map[string]struct {
		frame []byte
		want  bool
	}{
		"another name": {answer("other.example.", true), true}, "plainly": {answer("own.example.", true), false},
		"behind three priority tags": {tags(answer("own.example.", false), 0, 0, 0), false}, "behind two": {tags(answer("own.example.", false), 0, 0), false},
		"behind ten extension headers": {withExtensions(answer("own.example.", true), 10), false}, "behind eight": {withExtensions(answer("own.example.", true), 8), false},
		"another name behind eight": {withExtensions(answer("other.example.", true), 8), true}, "in a packet of length 0": {jumbo(answer("own.example.", true)), false},
		"a fragment over the question": {later(answer("own.example.", false), 1), false}, "a fragment behind it": {later(answer("own.example.", false), 35), true},
	} {
		if got := b.handle(nf.Down, nf.NewFrame(tt.frame)) == nf.Pass; got != tt.want {
			t.Errorf("%s: passes: %t, want %t: %s", name, got, tt.want, nf.Decode(tt.frame).Bad)
		}
	}
	// Several datagrams in one frame, which the sender leaves to the hardware to cut.
	one, other := ask("other.example.", dns.TypeA, response), ask("own.example.", dns.TypeA, response)
	for len(other) < len(one) {
		other = append(other, 0)
	}
	for want, msgs := range map[bool][]byte{true: slices.Concat(one, one), false: slices.Concat(one, other)} {
		f := fromServer(datagram(t, msgs, false), false)
		raw := append(make([]byte, 10), f...) // struct virtio_net_hdr
		raw[0], raw[1] = 1, 5                 // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_UDP_L4
		binary.NativeEndian.PutUint16(raw[4:], uint16(len(one)))
		if got := b.handle(nf.Down, nf.Received(raw)) == nf.Pass; got != want {
			t.Errorf("two datagrams in a frame: passes: %t, want %t", got, want)
		}
	}
}

// A server that sends several datagrams at once (UDP_SEGMENT) gets no answer for an own name through, and all others.
func TestDatagramsThatTheHardwareCuts(t *testing.T) {
	r := rig.New(t, false)
	launch(t, r, own)
	response := func(m *dns.Msg) { m.Response = true }
	var c net.PacketConn
	must(t, netns.Do(r.Client.Netns, func() (err error) { c, err = net.ListenPacket("udp4", "10.77.0.1:4000"); return err }))
	defer c.Close()
	var s net.Conn
	must(t, netns.Do(r.Server.Netns, func() (err error) {
		s, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 77, 0, 2), Port: 53}}).DialContext(t.Context(), "udp4", "10.77.0.1:4000")
		return err
	}))
	defer s.Close()
	other, forged := ask("other.example.", dns.TypeA, response), append(ask("own.example.", dns.TypeA, response), 0, 0)
	if len(other) != len(forged) {
		t.Fatalf("%d and %d bytes: want as many", len(other), len(forged))
	}
	raw, err := s.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(other)) }))
	must(t, err)
	got, seen := make([]byte, 65536), 0
	rig.Eventually(t, "two answers for another name, sent at once", func() bool {
		for _, msgs := range [][]byte{slices.Concat(other, forged), slices.Concat(other, other)} {
			_, err := s.Write(msgs)
			must(t, err)
		}
		for {
			must(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			n, _, err := c.ReadFrom(got)
			if err != nil {
				return seen >= 2
			}
			if seen++; ours(got[:n], true) {
				t.Fatalf("the server's answer for an own name came: % x", got[:n])
			}
		}
	})
}

// Hostile frames by both ports, up to jumbo frames: no query that is plainly for an own name reaches a server, no server's answer for one reaches a client, however it is
// wrapped. Then clients are answered as ever.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, false)
	p, _ := launch(t, r, own)
	speaks, answers := r.Speaks(), 0
	rig.Hostile{
		Frames: 1_000_000, MTU: 9000, MemoryKB: 64 << 10, Pass: 0.5, Seeds: dnsSeeds(t),
		AsSent: func(up bool, f []byte) string {
			r := rig.Read(f)
			src, dst := r.Ports()
			if !r.Proper || r.Proto != unix.IPPROTO_UDP {
				return ""
			}
			if !up && src == port && ours(r.Data(), true) {
				return "a server's answer for an own name"
			}
			// What servers need not take for a query, too, passes: README.md.
			if p := nf.Decode(f); up && dst == port && !r.More && len(r.VLANs) <= 2 && r.Headers <= 8 && ours(r.Data(), false) && p.Bad == "" && single(&p, f) && p.Intact(f) {
				return "a query for an own name"
			}
			return ""
		},
		Changed: func(f []byte) bool { // the function's answers, what it says in connections that it has taken, and the stations, which frames name
			p := nf.Decode(f)
			if p.Proto == nf.UDP && p.SrcPort == port && p.Bad == "" && p.Intact(f) && ours(p.Data(f), true) {
				answers++
				return true
			}
			return speaks(f) || p.Proto == nf.TCP && (p.SrcPort == port || p.DstPort == port)
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("msg=frames")
	t.Log(p.Output()[strings.LastIndex(p.Output(), "msg=counter"):])
	if answers == 0 {
		t.Error("nothing was answered: this tested less than it says")
	}
	// A server that says of each name that there is nothing.
	var s net.PacketConn
	must(t, netns.Do(r.Server.Netns, func() (err error) { s, err = net.ListenPacket("udp4", "10.77.0.2:53"); return err }))
	var serving sync.WaitGroup
	serving.Go(func() {
		b := make([]byte, 4096)
		for {
			n, from, err := s.ReadFrom(b)
			if err != nil {
				return
			}
			b[2] |= 0x80
			_, _ = s.WriteTo(b[:n], from)
		}
	})
	defer serving.Wait()
	defer s.Close()
	r.Server.Echo("10.77.0.2:53")
	for _, args := range []string{"+notcp own.example", "+tcp own.example", "+notcp +noedns other.example"} {
		want := map[bool]string{true: "10.77.0.11", false: "ANSWER: 0"}[strings.Contains(args, "own")]
		rig.Eventually(t, "dig "+args, func() bool { // by TCP not at once: what frames have begun has to end
			out, _ := rig.Try(t, r.Client, append([]string{"dig", "+tries=1", "+time=2", "@10.77.0.2"}, strings.Fields(args)...)...)
			return strings.Contains(out, want)
		})
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
