package hostile

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/flow"
)

var switches = []string{"ebpf", "ovs"}

const (
	alice6, bob6, mallory4, mallory6 = "fd57::1", "fd57::2", "10.9.0.66", "fd57::66"
	shared4, shared6                 = "10.9.0.100", "fd57::100" // that mallory may send from
	others4, others6                 = "10.9.0.101", "fd57::101" // that bob alone may send from

	pps      = 2000
	repeats  = 50   // of an attack's frames
	interval = 400  // datagrams of the victim's that are counted before, during and after an attack
	flooded  = 5000 // MACs
)

// station is an enemy among the stations of one host: mallory, who has an endpoint of its own, and may send any frame there.
type station struct {
	r                   *rig.Rig
	alice, bob, mallory net.HardwareAddr
	local               string // mallory's link-local address
	send                *rig.Sender
	hears               *rig.Capture // what comes to mallory
	bobHears            *rig.Capture
}

// attack is an attempt. It has failed when the victims' traffic goes on without a loss, does not come to mallory, and their tables are as before.
type attack struct {
	name    string
	refused string // the reason by which port security counts its frames; empty: they are harmless
	frames  func(s *station) [][]byte
	landed  string // what the victim would hear, if it came there
}

func attacks() []attack {
	one := func(f func(s *station) []byte) func(s *station) [][]byte {
		return func(s *station) [][]byte { return slices.Repeat([][]byte{f(s)}, repeats) }
	}
	const arpKind, v4, v6 = flow.EtherTypeARP, flow.EtherTypeIPv4, flow.EtherTypeIPv6
	theft := func(s *station) []byte {
		return frame(s.bob, s.mallory, arpKind, arp(2, s.mallory, rig.AliceAddr, s.bob, rig.BobAddr))
	}
	return []attack{
		{"ARP reply: the victim's address is here", "arp", one(theft), ""},
		{"ARP reply: the gateway's address is here", "arp", one(func(s *station) []byte {
			return frame(s.alice, s.mallory, arpKind, arp(2, s.mallory, rig.BobAddr, s.alice, rig.AliceAddr))
		}), ""},
		{"gratuitous ARP for the victim's address", "arp", one(func(s *station) []byte {
			return frame(everybody, s.mallory, arpKind, arp(1, s.mallory, rig.AliceAddr, make([]byte, 6), rig.AliceAddr))
		}), ""},
		{"ARP whose sender is not that of the frame", "arp", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, arpKind, arp(2, s.alice, mallory4, s.bob, rig.BobAddr))
		}), ""},
		{"ARP reply behind a priority tag", "arp", one(func(s *station) []byte { return tagged(theft(s), 0x8100, 0) }), ""},
		{"ARP reply behind a fabric tag", "arp", func(s *station) (all [][]byte) {
			for _, id := range []uint16{3585, 3600, 4000, 4094} {
				all = append(all, slices.Repeat([][]byte{tagged(theft(s), 0x88a8, id)}, repeats)...)
			}
			return all
		}, ""},
		{"ARP reply behind three tags", "unreadable", one(func(s *station) []byte {
			return tagged(tagged(tagged(theft(s), 0x8100, 0), 0x8100, 0), 0x8100, 0)
		}), ""},
		{"neighbour advertisement with override", "nd", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(mallory6, bob6, []byte{136, 0, 0, 0, 0x60, 0, 0, 0}, raw(alice6), option(2, s.mallory)))
		}), ""},
		{"neighbour advertisement from the victim", "source", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(alice6, bob6, []byte{136, 0, 0, 0, 0x60, 0, 0, 0}, raw(mallory6), option(2, s.mallory)))
		}), ""},
		{"neighbour solicitation with the victim's link layer", "nd", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(mallory6, bob6, []byte{135, 0, 0, 0, 0, 0, 0, 0}, raw(bob6), option(1, s.alice)))
		}), ""},
		{"router advertisement", "ra", one(func(s *station) []byte {
			return frame(allNodes, s.mallory, v6, icmp6(s.local, "ff02::1", advertisement(s.mallory)))
		}), ""},
		{"ICMPv6 redirect", "ra", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(s.local, bob6, make([]byte, 0), []byte{137, 0, 0, 0, 0, 0, 0, 0}, raw(s.local), raw(alice6), option(2, s.mallory)))
		}), ""},
		{"DHCP offer", "dhcp", one(func(s *station) []byte {
			return frame(everybody, s.mallory, v4, udp4(mallory4, "255.255.255.255", 67, 68, "forged-dhcp"))
		}), "forged-dhcp"},
		{"DHCPv6 reply", "dhcp", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, udp6(mallory6, bob6, 547, 546, "forged-dhcp6"))
		}), "forged-dhcp6"},
		{"IPv4 source of the victim", "source", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v4, udp4(rig.AliceAddr, rig.BobAddr, 9000, 9000, "forged-four"))
		}), "forged-four"},
		{"IPv6 source of the victim", "source", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, udp6(alice6, bob6, 9000, 9000, "forged-six"))
		}), "forged-six"},
		{"IPv4 source that only others share", "source", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v4, udp4(others4, rig.BobAddr, 9000, 9000, "forged-others"))
		}), "forged-others"},
		{"IPv6 source that only others share", "source", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, udp6(others6, bob6, 9000, 9000, "forged-others6"))
		}), "forged-others6"},
		{"the victim's MAC, and a source that is shared", "mac", one(func(s *station) []byte {
			return frame(s.bob, s.alice, v4, udp4(shared4, rig.BobAddr, 9000, 9000, "forged-shared"))
		}), "forged-shared"},
		{"ARP reply: the shared address is here", "arp", one(func(s *station) []byte {
			return frame(s.alice, s.mallory, arpKind, arp(2, s.mallory, shared4, s.alice, rig.AliceAddr))
		}), ""},
		{"ARP request that tells of the shared address", "arp", one(func(s *station) []byte {
			return frame(everybody, s.mallory, arpKind, arp(1, s.mallory, shared4, make([]byte, 6), rig.AliceAddr))
		}), ""},
		{"gratuitous ARP for the shared address, behind a priority tag", "arp", one(func(s *station) []byte {
			return tagged(frame(everybody, s.mallory, arpKind, arp(1, s.mallory, shared4, make([]byte, 6), shared4)), 0x8100, 0)
		}), ""},
		{"neighbour advertisement of the shared address", "nd", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(mallory6, bob6, []byte{136, 0, 0, 0, 0x60, 0, 0, 0}, raw(shared6), option(2, s.mallory)))
		}), ""},
		{"neighbour solicitation from the shared address", "nd", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(shared6, bob6, []byte{135, 0, 0, 0, 0, 0, 0, 0}, raw(bob6), option(1, s.mallory)))
		}), ""},
		{"router solicitation from the shared address", "nd", one(func(s *station) []byte {
			return frame(s.bob, s.mallory, v6, icmp6(shared6, bob6, []byte{133, 0, 0, 0, 0, 0, 0, 0}, option(1, s.mallory)))
		}), ""},
		{"the victim's MAC", "mac", one(func(s *station) []byte {
			return frame(s.bob, s.alice, v4, udp4(mallory4, rig.BobAddr, 9000, 9000, "forged-mac"))
		}), "forged-mac"},
		{"thousands of MACs", "mac", func(s *station) (all [][]byte) {
			for i := range flooded {
				mac := binary.BigEndian.AppendUint32([]byte{2, 0x66}, uint32(i))
				all = append(all, frame(everybody, mac, 0x1234, []byte("forged-many")))
			}
			return all
		}, "forged-many"},
		{"LLDP of a switch of the fabric", "", one(func(s *station) []byte {
			return frame([]byte{1, 0x80, 0xc2, 0, 0, 0x0e}, s.mallory, 0x88cc, []byte{2, 9, 7}, []byte("of:00001"), []byte{4, 2, 7, '1', 6, 2, 0, 9, 0, 0})
		}), ""},
		{"the switch's probes", "", one(func(s *station) []byte {
			return frame([]byte{6, 0x57, 0xff, 'p', 'r', 'o'}, s.mallory, 0x88b5, []byte("Weir"), make([]byte, 12))
		}), ""},
		{"spanning tree: a better root", "", one(func(s *station) []byte {
			return frame([]byte{1, 0x80, 0xc2, 0, 0, 0}, s.mallory, 38, []byte{0x42, 0x42, 3, 0, 0, 0, 0, 0}, make([]byte, 30))
		}), ""},
		{"pause frames", "", one(func(s *station) []byte {
			return frame([]byte{1, 0x80, 0xc2, 0, 0, 1}, s.mallory, 0x8808, []byte{0, 1, 0xff, 0xff})
		}), ""},
	}
}

