package openflow

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDecodeIsTheInverseOfEncode(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(generators)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				want, xid := generators[name](t), u32(t, "xid")
				b, err := Append([]byte{0xee}, xid, want)
				if err != nil {
					t.Fatalf("encode %+v: %v", want, err)
				}
				if b[0] != 0xee {
					t.Fatal("Append changed what was there")
				}
				got, m, err := Decode(b[1:])
				if err != nil {
					t.Fatalf("decode %x: %v", b[1:], err)
				}
				if got != xid {
					t.Fatalf("xid %#x, want %#x", got, xid)
				}
				if d := cmp.Diff(want, m); d != "" {
					t.Fatalf("-encoded +decoded\n%s", d)
				}
				// Every shorter message is refused: nothing is read beyond the end.
				cut := slices.Clone(b[1 : 1+rapid.IntRange(0, len(b)-2).Draw(t, "cut")])
				if len(cut) >= headerLen {
					be.PutUint16(cut[2:], uint16(len(cut)))
				}
				_, _, _ = Decode(cut)
			})
		})
	}
}

// TestEveryTypeHasAGenerator keeps the property's claim: every message type that is not kept raw.
func TestEveryTypeHasAGenerator(t *testing.T) {
	for typ := TypeHello; int(typ) < len(typeNames); typ++ {
		r := reader{}
		if _, raw := decodeBody(&r, Version13, typ, 0).(*Raw); raw {
			continue
		}
		if _, ok := generators[typ.String()]; !ok {
			t.Errorf("%s has no generator", typ)
		}
	}
}

func TestGoldenBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		m    Message
		hex  string
	}{
		{"hello with bitmap", &Hello{Versions: 1 << 4}, "04000010 00000007 00010008 00000010"},
		{"hello of 1.0", &Hello{Highest: 1}, "01000008 00000007"},
		{"echo", &EchoRequest{[]byte("hi")}, "0402000a 00000007 6869"},
		{"flow-mod", &FlowMod{Priority: 100, Cookie: 0xab, Match: Match{InPort(2), EthType(0x0800), IPSrc(netip.MustParsePrefix("10.0.0.1/32"))},
			Instructions: []Instruction{ApplyActions{Output{Port: 1}}}},
			"040e0068 00000007 00000000000000ab 0000000000000000 00 00 0000 0000 0064 ffffffff ffffffff ffffffff 0000 0000" +
				"0001 001a 80000004 00000002 80000a02 0800 80001604 0a000001 000000000000" +
				"0004 0018 00000000 0000 0010 00000001 0000 000000000000"},
		{"delete by cookie", &FlowMod{Command: FlowDelete, Table: TableAll, Cookie: 1 << 48, CookieMask: 0xffff << 48},
			"040e0038 00000007 0001000000000000 ffff000000000000 ff 03 0000 0000 0000 ffffffff ffffffff ffffffff 0000 0000 0001 0004 00000000"},
		{"masked field", &FlowMod{Match: Match{EthDstMask(MAC{1}, MAC{1})}},
			"040e0048 00000007 0000000000000000 0000000000000000 00 00 0000 0000 0000 ffffffff ffffffff ffffffff 0000 0000" +
				"0001 0014 8000070c 010000000000 010000000000 00000000"},
		{"packet-out", &PacketOut{Actions: []Action{Output{Port: 3}}, Data: []byte{0xaa}},
			"040d0029 00000007 ffffffff fffffffd 0010 000000000000 0000 0010 00000003 0000 000000000000 aa"},
		{"bundle control", &BundleControl{ID: 5, Kind: BundleCommitRequest, Flags: BundleAtomic | BundleOrdered},
			"04040018 00000007 4f4e4600 000008fc 00000005 0004 0003"},
		{"bundle add", &BundleAdd{ID: 5, Flags: BundleAtomic, Message: &FlowMod{Command: FlowDelete}},
			"04040050 00000007 4f4e4600 000008fd 00000005 0000 0001 040e0038 00000007 0000000000000000 0000000000000000 00 03 0000 0000 0000" +
				"ffffffff ffffffff ffffffff 0000 0000 0001 0004 00000000"},
		{"error", &Error{Code: TableFull, Data: []byte{1, 2}}, "0401000e 00000007 0005 0001 0102"},
		{"multipart", &MultipartRequest{Body: PortDescRequest{}}, "04120010 00000007 000d 0000 00000000"},
		{"role", &RoleRequest{RoleMaster, 3}, "04180018 00000007 00000002 00000000 0000000000000003"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Append(nil, 7, c.m)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%x want\n%x", got, want)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	v4 := EthType(0x0800)
	for _, c := range []struct {
		name string
		m    Message
		want string
	}{
		{"address without EtherType", &FlowMod{Match: Match{IPSrc(netip.MustParsePrefix("10.0.0.0/8"))}}, "ip_src needs eth_type 0x0800 before it"},
		{"ports of the wrong protocol", &FlowMod{Match: Match{v4, IPProto(17), DstPort(6, 80)}}, "tcp_dst needs ip_proto 6"},
		{"prerequisite behind", &FlowMod{Match: Match{IPProto(6), v4}}, "nw_proto needs eth_type"},
		{"VLAN priority of untagged", &FlowMod{Match: Match{Untagged(), Uint(FieldVLANPCP, 3)}}, "vlan_pcp needs vlan_vid"},
		{"field twice", &FlowMod{Match: Match{InPort(1), InPort(2)}}, "in_port occurs twice"},
		{"mask where none is", &FlowMod{Match: Match{UintMask(FieldInPort, 1, 1)}}, "in_port takes no mask"},
		{"bits outside the mask", &FlowMod{Match: Match{UintMask(FieldMetadata, 3, 1)}}, "outside its mask"},
		{"too large", &FlowMod{Match: Match{VLANID(1), Uint(FieldVLANPCP, 8)}}, "does not fit in 3 bits"},
		{"tag type", &FlowMod{Instructions: []Instruction{ApplyActions{PushVLAN{0x9100}}}}, "want 0x8100 or 0x88a8"},
		{"nil action", &PacketOut{Actions: []Action{nil}}, "nil action"},
		{"load too wide", &PacketOut{Actions: []Action{RegLoad{Bits{Reg(0), 0, 4}, 16}}}, "does not fit in 4 bits"},
		{"long port name", &PortStatus{Desc: PortDesc{Name: "0123456789abcdef"}}, "at most 15"},
		{"long message", &EchoRequest{make([]byte, 65528)}, "65536 bytes"},
		{"barrier in a bundle", &BundleAdd{Message: &BarrierRequest{}}, "cannot be in a bundle"},
		{"no body", &MultipartRequest{}, "no body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Append([]byte{1}, 1, c.m)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if !bytes.Equal(b, []byte{1}) {
				t.Errorf("half a message stays in the buffer: %x", b)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, hex string
		code      ErrorCode
		want      string
	}{
		{"short header", "040000", BadLen, "shorter than a header"},
		{"wrong length", "0400000900000000", BadLen, "header says 9 bytes, there are 8"},
		{"version 1.0", "0102000800000000", BadVersion, "version 1, want 4"},
		{"truncated", "0406000c0000000000000000", BadLen, "truncated"},
		{"trailing bytes", "0414000a000000000000", BadLen, "2 bytes too many"},
		{"match type", "04 0b 0038 00000000" + strings.Repeat("00", 40) + "0000 0004 00000000", BadMatchType, "match of type 0"},
		{"match length", "04 0b 0038 00000000" + strings.Repeat("00", 40) + "0001 0040 00000000", BadMatchLen, "match of 64 bytes"},
		{"action of 0 bytes", "040d0020 00000000 ffffffff fffffffd 0008 000000000000 0000 0000 00000000", BadLen, "element of 0 bytes"},
		{"action of 8 bytes that needs 16", "040d0020 00000000 ffffffff fffffffd 0008 000000000000 0000 0008 00000000", BadLen, "truncated"},
		{"bundled xid", "04040020 00000007 4f4e4600 000008fd 00000005 0000 0001 04140008 00000008", BundleMsgBadXID, "xid 0x8, want 0x7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			_, m, err := Decode(b)
			var d *DecodeError
			if !errors.As(err, &d) || !strings.Contains(d.Reason, c.want) || d.Code != c.code {
				t.Errorf("got %v (%+v), want %s with %q", err, m, c.code, c.want)
			}
		})
	}
}

func TestNestingIsBounded(t *testing.T) {
	var a Action = Clone{}
	for range 3000 {
		a = Clone{a}
	}
	b, err := Append(nil, 1, &PacketOut{Actions: []Action{a}})
	if err != nil {
		t.Fatal(err)
	}
	var d *DecodeError
	if _, _, err := Decode(b); !errors.As(err, &d) || d.Code != BadActionTooMany {
		t.Errorf("got %v, want OFPBAC_TOO_MANY", err)
	}
}

// TestMatchesAreEqualInAnyForm: the normal form is one for all orders and masks that mean the same.
func TestMatchesAreEqualInAnyForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := genMatch(t)
		if m.Normal().Check() != nil {
			t.Fatalf("the normal form of %v is refused: %v", m, m.Normal().Check())
		}
		other := Match(rapid.Permutation([]OXM(m)).Draw(t, "order"))
		for i, o := range other {
			if info, _ := o.Field.info(); !o.Masked && info.mask != noMask && rapid.Bool().Draw(t, "mask") {
				other[i].Masked = true
				for k := range o.Field.Len() {
					other[i].Mask[k] = fullMask(o.Field, k)
				}
			}
		}
		if !m.Equal(other) || m.Key() != other.Key() || m.String() != other.String() {
			t.Fatalf("%v and %v differ", m, other)
		}
		if d := append(slices.Clone(m.Normal()), Uint(FieldInPort, 4242)); m.Equal(d) {
			t.Fatalf("%v equals %v", m, d)
		}
	})
}

