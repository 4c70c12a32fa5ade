package bypass

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// oddFrames are frames from one station to another that carry a mark, by what is odd about them: what becomes of them at a Linux bridge when the host's
// netfilter sees bridged frames. docs/operate.md shows this table.
var oddFrames = []struct {
	name   string
	lost   string // with net.bridge.bridge-nf-call-*=1: "cut", "dropped", "" passes as it is
	change func(f []byte) []byte
}{
	{"IPv4", "", nil},
	{"IPv4, TTL 0", "", ipv4(func(ip []byte) { ip[8] = 0 })},
	{"IPv4, a fragment", "", ipv4(func(ip []byte) { ip[6], ip[7] = 0x20, 1 })},
	{"IPv4 from 127.0.0.1", "", ipv4(func(ip []byte) { copy(ip[12:], []byte{127, 0, 0, 1}) })},
	{"IPv4 and padding", "cut", pad},
	{"IPv4, wrong checksum", "dropped", func(f []byte) []byte { f[24]++; return f }},
	{"IPv4, version 5", "dropped", ipv4(func(ip []byte) { ip[0] = 0x55 })},
	{"IPv4, header length 16", "dropped", ipv4(func(ip []byte) { ip[0] = 0x44 })},
	{"IPv4, longer than its frame", "dropped", ipv4(func(ip []byte) { binary.BigEndian.PutUint16(ip[2:], 1000) })},
	{"IPv4, shorter than its header", "dropped", ipv4(func(ip []byte) { binary.BigEndian.PutUint16(ip[2:], 19) })},
	{"IPv6", "", ipv6(nil)},
	{"IPv6 and padding", "cut", func(f []byte) []byte { return pad(ipv6(nil)(f)) }},
	{"IPv6, version 5", "dropped", ipv6(func(ip []byte) { ip[0] = 0x50 })},
	{"IPv6, longer than its frame", "dropped", ipv6(func(ip []byte) { binary.BigEndian.PutUint16(ip[4:], 1000) })},
	{"ARP and padding", "", func(f []byte) []byte {
		arp := slices.Concat(f[:12], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, f[6:12], []byte{10, 9, 0, 1}, f[:6], []byte{10, 9, 0, 2})
		return append(arp, f[42:]...)
	}},
	{"a VLAN tag, IPv4, wrong checksum", "", func(f []byte) []byte {
		f[24]++
		return slices.Concat(f[:12], []byte{0x81, 0, 0, 7}, f[12:])
	}},
	{"another EtherType", "", func(f []byte) []byte { f[12], f[13] = 0x12, 0x34; return f }},
	{"an IEEE 802.3 length", "", func(f []byte) []byte {
		binary.BigEndian.PutUint16(f[12:], uint16(len(f)-14))
		copy(f[14:], []byte{0xfe, 0xfe, 3})
		return f
	}},
}

// ipv4 changes the header and makes its checksum right again.
func ipv4(change func(ip []byte)) func(f []byte) []byte {
	return func(f []byte) []byte {
		ip := f[14:34]
		change(ip)
		ip[10], ip[11] = 0, 0
		var sum uint32
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
		return f
	}
}

// ipv6 makes an IPv6 packet of an IPv4 one.
func ipv6(change func(ip []byte)) func(f []byte) []byte {
	return func(f []byte) []byte {
		l4 := f[34:]
		ip := slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 7}, netip.MustParseAddr("fd00::1").AsSlice(), netip.MustParseAddr("fd00::2").AsSlice())
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		if change != nil {
			change(ip)
		}
		return slices.Concat(f[:12], []byte{0x86, 0xdd}, ip, l4)
	}
}

func pad(f []byte) []byte { return append(f, "padding"...) }

