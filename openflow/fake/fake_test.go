package fake_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, s *fake.Switch) (*openflow.Conn, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	nc := s.Pipe(ctx)
	c, err := openflow.Controller(ctx, nc, openflow.Options{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		c.Close()
		for range c.Events() {
		}
	})
	return c, ctx
}

func out(ports ...openflow.Port) []openflow.Instruction {
	var as openflow.ApplyActions
	for _, p := range ports {
		as = append(as, openflow.Output{Port: p, MaxLen: openflow.MaxLenNoBuffer})
	}
	return []openflow.Instruction{as}
}

// frame is UDP over IPv4, with tags (TPID<<16 | TCI) in front of it.
func frame(src, dst string, tags ...uint32) []byte {
	b := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for _, t := range tags {
		b = append(b, byte(t>>24), byte(t>>16), byte(t>>8), byte(t))
	}
	b = append(b, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0)
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	b = append(append(b, s[:]...), d[:]...)
	return append(b, 0x10, 0, 0x20, 0, 0, 12, 0, 0, 'w', 'e', 'i', 'r')
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// record attaches to ports and returns what left them.
func record(s *fake.Switch, ports ...openflow.Port) map[openflow.Port]*[][]byte {
	got := map[openflow.Port]*[][]byte{}
	for _, p := range ports {
		frames := &[][]byte{}
		got[p] = frames
		s.Attach(p, func(f []byte) { *frames = append(*frames, f) })
	}
	return got
}

func TestPipeline(t *testing.T) {
	const stag = 0x88a8<<16 | 3600
	ip := openflow.EthType(0x0800)
	for _, c := range []struct {
		name  string
		flows []openflow.FlowMod
		in    []byte
		want  map[openflow.Port][]byte
	}{
		{name: "no entry drops", in: frame("10.0.0.1", "10.0.0.2"), want: map[openflow.Port][]byte{}},
		{name: "the highest priority wins", in: frame("10.0.0.1", "10.0.0.2"), flows: []openflow.FlowMod{
			{Priority: 1, Instructions: out(2)},
			{Priority: 9, Match: openflow.Match{ip, openflow.IPSrc(prefix("10.0.0.0/24"))}, Instructions: out(3)},
			{Priority: 10, Match: openflow.Match{ip, openflow.IPSrc(prefix("10.0.1.0/24"))}, Instructions: out(4)},
		}, want: map[openflow.Port][]byte{3: frame("10.0.0.1", "10.0.0.2")}},
		{name: "goto and metadata", in: frame("10.0.0.1", "10.0.0.2"), flows: []openflow.FlowMod{
			{Instructions: []openflow.Instruction{openflow.ApplyActions{openflow.RegLoad{Dst: openflow.FieldMetadata.Slice(0, 3), Value: 5}}, openflow.GotoTable{Table: 2}}},
			{Table: 2, Priority: 5, Match: openflow.Match{openflow.Metadata(5, 0xff)}, Instructions: out(2)},
			{Table: 2, Priority: 4, Instructions: out(3)},
		}, want: map[openflow.Port][]byte{2: frame("10.0.0.1", "10.0.0.2")}},
		{name: "push a service tag and set its id", in: frame("10.0.0.1", "10.0.0.2"), flows: []openflow.FlowMod{
			{Instructions: []openflow.Instruction{openflow.ApplyActions{openflow.PushVLAN{EtherType: 0x88a8},
				openflow.SetField{OXM: openflow.VLANID(3600)}, openflow.Output{Port: 2}}}},
		}, want: map[openflow.Port][]byte{2: frame("10.0.0.1", "10.0.0.2", stag)}},
		{name: "pop it where it matches", in: frame("10.0.0.1", "10.0.0.2", stag), flows: []openflow.FlowMod{
			{Priority: 7, Match: openflow.Match{openflow.VLANID(3600), ip, openflow.IPDst(prefix("10.0.0.2/32"))},
				Instructions: []openflow.Instruction{openflow.ApplyActions{openflow.PopVLAN{}, openflow.Output{Port: openflow.PortInPort}}}},
			{Priority: 6, Match: openflow.Match{openflow.Untagged()}, Instructions: out(2)},
		}, want: map[openflow.Port][]byte{1: frame("10.0.0.1", "10.0.0.2")}},
		{name: "output to the port of entry does nothing", in: frame("10.0.0.1", "10.0.0.2"),
			flows: []openflow.FlowMod{{Instructions: out(1, 2)}}, want: map[openflow.Port][]byte{2: frame("10.0.0.1", "10.0.0.2")}},
		{name: "flood goes everywhere else", in: frame("10.0.0.1", "10.0.0.2"), flows: []openflow.FlowMod{{Instructions: out(openflow.PortFlood)}},
			want: map[openflow.Port][]byte{2: frame("10.0.0.1", "10.0.0.2"), 3: frame("10.0.0.1", "10.0.0.2"), 4: frame("10.0.0.1", "10.0.0.2")}},
		{name: "registers and resubmit", in: frame("10.0.0.1", "10.0.0.2"), flows: []openflow.FlowMod{
			{Instructions: []openflow.Instruction{openflow.ApplyActions{openflow.RegLoad{Dst: openflow.Reg(1).All(), Value: 4},
				openflow.Resubmit{Table: 3}}}},
			{Table: 3, Match: openflow.Match{openflow.Uint(openflow.Reg(1), 4)},
				Instructions: []openflow.Instruction{openflow.ApplyActions{openflow.Output{Port: 4}}}},
		}, want: map[openflow.Port][]byte{4: frame("10.0.0.1", "10.0.0.2")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := fake.New(fake.Config{DatapathID: 1, Ports: []openflow.Port{1, 2, 3, 4}})
			conn, ctx := connect(t, s)
			got := record(s, 1, 2, 3, 4)
			if err := conn.TransactAll(ctx, len(c.flows), func(i int) openflow.Message { return &c.flows[i] }); err != nil {
				t.Fatal(err)
			}
			s.Receive(1, c.in)
			for p, frames := range got {
				want := c.want[p]
				if want == nil && len(*frames) > 0 || want != nil && (len(*frames) != 1 || !bytes.Equal((*frames)[0], want)) {
					t.Errorf("port %d: got %x, want %x", p, *frames, want)
				}
			}
		})
	}
}

func TestTableChanges(t *testing.T) {
	s := fake.New(fake.Config{DatapathID: 1, Ports: []openflow.Port{1}, TableSize: 3})
	c, ctx := connect(t, s)
	m := func(p openflow.Port) openflow.Match { return openflow.Match{openflow.InPort(p)} }
	err := c.Transact(ctx,
		&openflow.FlowMod{Priority: 1, Cookie: 0x10, Match: m(1), Instructions: out(2)},
		&openflow.FlowMod{Priority: 1, Cookie: 0x20, Match: m(2), Instructions: out(2)},
		&openflow.FlowMod{Priority: 2, Cookie: 0x11, Match: m(1), Instructions: out(3), Flags: openflow.FlagSendFlowRemoved},
		&openflow.FlowMod{Priority: 3, Cookie: 0x30, Match: m(3), Instructions: out(2)}, // too many
		&openflow.FlowMod{Priority: 1, Cookie: 0x21, Match: m(2), Instructions: out(4)}, // replaces
	)
	var fe *openflow.FlowError
	if !errors.As(err, &fe) || fe.Index != 3 || !errors.Is(err, &openflow.Error{Code: openflow.TableFull}) {
		t.Fatalf("got %v, want TABLE_FULL for message 3", err)
	}
	want := []string{
		"cookie=0x11, table=0, send_flow_rem priority=2,in_port=1 actions=output:3",
		"cookie=0x10, table=0, priority=1,in_port=1 actions=output:2",
		"cookie=0x21, table=0, priority=1,in_port=2 actions=output:4",
	}
	check := func(want []string, r openflow.FlowStatsRequest) {
		t.Helper()
		fs, err := c.Flows(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range fs {
			got = append(got, f.String())
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
	}
	all := openflow.FlowStatsRequest{Table: openflow.TableAll}
	check(want, all)
	check(want[:2], openflow.FlowStatsRequest{Table: 0, Cookie: 0x10, CookieMask: 0xf0})
	check(want[:2], openflow.FlowStatsRequest{Table: 0, Match: m(1)})

	// A strict delete takes one of two with the same match; a modify with a cookie mask changes only what it names.
	if err := c.Transact(ctx,
		&openflow.FlowMod{Command: openflow.FlowDeleteStrict, Priority: 2, Match: m(1)},
		&openflow.FlowMod{Command: openflow.FlowModify, Cookie: 0x20, CookieMask: 0xf0, Instructions: out(9)}); err != nil {
		t.Fatal(err)
	}
	check([]string{want[1], "cookie=0x21, table=0, priority=1,in_port=2 actions=output:9"}, all)
	select {
	case e := <-c.Events():
		if r, ok := e.Message.(*openflow.FlowRemoved); !ok || r.Cookie != 0x11 || r.Reason != openflow.RemovedDelete {
			t.Errorf("got %+v, want flow-removed of 0x11", e.Message)
		}
	case <-ctx.Done():
		t.Error("no flow-removed")
	}
	if err := c.Transact(ctx, &openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.TableAll, Cookie: 0x10, CookieMask: 0xf0}); err != nil {
		t.Fatal(err)
	}
	check([]string{"cookie=0x21, table=0, priority=1,in_port=2 actions=output:9"}, all)
}

func TestBundleIsAllOrNothing(t *testing.T) {
	s := fake.New(fake.Config{DatapathID: 1, Ports: []openflow.Port{1}, TableSize: 2})
	c, ctx := connect(t, s)
	add := func(p uint16) *openflow.FlowMod { return &openflow.FlowMod{Priority: p, Instructions: out(2)} }
	atomic := openflow.BundleAtomic | openflow.BundleOrdered
	if err := c.Bundle(ctx, atomic, add(1), &openflow.FlowMod{Command: openflow.FlowDelete}, add(2), add(3)); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Flows()); n != 2 {
		t.Fatalf("%d entries, want 2", n)
	}
	before := s.Flows()
	err := c.Bundle(ctx, atomic, &openflow.FlowMod{Command: openflow.FlowDelete}, add(4), add(5), add(6))
	var fe *openflow.FlowError
	if !errors.As(err, &fe) || fe.Index != 3 || fe.Err.Code != openflow.TableFull {
		t.Fatalf("got %v, want TABLE_FULL for message 3", err)
	}
	after := s.Flows()
	for i := range after {
		before[i].DurationS, before[i].DurationNS, after[i].DurationS, after[i].DurationNS = 0, 0, 0, 0
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("a bundle that failed changed something:\n%s", d)
	}

	none, ctx := connect(t, fake.New(fake.Config{NoBundles: true}))
	if err := none.Bundle(ctx, atomic, add(1)); !errors.Is(err, openflow.ErrNoBundles) {
		t.Errorf("got %v, want ErrNoBundles", err)
	}
}

func TestCablesCarryFrames(t *testing.T) {
	a := fake.New(fake.Config{DatapathID: 1, Ports: []openflow.Port{1, 2}})
	b := fake.New(fake.Config{DatapathID: 2, Ports: []openflow.Port{1, 2}})
	cut := fake.Cable(a, 2, b, 2)
	ca, ctx := connect(t, a)
	cb, _ := connect(t, b)
	toController := &openflow.FlowMod{Cookie: 7, Match: openflow.Match{openflow.InPort(2)}, Instructions: out(openflow.PortController)}
	if err := cb.Transact(ctx, toController); err != nil {
		t.Fatal(err)
	}
	lldp := append([]byte{1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc}, make([]byte, 46)...)
	if err := ca.Send(ctx, &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: 2}}, Data: lldp}); err != nil {
		t.Fatal(err)
	}
	want := &openflow.PacketIn{TotalLen: 60, Reason: openflow.ReasonAction, Cookie: 7, Match: openflow.Match{openflow.InPort(2)}, Data: lldp}
	if d := cmp.Diff(openflow.Message(want), next(t, cb).Message); d != "" {
		t.Errorf("packet-in: -want +got\n%s", d)
	}
	cut()
	cut()
	for _, c := range []*openflow.Conn{ca, cb} {
		if m, ok := next(t, c).Message.(*openflow.PortStatus); !ok || m.Desc.Port != 2 || m.Desc.Up() {
			t.Errorf("got %+v, want port 2 down", m)
		}
	}
	a.AddPort(7)
	if m, ok := next(t, ca).Message.(*openflow.PortStatus); !ok || m.Reason != openflow.PortAdd || m.Desc.Port != 7 {
		t.Errorf("got %+v, want port 7 added", m)
	}
}

