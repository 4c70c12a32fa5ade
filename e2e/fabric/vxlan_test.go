package fabric

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// Hosts without OpenFlow: a chain across three of them, by tunnels. Frames are what they were at every function and at the end.
func TestChainAcrossHostsJoinedByTunnels(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", nil)
	policy := b.example("vxlan-policy.yaml")
	b.apply(policy)
	b.reach("v1", "10.0.0.2")

	v1, v2 := b.taken("v1", "10.0.0.1"), b.taken("v2", "10.0.0.2")
	at := map[string]*rig.Capture{
		"v1": listen(t, b.netns("v1"), "eth0"), "v2": listen(t, b.netns("v2"), "eth0"),
		"w1.in": listen(t, b.function("h3", "w1"), "in"), "w1.out": listen(t, b.function("h3", "w1"), "out"),
		"w2.in": listen(t, b.function("h1", "w2"), "in"), "w2.out": listen(t, b.function("h1", "w2"), "out"),
		"mon": listen(t, b.function("h2", "mon"), "tap"),
	}
	b.frames(at, []passage{
		{"forward", "v1", v1, v2, unix.IPPROTO_TCP, map[string]int{"w1.in": 1, "w2.in": 1, "mon": 1, "v2": 1}, 0},
		{"reverse", "v2", v2, v1, unix.IPPROTO_TCP, map[string]int{"w1.out": 1, "w2.out": 1, "mon": 1, "v1": 1}, 0},
		{"unselected", "v1", v1, v2, unix.IPPROTO_UDP, map[string]int{"v2": 1}, 0},
		{"unselected, back", "v2", v2, v1, unix.IPPROTO_UDP, map[string]int{"v1": 1}, 0},
	})
	b.apply(copying)
	at["t1"], at["t3"] = listen(t, b.function("h1", "t1"), "tap"), listen(t, b.function("h3", "t3"), "tap")
	at["ids.in"], at["ids.out"] = listen(t, b.function("h3", "ids"), "in"), listen(t, b.function("h3", "ids"), "out")
	b.frames(at, []passage{
		{"copied to other hosts", "v1", v1, v2, unix.IPPROTO_UDP, map[string]int{"t1": 1, "ids.in": 1, "t3": 1, "v2": 1}, 0},
		{"copied to other hosts, back", "v2", v2, v1, unix.IPPROTO_UDP, map[string]int{"t1": 1, "ids.out": 1, "t3": 1, "v1": 1}, 0},
		{"copied and steered", "v1", v1, v2, unix.IPPROTO_TCP, map[string]int{"t1": 1, "ids.in": 1, "t3": 1, "w1.in": 1, "w2.in": 1, "mon": 1, "v2": 1}, 0},
		{"copied and steered, back", "v2", v2, v1, unix.IPPROTO_TCP, map[string]int{"t1": 1, "ids.out": 1, "t3": 1, "w1.out": 1, "w2.out": 1, "mon": 1, "v1": 1}, 0},
	})
	t.Run("full frames pass the tunnels", func(t *testing.T) {
		if out, err := b.exec("v1", "ping", "-q", "-n", "-M", "do", "-s", "1472", "-c", "3", "-i", "0.05", "-W", "1", "10.0.0.2"); err != nil {
			t.Error(out)
		}
	})
	t.Run("a stream through all three hosts", func(t *testing.T) {
		b := b.in(t)
		b.apply(strings.Replace(policy, "[icmp, tcp]", "[icmp, tcp, udp/9000]", 1))
		o := b.exact(func() rig.Outcome {
			s, err := rig.NewStream(b.netns("v1"), b.netns("v2"), "10.0.0.2", streamPort, streamRate)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Await(b.ctx, streamRate/2); err != nil {
				t.Fatal(err)
			}
			b.kill("h3")
			b.kill("manager")
			if err := s.Await(b.ctx, streamRate); err != nil {
				t.Fatal(err)
			}
			b.again()
			o, err := s.Stop()
			if err != nil {
				t.Fatal(err)
			}
			return o
		})
		t.Log(outage(o))
		if o.Lost+o.Duplicated > 0 {
			t.Error("an agent's and the manager's death and return lose or duplicate frames")
		}
	})
}