// comesLate is how long a counter stands still that counts no more of what was sent: the next attempt begins from it.
const comesLate = 500 * time.Millisecond

// TestStation: each attempt of a station of the host against its neighbours.
func TestStation(t *testing.T) {
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			enemy := r.Name + "-mallory"
			if err := r.Namespace(enemy); err != nil {
				t.Fatal(err)
			}
			r.MustApply(ctx, t, fmt.Sprintf(`
endpoints:
  alice: {netns: %s, interface: eth0, address: %s/24, addresses: ["%s/64"]}
  bob: {netns: %s, interface: eth0, address: %s/24, addresses: ["%s/64"], port_security: {shared: [%s, "%s"]}}
  mallory: {netns: %s, interface: eth0, address: %s/24, addresses: ["%s/64"], port_security: {shared: [%s, "%s"]}}
functions:
  w: {image: wire}
chains:
  c: w
policies:
  p: {from: alice, to: bob, match: [udp], chain: c}
`, r.Alice(), rig.AliceAddr, alice6, r.Bob(), rig.BobAddr, bob6, others4, others6, enemy, mallory4, mallory6, shared4, shared6))
			s := newStation(ctx, t, r, enemy)
			for _, a := range attacks() {
				s.try(ctx, t, sw, a)
			}
			s.told(ctx, t)
			if err := r.Kill(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			<-time.After(7 * time.Second) // an agent that has started looks every 5
			s.told(ctx, t)                // what was told before is not told again
		})
	}
}

