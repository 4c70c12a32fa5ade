package fabric

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// Fig. 2 of the paper: VM1's traffic goes through a function on the server and on to VM2, by the rules of Table I.
func TestFig2ByTheRulesOfTableI(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", nil)
	b.reach("vm1", "10.0.0.2")
	b.apply(b.example("fig2-policy.yaml"))
	b.reach("vm1", "10.0.0.2")

	t.Run("Table I", func(t *testing.T) { b.in(t).tableI() })
	t.Run("at each hop", func(t *testing.T) { b.in(t).hops() })
	t.Run("TCP", func(t *testing.T) {
		b := b.in(t)
		before := b.passed("nf")
		if out, err := b.exec("vm2", "sh", "-c", "iperf3 -s -1 -D"); err != nil {
			t.Fatal(out)
		}
		b.await("iperf3", func() (bool, string) {
			out, err := b.exec("vm1", "iperf3", "-c", "10.0.0.2", "-n", "1M")
			return err == nil, out
		})
		b.await("a megabyte is counted at the function", func() (bool, string) {
			n := b.passed("nf") - before
			return n >= 50, fmt.Sprintf("%d frames", n)
		})
	})
	b.apply(guarded)
	for _, x := range []guardedCase{
		{"the switches' ovs-vswitchd", false, func(b *bed) { b.end(b.switches().SwitchPID()); b.again() }},
		{"the server's own ovs-vswitchd", false, func(b *bed) { b.end(b.ownSwitch("nfv1").SwitchPID()) }},
		{"the switches' ovsdb-server", true, func(b *bed) { b.end(b.switches().ServerPID()); b.again() }},
		{"the server's own ovsdb-server", true, func(b *bed) { b.end(b.ownSwitch("nfv1").ServerPID()) }},
	} {
		t.Run(x.name+" dies", func(t *testing.T) { b.in(t).guards(x) })
	}
}

// guarded sends what VM1 says to VM2 through a firewall.
const guarded = `
functions:
  fw: {image: firewall, config: {allow: [udp/9000, icmp]}}
chains:
  guard: fw
policies:
  guarded: {from: vm1, to: vm2, match: [udp/9000-9001, icmp], chain: guard, priority: 900}
`

type guardedCase struct {
	name   string
	noLoss bool
	die    func(*bed)
}

// guards: one stream that the firewall lets through and one that it does not. While a part of Open vSwitch is dead, and when it comes back, no
// datagram slips past the firewall.
func (b *bed) guards(x guardedCase) {
	b.t.Helper()
	before := b.entries()
	measure := func() rig.Outcome { return b.guarding(x) }
	if x.noLoss {
		measure = func() rig.Outcome { return b.exact(func() rig.Outcome { return b.guarding(x) }) }
	}
	allowed := measure()
	if allowed.Duplicated > 0 || x.noLoss && allowed.Lost > 0 {
		b.t.Errorf("lost %d, duplicated %d", allowed.Lost, allowed.Duplicated)
	}
	b.await("the entries are what they were", func() (bool, string) {
		now := b.entries()
		return slices.Equal(before, now), fmt.Sprintf("now\n%s\nbefore\n%s", strings.Join(now, "\n"), strings.Join(before, "\n"))
	})
}

func (b *bed) guarding(x guardedCase) rig.Outcome {
	b.t.Helper()
	own := b.ownSwitch("nfv1")
	var streams [2]*rig.Stream
	for i := range streams {
		var err error
		if streams[i], err = rig.NewStream(b.netns("vm1"), b.netns("vm2"), "10.0.0.2", streamPort+i, streamRate); err != nil {
			b.t.Fatal(err)
		}
	}
	flows := func() {
		at := streams[0].Received()
		b.await("the allowed stream goes on", func() (bool, string) { return streams[0].Received() > at+streamRate/4, "nothing arrives" })
	}
	flows()
	x.die(b)
	if err := streams[0].Await(b.ctx, streamRate/2); err != nil {
		b.t.Fatal(err)
	}
	flows()
	b.await("all processes run", func() (bool, string) {
		s, v := own.Running()
		return s && v, fmt.Sprintf("ovsdb-server %t, ovs-vswitchd %t", s, v)
	})
	allowed, err := streams[0].Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	forbidden, err := streams[1].Stop()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("%s dies: %s; %d of %d forbidden datagrams passed", x.name, outage(allowed), forbidden.Received, forbidden.Sent)
	if forbidden.Received > 0 {
		b.t.Errorf("%d datagrams slipped past the firewall", forbidden.Received)
	}
	return allowed
}