// What a host's netfilter takes from bridged frames when it sees them is what the pages say, at the eBPF switch, and nothing at Open vSwitch; a policy that
// is closed lets none of these frames past, with the setting and without.
func TestNetfilterTakesFromBridgedFramesWhatThePagesSay(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, sw := range switches {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := open(t, sw)
			carol := r.Name + "-carol"
			if err := r.Namespace(carol); err != nil {
				t.Fatal(err)
			}
			stations := []string{r.Alice(), r.Bob(), carol}
			endpoints, macs := "endpoints:\n", map[string]net.HardwareAddr{}
			for i, space := range stations {
				macs[space] = net.HardwareAddr{2, 0, 0, 0, 10, byte(i)}
				endpoints += fmt.Sprintf("  %s: {netns: %s, interface: eth0, address: 10.9.0.%d/24, mac: %q, port_security: {mode: \"off\"}}\n", // others' addresses are sent
					[]string{"alice", "bob", "carol"}[i], space, i+1, macs[space])
			}
			r.MustApply(ctx, t, endpoints)
			send, err := rig.NewSender(r.Alice(), "eth0")
			if err != nil {
				t.Fatal(err)
			}
			defer send.Close()
			captures := map[string]*rig.Capture{}
			for _, space := range stations[1:] {
				if captures[space], err = rig.Listen(space, "eth0"); err != nil {
					t.Fatal(err)
				}
				defer captures[space].Close()
			}
			x := &crossing{t: t, ctx: ctx, send: send, seen: captures[r.Bob()], there: captures[carol], from: macs[r.Alice()], to: macs[r.Bob()], other: macs[carol]}
			for _, closed := range []bool{false, true} {
				if closed {
					if _, err := r.Apply(ctx, endpoints+never, "--wait=false"); err != nil {
						t.Fatal(err)
					}
					rig.Eventually(ctx, t, "the policy is closed", func() (bool, string) {
						var p api.Policy
						err := r.Get(ctx, &p, "policy", "p")
						return err == nil && p.Status.Conditions.Get(api.ConditionClosed) != nil, fmt.Sprintf("%v %+v", err, p.Status)
					})
				}
				for _, shown := range []string{"0", "1"} {
					for _, name := range []string{"iptables", "ip6tables", "arptables"} {
						if _, err := r.Run(ctx, "", "sysctl", "-qw", "net.bridge.bridge-nf-call-"+name+"="+shown); err != nil {
							t.Fatal(err)
						}
					}
					for _, odd := range oddFrames {
						want := "passes"
						switch {
						case closed:
							want = "dropped"
						case shown == "1" && sw == "ebpf" && odd.lost != "":
							want = odd.lost
						}
						if got := x.becomes(odd.change, want); got != want {
							t.Errorf("%s, bridge-nf-call-*=%s, closed %v: %s: %s, want %s", sw, shown, closed, odd.name, got, want)
						}
					}
				}
			}
			for _, mark := range x.never {
				if came := x.seen.Incoming(mark); len(came) > 0 {
					t.Errorf("%s came late: want it dropped", mark)
				}
			}
		})
	}
	for _, odd := range oddFrames { // the page's table
		if odd.lost != "" && !strings.Contains(string(page), "| "+odd.name+" | "+odd.lost+" |") {
			t.Errorf("docs/operate.md does not say that %q is %s", odd.name, odd.lost)
		}
	}
}

// crossing sends frames from one station and looks what comes to the other.
type crossing struct {
	t               *testing.T
	ctx             context.Context
	send            *rig.Sender
	seen, there     *rig.Capture
	from, to, other net.HardwareAddr
	n               int
	never           []string // marks of frames that are not to come
}

// becomes tells what becomes of a frame: it passes, it is cut, or it is dropped. A frame behind it, to another station, says that it had its time.
func (x *crossing) becomes(change func([]byte) []byte, want string) string {
	x.t.Helper()
	x.n++
	mark := fmt.Sprintf("weir-odd-%08d.", x.n)
	p := rig.Packet{Proto: unix.IPPROTO_UDP, Src: 4000, Dst: 4001, TTL: 9, Payload: mark + "...."}
	f := p.Bytes(rig.Station{MAC: x.from, Addr: netip.MustParseAddr("10.9.0.1")}, rig.Station{MAC: x.to, Addr: netip.MustParseAddr("10.9.0.2")})
	if change != nil {
		f = change(f)
	}
	last := fmt.Sprintf("weir-last-%08d.", x.n)
	behind := slices.Concat(x.other, x.from, []byte{0x12, 0x34}, []byte(last))
	for _, frame := range [][]byte{f, behind} {
		rig.Eventually(x.ctx, x.t, "the frame is sent", func() (bool, string) { // a busy machine's queues may be full for a moment
			err := x.send.Send(frame)
			return err == nil, fmt.Sprint(err)
		})
	}
	rig.Eventually(x.ctx, x.t, "the frame behind it", func() (bool, string) { return len(x.there.Incoming(last)) > 0, last })
	came := x.seen.Incoming(mark)
	// The two stations' captures are read one beside the other: what is to come may be seen a moment later, what is not to come is looked for again at the end.
	for end := time.Now().Add(2 * time.Second); want != "dropped" && len(came) == 0 && time.Now().Before(end); came = x.seen.Incoming(mark) {
		<-time.After(time.Millisecond)
	}
	if want == "dropped" {
		x.never = append(x.never, mark)
	}
	switch {
	case len(came) == 0:
		return "dropped"
	case len(came) > 1:
		return fmt.Sprintf("comes %d times", len(came))
	case bytes.Equal(came[0].Data, f):
		return "passes"
	case bytes.Equal(came[0].Data, f[:min(len(f), len(came[0].Data))]):
		return "cut"
	}
	return fmt.Sprintf("is changed: %x, was %x", came[0].Data, f)
}
