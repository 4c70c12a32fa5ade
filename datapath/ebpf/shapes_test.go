package ebpf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf/internal/compile"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// manyShapes are rules of n shapes at one port, drawn always the same: prefix pairs of all lengths, some with ports. The last one takes UDP.
func manyShapes(n int, out, to flow.Port) []flow.Rule {
	draw := rand.New(rand.NewPCG(1, 2))
	prefix := func() netip.Prefix {
		a := netip.AddrFrom4([4]byte{10, byte(draw.IntN(4)), byte(draw.IntN(256)), byte(draw.IntN(256))})
		return netip.PrefixFrom(a, draw.IntN(33)).Masked()
	}
	seen := map[flow.Match]bool{}
	var rules []flow.Rule
	shapes := map[string]bool{}
	for len(shapes) < n {
		m := flow.Match{OutPort: out, Proto: flow.ProtoTCP, Src: prefix(), Dst: prefix()}
		if draw.IntN(2) == 0 {
			first := uint16(1000 + draw.IntN(1000))
			m.DstPorts = flow.PortRange{First: first, Last: first}
		}
		shape := fmt.Sprint(m.Src.Bits(), m.Dst.Bits(), m.DstPorts.Any())
		if seen[m] || shapes[shape] {
			continue
		}
		seen[m], shapes[shape] = true, true
		rules = append(rules, flow.Rule{Cookie: uint64(len(rules) + 1), Priority: uint16(draw.IntN(1000)), Stage: flow.Egress, Match: m,
			Action: flow.Action{Op: flow.Output, Port: to}})
	}
	return append(rules, flow.Rule{Cookie: uint64(len(rules) + 1), Stage: flow.Egress, Match: flow.Match{OutPort: out, Proto: flow.ProtoUDP}, Action: flow.Action{Op: flow.Output, Port: to}})
}

// BenchmarkNewFlow is the cost of the first packet of a flow that only the last of the rules takes, by the number of the rules' shapes.
func BenchmarkNewFlow(b *testing.B) {
	for _, n := range []int{10, 256, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := suite.NewRig(b, func(i instance.Instance) (datapath.Switch, error) {
				return Open(context.Background(), Options{Instance: i})
			})
			alice, bob, fn := r.Station("alice"), r.Station("bob"), r.Wire("w")
			r.Commit(manyShapes(n, bob.Port, fn.Ports.In)...)
			s := r.Switch.(*Switch)
			frame := known(alice, bob)
			frame[23] = flow.ProtoUDP
			for slot := range s.ports.bySlot { // the cache is not to know
				var p = s.rules.image.Stages[slot]
				for i := range p.Stage {
					p.Stage[i].Flags &^= compile.StageCached
				}
				if err := s.rules.writeSlot(slot, p, p); err != nil {
					b.Fatal(err)
				}
			}
			bench(b, r, s.tables.programs.EgressTcx, bob.Port, frame)
		})
	}
}
