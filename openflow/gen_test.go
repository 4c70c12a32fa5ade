package openflow

import (
	"math"

	"pgregory.net/rapid"
)

// Generators of messages that the codec keeps exactly: canonical, since several forms of one thing are decoded to one.

func u8(t *rapid.T, name string) uint8     { return rapid.Uint8().Draw(t, name) }
func u16(t *rapid.T, name string) uint16   { return rapid.Uint16().Draw(t, name) }
func u32(t *rapid.T, name string) uint32   { return rapid.Uint32().Draw(t, name) }
func u64(t *rapid.T, name string) uint64   { return rapid.Uint64().Draw(t, name) }
func pick(t *rapid.T, n int, s string) int { return rapid.IntRange(0, n-1).Draw(t, s) }

func genBytes(t *rapid.T, n int, name string) []byte {
	b := rapid.SliceOfN(rapid.Byte(), 0, n).Draw(t, name)
	if len(b) == 0 {
		return nil
	}
	return b
}

func genMAC(t *rapid.T) (m MAC) {
	for i := range m {
		m[i] = u8(t, "mac")
	}
	return m
}

func genName(t *rapid.T, n int) string {
	return rapid.StringMatching("[a-z0-9/._-]{0,"+string(rune('0'+n/10))+string(rune('0'+n%10))+"}").Draw(t, "name")
}

func many[E any](t *rapid.T, most int, f func(*rapid.T) E) (es []E) {
	for range pick(t, most+1, "count") {
		es = append(es, f(t))
	}
	return es
}

// combos are fields that may stand together, in order, with what they need.
var combos = []Match{
	{},
	{Uint(FieldEthType, 0x0800)},
	{Uint(FieldEthType, 0x0800), Uint(FieldIPProto, 6)},
	{Uint(FieldEthType, 0x0800), Uint(FieldIPProto, 17)},
	{Uint(FieldEthType, 0x0800), Uint(FieldIPProto, 132)},
	{Uint(FieldEthType, 0x0800), Uint(FieldIPProto, 1)},
	{Uint(FieldEthType, 0x86dd)},
	{Uint(FieldEthType, 0x86dd), Uint(FieldIPProto, 6)},
	{Uint(FieldEthType, 0x86dd), Uint(FieldIPProto, 58)},
	{Uint(FieldEthType, 0x86dd), Uint(FieldIPProto, 58), Uint(FieldICMPv6Type, 135)},
	{Uint(FieldEthType, 0x86dd), Uint(FieldIPProto, 58), Uint(FieldICMPv6Type, 136)},
	{Uint(FieldEthType, 0x0806)},
	{Uint(FieldEthType, 0x8847)},
	{Uint(FieldEthType, 0x88e7)},
	{Uint(FieldVLANVID, 0x1000|7)},
	{Uint(FieldVLANVID, 0x1000|7), Uint(FieldEthType, 0x0800), Uint(FieldIPProto, 6)},
}

var allFields = func() (fs []Field) {
	for i, info := range basic {
		n := (info.bits + 7) / 8
		if info.bits == 20 {
			n = 4
		}
		fs = append(fs, Field(0x8000<<16|i<<9|n))
	}
	for i := range 16 {
		fs = append(fs, Reg(i))
	}
	return append(fs, FieldIPFrag)
}()

func genOXM(t *rapid.T, f Field) OXM {
	info, _ := f.info()
	o := OXM{Field: f, Masked: info.mask != noMask && rapid.Bool().Draw(t, "masked")}
	for i := range f.Len() {
		o.Value[i] = u8(t, "value") & fullMask(f, i)
		if o.Masked {
			o.Mask[i] = u8(t, "mask") & fullMask(f, i)
			o.Value[i] &= o.Mask[i]
		}
	}
	return o
}