// Hosts whose switches differ: a user-space switch can pass on only frames that are finished, so tunnels carry those.
func TestHostsWithDifferentSwitchesExchangeDatagrams(t *testing.T) {
	t.Parallel()
	b := newBed(t, "vxlan.yaml", func(s string) string { return strings.Replace(s, "h2: {}", "h2: {switch: ovs}", 1) })
	b.apply(b.example("vxlan-policy.yaml")) // which does not select them
	b.reach("v1", "10.0.0.2")
	for _, way := range [][2]string{{"v1", "v2"}, {"v2", "v1"}} {
		o := b.exact(func() rig.Outcome {
			s, err := rig.NewStream(b.netns(way[0]), b.netns(way[1]), map[string]string{"v1": "10.0.0.1", "v2": "10.0.0.2"}[way[1]], streamPort, streamRate)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Await(b.ctx, streamRate/4); err != nil {
				t.Fatal(err)
			}
			o, err := s.Stop()
			if err != nil {
				t.Fatal(err)
			}
			return o
		})
		if o.Lost+o.Duplicated > 0 {
			t.Errorf("%s to %s: %+v", way[0], way[1], o)
		}
	}
}

// copying: what the two stations, on different hosts, send to each other is copied to functions on two.
const copying = `
functions:
  t1: {image: monitor, host: h1}
  ids: {image: wire, host: h3}
  t3: {image: monitor, host: h3}
chains:
  copies: tap:t1 | ids | tap:t3
policies:
  watch: {from: v1, to: v2, match: [tcp, udp], mode: replica, chain: copies}
`

// passage is a frame and where it comes in, once or more.
type passage struct {
	name     string
	node     string
	from, to rig.Station
	proto    uint8
	want     map[string]int
	port     uint16 // of the destination; 0 is 5000
}

// frames sends one for each passage and expects it, as it was sent, where it should come in and nowhere else.
func (b *bed) frames(at map[string]*rig.Capture, passages []passage) {
	for _, x := range passages {
		b.t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			p := rig.Packet{Proto: x.proto, Src: 4000, Dst: cmp.Or(x.port, 5000), TTL: 33, Payload: fmt.Sprintf("<%s %d>", x.name, time.Now().UnixNano())}
			sent := p.Bytes(x.from, x.to)
			if err := newSender(t, b.netns(x.node), "eth0").Send(sent); err != nil {
				t.Fatal(err)
			}
			b.await("the frame arrives everywhere", func() (bool, string) {
				for place, n := range x.want {
					if got := len(at[place].Copies(p.Payload, sent)); got < n {
						return false, fmt.Sprintf("%d at %s, want %d", got, place, n)
					}
				}
				return true, ""
			})
			time.Sleep(50 * time.Millisecond) // a copy too many would follow at once
			for place, c := range at {
				got := c.Copies(p.Payload, sent)
				if len(got) != x.want[place] {
					t.Errorf("%d frames at %s, want %d", len(got), place, x.want[place])
				}
				for _, f := range got {
					if !bytes.Equal(f.Data, sent) {
						t.Errorf("at %s the frame is\n%x, sent was\n%x", place, f.Data, sent)
					}
				}
			}
		})
	}
}

// taken is a station that an endpoint has taken.
func (b *bed) taken(endpoint, addr string) rig.Station {
	b.t.Helper()
	var e api.Endpoint
	b.get(&e, "endpoint", endpoint)
	mac, err := net.ParseMAC(e.Status.MAC)
	if err != nil {
		b.t.Fatalf("endpoint %s: %+v: %v", endpoint, e.Status, err)
	}
	return rig.Station{MAC: mac, Addr: netip.MustParseAddr(addr)}
}