// tableI reads the rules back from the switches, as they are there and as `weir get rules` tells: the paper's, and their inversion for what
// comes back to VM1.
func (b *bed) tableI() {
	b.t.Helper()
	b.await("Table I", func() (bool, string) { // tags that a new policy carries until it is in force everywhere go some moments later
		wrong := b.besidesTableI()
		return len(wrong) == 0, strings.Join(wrong, "\n")
	})
}

// besidesTableI tells what is not as the paper has it.
func (b *bed) besidesTableI() (wrong []string) {
	b.t.Helper()
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, x := range []struct {
		name, match, actions string
		table                int
	}{
		{"s1", "ip,in_port=2,nw_src=10.0.0.1", "output:1", 0},
		{"s2", "ip,in_port=1,nw_src=10.0.0.1", "output:3", 0},
		{"s2", "ip,nw_dst=10.0.0.1", "output:3", 1}, // caught where it would be forwarded to VM1
		{"s2", "ip,in_port=3,nw_dst=10.0.0.1", "output:1", 0},
		{"s1", "ip,in_port=1,nw_dst=10.0.0.1", "output:2", 0},
	} {
		found := ""
		for _, f := range b.flows(x.name) {
			match, actions, _ := strings.Cut(f, " actions=")
			if noise.ReplaceAllString(match, "") == x.match && number(inTable, match) == x.table {
				found += actions + ";"
			}
		}
		if found != x.actions+";" {
			say("%s: %s has the actions %q, want %q once; its entries are\n%s", x.name, x.match, found, x.actions, strings.Join(b.flows(x.name), "\n"))
		}
		var told api.SwitchRules
		b.get(&told, "rules", x.name)
		if !slices.ContainsFunc(told.Rules, func(r api.SwitchRule) bool {
			return int(r.Table) == x.table && r.Match == x.match && r.Actions == x.actions && r.Policy == "vm1-through-nf"
		}) {
			say("weir get rules %s does not tell of %s -> %s: %+v", x.name, x.match, x.actions, told.Rules)
		}
	}
	var counters api.Counters
	b.get(&counters, "counters", "nfv1")
	ports := map[string]uint32{}
	for _, p := range counters.Ports {
		ports[p.Name] = p.Port
	}
	if ports["uplink/eth1"] != 1 || ports["function/nf/in"] != 2 || ports["function/nf/out"] != 3 {
		say("the local switch's ports are %v; in Table I the uplink is 1, the function's are 2 and 3", ports)
	}
	var local list[api.Assignment]
	b.get(&local, "assignments")
	var rules []string
	for _, a := range local.Items {
		for _, r := range a.Spec.Rules {
			rules = append(rules, fmt.Sprintf("in_port %d, %s%s -> %s %d", ports[r.Match.InPort], r.Match.Src, r.Match.Dst, r.Action.Op, ports[r.Action.Port]))
		}
	}
	slices.Sort(rules)
	want := []string{"in_port 1, 10.0.0.1/32 -> output 2", "in_port 1, 10.0.0.1/32 -> output 3", "in_port 2, 10.0.0.1/32 -> output 1", "in_port 3, 10.0.0.1/32 -> output 1"}
	if d := cmp.Diff(want, rules); d != "" { // from VM1 in at 2, to VM1 in at 3
		say("the local switch's rules (-want +got)\n%s", d)
	}
	return wrong
}

// noise is what ovs-ofctl prints in front of a match.
var noise = regexp.MustCompile(`^\s*(cookie=\S+,?\s*|table=\S+,?\s*|priority=\d+,?|idle_timeout=\d+,?\s*|hard_timeout=\d+,?\s*|reset_counts\s*)*`)

// passed is how many frames came into a function from either side.
func (b *bed) passed(function string) uint64 {
	b.t.Helper()
	var counters api.Counters
	b.get(&counters, "counters", "nfv1")
	var n uint64
	for _, p := range counters.Ports {
		if strings.HasPrefix(p.Name, "function/"+function+"/") {
			n += p.Tx.Packets
		}
	}
	return n
}

