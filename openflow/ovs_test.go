package openflow_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/netns"
	. "weir.dev/weir/openflow"
	"weir.dev/weir/ovsdb/ovsproc"
)

// ovs is a private Open vSwitch with a bridge br0 that speaks OpenFlow 1.3 and has ports 1, 2, 3.
type ovs struct {
	*ovsproc.Process
	t *testing.T
}

func openvswitch(t *testing.T) (*ovs, context.Context) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test runs Open vSwitch in a network namespace: run it as root")
	}
	dir, err := os.MkdirTemp("", "of-")
	if err != nil {
		t.Fatal(err)
	}
	o := ovsproc.Options{Dir: filepath.Join(dir, "ovs"), Netns: filepath.Join(dir, "ns")}
	if err := netns.Create(o.Netns, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(func() {
		cancel()
		if err := ovsproc.At(o).Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := netns.Delete(o.Netns); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	p, err := ovsproc.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	s := &ovs{p, t}
	args := []string{"--db=" + p.DB(), "--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "protocols=OpenFlow13", "fail_mode=secure"}
	for i := range 3 {
		name := fmt.Sprintf("p%d", i+1)
		args = append(args, "--", "add-port", "br0", name, "--", "set", "interface", name, "type=internal", fmt.Sprintf("ofport_request=%d", i+1))
	}
	s.run(ctx, "ovs-vsctl", args...)
	return s, ctx
}

func (s *ovs) run(ctx context.Context, argv0 string, args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(ctx, argv0, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", argv0, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *ovs) ofctl(ctx context.Context, command string, args ...string) string {
	s.t.Helper()
	return s.run(ctx, "ovs-ofctl", append([]string{"-O", "OpenFlow13", command, "unix:" + s.Mgmt("br0")}, args...)...)
}

func (s *ovs) connect(ctx context.Context) *Conn {
	s.t.Helper()
	c, err := Dial(ctx, "unix:"+s.Mgmt("br0"), Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// group is an action that this package does not know.
func group(id byte) Action { return RawAction{22, []byte{0, 0, 0, id}} }

func apply(as ...Action) []Instruction { return []Instruction{ApplyActions(as)} }

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// cases are entries that Open vSwitch takes, and what ovs-ofctl shows them as.
var cases = []struct {
	m    Match
	is   []Instruction
	text string
}{
	{nil, nil, "actions=drop"},
	{Match{InPort(2), EthType(0x0800), IPSrc(cidr("10.0.0.1/32"))}, apply(Output{Port: 1}), "ip,in_port=2,nw_src=10.0.0.1 actions=output:1"},
	{Match{InPort(PortLocal)}, apply(Output{Port: PortNormal}), "in_port=LOCAL actions=NORMAL"},
	{Match{EthSrc(MAC{2, 0, 0, 0, 0, 1}), EthDst(MAC{2, 0, 0, 0, 0, 2})}, apply(Output{Port: PortInPort}), "dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02 actions=IN_PORT"},
	{Match{EthDstMask(MAC{1}, MAC{1})}, apply(Output{Port: PortFlood}), "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00 actions=FLOOD"},
	{Match{EthType(0x88cc)}, apply(Output{Port: PortController, MaxLen: MaxLenNoBuffer}), "dl_type=0x88cc actions=CONTROLLER:65535"},
	{Match{EthType(0x0800), IPSrc(cidr("10.1.0.0/16")), IPDst(cidr("10.2.0.0/16"))}, apply(Output{Port: PortAll}), "ip,nw_src=10.1.0.0/16,nw_dst=10.2.0.0/16 actions=ALL"},
	{Match{EthType(0x0800), IPProto(6), SrcPort(6, 1000), DstPort(6, 80)}, apply(Output{Port: 1}, Output{Port: 2}), "tcp,tp_src=1000,tp_dst=80 actions=output:1,output:2"},
	{Match{EthType(0x0800), IPProto(17), DstPortMask(17, 1024, 0xfc00)}, apply(Output{Port: 1}), "udp,tp_dst=0x400/0xfc00 actions=output:1"},
	{Match{EthType(0x0800), IPProto(132), DstPort(132, 9)}, apply(Output{Port: 1}), "sctp,tp_dst=9 actions=output:1"},
	{Match{EthType(0x0800), IPProto(1), Uint(FieldICMPv4Type, 8), Uint(FieldICMPv4Code, 0)}, nil, "icmp,icmp_type=8,icmp_code=0 actions=drop"},
	{Match{EthType(0x0800), IPProto(47)}, nil, "ip,nw_proto=47 actions=drop"},
	{Match{EthType(0x0800), Uint(FieldIPDSCP, 46), Uint(FieldIPECN, 1)}, nil, "ip,nw_tos=184,nw_ecn=1 actions=drop"},
	{Match{EthType(0x86dd), IPSrc(cidr("fd00::/64")), IPDst(cidr("fd00::1/128"))}, apply(Output{Port: 1}), "ipv6,ipv6_src=fd00::/64,ipv6_dst=fd00::1 actions=output:1"},
	{Match{EthType(0x86dd), IPProto(6), DstPort(6, 443)}, nil, "tcp6,tp_dst=443 actions=drop"},
	{Match{EthType(0x86dd), Uint(FieldIPv6FLabel, 0x12)}, nil, "ipv6,ipv6_label=0x00012 actions=drop"},
	{Match{EthType(0x86dd), IPProto(58), Uint(FieldICMPv6Type, 135), OXM{Field: FieldNDTarget, Value: netip.MustParseAddr("fd00::9").As16()}}, nil,
		"icmp6,icmp_type=135,nd_target=fd00::9 actions=drop"},
	{Match{EthType(0x0806), Uint(FieldARPOp, 1), ARPSPA(cidr("10.0.0.1/32")), ARPTPA(cidr("10.0.0.0/24"))}, nil, "arp,arp_spa=10.0.0.1,arp_tpa=10.0.0.0/24,arp_op=1 actions=drop"},
	{Match{VLANID(100)}, apply(PopVLAN{}, Output{Port: 2}), "dl_vlan=100 actions=pop_vlan,output:2"},
	{Match{VLANID(100), Uint(FieldVLANPCP, 5)}, nil, "dl_vlan=100,dl_vlan_pcp=5 actions=drop"},
	{Match{Untagged()}, apply(PushVLAN{0x88a8}, SetField{VLANID(3600)}, Output{Port: 2}), "vlan_tci=0x0000/0x1fff actions=push_vlan:0x88a8,set_field:7696->vlan_vid,output:2"},
	{Match{UintMask(FieldVLANVID, 0x1000, 0x1000)}, nil, "vlan_tci=0x1000/0x1000 actions=drop"},
	{Match{Metadata(5, 0xff)}, nil, "metadata=0x5/0xff actions=drop"},
	{Match{Metadata(5, ^uint64(0))}, []Instruction{ApplyActions{RegLoad{FieldMetadata.Slice(0, 4), 7}}, GotoTable{3}}, "metadata=0x5 actions=load:0x7->OXM_OF_METADATA[0..3],goto_table:3"},
	{Match{Uint(FieldTunnelID, 0x10)}, apply(SetField{Uint(FieldTunnelID, 0x11)}, Output{Port: 1}), "tun_id=0x10 actions=set_field:0x11->tun_id,output:1"},
	{Match{Uint(Reg(0), 5), UintMask(Reg(15), 0x30, 0xf0)}, apply(Resubmit{Table: 4}), "reg0=0x5,reg15=0x30/0xf0 actions=resubmit(,4)"},
	{Match{InPort(1)}, apply(Resubmit{InPort: 2, Table: 4}), "in_port=1 actions=resubmit(2,4)"},
	{Match{InPort(2)}, apply(RegLoad{Reg(3).All(), 5}, RegLoad{Reg(4).Slice(4, 8), 0x1f}), "in_port=2 actions=load:0x5->NXM_NX_REG3[],load:0x1f->NXM_NX_REG4[4..11]"},
	{Match{InPort(3)}, apply(RegMove{FieldInPort.Slice(0, 16), Reg(1).Slice(0, 16)}), "in_port=3 actions=move:OXM_OF_IN_PORT[0..15]->NXM_NX_REG1[0..15]"},
	{Match{InPort(4)}, apply(SetField{Uint(Reg(2), 9)}, SetField{UintMask(Reg(2), 0x10, 0xf0)}), "in_port=4 actions=set_field:0x9->reg2,set_field:0x10/0xf0->reg2"},
	{Match{InPort(5)}, apply(SetField{EthDst(MAC{2, 0, 0, 0, 0, 9})}, SetField{EthSrc(MAC{2, 0, 0, 0, 0, 8})}, Output{Port: 1}), "in_port=5 actions=set_field:02:00:00:00:00:09->eth_dst,set_field:02:00:00:00:00:08->eth_src,output:1"},
	{Match{InPort(6), EthType(0x0800)}, apply(SetField{IPSrc(cidr("10.0.0.9/32"))}, SetField{IPDst(cidr("10.0.0.8/32"))}, Output{Port: 1}),
		"ip,in_port=6 actions=set_field:10.0.0.9->ip_src,set_field:10.0.0.8->ip_dst,output:1"},
	{Match{InPort(7), EthType(0x0800), IPProto(6)}, apply(SetField{DstPort(6, 8080)}, Output{Port: 1}), "tcp,in_port=7 actions=set_field:8080->tcp_dst,output:1"},
	{Match{InPort(10)}, apply(Clone{SetField{Uint(Reg(1), 1)}, Output{Port: 2}}, Output{Port: 3}), "in_port=10 actions=clone(set_field:0x1->reg1,output:2),output:3"},
	{Match{InPort(11)}, apply(Learn{IdleS: 10, HardS: 60, Priority: 5, Cookie: 0x77, Table: 9, Specs: []LearnSpec{
		{Kind: LearnMatch, Src: FieldEthSrc.All(), Dst: FieldEthDst.All()},
		{Kind: LearnMatch, Src: FieldNXMVLANTCI.Slice(0, 12), Dst: FieldNXMVLANTCI.Slice(0, 12)},
		{Kind: LearnLoad, Src: FieldNXMInPort.All(), Dst: Reg(0).Slice(0, 16)}}}),
		"in_port=11 actions=learn(table=9,idle_timeout=10,hard_timeout=60,priority=5,cookie=0x77,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],NXM_OF_VLAN_TCI[0..11]," +
			"load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15])"},
	{Match{InPort(14)}, apply(PushVLAN{0x8100}, SetField{VLANID(7)}, SetField{Uint(FieldVLANPCP, 3)}, Output{Port: 1}), "in_port=14 actions=push_vlan:0x8100,set_field:4103->vlan_vid,set_field:3->vlan_pcp,output:1"},
}

// normal makes what is read comparable with what was sent: empty lists are nil, matches in normal form.
func normal(m Match, is []Instruction) (Match, string) {
	n := m.Normal()
	if len(n) == 0 {
		n = nil
	}
	return n, fmt.Sprintf("%#v", is)
}

func TestOpenVSwitchKeepsWhatIsSent(t *testing.T) {
	s, ctx := openvswitch(t)
	c := s.connect(ctx)
	var mods []Message
	for i, k := range cases {
		mods = append(mods, &FlowMod{Priority: 1000, Table: 1, Cookie: uint64(i + 1), Match: k.m, Instructions: k.is})
	}
	mods = append(mods, &FlowMod{Priority: 7, IdleS: 100, HardS: 200, Flags: FlagSendFlowRemoved | FlagResetCounts, Cookie: 0xffee, Match: Match{InPort(1)},
		Instructions: apply(Output{Port: 2})})
	if err := c.Transact(ctx, mods...); err != nil {
		t.Fatal(err)
	}
	got, err := c.Flows(ctx, FlowStatsRequest{Table: TableAll})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(mods) {
		t.Errorf("%d entries read back, want %d", len(got), len(mods))
	}
	texts := map[uint64]string{}
	for _, line := range strings.Split(s.ofctl(ctx, "dump-flows", "--no-stats", "--no-names"), "\n") {
		var cookie uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "cookie=0x%x,", &cookie); err == nil {
			texts[cookie] = strings.TrimSpace(line)
		}
	}
	for _, f := range got {
		if f.Cookie == 0xffee {
			want := "cookie=0xffee, table=0, idle_timeout=100, hard_timeout=200, send_flow_rem reset_counts priority=7,in_port=1 actions=output:2"
			if f.String() != want {
				t.Errorf("got  %s\nwant %s", f, want)
			}
			continue
		}
		k := cases[f.Cookie-1]
		wantM, wantI := normal(k.m, k.is)
		gotM, gotI := normal(f.Match, f.Instructions)
		if d := cmp.Diff(wantM, gotM); d != "" {
			t.Errorf("%s: match -want +got\n%s", k.text, d)
		}
		if wantI != gotI {
			t.Errorf("%s:\ngot  %s\nwant %s", k.text, gotI, wantI)
		}
		theirs := strings.TrimPrefix(texts[f.Cookie], fmt.Sprintf("cookie=0x%x, table=1, priority=1000", f.Cookie))
		if theirs = strings.TrimLeft(theirs, " ,"); theirs != k.text {
			t.Errorf("ovs-ofctl shows\n     %s\nwant %s", theirs, k.text)
		}
		ours := strings.TrimPrefix(f.String(), fmt.Sprintf("cookie=0x%x, table=1, priority=1000", f.Cookie))
		if ours = strings.TrimLeft(ours, " ,"); ours != theirs {
			t.Errorf("String shows\n     %s\nwant %s", ours, theirs)
		}
	}
}

func TestOpenVSwitchBundles(t *testing.T) {
	s, ctx := openvswitch(t)
	c := s.connect(ctx)
	atomic := BundleAtomic | BundleOrdered
	add := func(p uint16) *FlowMod {
		return &FlowMod{Priority: p, Match: Match{InPort(1)}, Instructions: apply(Output{Port: 2})}
	}
	if err := c.Bundle(ctx, atomic, add(1), add(2), add(3)); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		t.Helper()
		a, err := c.Aggregate(ctx, AggregateRequest{Table: TableAll})
		if err != nil {
			t.Fatal(err)
		}
		return int(a.Flows)
	}
	if n := count(); n != 3 {
		t.Fatalf("%d entries after the bundle, want 3", n)
	}
	for name, bad := range map[string]*FlowMod{
		"refused when committed": {Priority: 9, Instructions: apply(group(77))},
		"refused when added":     {Priority: 9, Instructions: []Instruction{GotoTable{0}}},
	} {
		err := c.Bundle(ctx, atomic, &FlowMod{Command: FlowDelete, Table: TableAll}, add(4), bad, add(5))
		var fe *FlowError
		if !errors.As(err, &fe) || fe.Index != 2 || fe.Message != bad {
			t.Errorf("%s: got %v, want a FlowError for message 2", name, err)
		}
		if n := count(); n != 3 {
			t.Errorf("%s: %d entries after a bundle that failed, want 3", name, n)
		}
	}
	if err := c.Bundle(ctx, atomic, &FlowMod{Command: FlowDelete, Table: TableAll}); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d entries after all were deleted", n)
	}
}

func TestOpenVSwitchTalksOfItself(t *testing.T) {
	s, ctx := openvswitch(t)
	c := s.connect(ctx)
	want := strings.Trim(strings.TrimSpace(s.run(ctx, "ovs-vsctl", "--db="+s.DB(), "get", "bridge", "br0", "datapath_id")), `"`)
	if got := fmt.Sprintf("%016x", c.Features().DatapathID); got != want {
		t.Errorf("datapath id %s, want %s", got, want)
	}
	if d, err := c.Desc(ctx); err != nil || d.Hardware != "Open vSwitch" {
		t.Errorf("description %+v, %v", d, err)
	}
	ports, err := c.Ports(ctx)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]Port{}
	for _, p := range ports {
		names[p.Name] = p.Port
	}
	if d := cmp.Diff(map[string]Port{"p1": 1, "p2": 2, "p3": 3, "br0": PortLocal}, names); d != "" {
		t.Errorf("ports -want +got\n%s", d)
	}
	if st, err := c.PortStats(ctx, PortAny); err != nil || len(st) != 4 {
		t.Errorf("port statistics %+v, %v", st, err)
	}
	fs, err := c.TableFeatures(ctx)
	if err != nil || len(fs) < 100 || fs[0].MaxEntries == 0 || len(fs[0].Properties) == 0 {
		t.Errorf("features of %d tables, %v", len(fs), err)
	}
	for f, want := range map[Field]bool{FieldEthSrc: true, FieldInPort: false} {
		if masked, known := fs[0].Masks(f); masked != want || !known {
			t.Errorf("%s: masked %t, known %t", f, masked, known)
		}
	}
	if r, err := c.Role(ctx, RoleMaster, 5); err != nil || r.Role != RoleMaster {
		t.Errorf("role %+v, %v", r, err)
	}
	if _, err := c.Role(ctx, RoleMaster, 4); !errors.Is(err, &Error{Code: RoleStale}) {
		t.Errorf("got %v, want STALE", err)
	}
	if err := c.Send(ctx, &SetConfig{MissSendLen: MaxLenNoBuffer}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Request(ctx, &Raw{Kind: TypeGetConfigRequest})
	if d := cmp.Diff(Message(&Raw{Kind: TypeGetConfigReply, Body: []byte{0, 0, 0xff, 0xff}}), m); err != nil || d != "" {
		t.Errorf("configuration: %v\n%s", err, d)
	}
	async := AsyncMasks{PacketIn: [2]uint32{7, 0}, PortStatus: [2]uint32{7, 7}, FlowRemoved: [2]uint32{15, 0}}
	if err := c.Transact(ctx, &SetAsync{async}); err != nil {
		t.Fatal(err)
	}
	m, err = c.Request(ctx, &Raw{Kind: TypeGetAsyncRequest})
	body := []byte{0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 15, 0, 0, 0, 0}
	if d := cmp.Diff(Message(&Raw{Kind: TypeGetAsyncReply, Body: body}), m); err != nil || d != "" {
		t.Errorf("asynchronous configuration: %v\n%s", err, d)
	}
	// A packet goes out to the controller and comes in; a port goes away and is told.
	data := append([]byte{1, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc}, make([]byte, 46)...)
	if err := c.Send(ctx, &PacketOut{InPort: 3, Actions: []Action{Output{Port: PortController, MaxLen: MaxLenNoBuffer}}, Data: data}); err != nil {
		t.Fatal(err)
	}
	in := await[*PacketIn](t, ctx, c)
	if in.InPort() != 3 || string(in.Data) != string(data) || int(in.TotalLen) != len(data) || in.Buffer != 0 {
		t.Errorf("packet-in %+v", in)
	}
	s.run(ctx, "ovs-vsctl", "--db="+s.DB(), "del-port", "br0", "p2")
	if p := await[*PortStatus](t, ctx, c); p.Reason != PortDelete || p.Desc.Port != 2 || p.Desc.Name != "p2" {
		t.Errorf("port-status %+v", p)
	}
	if err := c.Transact(ctx, &FlowMod{Priority: 3, Cookie: 8, Flags: FlagSendFlowRemoved}, &FlowMod{Command: FlowDelete, Table: TableAll}); err != nil {
		t.Fatal(err)
	}
	if r := await[*FlowRemoved](t, ctx, c); r.Cookie != 8 || r.Priority != 3 || r.Reason != RemovedDelete {
		t.Errorf("flow-removed %+v", r)
	}
}

func await[M Message](t *testing.T, ctx context.Context, c *Conn) M {
	t.Helper()
	for {
		select {
		case e, ok := <-c.Events():
			if !ok {
				t.Fatalf("connection ended: %v", c.Err())
			}
			if m, is := e.Message.(M); is {
				return m
			}
		case <-ctx.Done():
			t.Fatalf("no %T came", *new(M))
		}
	}
}

// TestOpenVSwitchIsToldWhatIsWrong: what it refuses has a name and the index of the message.
func TestOpenVSwitchIsToldWhatIsWrong(t *testing.T) {
	s, ctx := openvswitch(t)
	c := s.connect(ctx)
	ok := &FlowMod{Priority: 1}
	for _, k := range []struct {
		bad  Message
		code ErrorCode
	}{
		{&FlowMod{Instructions: apply(group(99))}, 2<<16 | 9},
		{&FlowMod{Table: 3, Instructions: []Instruction{GotoTable{2}}}, BadInstructionTable},
		{&FlowMod{Instructions: []Instruction{RawInstruction{6, []byte{0, 0, 0, 44}}}}, 12<<16 | 2},
		{&Raw{Kind: TypeGroupMod, Body: []byte{0, 1, 0, 0, 0, 0, 0, 3}}, 6<<16 | 8},
		{&Raw{Kind: TypePortMod, Body: append([]byte{0, 0, 0, 99}, make([]byte, 28)...)}, 7 << 16},
		{&Raw{Kind: 77}, BadType},
		{&Experimenter{ID: 0x123456}, BadExperimenter},
	} {
		err := c.Transact(ctx, ok, k.bad, ok)
		var fe *FlowError
		if !errors.As(err, &fe) || fe.Index != 1 || fe.Err.Code != k.code {
			t.Errorf("%s: got %v, want %s for message 1", k.bad.Type(), err, k.code)
		}
	}
	if c.Err() != nil {
		t.Errorf("the connection ended: %v", c.Err())
	}
}

// TestOpenVSwitchThatSpeaksOnly10 is refused on both sides with a reason.
func TestOpenVSwitchThatSpeaksOnly10(t *testing.T) {
	s, ctx := openvswitch(t)
	s.run(ctx, "ovs-vsctl", "--db="+s.DB(), "set", "bridge", "br0", "protocols=OpenFlow10")
	_, err := Dial(ctx, "unix:"+s.Mgmt("br0"), Options{})
	var v *VersionError
	if !errors.As(err, &v) || v.Error() != "openflow: peer speaks 1.0 at most, want 1.3" && v.Error() != "openflow: peer speaks 1.0, want 1.3" {
		t.Errorf("got %v, want a VersionError that names 1.0", err)
	}
}

// TestOpenVSwitchConnectsToUs: the usual direction, switch to controller, and echo in both directions.
func TestOpenVSwitchConnectsToUs(t *testing.T) {
	s, ctx := openvswitch(t)
	socket := filepath.Join(s.Dir(), "controller")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.run(ctx, "ovs-vsctl", "--db="+s.DB(), "set-controller", "br0", "unix:"+socket, "--", "set", "controller", "br0", "inactivity_probe=1000")
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Controller(ctx, nc, Options{EchoInterval: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Request(ctx, &EchoRequest{[]byte("weir")}); err != nil {
		t.Error(err)
	}
	// Its probe comes after a second of silence; ours every 200 ms. Both are answered: the connection lives.
	select {
	case <-c.Done():
		t.Fatalf("connection ended: %v", c.Err())
	case <-time.After(2500 * time.Millisecond):
	}
	if err := c.Barrier(ctx); err != nil {
		t.Error(err)
	}
}