// genMatch is a match that passes Check.
func genMatch(t *rapid.T) (m Match) {
	m = append(m, combos[pick(t, len(combos), "combo")]...)
	for range pick(t, 5, "fields") {
		f := allFields[pick(t, len(allFields), "field")]
		if n := append(m[:len(m):len(m)], genOXM(t, f)); n.Check() == nil {
			m = n
		}
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

func genBits(t *rapid.T, most int) Bits {
	f := rapid.SampledFrom([]Field{Reg(0), Reg(15), FieldMetadata, FieldTunnelID, FieldEthSrc, FieldIPv4Dst, FieldNXMInPort}).Draw(t, "bits")
	width := 8 * f.Len()
	first := pick(t, width, "first")
	return Bits{f, uint16(first), uint16(rapid.IntRange(1, min(width-first, most)).Draw(t, "width"))}
}

func limit(v uint64, bits uint16) uint64 { return v & (^uint64(0) >> (64 - bits)) }

func genAction(t *rapid.T, depth int) Action {
	all := []func() Action{
		func() Action { return Output{Port(u32(t, "port")), u16(t, "max")} },
		func() Action { return SetField{genOXM(t, allFields[pick(t, len(allFields), "field")])} },
		func() Action { return PushVLAN{rapid.SampledFrom([]uint16{0x8100, 0x88a8}).Draw(t, "tpid")} },
		func() Action { return PopVLAN{} },
		func() Action {
			return RawAction{uint16(rapid.IntRange(30, 1000).Draw(t, "type")), rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "body")}
		},
		func() Action { return Resubmit{uint16(rapid.IntRange(0, 0xfff0).Draw(t, "port")), u8(t, "table")} },
		func() Action { b := genBits(t, 64); return RegLoad{b, limit(u64(t, "value"), b.Count)} },
		func() Action { b := genBits(t, 64); return RegMove{b, b} },
		func() Action {
			return Learn{u16(t, "idle"), u16(t, "hard"), u16(t, "prio"), u64(t, "cookie"), u8(t, "table"), many(t, 4, genLearnSpec)}
		},
		func() Action {
			if depth == 0 {
				return PopVLAN{}
			}
			return Clone(many(t, 3, func(t *rapid.T) Action { return genAction(t, depth-1) }))
		},
	}
	return all[pick(t, len(all), "action")]()
}

func genLearnSpec(t *rapid.T) LearnSpec {
	dst := genBits(t, 64)
	return LearnSpec{LearnKind(pick(t, 2, "kind")), Bits{FieldMetadata, 0, dst.Count}, dst}
}

func genActions(t *rapid.T) []Action {
	return many(t, 4, func(t *rapid.T) Action { return genAction(t, 2) })
}

func genInstruction(t *rapid.T) Instruction {
	switch pick(t, 3, "instruction") {
	case 0:
		return GotoTable{u8(t, "table")}
	case 1:
		return RawInstruction{0xffff, rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "body")}
	}
	return ApplyActions(genActions(t))
}

func genPort(t *rapid.T) PortDesc {
	return PortDesc{Port(u32(t, "port")), genMAC(t), genName(t, 15), PortConfig(u32(t, "config")), PortState(u32(t, "state")), u32(t, "a"),
		u32(t, "b"), u32(t, "c"), u32(t, "d"), u32(t, "e"), u32(t, "f")}
}

func genFlowMod(t *rapid.T) *FlowMod {
	m := &FlowMod{FlowCommand(pick(t, 5, "command")), u8(t, "table"), u16(t, "prio"), u64(t, "cookie"), u64(t, "cmask"), u16(t, "idle"),
		u16(t, "hard"), FlowFlags(u16(t, "flags")), genMatch(t), many(t, 3, genInstruction)}
	return m
}

func genFlowStatsRequest(t *rapid.T) FlowStatsRequest {
	return FlowStatsRequest{u8(t, "table"), u64(t, "cookie"), u64(t, "mask"), genMatch(t)}
}

func genTableFeatures(t *rapid.T) TableFeatures {
	return TableFeatures{u8(t, "table"), genName(t, 31), u64(t, "a"), u64(t, "b"), u32(t, "c"), u32(t, "d"),
		many(t, 3, func(t *rapid.T) TableProperty { return TableProperty{u16(t, "type"), genBytes(t, 11, "body")} })}
}