func next(t *testing.T, c *openflow.Conn) openflow.Event {
	t.Helper()
	select {
	case e := <-c.Events():
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
		return openflow.Event{}
	}
}

func TestLoopEnds(t *testing.T) {
	a := fake.New(fake.Config{DatapathID: 1, Ports: []openflow.Port{1, 2, 3}})
	fake.Cable(a, 2, a, 3)
	c, ctx := connect(t, a)
	if err := c.Transact(ctx, &openflow.FlowMod{Instructions: out(openflow.PortFlood)}); err != nil {
		t.Fatal(err)
	}
	a.Receive(1, frame("10.0.0.1", "10.0.0.2"))
	if a.Loops() == 0 {
		t.Error("a flooded loop was not counted")
	}
}

func TestRoles(t *testing.T) {
	s := fake.New(fake.Config{DatapathID: 1})
	a, ctx := connect(t, s)
	b, _ := connect(t, s)
	if _, err := a.Role(ctx, openflow.RoleMaster, 10); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Role(ctx, openflow.RoleMaster, 11); err != nil || r.Role != openflow.RoleMaster || r.GenerationID != 11 {
		t.Fatalf("got %+v, %v", r, err)
	}
	if err := a.Transact(ctx, &openflow.FlowMod{}); !errors.Is(err, &openflow.Error{Code: openflow.BadRequestSlave}) {
		t.Errorf("got %v, want IS_SLAVE", err)
	}
	if _, err := a.Role(ctx, openflow.RoleMaster, 10); !errors.Is(err, &openflow.Error{Code: openflow.RoleStale}) {
		t.Errorf("got %v, want STALE", err)
	}
}

