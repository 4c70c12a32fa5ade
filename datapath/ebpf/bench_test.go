package ebpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

func benchRig(b *testing.B) *suite.Rig {
	return suite.NewRig(b, func(i instance.Instance) (datapath.Switch, error) {
		return Open(context.Background(), Options{Instance: i})
	})
}

// manyRules for the egress of a port: n services of different shapes, with the one that the benchmark's frame meets among them.
func manyRules(n int, out, to flow.Port) []flow.Rule {
	rules := make([]flow.Rule, 0, n)
	for i := range n {
		m := flow.Match{OutPort: out, Proto: 6}
		switch i % 4 {
		case 0:
			m.DstPorts = flow.PortRange{First: uint16(1000 + i), Last: uint16(1000 + i)}
		case 1:
			m.Src = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + i>>16), byte(i >> 8), byte(i)}), 32)
		case 2:
			m.Src = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
			m.DstPorts = flow.PortRange{First: 443, Last: 443}
		case 3:
			m.Dst = netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i >> 8), byte(i), 0}), 24)
		}
		rules = append(rules, flow.Rule{Cookie: uint64(i + 1), Priority: uint16(i % 1000), Stage: flow.Egress, Match: m, Action: flow.Action{Op: flow.Output, Port: to}})
	}
	rules[0].Match = flow.Match{OutPort: out, Proto: 6, DstPorts: flow.PortRange{First: 80, Last: 80}}
	return rules
}

// BenchmarkRules is the cost of one known packet in the egress program, by the number of rules.
func BenchmarkRules(b *testing.B) {
	for _, n := range []int{10, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := benchRig(b)
			alice, bob, fn := r.Station("alice"), r.Station("bob"), r.Wire("w")
			r.Commit(manyRules(n, bob.Port, fn.Ports.In)...)
			s := r.Switch.(*Switch)
			bench(b, r, s.tables.programs.EgressTcx, bob.Port, known(alice, bob))
		})
	}
}

// BenchmarkHop is the cost of the program between two functions of a chain.
func BenchmarkHop(b *testing.B) {
	r := benchRig(b)
	alice, bob := r.Station("alice"), r.Station("bob")
	all := []*suite.Function{r.Wire("f0"), r.Wire("f1")}
	r.Commit(chainRules(alice, bob, all)...)
	bench(b, r, r.Switch.(*Switch).tables.programs.IngressTcx, all[0].Ports.Out, known(alice, bob))
}

// known is a frame of a flow that the rules select.
func known(alice, bob *suite.Station) []byte {
	frame := make([]byte, 64)
	copy(frame, bob.MAC[:])
	copy(frame[6:], alice.MAC[:])
	copy(frame[12:], []byte{8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 0x9c, 0x40, 0, 80})
	return frame
}

// BenchmarkUntaken is the cost of a packet that no rule takes to a station with rules: where it enters, where its destination has none and where it
// has, and where it leaves. What the second takes more than the first it takes in vain.
func BenchmarkUntaken(b *testing.B) {
	for _, n := range []int{1, 10, 10000} {
		r := benchRig(b)
		alice, bob, fn := r.Station("alice"), r.Station("bob"), r.Wire("w")
		r.Commit(manyRules(n, bob.Port, fn.Ports.In)...)
		s := r.Switch.(*Switch)
		for _, st := range []*suite.Station{alice, bob} { // the bridge has met them
			if err := s.tables.maps.Homes.Put(uint32(s.ports.byName["endpoint/"+st.Name]), uint32(1)); err != nil {
				b.Fatal(err)
			}
		}
		frame := known(alice, bob)
		frame[23] = 17 // UDP
		elsewhere := slices.Clone(frame)
		elsewhere[5]++
		const unspec = 0xffffffff
		b.Run(fmt.Sprint(n, "/enters, to nobody"), func(b *testing.B) { benchVerdict(b, r, s.tables.programs.IngressTcx, alice.Port, elsewhere, unspec) })
		b.Run(fmt.Sprint(n, "/enters"), func(b *testing.B) { benchVerdict(b, r, s.tables.programs.IngressTcx, alice.Port, frame, unspec) })
		b.Run(fmt.Sprint(n, "/leaves"), func(b *testing.B) { benchVerdict(b, r, s.tables.programs.EgressTcx, bob.Port, frame, unspec) })
	}
}

// bench runs a program that redirects the frame, at a port.
func bench(b *testing.B, r *suite.Rig, p *ebpf.Program, at flow.Port, frame []byte) {
	benchVerdict(b, r, p, at, frame, 7) // TC_ACT_REDIRECT
}