// generators has one for each kind of message.
var generators = map[string]func(*rapid.T) Message{
	"hello": func(t *rapid.T) Message { return &Hello{u32(t, "versions"), rapid.Uint8Range(1, 6).Draw(t, "highest")} },
	"error": func(t *rapid.T) Message {
		return &Error{Code: ErrorCode(u32(t, "code") &^ (1 << 31)), Data: genBytes(t, 70, "data")}
	},
	"experimenter error": func(t *rapid.T) Message {
		return &Error{Code: 0xffff<<16 | ErrorCode(u16(t, "code")), Experimenter: u32(t, "id"), Data: genBytes(t, 70, "data")}
	},
	"echo request": func(t *rapid.T) Message { return &EchoRequest{genBytes(t, 90, "data")} },
	"echo reply":   func(t *rapid.T) Message { return &EchoReply{genBytes(t, 90, "data")} },
	"experimenter": func(t *rapid.T) Message {
		return &Experimenter{u32(t, "id") &^ 1, u32(t, "kind") | 1<<20, genBytes(t, 90, "data")}
	},
	"raw":              func(t *rapid.T) Message { return &Raw{Type(30 + pick(t, 200, "type")), genBytes(t, 90, "body")} },
	"features request": func(*rapid.T) Message { return &FeaturesRequest{} },
	"barrier request":  func(*rapid.T) Message { return &BarrierRequest{} },
	"barrier reply":    func(*rapid.T) Message { return &BarrierReply{} },
	"features reply": func(t *rapid.T) Message {
		return &FeaturesReply{u64(t, "id"), u32(t, "buffers"), u8(t, "tables"), u8(t, "aux"), Capabilities(u32(t, "cap"))}
	},
	"set config":   func(t *rapid.T) Message { return &SetConfig{u16(t, "flags"), u16(t, "len")} },
	"role request": func(t *rapid.T) Message { return &RoleRequest{Role(u32(t, "role")), u64(t, "generation")} },
	"role reply":   func(t *rapid.T) Message { return &RoleReply{Role(u32(t, "role")), u64(t, "generation")} },
	"set async":    func(t *rapid.T) Message { return &SetAsync{genAsync(t)} },
	"packet-in": func(t *rapid.T) Message {
		return &PacketIn{u32(t, "buffer"), u16(t, "len"), PacketInReason(u8(t, "reason")), u8(t, "table"), u64(t, "cookie"), genMatch(t), genBytes(t, 90, "data")}
	},
	"packet-out": func(t *rapid.T) Message {
		return &PacketOut{u32(t, "buffer"), Port(rapid.Uint32Range(1, math.MaxUint32).Draw(t, "in")), genActions(t), genBytes(t, 90, "data")}
	},
	"flow-removed": func(t *rapid.T) Message {
		return &FlowRemoved{u64(t, "cookie"), u16(t, "prio"), RemovedReason(u8(t, "reason")), u8(t, "table"), u32(t, "s"), u32(t, "ns"), u16(t, "idle"),
			u16(t, "hard"), u64(t, "packets"), u64(t, "bytes"), genMatch(t)}
	},
	"port-status": func(t *rapid.T) Message { return &PortStatus{PortReason(u8(t, "reason")), genPort(t)} },
	"flow-mod":    func(t *rapid.T) Message { return genFlowMod(t) },
	"bundle control": func(t *rapid.T) Message {
		return &BundleControl{u32(t, "id"), BundleKind(u16(t, "kind")), BundleFlags(u16(t, "flags"))}
	},
	"bundle add": func(t *rapid.T) Message {
		return &BundleAdd{u32(t, "id"), BundleFlags(u16(t, "flags")), genFlowMod(t)}
	},
	"multipart request": func(t *rapid.T) Message {
		id := u32(t, "id")
		bodies := []MultipartBody{DescRequest{}, PortDescRequest{}, genFlowStatsRequest(t), AggregateRequest(genFlowStatsRequest(t)),
			PortStatsRequest{Port(id)}, TableFeaturesMsg(many(t, 2, genTableFeatures)), RawMultipart{MultipartKind(5), genBytes(t, 20, "body")}}
		return &MultipartRequest{rapid.Bool().Draw(t, "more"), bodies[pick(t, len(bodies), "body")]}
	},
	"multipart reply": genMultipartReply,
}

func genAsync(t *rapid.T) AsyncMasks {
	two := func() [2]uint32 { return [2]uint32{u32(t, "a"), u32(t, "b")} }
	return AsyncMasks{two(), two(), two()}
}

func genMultipartReply(t *rapid.T) Message {
	all := []func() MultipartBody{
		func() MultipartBody {
			return DescReply{genName(t, 60), genName(t, 60), genName(t, 60), genName(t, 31), genName(t, 60)}
		},
		func() MultipartBody {
			return FlowStatsReply(many(t, 3, func(t *rapid.T) FlowStats {
				return FlowStats{u8(t, "table"), u32(t, "s"), u32(t, "ns"), u16(t, "prio"), u16(t, "idle"), u16(t, "hard"), FlowFlags(u16(t, "flags")),
					u64(t, "cookie"), u64(t, "packets"), u64(t, "bytes"), genMatch(t), many(t, 3, genInstruction)}
			}))
		},
		func() MultipartBody { return AggregateReply{u64(t, "packets"), u64(t, "bytes"), u32(t, "flows")} },
		func() MultipartBody {
			return PortStatsReply(many(t, 3, func(t *rapid.T) PortStats {
				p := PortStats{Port: Port(u32(t, "port")), DurationS: u32(t, "s"), DurationNS: u32(t, "ns")}
				for _, c := range p.counters() {
					*c = u64(t, "counter")
				}
				return p
			}))
		},
		func() MultipartBody { return PortDescReply(many(t, 3, genPort)) },
		func() MultipartBody { return TableFeaturesMsg(many(t, 2, genTableFeatures)) },
		func() MultipartBody { return RawMultipart{MultipartKind(5), genBytes(t, 20, "body")} },
	}
	return &MultipartReply{rapid.Bool().Draw(t, "more"), all[pick(t, len(all), "body")]()}
}
