package openflow_test

import (
	"bytes"
	"encoding/hex"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "weir.dev/weir/openflow"
)

func mod(m FlowMod) *FlowMod { return &m }

// localFrame has the EtherType for local experiments, so that no dissector looks inside.
var localFrame = append(append(make([]byte, 12), 0x88, 0xb5), make([]byte, 46)...)

func prio(m FlowMod) *FlowMod {
	m.Priority = 0x8000 // os-ken's default
	return &m
}

// osken is what testdata/osken.py says, in this package's words.
var osken = map[string]Message{
	"hello":            &Hello{Highest: 4},
	"echo-request":     &EchoRequest{[]byte("weir")},
	"features-request": &FeaturesRequest{},
	"set-config":       &SetConfig{MissSendLen: 0xffff},
	"barrier":          &BarrierRequest{},
	"role":             &RoleRequest{RoleMaster, 7},
	"set-async":        &SetAsync{AsyncMasks{[2]uint32{7, 0}, [2]uint32{7, 7}, [2]uint32{15, 0}}},
	"packet-out":       &PacketOut{InPort: PortController, Actions: []Action{Output{Port: 2}}, Data: localFrame},
	"flow-steering": mod(FlowMod{Cookie: 0xab, Priority: 100, Match: Match{InPort(2), EthType(0x0800), IPSrc(cidr("10.0.0.1/32"))},
		Instructions: apply(Output{Port: 1})}),
	"flow-cidr": prio(FlowMod{Match: Match{EthType(0x0800), IPSrc(cidr("10.1.0.0/16")), IPDst(cidr("10.2.0.0/16"))}, Instructions: apply(Output{Port: 1})}),
	"flow-mac": prio(FlowMod{Match: Match{InPort(1), EthDstMask(MAC{1}, MAC{1}), EthSrc(MAC{2, 0, 0, 0, 0, 1})},
		Instructions: apply(Output{Port: PortFlood})}),
	"flow-tcp": prio(FlowMod{Match: Match{EthType(0x0800), IPProto(6), SrcPort(6, 1000), DstPort(6, 80)},
		Instructions: apply(Output{PortController, MaxLenNoBuffer})}),
	"flow-udp6": prio(FlowMod{Match: Match{EthType(0x86dd), IPProto(17), DstPort(17, 53), IPSrc(cidr("fd00::/64"))}, Instructions: apply(Output{Port: 1})}),
	"flow-arp": prio(FlowMod{Match: Match{EthType(0x0806), Uint(FieldARPOp, 1), ARPSPA(cidr("10.0.0.1/32")), ARPTPA(cidr("10.0.0.2/32")),
		OXM{Field: FieldARPSHA, Value: [16]byte{2, 0, 0, 0, 0, 1}}}}),
	"flow-icmpv6": prio(FlowMod{Match: Match{EthType(0x86dd), IPProto(58), Uint(FieldICMPv6Type, 135),
		OXM{Field: FieldNDTarget, Value: cidr("fd00::9/128").Addr().As16()}}}),
	"flow-tag":  prio(FlowMod{Match: Match{VLANID(3600)}, Instructions: apply(PopVLAN{}, Output{Port: 2})}),
	"flow-push": prio(FlowMod{Match: Match{InPort(1)}, Instructions: apply(PushVLAN{0x88a8}, SetField{VLANID(3600)}, Output{Port: 2})}),
	"flow-set": prio(FlowMod{Match: Match{InPort(1)},
		Instructions: apply(SetField{EthDst(MAC{2, 0, 0, 0, 0, 9})}, RawAction{21, []byte{0, 0, 0, 4}}, RawAction{22, []byte{0, 0, 0, 5}}, RawAction{24, make([]byte, 4)})}),
	"flow-tables": prio(FlowMod{Table: 1, Match: Match{Metadata(5, 0xff)}, Instructions: []Instruction{
		RawInstruction{2, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xf}}, GotoTable{3}, RawInstruction{6, []byte{0, 0, 0, 2}}}}),
	"flow-write": prio(FlowMod{Instructions: []Instruction{RawInstruction{5, make([]byte, 4)},
		RawInstruction{3, []byte{0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}}}}),
	"flow-delete":            prio(FlowMod{Command: FlowDelete, Table: TableAll, Cookie: 1 << 48, CookieMask: 0xffff << 48}),
	"flow-timeouts":          prio(FlowMod{Command: FlowModifyStrict, IdleS: 10, HardS: 20, Flags: FlagSendFlowRemoved, Match: Match{InPort(1)}}),
	"flow-tunnel":            prio(FlowMod{Match: Match{Uint(FieldTunnelID, 0x10)}, Instructions: apply(SetField{Uint(FieldTunnelID, 0x11)}, Output{Port: 1})}),
	"flow-registers":         prio(FlowMod{Match: Match{Uint(Reg(0), 5)}, Instructions: apply(RegLoad{Reg(3).All(), 5}, Resubmit{Table: 4})}),
	"flow-move":              prio(FlowMod{Match: Match{InPort(1)}, Instructions: apply(RegMove{Reg(1).Slice(0, 16), Reg(2).Slice(8, 16)})}),
	"desc-request":           &MultipartRequest{Body: DescRequest{}},
	"flow-stats-request":     &MultipartRequest{Body: FlowStatsRequest{Table: TableAll, Cookie: 1, CookieMask: 1, Match: Match{InPort(1)}}},
	"aggregate-request":      &MultipartRequest{Body: AggregateRequest{Table: 2}},
	"port-stats-request":     &MultipartRequest{Body: PortStatsRequest{PortAny}},
	"port-desc-request":      &MultipartRequest{Body: PortDescRequest{}},
	"table-features-request": &MultipartRequest{Body: TableFeaturesMsg(nil)},
	"bundle-open":            &BundleControl{ID: 5, Kind: BundleOpenRequest, Flags: BundleAtomic | BundleOrdered},
	"bundle-add":             &BundleAdd{ID: 5, Flags: BundleAtomic, Message: mod(FlowMod{Priority: 5, Match: Match{InPort(1)}, Instructions: apply(Output{Port: 2})})},
	"error":                  &Error{Code: TableFull, Data: []byte{4, 20, 0, 8, 0, 0, 0, 9}},
}

