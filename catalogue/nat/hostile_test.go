package main

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// besieged is a pool in the network of the stations, for clients of whom hostile frames speak, and for the client that is there. Of 10.1.9.200 no frame comes.
const besieged = `{"pool": ["10.77.0.100"], "clients": ["10.1.1.1/32", "10.1.9.200/32", "10.77.0.1/32"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.1.1.1:80"}]}`

var (
	besiegedPool = netip.MustParseAddr("10.77.0.100")
	silentClient = netip.MustParseAddr("10.1.9.200")
	inside       = []netip.Addr{netip.MustParseAddr("10.1.1.1"), silentClient, rig.ClientIP}
)

// fromOutside are frames to the pool, some of sessions that other hostile frames begin, and to a client's own address.
func fromOutside(t *testing.T) (all [][]byte) {
	for _, text := range []string{
		"tcp 10.1.1.2:80 10.77.0.100:5000 syn ack ack=1001", "tcp 10.1.1.2:80 10.77.0.100:5000 ack seq=6", "tcp 10.1.1.2:80 10.77.0.100:5000 rst seq=6", "udp 10.1.1.2:5000 10.77.0.100:5000", "udp 10.1.1.2:53 10.77.0.100:5000",
		"pong 10.1.1.2:0 10.77.0.100:7", "tcp 10.1.1.2:9 10.77.0.100:8080 syn", "gre 10.1.1.2:0 10.77.0.100:0", "udp 10.1.1.3:7 10.1.9.200:7", "tcp 10.1.1.3:7 10.1.9.200:7 ack", "ping 10.1.1.3:7 10.1.9.200:0",
	} {
		all = append(all, packet(t, text, []byte("data that is there")), packet(t, text, []byte("data"), 0), packet(t, text, []byte("data"), 7))
	}
	quote := func(text string) []byte { return packet(t, text, nil)[14:] }
	return append(all,
		packet(t, "unreachable 10.1.1.2:0 10.77.0.100:0", quote("tcp 10.77.0.100:5000 10.1.1.2:80 syn")), packet(t, "unreachable 10.9.9.9:0 10.77.0.100:0", quote("udp 10.77.0.100:5000 10.1.1.2:53")),
		packet(t, "unreachable 10.1.1.2:0 10.77.0.100:0", quote("ping 10.77.0.100:7 10.1.1.2:0")), packet(t, "unreachable 10.1.1.1:0 10.1.1.2:0", quote("tcp 10.1.1.2:80 10.1.1.1:5000 ack")),
		slices.Concat(make([]byte, 12), []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 9, 9, 9, 9, 2, 10, 1, 1, 2, 0, 0, 0, 0, 0, 0, 10, 77, 0, 100}, make([]byte, 18)))
}

// Hostile frames by both ports, up to jumbo frames: no client's address comes out, and in comes only what was to the pool. Then a client is translated as ever.
func TestHostileFrames(t *testing.T) {
	r, p := start(t, besieged)
	rig.Hostile{
		Frames: 1_000_000, MTU: 9000, MemoryKB: 40 << 10, Pass: 0.2, Seeds: fromOutside(t),
		Denied: func(up bool, f []byte) string {
			switch r := rig.Read(f); {
			case r.Kind != unix.ETH_P_IP || !r.Src.IsValid():
			case up && slices.Contains(inside, r.Src) && !r.Dst.IsMulticast() && r.Dst != limited:
				return "with a client's own address"
			case !up && r.Dst == besiegedPool:
				return "to the pool"
			}
			return ""
		},
		AsSent: func(up bool, f []byte) string {
			if r := rig.Read(f); !up && r.Dst == silentClient && r.Proper {
				return "to a client's own address"
			}
			return ""
		},
		Changed: func(f []byte) bool { // translated, or the function's questions and answers
			p := nf.Decode(f)
			return p.Type == etherARP || p.Bad == "" && (p.Src == besiegedPool || slices.Contains(inside, p.Dst))
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("translated up")
	t.Log(p.Output()[strings.LastIndex(p.Output(), "translated up"):])
	serve(t, r.Server, "10.77.0.2:80")
	c := dial(t, r.Client, "tcp4", "10.77.0.2:80")
	if who := greeting(t, c); !strings.HasPrefix(who, "10.77.0.100:") {
		t.Errorf("the server sees %s", who)
	}
	roundTrip(t, c)
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
