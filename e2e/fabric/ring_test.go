package fabric

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
)

// A network with a loop: what is flooded reaches every station once and dies out, and any cable may be cut.
func TestRingForwardsWithoutLoopsAndHeals(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ring.yaml", nil)
	names := []string{"h1", "h2", "h3", "h4"}
	for _, from := range names {
		for _, to := range names {
			if from != to {
				b.reach(from, b.station(to).Addr.String())
			}
		}
	}
	b.floodsOnce(names)

	for i, cable := range []string{"s1:1", "s2:1", "s3:1", "s4:1"} {
		t.Run("cut "+cable, func(t *testing.T) {
			b := b.in(t)
			from, to := names[i], names[(i+1)%4] // the stations at its two ends
			s, err := rig.NewStream(b.netns(from), b.netns(to), b.station(to).Addr.String(), 9000, streamRate)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Await(b.ctx, streamRate/4); err != nil {
				t.Fatal(err)
			}
			b.must("--name", b.name, "testbed", "cut", cable)
			if err := s.Await(b.ctx, streamRate/2); err != nil {
				t.Fatal(err)
			}
			b.floodsOnce(names)
			b.must("--name", b.name, "testbed", "heal", cable)
			if err := s.Await(b.ctx, streamRate/2); err != nil {
				t.Fatal(err)
			}
			o, err := s.Stop()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s is cut and healed: %s", cable, outage(o))
			if o.Duplicated > 0 {
				t.Errorf("%d duplicated", o.Duplicated)
			}
			b.within(o.LongestGap, linkHeals)
			b.floodsOnce(names)
		})
	}
}

// station of a plain host, as the testbed made it.
func (b *bed) station(name string) rig.Station {
	b.t.Helper()
	n := b.node(name)
	mac, err := net.ParseMAC(n.MAC)
	if err != nil || len(n.Addresses) == 0 {
		b.t.Fatalf("%s has no address: %+v", name, n)
	}
	return rig.Station{MAC: mac, Addr: netip.MustParsePrefix(n.Addresses[0]).Addr()}
}

// floodsOnce sends a broadcast, a multicast and a unicast to nobody from each station: each other station gets each once, the sender none.
// What is sent while the network has not healed yet may be lost, and is sent again; none may arrive twice, ever.
func (b *bed) floodsOnce(names []string) {
	b.t.Helper()
	captures, senders := map[string]*rig.Capture{}, map[string]*rig.Sender{}
	for _, n := range names {
		captures[n], senders[n] = listen(b.t, b.netns(n), "eth0"), newSender(b.t, b.netns(n), "eth0")
	}
	b.await("flooded frames arrive", func() (bool, string) {
		missing := b.flood(names, captures, senders)
		return missing == "", missing
	})
}

// flood sends one of each kind from each station and tells what has not arrived everywhere.
func (b *bed) flood(names []string, captures map[string]*rig.Capture, senders map[string]*rig.Sender) (missing string) {
	b.t.Helper()
	var payloads []string
	for _, n := range names {
		for kind, mac := range map[string]string{"broadcast": "ff:ff:ff:ff:ff:ff", "multicast": "01:00:5e:01:02:03", "unknown": "02:57:77:77:77:77"} {
			to, err := net.ParseMAC(mac)
			if err != nil {
				b.t.Fatal(err)
			}
			p := rig.Packet{Proto: unix.IPPROTO_UDP, Src: 1, Dst: 2, TTL: 64, Payload: fmt.Sprintf("%s from %s %d.", kind, n, time.Now().UnixNano())}
			if err := senders[n].Send(p.Bytes(b.station(n), rig.Station{MAC: to, Addr: netip.MustParseAddr("10.0.0.200")})); err != nil {
				b.t.Fatal(err)
			}
			payloads = append(payloads, n+"\x00"+p.Payload)
		}
	}
	look := func() (missing string) {
		for _, p := range payloads {
			from, payload := p[:2], p[3:]
			for _, n := range names {
				most := 1
				if n == from {
					most = 0
				}
				switch got := len(captures[n].Incoming(payload)); {
				case got > most:
					b.t.Fatalf("%s got %d copies of the %s, want %d", n, got, payload, most)
				case got < most:
					missing = fmt.Sprintf("%s did not get the %s", n, payload)
				}
			}
		}
		return missing
	}
	for begin := time.Now(); look() != "" && time.Since(begin) < lost; time.Sleep(10 * time.Millisecond) {
	}
	time.Sleep(100 * time.Millisecond) // a copy too many would follow at once
	return look()
}