func readVectors(t *testing.T, text string) map[string][]byte {
	t.Helper()
	vs := map[string][]byte{}
	for line := range strings.Lines(text) {
		name, h, ok := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(h)
		if !ok || err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		vs[name] = b
	}
	return vs
}

func TestOSKen(t *testing.T) {
	text, err := os.ReadFile("testdata/osken.txt")
	if err != nil {
		t.Fatal(err)
	}
	vectors := readVectors(t, string(text))
	if d := cmp.Diff(slices.Sorted(maps.Keys(vectors)), slices.Sorted(maps.Keys(osken))); d != "" {
		t.Errorf("messages: -osken.txt +here\n%s", d)
	}
	for _, name := range slices.Sorted(maps.Keys(osken)) {
		want := vectors[name]
		got, err := Append(nil, 7, osken[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n     %x\nwant %x", name, got, want)
		}
		if want == nil {
			continue
		}
		if _, m, err := Decode(want); err != nil {
			t.Errorf("%s: decode: %v", name, err)
		} else if d := cmp.Diff(osken[name], m); d != "" {
			t.Errorf("%s: decoded -want +got\n%s", name, d)
		}
	}
	if python := os.Getenv("OSKEN"); python != "" {
		if now, err := exec.Command(python, "testdata/osken.py").Output(); err != nil || !bytes.Equal(now, text) {
			t.Errorf("osken.txt is not what os-ken makes now (%v)", err)
		}
	}
}

// told is what switches say; os-ken only decodes it.
var told = map[string]Message{
	"packet-in": &PacketIn{TotalLen: 1500, Reason: ReasonAction, Table: 1, Cookie: 0x1234, Match: Match{InPort(3), Metadata(7, ^uint64(0))},
		Data: localFrame},
	"port-status": &PortStatus{PortModify, PortDesc{Port: 3, MAC: MAC{2, 0, 0, 0, 0, 3}, Name: "eth3", Config: PortDown, State: PortLinkDown,
		Current: 1, Advertised: 2, Supported: 3, Peer: 4, SpeedKbps: 5, MaxKbps: 6}},
	"flow-removed": &FlowRemoved{Cookie: 9, Priority: 8, Reason: RemovedDelete, Table: 2, DurationS: 1, DurationNS: 2, IdleS: 3, HardS: 4,
		Packets: 5, Bytes: 6, Match: Match{EthType(0x0800), IPSrc(cidr("10.0.0.0/8"))}},
	"features":     &FeaturesReply{DatapathID: 0xabc, Buffers: 1, Tables: 254, AuxiliaryID: 2, Capabilities: 0x4f},
	"echo":         &EchoReply{[]byte("weir")},
	"barrier":      &BarrierReply{},
	"role":         &RoleReply{RoleSlave, 77},
	"hello":        &Hello{Versions: 1<<4 | 1<<1},
	"hello-failed": &Error{Code: HelloIncompatible, Data: []byte("no")},
	"error":        &Error{Code: BadMatchPrereq, Data: []byte{4, 20, 0, 8, 0, 0, 0, 9}},
	"bundle-error": &Error{Code: BundleFailed, Experimenter: 0x4f4e4600, Data: []byte{4, 20, 0, 8, 0, 0, 0, 9}},
	"desc":         &MultipartReply{Body: DescReply{"weir", "hw", "sw", "1", "dp"}},
	"flows": &MultipartReply{More: true, Body: FlowStatsReply{{Table: 1, DurationS: 2, DurationNS: 3, Priority: 4, IdleS: 5, HardS: 6, Flags: 1, Cookie: 7,
		Packets: 8, Bytes: 9, Match: Match{InPort(2), EthDst(MAC{1, 2, 3, 4, 5, 6}), VLANID(5)}, Instructions: []Instruction{
			ApplyActions{PopVLAN{}, Output{Port: 1}}, GotoTable{9}}}, {Table: 2}}},
	"aggregate":  &MultipartReply{Body: AggregateReply{1, 2, 3}},
	"port-stats": &MultipartReply{Body: PortStatsReply{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}},
	"ports":      &MultipartReply{Body: PortDescReply{{Port: PortLocal, Name: "br0"}, {Port: 1, Name: "p1", State: PortLive}}},
}

// TestOSKenReads compares what is encoded with testdata/read.txt, in which os-ken says how it reads each message.
func TestOSKenReads(t *testing.T) {
	const golden = "testdata/read.txt"
	var ours strings.Builder
	for _, name := range slices.Sorted(maps.Keys(told)) {
		b, err := Append(nil, 7, told[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ours.WriteString(name + " " + hex.EncodeToString(b) + "\n")
	}
	if python := os.Getenv("OSKEN"); python != "" {
		file := filepath.Join(t.TempDir(), "ours.txt")
		if err := os.WriteFile(file, []byte(ours.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, "testdata/osken.py", file).CombinedOutput()
		if err != nil {
			t.Fatalf("os-ken reads ours: %v\n%s", err, out)
		}
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(golden, out, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, _ := os.ReadFile(golden); !bytes.Equal(want, out) {
			t.Errorf("os-ken reads\n%s\nwant\n%s", out, want)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var theirs strings.Builder
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, " ", 3)
		theirs.WriteString(fields[0] + " " + fields[1] + "\n")
	}
	if d := cmp.Diff(theirs.String(), ours.String()); d != "" {
		t.Errorf("-as os-ken has read it +now\n%s", d)
	}
}