func benchVerdict(b *testing.B, r *suite.Rig, p *ebpf.Program, at flow.Port, frame []byte, want uint32) {
	skb := make([]byte, 192) // struct __sk_buff
	binary.NativeEndian.PutUint32(skb[40:], uint32(at))
	var spent time.Duration
	var runs int
	err := r.Host.Do(func() error {
		for b.Loop() {
			o := ebpf.RunOptions{Data: frame, Context: skb, Repeat: 100000}
			t0 := time.Now()
			ret, err := p.Run(&o)
			if err != nil {
				return err
			}
			if ret != want {
				return fmt.Errorf("verdict %d", int32(ret))
			}
			spent += time.Since(t0)
			runs += int(o.Repeat)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(runs), "ns/packet")
}

// BenchmarkCommit of many rules: all new, one changed, none changed.
func BenchmarkCommit(b *testing.B) {
	r := benchRig(b)
	r.Station("alice")
	bob, fn := r.Station("bob"), r.Wire("w")
	rules := manyRules(10000, bob.Port, fn.Ports.In)
	for _, c := range []struct {
		name string
		do   func(i int)
	}{
		{"all", func(i int) {
			if i%2 == 0 {
				r.Commit(rules...)
			} else {
				r.Commit()
			}
		}},
		{"one", func(i int) {
			rules[0].Priority = uint16(i)
			r.Commit(rules...)
		}},
		{"none", func(int) { r.Commit(rules...) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				c.do(i)
				i++
			}
		})
	}
}

// BenchmarkFunctions adds 100 functions, sets them up and commits one chain of them.
func BenchmarkFunctions(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		r := benchRig(b)
		alice, bob := r.Station("alice"), r.Station("bob")
		var all []*suite.Function
		for i := range 100 {
			all = append(all, r.Links(datapath.Function{Name: fmt.Sprintf("f%d", i), Forwarder: "wire"}, false))
		}
		b.StartTimer()
		for _, fn := range all {
			r.Plug(fn)
			if err := r.Switch.SetState(suite.Context(b), fn.Name, datapath.Up, 0); err != nil {
				b.Fatal(err)
			}
		}
		r.Commit(chainRules(alice, bob, all)...)
		b.StopTimer()
		if err := r.Switch.Destroy(context.Background()); err != nil { // else its links would be promoted during the next turn
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func chainRules(alice, bob *suite.Station, all []*suite.Function) []flow.Rule {
	var rules []flow.Rule
	way := func(stage flow.Stage, m flow.Match, ports []flow.Port, to flow.Port) {
		for _, p := range append(ports, to) {
			rules = append(rules, flow.Rule{Cookie: uint64(len(rules) + 1), Stage: stage, Match: m, Action: flow.Action{Op: flow.Output, Port: p}})
			for _, fn := range all {
				if fn.Ports.In == p {
					m = flow.Match{InPort: fn.Ports.Out}
				} else if fn.Ports.Out == p {
					m = flow.Match{InPort: fn.Ports.In}
				}
			}
			stage = flow.Ingress
		}
	}
	var in, out []flow.Port
	for i := range all {
		in = append(in, all[i].Ports.In)
		out = append(out, all[len(all)-1-i].Ports.Out)
	}
	way(flow.Egress, flow.Match{InPort: alice.Port, OutPort: bob.Port}, in, bob.Port)
	way(flow.Egress, flow.Match{InPort: bob.Port, OutPort: alice.Port}, out, alice.Port)
	return rules
}

// BenchmarkChain is ping and one TCP stream through n wires: one iteration is enough.
func BenchmarkChain(b *testing.B) {
	for _, n := range []int{0, 1, 9, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := benchRig(b)
			alice, bob := r.Station("alice"), r.Station("bob")
			var all []*suite.Function
			for i := range n {
				all = append(all, r.Wire(fmt.Sprintf("f%d", i)))
			}
			if n > 0 {
				r.Commit(chainRules(alice, bob, all)...)
			}
			if err := r.Switch.(*Switch).Settle(context.Background()); err != nil {
				b.Fatal(err)
			}
			for i, st := range []*suite.Station{alice, bob} {
				run(b, st.NS, fmt.Sprintf("ip addr add 10.9.0.%d/24 dev eth0", i+1))
			}
			alice.Close()
			bob.Close()
			for _, fn := range all {
				for _, socket := range fn.Sockets {
					socket.Close()
				}
			}
			run(b, alice.NS, "ping -c 3 -q -i 0.2 10.9.0.2")
			awake(b)
			for b.Loop() {
				// ping's own figure ends with the kernel's timestamp of the reply, taken where it was queued last: before the chain of
				// wires, none of which queues. That is the way forward only; with -U the whole.
				forward := pinged(b, run(b, alice.NS, "ping -c 300 -i 0.002 -q 10.9.0.2"))
				whole := pinged(b, run(b, alice.NS, "ping -U -c 300 -i 0.002 -q 10.9.0.2"))
				run(b, bob.NS, "iperf3 -s -1 -D")
				gbps := run(b, alice.NS, "for i in 1 2 3 4 5 6 7 8 9; do iperf3 -c 10.9.0.2 -t 2 -f m && exit; done")
				for _, l := range strings.Split(gbps, "\n") {
					f := strings.Fields(l)
					if strings.HasSuffix(l, "receiver") && len(f) > 6 {
						var v float64
						fmt.Sscan(f[6], &v)
						b.ReportMetric(v, "Mbit/s")
					}
				}
				b.ReportMetric(forward*1000, "us-ping")
				b.ReportMetric(whole*1000, "us-ping-U")
			}
		})
	}
}

// pinged is the mean in ms that ping tells.
func pinged(b *testing.B, out string) float64 {
	b.Helper()
	var least, mean float64
	_, figures, _ := strings.Cut(out, "= ")
	if _, err := fmt.Sscanf(figures, "%f/%f", &least, &mean); err != nil {
		b.Fatal(err, out)
	}
	return mean
}

// awake keeps the processors from sleeping between packets: what a virtual one needs to wake up would be measured, too.
func awake(b *testing.B) {
	b.Helper()
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err == nil {
		b.Cleanup(func() { f.Close() })
		_, err = f.Write(make([]byte, 4))
	}
	if err != nil {
		b.Logf("processors may sleep: %v", err)
	}
}

func run(b *testing.B, ns *netns.Space, command string) string {
	b.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", command).CombinedOutput()
		return err
	})
	if err != nil {
		b.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// BenchmarkGuard is the cost of the program where a packet enters and is switched normally, without port security and with it.
func BenchmarkGuard(b *testing.B) {
	r := benchRig(b)
	alice, bob, mallory := r.Station("alice"), r.Station("bob"), r.Guarded("mallory", 1)
	s := r.Switch.(*Switch)
	const unspec, shot = 0xffffffff, 2
	own := known(mallory, bob)
	forged := slices.Clone(own)
	forged[29] = 2
	six := make([]byte, 78)
	copy(six, own[:12])
	copy(six[12:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 6, 64, 0xfd, 0x57})
	six[37] = 1
	b.Run("off", func(b *testing.B) {
		benchVerdict(b, r, s.tables.programs.IngressTcx, alice.Port, known(alice, bob), unspec)
	})
	b.Run("own IPv4", func(b *testing.B) { benchVerdict(b, r, s.tables.programs.IngressTcx, mallory.Port, own, unspec) })
	b.Run("own IPv6", func(b *testing.B) { benchVerdict(b, r, s.tables.programs.IngressTcx, mallory.Port, six, unspec) })
	b.Run("forged", func(b *testing.B) { benchVerdict(b, r, s.tables.programs.IngressTcx, mallory.Port, forged, shot) })
}

// BenchmarkSettleFlow is what a word of a function about a flow costs.
func BenchmarkSettleFlow(b *testing.B) {
	h := &host{Rig: benchRig(b)}
	h.alice, h.bob = h.Station("alice"), h.Station("bob")
	fn := h.Inline(datapath.Function{Name: "f", Settles: true})
	h.Commit(chainRules(h.alice, h.bob, []*suite.Function{fn})...)
	h.alice.Send(b, h.datagram(9, 1))
	settle := func() (int, error) {
		return h.Switch.(*Switch).SettleFlow(b.Context(), "f", datapath.Settlement{Verdict: datapath.Pass, Flow: datapath.Flow{Protocol: 17,
			Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:1"), VLAN: datapath.NoVLAN}})
	}
	suite.Until(b, "the flow is settled", func() bool { n, err := settle(); return err == nil && n == 1 })
	for b.Loop() {
		if _, err := settle(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSettled is the cost of the egress program for a packet whose flow n functions in a row have settled; 0 is one rule that hands it on.
func BenchmarkSettled(b *testing.B) {
	for _, n := range []int{0, 1, 2, 5, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := &host{Rig: benchRig(b)}
			h.alice, h.bob = h.Station("alice"), h.Station("bob")
			to := flow.Match{OutPort: h.bob.Port, EtherType: flow.EtherTypeIPv4}
			var all []*suite.Function
			var rules []flow.Rule
			lead := func(m flow.Match, stage flow.Stage, port flow.Port) {
				rules = append(rules, flow.Rule{Cookie: uint64(len(rules) + 1), Stage: stage, Match: m, Action: flow.Action{Op: flow.Output, Port: port}})
			}
			stage := flow.Egress
			for i := range n {
				fn := h.Inline(datapath.Function{Name: fmt.Sprint("f", i), Settles: true})
				all = append(all, fn)
				lead(to, stage, fn.Ports.In)
				to, stage = flow.Match{InPort: fn.Ports.Out}, flow.Ingress
			}
			lead(to, stage, h.bob.Port)
			h.Commit(rules...)
			s := h.Switch.(*Switch)
			frame := h.datagram(9, 1)
			for _, fn := range all { // each is given the frame when the one before has settled its flow
				h.alice.Send(b, frame)
				suite.Until(b, "the flow is settled", func() bool {
					n, err := s.SettleFlow(b.Context(), fn.Name, datapath.Settlement{Verdict: datapath.Pass, Flow: datapath.Flow{Protocol: 17,
						Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:1"), VLAN: datapath.NoVLAN}})
					return err == nil && n == 1
				})
			}
			const unspec = 0xffffffff
			benchVerdict(b, h.Rig, s.tables.programs.EgressTcx, h.bob.Port, frame, unspec)
		})
	}
}