func TestLongAnswersComeInParts(t *testing.T) {
	s := fake.New(fake.Config{DatapathID: 1})
	c, ctx := connect(t, s)
	fs := make([]openflow.FlowMod, 5000)
	for i := range fs {
		fs[i] = openflow.FlowMod{Priority: uint16(i), Cookie: uint64(i), Instructions: out(1)}
	}
	if err := c.TransactAll(ctx, len(fs), func(i int) openflow.Message { return &fs[i] }); err != nil {
		t.Fatal(err)
	}
	got, err := c.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
	if err != nil || len(got) != len(fs) {
		t.Fatalf("got %d entries, %v; want %d", len(got), err, len(fs))
	}
	s.Restart()
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("a restarted switch still holds its connection")
	}
	if len(s.Flows()) != 0 {
		t.Error("a restarted switch still has entries")
	}
}

func TestOldVersions(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for versions, want := range map[uint32]string{1 << 1: "1.0", 1<<1 | 1<<6: "1.0, 1.5"} {
		_, err := openflow.Controller(ctx, fake.New(fake.Config{Versions: versions}).Pipe(ctx), openflow.Options{})
		var v *openflow.VersionError
		if !errors.As(err, &v) || !bytes.Contains([]byte(v.Error()), []byte("peer speaks "+want)) {
			t.Errorf("versions %#x: got %v, want a VersionError naming %s", versions, err, want)
		}
	}
}

