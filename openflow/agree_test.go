package openflow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	. "weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

// TestTheFakeAgreesWithOpenVSwitch: random tables, random frames: both send the same bytes to the controller by the same entries.
func TestTheFakeAgreesWithOpenVSwitch(t *testing.T) {
	s, ctx := openvswitch(t)
	real := s.connect(ctx)
	// Whoever connects to Open vSwitch, instead of being connected to, gets nothing unasked until it says so.
	if err := real.Transact(ctx, &SetAsync{AsyncMasks{PacketIn: [2]uint32{7, 7}}}); err != nil {
		t.Fatal(err)
	}
	f := fake.New(fake.Config{DatapathID: 1, Ports: []Port{1, 2, 3}})
	double, err := Controller(ctx, f.Pipe(ctx), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { double.Close() })
	met := 0
	rapid.Check(t, func(t *rapid.T) {
		mods := []Message{&FlowMod{Command: FlowDelete, Table: TableAll}, &FlowMod{Priority: 60000, Cookie: 999, Match: Match{EthType(endOfTest)},
			Instructions: toController()},
			// A packet that misses is dropped.
			&FlowMod{Table: 1}, &FlowMod{Table: 2}}
		for i := range rapid.IntRange(1, 12).Draw(t, "entries") {
			mods = append(mods, genEntry(t, i))
		}
		frames := rapid.SliceOfN(rapid.Custom(genFrame), 1, 5).Draw(t, "frames")
		in := Port(rapid.IntRange(1, 3).Draw(t, "in"))
		want, got := trial(ctx, t, real, mods, in, frames), trial(ctx, t, double, mods, in, frames)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%v\nframes %x at port %d: -Open vSwitch +fake\n%s", mods, frames, in, d)
		}
		met += len(got)
	})
	if met < 30 {
		t.Errorf("only %d frames met an entry: the test shows nothing", met)
	}
}

const endOfTest = 0x88b6

func toController(before ...Action) []Instruction {
	return apply(append(before, Output{PortController, MaxLenNoBuffer})...)
}

func trial(ctx context.Context, t *rapid.T, c *Conn, mods []Message, in Port, frames [][]byte) (seen []string) {
	if err := c.Transact(ctx, mods...); err != nil {
		t.Fatal(err)
	}
	end := append(append(make([]byte, 12), endOfTest>>8, endOfTest&0xff), make([]byte, 46)...)
	for _, frame := range append(frames[:len(frames):len(frames)], end) {
		if err := c.Send(ctx, &PacketOut{InPort: in, Actions: []Action{Output{Port: PortTable}}, Data: frame}); err != nil {
			t.Fatal(err)
		}
	}
	for {
		select {
		case e, ok := <-c.Events():
			if !ok {
				t.Fatal(c.Err())
			}
			p, is := e.Message.(*PacketIn)
			if !is {
				continue
			}
			if p.Cookie == 999 {
				return seen
			}
			seen = append(seen, fmt.Sprintf("table %d cookie %d in_port %d: %x", p.Table, p.Cookie, p.InPort(), p.Data))
		case <-ctx.Done():
			t.Fatal("no end came")
		}
	}
}