// hops sends frames and looks at each cable and at the function what becomes of them.
func (b *bed) hops() {
	b.t.Helper()
	type place struct{ space, link string }
	places := map[string]place{"vm1": {"vm1", "eth0"}, "vm2": {"vm2", "eth0"}, "nfv1": {"nfv1", "eth1"}}
	for _, l := range []string{"s1-1", "s1-2", "s2-1", "s2-2", "s2-3"} {
		places[l] = place{"ovs", l}
	}
	at := map[string]*rig.Capture{}
	for name, p := range places {
		at[name] = listen(b.t, b.netns(p.space), p.link)
	}
	for _, side := range []string{"in", "out"} {
		at["nf "+side] = listen(b.t, b.function("nfv1", "nf"), side)
	}
	vm1, vm2 := b.station("vm1"), b.station("vm2")
	stranger := rig.Station{MAC: vm2.MAC, Addr: netip.MustParseAddr("10.0.0.99")}
	for _, x := range []struct {
		name    string
		node    string
		frame   func(payload string) []byte
		in, out string // places where it comes in and goes out once; nowhere else
	}{
		{"VM1 to VM2", "vm1", udp(vm1, vm2), "s1-2 s2-1 nfv1 nf_in s2-3 vm2", "vm1 s1-1 s2-3 nfv1 s2-2"},
		{"VM1 to a stranger", "vm1", udp(vm1, stranger), "s1-2 s2-1 nfv1 nf_in s2-3 vm2", "vm1 s1-1 s2-3 nfv1 s2-2"},
		{"VM2 to VM1", "vm2", udp(vm2, vm1), "s2-2 nfv1 nf_out s2-3 s1-1 vm1", "vm2 s2-3 nfv1 s2-1 s1-2"},
		{"not IP", "vm1", other(vm1, vm2), "s1-2 s2-1 vm2", "vm1 s1-1 s2-2"},
		{"not IP, back", "vm2", other(vm2, vm1), "s2-2 s1-1 vm1", "vm2 s2-1 s1-2"},
	} {
		b.t.Run(x.name, func(t *testing.T) {
			b := b.in(t)
			payload := fmt.Sprintf("<%s %d>", x.name, time.Now().UnixNano())
			sent := x.frame(payload)
			if err := newSender(t, b.netns(x.node), "eth0").Send(sent); err != nil {
				t.Fatal(err)
			}
			b.compare(at, payload, sent, strings.Fields(x.in), strings.Fields(x.out))
		})
	}
}

func udp(from, to rig.Station) func(string) []byte {
	return func(payload string) []byte {
		return rig.Packet{Proto: unix.IPPROTO_UDP, Src: 4000, Dst: 5000, TTL: 33, Payload: payload}.Bytes(from, to)
	}
}

// other is a frame of an ethertype for experiments (IEEE 802a).
func other(from, to rig.Station) func(string) []byte {
	return func(payload string) []byte {
		return bytes.Join([][]byte{to.MAC, from.MAC, {0x88, 0xb5}, []byte(payload), make([]byte, 46)}, nil)
	}
}

// compare wants the frame at these places once and nowhere else, byte for byte what was sent.
func (b *bed) compare(at map[string]*rig.Capture, payload string, sent []byte, in, out []string) {
	b.t.Helper()
	want := map[string]int{}
	for _, p := range in {
		want[strings.ReplaceAll(p, "_", " ")+" in"]++
	}
	for _, p := range out {
		want[strings.ReplaceAll(p, "_", " ")+" out"]++
	}
	same := func() (bool, string) {
		got := summary(at, payload, sent)
		return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprintf("seen %v, want %v", got, want)
	}
	b.await("the frame goes its way", same)
	time.Sleep(50 * time.Millisecond) // a copy too many would follow at once
	if ok, detail := same(); !ok {
		b.t.Error(detail)
	}
	for name, c := range at {
		for _, f := range c.With(payload) {
			if rig.SameSender(f.Data, sent) && !bytes.Equal(f.Data, sent) {
				b.t.Errorf("at %s the frame is\n%x, sent was\n%x", name, f.Data, sent)
			}
		}
	}
}

// summary counts by place and direction. A frame of another sender with the payload in it is an answer (ICMP quotes what it is about).
func summary(at map[string]*rig.Capture, payload string, sent []byte) map[string]int {
	got := map[string]int{}
	for name, c := range at {
		for _, f := range c.With(payload) {
			switch {
			case !rig.SameSender(f.Data, sent):
			case f.Outgoing:
				got[name+" out"]++
			default:
				got[name+" in"]++
			}
		}
	}
	return got
}