// TestHundredSwitches: a ring of them, each with its controller's connection; every switch hears both neighbours.
func TestHundredSwitches(t *testing.T) {
	const n = 100
	var ss []*fake.Switch
	var cs []*openflow.Conn
	var ctx context.Context
	for i := range n {
		s := fake.New(fake.Config{DatapathID: uint64(i + 1), Ports: []openflow.Port{1, 2, 3}})
		var c *openflow.Conn
		c, ctx = connect(t, s)
		ss, cs = append(ss, s), append(cs, c)
	}
	for i := range n {
		fake.Cable(ss[i], 2, ss[(i+1)%n], 1)
	}
	for _, c := range cs {
		if err := c.Transact(ctx, &openflow.FlowMod{Match: openflow.Match{openflow.EthType(0x88cc)}, Instructions: out(openflow.PortController)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range cs {
		for _, p := range []openflow.Port{1, 2, 3} {
			data := append(make([]byte, 12), 0x88, 0xcc, byte(i), byte(p))
			if err := c.Send(ctx, &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: p}}, Data: data}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range cs {
		heard := map[openflow.Port][2]byte{}
		for range 2 {
			in, ok := next(t, c).Message.(*openflow.PacketIn)
			if !ok {
				t.Fatalf("switch %d: %+v", i, in)
			}
			heard[in.InPort()] = [2]byte(in.Data[14:])
		}
		want := map[openflow.Port][2]byte{1: {byte((i + n - 1) % n), 2}, 2: {byte((i + 1) % n), 1}}
		if d := cmp.Diff(want, heard); d != "" {
			t.Errorf("switch %d hears: -want +got\n%s", i, d)
		}
	}
}