// genEntry draws from few values, so that frames meet entries. Priorities differ: equal ones that overlap mean nothing.
func genEntry(t *rapid.T, i int) *FlowMod {
	m := &FlowMod{Table: uint8(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "table")), Priority: uint16(100 + i), Cookie: uint64(i)}
	flip := func(name string) bool { return rapid.IntRange(0, 2).Draw(t, name) == 0 }
	if flip("in_port") {
		m.Match = append(m.Match, InPort(Port(rapid.IntRange(1, 3).Draw(t, "port"))))
	}
	if m.Table > 0 && flip("metadata") {
		m.Match = append(m.Match, Metadata(uint64(rapid.IntRange(0, 3).Draw(t, "metadata")), 3))
	}
	if flip("mac") {
		m.Match = append(m.Match, EthSrc(MAC{2, 0, 0, 0, 0, byte(rapid.IntRange(1, 2).Draw(t, "src"))}))
	}
	if flip("multicast") {
		m.Match = append(m.Match, EthDstMask(MAC{byte(rapid.IntRange(0, 1).Draw(t, "group"))}, MAC{1}))
	}
	switch rapid.IntRange(0, 5).Draw(t, "vlan") {
	case 0:
		m.Match = append(m.Match, Untagged())
	case 1:
		m.Match = append(m.Match, UintMask(FieldVLANVID, 0x1000, 0x1000))
	case 2:
		m.Match = append(m.Match, VLANID(5), Uint(FieldVLANPCP, uint64(rapid.IntRange(0, 1).Draw(t, "pcp"))))
	}
	switch rapid.IntRange(0, 5).Draw(t, "ip") {
	case 0:
		m.Match = append(m.Match, EthType(0x0800), IPSrc(cidr(rapid.SampledFrom([]string{"10.0.0.1/32", "10.0.0.0/24", "10.1.0.0/16"}).Draw(t, "prefix"))))
	case 1:
		m.Match = append(m.Match, EthType(0x0800), IPProto(17), DstPortMask(17, uint16(rapid.IntRange(0, 1).Draw(t, "half"))<<10, 0x400))
	case 2:
		m.Match = append(m.Match, EthType(0x86dd), IPProto(6), SrcPort(6, 1000))
	case 3:
		m.Match = append(m.Match, EthType(0x0806), ARPTPA(cidr("10.0.0.0/24")))
	}
	switch rapid.IntRange(0, 6).Draw(t, "do") {
	case 0:
		m.Instructions = nil
	case 1:
		// The priority is set: Open vSwitch pushes 0, the specification and the fake copy that of an outer tag (5.12.1).
		m.Instructions = toController(PushVLAN{0x88a8}, SetField{VLANID(3600)}, SetField{Uint(FieldVLANPCP, 0)})
	case 2:
		m.Instructions = toController(SetField{EthDst(MAC{2, 0, 0, 0, 0, 9})})
	case 3, 4:
		if m.Table < 2 {
			m.Instructions = append(toController(RegLoad{FieldMetadata.Slice(0, 2), uint64(rapid.IntRange(0, 3).Draw(t, "write"))}), GotoTable{m.Table + 1})
		}
	case 5:
		m.Instructions = toController(SetField{EthSrc(MAC{2, 0, 0, 0, 0, 8})})
		if m.Table < 2 {
			m.Instructions = append(m.Instructions, GotoTable{2})
		}
	default:
		m.Instructions = toController()
	}
	return m
}

func genFrame(t *rapid.T) []byte {
	b := []byte{byte(2 + rapid.IntRange(0, 1).Draw(t, "group")), 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, byte(rapid.IntRange(1, 3).Draw(t, "src"))}
	if rapid.Bool().Draw(t, "tagged") {
		b = append(b, 0x81, 0, byte(rapid.IntRange(0, 1).Draw(t, "pcp"))<<5, byte(rapid.IntRange(5, 6).Draw(t, "vid")))
	}
	src := [][]byte{{10, 0, 0, 1}, {10, 0, 0, 77}, {10, 1, 2, 3}}[rapid.IntRange(0, 2).Draw(t, "ip")]
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		b = append(b, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0)
		b = append(append(b, src...), 10, 0, 0, 2, 16, 0, byte(rapid.IntRange(0, 8).Draw(t, "port")), 1, 0, 20, 0, 0)
	case 1:
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64)
		b = append(append(b, make([]byte, 32)...), 1000>>8, 1000&0xff, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2)
	case 2:
		b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1)
		b = append(append(append(b, src...), 0, 0, 0, 0, 0, 0), src...)
	default:
		b = append(b, 0x88, 0xb5)
	}
	return append(b, make([]byte, 64)...)
}