func newStation(ctx context.Context, t *testing.T, r *rig.Rig, enemy string) *station {
	t.Helper()
	s := &station{r: r}
	for name, into := range map[string]*net.HardwareAddr{"alice": &s.alice, "bob": &s.bob, "mallory": &s.mallory} {
		var e api.Endpoint
		if err := r.Get(ctx, &e, "endpoint", name); err != nil {
			t.Fatal(err)
		}
		mac, err := net.ParseMAC(e.Status.MAC)
		if err != nil {
			t.Fatal(err)
		}
		*into = mac
	}
	s.local = flow.LinkLocal(flow.MAC(s.mallory)).String()
	// What is refused to mallory works for it in its own name; the victims know each other.
	for _, ping := range [][2]string{{enemy, rig.BobAddr}, {enemy, bob6}, {r.Alice(), rig.BobAddr}, {r.Alice(), bob6}, {r.Bob(), alice6}} {
		rig.Eventually(ctx, t, "a ping", func() (bool, string) { // until addresses have been checked for duplicates
			_, err := r.Ping(ctx, ping[0], ping[1], 2, "0.01")
			return err == nil, fmt.Sprint(ping, err)
		})
	}
	for _, v := range []string{r.Alice(), r.Bob()} { // they know where the shared addresses are: a Linux takes notice of others' word then only
		for _, a := range []string{shared4, shared6} {
			if out, err := r.Run(ctx, v, "ip", "neigh", "replace", a, "lladdr", "02:00:00:00:00:64", "dev", "eth0", "nud", "stale"); err != nil {
				t.Fatal(err, out)
			}
		}
	}
	var err error
	if s.send, err = rig.NewSender(enemy, "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.send.Close)
	if s.hears, err = rig.Listen(enemy, "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.hears.Close)
	if s.bobHears, err = rig.Listen(r.Bob(), "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.bobHears.Close)
	return s
}

// tables are what the victims believe wrongly of their neighbours, their routes and their addresses.
func (s *station) tables(ctx context.Context, t *testing.T) []string {
	t.Helper()
	var all []string
	for _, v := range []string{s.r.Alice(), s.r.Bob()} {
		for _, args := range [][]string{{"neigh", "show"}, {"-6", "route", "show"}, {"route", "show"}, {"-br", "addr", "show", "dev", "eth0"}} {
			out, err := s.r.Run(ctx, v, append([]string{"ip"}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
				f := strings.Fields(line)
				if args[0] == "neigh" && (len(f) < 5 || f[4] == s.right(f[0])) {
					continue // nobody answers there; or it is as it should be
				}
				if i := slices.Index(f, "expires"); i >= 0 {
					f = f[:i]
				}
				all = append(all, v+" "+strings.Join(f, " "))
			}
		}
	}
	slices.Sort(all)
	return all
}

// right is who has an address.
func (s *station) right(address string) string {
	for mac, all := range map[*net.HardwareAddr][]string{&s.alice: {rig.AliceAddr, alice6}, &s.bob: {rig.BobAddr, bob6}, &s.mallory: {mallory4, mallory6}} {
		if slices.Contains(append(all, flow.LinkLocal(flow.MAC(*mac)).String()), address) {
			return mac.String()
		}
	}
	return ""
}

func (s *station) refused(ctx context.Context, t *testing.T) map[string]uint64 {
	t.Helper()
	var c api.Counters
	if err := s.r.Get(ctx, &c, "ports"); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Ports {
		if p.Name == "endpoint/mallory" {
			return p.Refused
		}
	}
	t.Fatal("no port endpoint/mallory")
	return nil
}

func (s *station) try(ctx context.Context, t *testing.T, sw string, a attack) {
	t.Helper()
	tables, before := s.tables(ctx, t), s.refused(ctx, t)
	victim, err := rig.NewStream(s.r.Alice(), s.r.Bob(), rig.BobAddr, 9001, pps)
	if err != nil {
		t.Fatal(err)
	}
	phase := func() int {
		if err := victim.Await(ctx, interval); err != nil {
			t.Fatal(err)
		}
		return victim.Sent()
	}
	begin := phase()
	frames := a.frames(s)
	for _, f := range frames {
		if err := s.send.Send(f); err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
	}
	end := phase()
	o, err := victim.Stop()
	if err != nil {
		t.Fatal(err)
	}
	lost := [3]int{victim.LostOf(0, begin), victim.LostOf(begin, end), victim.LostOf(end, o.Sent)}
	fmt.Printf("%s: %s: %d frames; of the victim's %d datagrams lost before, during, after: %v\n", sw, a.name, len(frames), o.Sent, lost)
	if lost != [3]int{} || o.Received != o.Sent {
		t.Errorf("%s: the victim lost %v datagrams of %d", a.name, lost, o.Sent)
	}
	for _, f := range s.hears.Seen() {
		if len(f.Data) > 42 && f.Data[12] == 8 && f.Data[23] == 17 && binary.BigEndian.Uint16(f.Data[36:]) == 9001 {
			t.Errorf("%s: a datagram of the victim came to the enemy", a.name)
			break
		}
	}
	if a.landed != "" && len(s.bobHears.With(a.landed)) > 0 {
		t.Errorf("%s: it came to the victim", a.name)
	}
	if after := s.tables(ctx, t); !slices.Equal(tables, after) {
		t.Errorf("%s: tables of the victims were\n%s\nand are\n%s", a.name, strings.Join(tables, "\n"), strings.Join(after, "\n"))
	}
	soon, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last uint64
	since := time.Now()
	rig.Eventually(soon, t, a.name+" is counted", func() (bool, string) {
		got := s.refused(ctx, t)
		counted := got[a.refused] - before[a.refused] // queues before the switch may drop some of many
		if counted != last {
			last, since = counted, time.Now()
		}
		same := maps.Clone(got)
		maps.DeleteFunc(same, func(why string, n uint64) bool { return why == a.refused || n == before[why] })
		all := counted == uint64(len(frames)) || counted > 0 && counted < uint64(len(frames)) && time.Since(since) > comesLate
		ok := len(same) == 0 && (a.refused == "" || all)
		return ok, fmt.Sprintf("refused %v, before %v, of %d as %q", got, before, len(frames), a.refused)
	})
}

// told: one event for each reason, whatever was sent.
func (s *station) told(ctx context.Context, t *testing.T) {
	t.Helper()
	rig.Eventually(ctx, t, "an event for each reason", func() (bool, string) {
		var list struct {
			Items []api.Event `json:"items"`
		}
		if err := s.r.Get(ctx, &list, "events"); err != nil {
			return false, err.Error()
		}
		told := map[string]int{}
		for _, e := range list.Items {
			if e.Object == "mallory" && strings.HasPrefix(e.Reason, "Refused") {
				told[e.Reason]++
			}
		}
		want := map[string]int{"RefusedMac": 1, "RefusedSource": 1, "RefusedArp": 1, "RefusedNd": 1, "RefusedRa": 1, "RefusedDhcp": 1, "RefusedUnreadable": 1}
		return maps.Equal(told, want), fmt.Sprint(told)
	})
}