func TestErrorsHaveNames(t *testing.T) {
	for code, want := range map[ErrorCode]string{BadVersion: "OFPBRC_BAD_VERSION", TableFull: "OFPFMFC_TABLE_FULL", BadMatchPrereq: "OFPBMC_BAD_PREREQ",
		RoleStale: "OFPRRFC_STALE", BundleMsgBadXID: "OFPBFC_MSG_BAD_XID", 13<<16 | 5: "OFPTFFC_EPERM", 12<<16 | 11: "OFPMMFC_OUT_OF_BANDS",
		HelloIncompatible: "OFPHFC_INCOMPATIBLE", 40<<16 | 2: "error type 40 code 2"} {
		if got := code.String(); got != want {
			t.Errorf("%#x is %s, want %s", uint32(code), got, want)
		}
	}
	b, err := Append(nil, 77, &FlowMod{})
	if err != nil {
		t.Fatal(err)
	}
	e := NewError(TableFull, b)
	if typ, xid, ok := e.Offending(); !ok || typ != TypeFlowMod || xid != 77 || len(e.Data) > 64 {
		t.Errorf("offending message: %v %v %v of %d bytes", typ, xid, ok, len(e.Data))
	}
	if want := "openflow: peer says OFPFMFC_TABLE_FULL about flow-mod (xid 0x4d)"; e.Error() != want {
		t.Errorf("got %q, want %q", e, want)
	}
}

// FuzzDecode: no input panics, takes much memory, or is decoded to something that cannot be encoded again to the same meaning.
func FuzzDecode(f *testing.F) {
	for name, gen := range generators {
		for seed := range 3 {
			some := rapid.Custom(func(t *rapid.T) Message { rapid.Bool().Draw(t, ""); return gen(t) })
			b, err := Append(nil, 1, some.Example(seed))
			if err != nil {
				f.Fatalf("%s: %v", name, err)
			}
			f.Add(b)
		}
	}
	f.Add([]byte{4, 14, 0, 8, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > MaxMessage {
			return
		}
		if len(b) >= 4 { // a right length gets further
			be.PutUint16(b[2:], uint16(len(b)))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		xid, m, err := Decode(b)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20+uint64(len(b))*64 {
			t.Fatalf("%d bytes of input took %d bytes of memory", len(b), grown)
		}
		if err != nil {
			var d *DecodeError
			if !errors.As(err, &d) || d.Reason == "" {
				t.Fatalf("error without a reason: %v", err)
			}
			return
		}
		if s, ok := m.(fmt.Stringer); ok {
			_ = s.String()
		}
		out, err := Append(nil, xid, m)
		if err != nil {
			return // the decoder takes more than the encoder makes: missing prerequisites, other PushVLAN types
		}
		_, again, err := Decode(out)
		if err != nil {
			t.Fatalf("%+v\nwas encoded to %x,\nwhich is refused: %v", m, out, err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Fatalf("-first +second\n%s", d)
		}
	})
}
