package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

// server is a receiver as RFC 9293 and RFC 5961 have it: one socket that listens, and one connection at a time.
type server struct {
	listens, synReceived bool
	irs, next            uint32 // the client's SYN; what comes next
	iss, sent            uint32
	stream               string
	out                  []segment // on its way, in order
	random               *rand.Rand
}

func (s *server) say(flags uint8, seq uint32, data string) {
	s.out = append(s.out, segment{inspect.Server, seq, s.next, flags, data})
}

func (s *server) take(g segment) {
	syn := g.flags&(nf.SYN|nf.ACK|nf.RST|nf.FIN) == nf.SYN
	switch {
	case s.listens:
		if syn {
			*s = server{synReceived: true, irs: g.seq, next: g.seq + 1, iss: s.random.Uint32(), out: s.out, random: s.random}
			s.sent = s.iss + 1
			s.say(nf.SYN|nf.ACK, s.iss, "")
		}
	case syn && s.synReceived && g.seq == s.irs:
		s.say(nf.SYN|nf.ACK, s.iss, "")
	case g.flags&nf.SYN != 0:
		s.say(nf.ACK, s.sent, "")
	case g.flags&nf.RST != 0:
		s.listens = g.seq == s.next
		if !s.listens {
			s.say(nf.ACK, s.sent, "")
		}
	case g.flags&nf.ACK == 0 || s.synReceived && g.ack != s.sent:
	default:
		s.synReceived = false
		old := s.next - g.seq
		if old > uint32(len(g.data)) {
			return
		}
		s.stream += g.data[old:]
		s.next = g.seq + uint32(len(g.data))
		if g.flags&nf.FIN != 0 {
			s.next++
			s.say(nf.ACK|nf.FIN, s.sent, "")
			s.listens = true
			return
		}
		if strings.HasPrefix(s.stream, greeting) && s.sent == s.iss+1 {
			s.say(nf.ACK, s.sent, greeting)
			s.sent += uint32(len(greeting))
			return
		}
		s.say(nf.ACK, s.sent, "")
	}
}

const greeting = "SSH-2.0-x\r\n"

// TestHostileClients: a client that sends what it likes, of which some does not reach the server, and forges frames in the server's name, never gets a
// forbidden request to it. Its numbers are such that parts of the request fit together from several connections with one pair of ports.
func TestHostileClients(t *testing.T) {
	const allowed, forbidden = "GET /public HTTP/1.1\r\nHost: x\r\n\r\n", "GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
	const prefix = "GET /public HTTP/1.1\r\nX: " // what follows is in a header
	cuts := []int{0, 8, len(allowed)}
	connections, public, unread := 0, 0, 0
	for seed := range uint64(4000) {
		random := rand.New(rand.NewPCG(seed, 3))
		b := newBench(t, map[bool]string{true: `, "midstream": "pass"`, false: ""}[seed%4 == 0])
		if seed%4 == 0 { // a connection from before the start, but no others that look like it
			b.passes(b.client(0, "x"))
			b.x.started = b.x.started.Add(-startingFor)
		}
		srv := &server{listens: true, random: random}
		isns := []uint32{1000, 1000 - uint32(len(prefix)), 0}
		isn, iss := isns[0], uint32(0)
		var log []segment
		toServer := func(g segment) {
			log = append(log, g)
			if b.give(g) && random.IntN(2) > 0 {
				srv.take(g)
			}
			for _, s := range b.sent { // the filter's own
				if s.dir == nf.Up && s.p.Flags&nf.RST != 0 && s.p.DstPort == 80 {
					srv.take(segment{inspect.Client, s.p.Seq, s.p.Ack, s.p.Flags, ""})
				}
			}
			b.sent = nil
		}
		for range 150 {
			if !srv.listens && strings.HasPrefix(srv.stream, forbidden[:20]) {
				for _, g := range log {
					t.Logf("%+v", g)
				}
				t.Fatalf("seed %d: the server has %q", seed, srv.stream)
			}
			switch random.IntN(18) {
			case 0:
				isn = isns[random.IntN(len(isns))]
				fallthrough
			case 1, 2:
				toServer(segment{inspect.Client, isn, 0, nf.SYN, []string{"", "", prefix}[random.IntN(3)]})
			case 3:
				toServer(segment{inspect.Client, isn + 1 + uint32(cuts[random.IntN(len(cuts))]), iss + 1, nf.RST, ""})
			case 4:
				toServer(segment{inspect.Client, isn + 1 + uint32(cuts[random.IntN(len(cuts))]), iss + 1, nf.ACK | nf.FIN, ""})
			case 5:
				toServer(segment{inspect.Client, isn + 1, iss + 1, nf.ACK, greeting})
			case 6:
				toServer(segment{inspect.Client, isn + 1 + uint32(len(greeting)), iss + 1 + uint32(len(greeting)), nf.ACK, ""})
			case 7: // in the server's name
				g := segment{inspect.Server, iss + uint32(random.IntN(2)), isn + 1 + uint32(cuts[random.IntN(len(cuts))]), []uint8{nf.SYN, nf.SYN | nf.ACK, nf.ACK, nf.ACK | nf.FIN, nf.RST, nf.RST | nf.ACK}[random.IntN(6)], ""}
				log = append(log, g)
				b.forge(g)
			case 8:
				if random.IntN(8) == 0 {
					b.x.tick(b.x.now.Add(time.Duration(1+random.IntN(12)) * time.Second))
				}
			case 9:
				if srv.synReceived {
					srv.say(nf.SYN|nf.ACK, srv.iss, "")
				}
			case 10, 11, 12, 13:
				if len(srv.out) == 0 {
					continue
				}
				g := srv.out[0]
				srv.out = srv.out[1:]
				log = append(log, g)
				if ok := b.give(g); ok && g.flags&nf.SYN != 0 {
					iss = g.seq
					connections++
				}
			default:
				from := random.IntN(len(cuts) - 1)
				to := from + 1 + random.IntN(len(cuts)-1-from)
				text := []string{allowed, forbidden}[random.IntN(2)]
				toServer(segment{inspect.Client, isn + 1 + uint32(cuts[from]), iss + 1, nf.ACK, text[cuts[from]:cuts[to]]})
			}
			if !srv.listens && strings.HasPrefix(srv.stream, allowed[:20]) {
				public++
			}
			for _, fl := range b.x.flows {
				if fl.state == passing {
					unread++
				}
			}
		}
	}
	if connections < 1000 || public < 100 || unread < 100 {
		t.Errorf("hardly anything happens: %d connections, %d and %d steps with an allowed request and unread", connections, public, unread)
	}
	t.Logf("%d connections, %d and %d steps with an allowed request and unread", connections, public, unread)
}
