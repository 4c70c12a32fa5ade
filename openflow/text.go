package openflow

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// String is the match in the notation of ovs-ofctl dump-flows: "ip,in_port=2,nw_src=10.0.0.1"; "" matches everything.
func (m Match) String() string {
	t := matchText{m: m.Normal()}
	short := t.protocol()
	for i := range 16 {
		t.hex(Reg(i), "")
	}
	for i := range 8 {
		t.hex(XReg(i), "")
	}
	t.hex(FieldTunnelID, "")
	t.hex(FieldNXMTunID, "")
	t.value(FieldTunSrc, "tun_src")
	t.value(FieldTunDst, "tun_dst")
	t.hex(FieldMetadata, "")
	t.value(FieldInPort, "in_port")
	t.value(FieldInPhyPort, "in_phy_port")
	t.vlan()
	t.value(FieldEthSrc, "dl_src")
	t.value(FieldEthDst, "dl_dst")
	if v, ok := t.take(FieldEthType); ok && !short {
		t.add("dl_type", fmt.Sprintf("0x%04x", v.Uint()))
	}
	t.network()
	t.transport()
	for _, o := range t.m { // what has no place above
		if !t.used[o.Field] {
			t.add(o.Field.String(), o.valueText())
		}
	}
	return strings.Join(t.parts, ",")
}

type matchText struct {
	m     Match
	parts []string
	used  map[Field]bool
}

func (t *matchText) add(name, value string) { t.parts = append(t.parts, name+"="+value) }

func (t *matchText) take(f Field) (OXM, bool) {
	o, ok := t.m.Field(f)
	if ok {
		if t.used == nil {
			t.used = map[Field]bool{}
		}
		t.used[f] = true
	}
	return o, ok
}

func (t *matchText) value(f Field, name string) {
	if o, ok := t.take(f); ok {
		t.add(name, o.valueText())
	}
}

func (t *matchText) hex(f Field, name string) {
	if name == "" {
		name = f.String()
	}
	t.value(f, name)
}

// protocol writes "tcp", "ip", "arp", ... for EtherType and protocol; it reports that the EtherType is said.
func (t *matchText) protocol() bool {
	et, ok := t.m.exact(FieldEthType)
	if !ok {
		return false
	}
	proto, has := t.m.exact(FieldIPProto)
	name, suffix := "", ""
	switch et {
	case 0x0800:
		name = "ip"
	case 0x86dd:
		name, suffix = "ipv6", "6"
	case 0x0806:
		name = "arp"
	case 0x8035:
		name = "rarp"
	case 0x8847:
		name = "mpls"
	case 0x8848:
		name = "mplsm"
	default:
		return false
	}
	if has && (et == 0x0800 || et == 0x86dd) {
		l4 := map[uint64]string{6: "tcp", 17: "udp", 132: "sctp", 1: "icmp", 58: "icmp", 2: "igmp"}[proto]
		if l4 != "" && (proto != 1 || et == 0x0800) && (proto != 58 || et == 0x86dd) && (proto != 2 || et == 0x0800) {
			name = l4 + suffix
			t.take(FieldIPProto)
		}
	}
	t.parts = append(t.parts, name)
	return true
}

func (t *matchText) vlan() {
	vid, hasVID := t.take(FieldVLANVID)
	pcp, hasPCP := t.take(FieldVLANPCP)
	v, m := vid.Uint(), vid.UintMask()
	if !vid.Masked {
		m = 0x1fff
	}
	switch {
	case !hasVID && !hasPCP:
	case v&m == 0x1000 && m == 0x1000 && hasPCP:
		t.add("dl_vlan_pcp", fmt.Sprint(pcp.Uint()))
	case v&0x1000 != 0 && m == 0x1fff:
		t.add("dl_vlan", fmt.Sprint(v&0xfff))
		if hasPCP {
			t.add("dl_vlan_pcp", fmt.Sprint(pcp.Uint()))
		}
	case v == 0 && m == 0x1fff && !hasPCP:
		t.add("vlan_tci", "0x0000/0x1fff")
	default:
		if hasPCP {
			v, m = v|pcp.Uint()<<13, m|0xe000
		}
		t.add("vlan_tci", fmt.Sprintf("0x%04x/0x%04x", v, m))
	}
}

func (t *matchText) network() {
	t.value(FieldIPv6Src, "ipv6_src")
	t.value(FieldIPv6Dst, "ipv6_dst")
	if o, ok := t.take(FieldIPv6FLabel); ok {
		s := fmt.Sprintf("0x%05x", o.Uint())
		if o.Masked {
			s += fmt.Sprintf("/0x%05x", o.UintMask())
		}
		t.add("ipv6_label", s)
	}
	t.value(FieldARPSPA, "arp_spa")
	t.value(FieldARPTPA, "arp_tpa")
	t.value(FieldIPv4Src, "nw_src")
	t.value(FieldIPv4Dst, "nw_dst")
	if !t.used[FieldIPProto] {
		t.value(FieldIPProto, "nw_proto")
	}
	t.value(FieldARPOp, "arp_op")
	t.value(FieldARPSHA, "arp_sha")
	t.value(FieldARPTHA, "arp_tha")
	if o, ok := t.take(FieldIPDSCP); ok {
		t.add("nw_tos", fmt.Sprint(o.Uint()<<2))
	}
	t.value(FieldIPECN, "nw_ecn")
	t.value(FieldMPLSLabel, "mpls_label")
	t.value(FieldMPLSTC, "mpls_tc")
	t.value(FieldMPLSBOS, "mpls_bos")
}

func (t *matchText) transport() {
	t.value(FieldICMPv4Type, "icmp_type")
	t.value(FieldICMPv4Code, "icmp_code")
	t.value(FieldICMPv6Type, "icmp_type")
	t.value(FieldICMPv6Code, "icmp_code")
	t.value(FieldNDTarget, "nd_target")
	t.value(FieldNDSLL, "nd_sll")
	t.value(FieldNDTLL, "nd_tll")
	for _, f := range [...]Field{FieldTCPSrc, FieldUDPSrc, FieldSCTPSrc} {
		if o, ok := t.take(f); ok {
			t.add("tp_src", o.portText())
		}
		if o, ok := t.take(f + 1<<9); ok {
			t.add("tp_dst", o.portText())
		}
	}
}

func (o OXM) portText() string {
	if o.Masked {
		return fmt.Sprintf("0x%x/0x%x", o.Uint(), o.UintMask())
	}
	return fmt.Sprint(o.Uint())
}

// valueText is the value as the field is usually written, with "/mask".
func (o OXM) valueText() string {
	if o.Raw != "" {
		return fmt.Sprintf("0x%x", o.Raw)
	}
	info, known := o.Field.info()
	n := o.Field.Len()
	if !known {
		s := fmt.Sprintf("0x%x", o.Value[:n])
		if o.Masked {
			s += fmt.Sprintf("/0x%x", o.Mask[:n])
		}
		return s
	}
	switch info.kind {
	case mac:
		s := MAC(o.Value[:6]).String()
		if o.Masked {
			s += "/" + MAC(o.Mask[:6]).String()
		}
		return s
	case ip:
		return ipText(o, n)
	case portNo:
		return Port(o.Uint()).String()
	case decimal:
		if !o.Masked {
			return strconv.FormatUint(o.Uint(), 10)
		}
	}
	if o.Field == FieldTCPFlags && o.Masked {
		return flagNames(o.Uint(), o.UintMask())
	}
	s := "0" // as C's %#x
	if v := o.Uint(); v != 0 {
		s = fmt.Sprintf("0x%x", v)
	}
	if o.Masked {
		s += fmt.Sprintf("/0x%x", o.UintMask())
	}
	return s
}

// flagNames is "+syn-ack".
func flagNames(v, mask uint64) string {
	var b strings.Builder
	for i, name := range [...]string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"} {
		switch {
		case mask&(1<<i) == 0:
		case v&(1<<i) != 0:
			b.WriteString("+" + name)
		default:
			b.WriteString("-" + name)
		}
	}
	return b.String()
}

func ipText(o OXM, n int) string {
	addr := func(b [16]byte) netip.Addr {
		if n == 4 {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrFrom16(b)
	}
	s := addr(o.Value).String()
	if !o.Masked {
		return s
	}
	ones := 0
	for ones < 8*n && o.Mask[ones/8]&(0x80>>(ones%8)) != 0 {
		ones++
	}
	for i := ones; i < 8*n; i++ {
		if o.Mask[i/8]&(0x80>>(i%8)) != 0 {
			return s + "/" + addr(o.Mask).String()
		}
	}
	return fmt.Sprintf("%s/%d", s, ones)
}

func (s Bits) String() string {
	name := s.Field.String()
	width := uint16(8 * s.Field.Len())
	if info, ok := s.Field.info(); ok {
		name, width = info.nxm, uint16(info.bits)
	}
	switch {
	case s.First == 0 && s.Count == width:
		return name + "[]"
	case s.Count == 1:
		return fmt.Sprintf("%s[%d]", name, s.First)
	}
	return fmt.Sprintf("%s[%d..%d]", name, s.First, s.First+s.Count-1)
}

// ActionString is actions in ovs-ofctl's notation: "output:1"; "drop" if there are none.
func ActionString(as []Action) string {
	if len(as) == 0 {
		return "drop"
	}
	return actionsText(as)
}

func actionsText(as []Action) string {
	parts := make([]string, len(as))
	for i, a := range as {
		if a == nil {
			parts[i] = "nil"
			continue
		}
		parts[i] = a.text()
	}
	return strings.Join(parts, ",")
}

// InstructionString is instructions in ovs-ofctl's notation: "set_field:10.0.0.1->ip_src,output:2,goto_table:1"; "drop" if there are none.
func InstructionString(is []Instruction) string {
	var parts []string
	for _, i := range is {
		if i == nil {
			continue
		}
		if s := i.text(); s != "" {
			parts = append(parts, s)
		}
	}
	if len(parts) == 0 {
		return "drop"
	}
	return strings.Join(parts, ",")
}

func (i GotoTable) text() string      { return fmt.Sprintf("goto_table:%d", i.Table) }
func (i ApplyActions) text() string   { return actionsText(i) }
func (i RawInstruction) text() string { return fmt.Sprintf("instruction(%d:%x)", i.Type, i.Body) }

func (a Output) text() string {
	switch {
	case a.Port == PortController:
		return fmt.Sprintf("CONTROLLER:%d", a.MaxLen)
	case a.Port > PortMax:
		return a.Port.String()
	}
	return "output:" + a.Port.String()
}

func (a PushVLAN) text() string  { return fmt.Sprintf("push_vlan:0x%04x", a.EtherType) }
func (a PopVLAN) text() string   { return "pop_vlan" }
func (a RawAction) text() string { return fmt.Sprintf("action(%d:%x)", a.Type, a.Body) }

func (a SetField) text() string {
	return "set_field:" + a.OXM.valueText() + "->" + a.Field.String()
}

func (a Resubmit) text() string {
	in := ""
	if a.InPort != 0 {
		in = fmt.Sprint(a.InPort)
	}
	if a.Table == TableAll {
		if in == "" {
			in = "IN_PORT"
		}
		return "resubmit:" + in
	}
	return fmt.Sprintf("resubmit(%s,%d)", in, a.Table)
}

func (a RegLoad) text() string { return fmt.Sprintf("load:0x%x->%s", a.Value, a.Dst) }
func (a RegMove) text() string { return fmt.Sprintf("move:%s->%s", a.Src, a.Dst) }

func (a Clone) text() string { return "clone(" + actionsText(a) + ")" }

func (a Learn) text() string {
	parts := []string{fmt.Sprintf("table=%d", a.Table)}
	add := func(yes bool, format string, v any) {
		if yes {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add(a.IdleS != 0, "idle_timeout=%d", a.IdleS)
	add(a.HardS != 0, "hard_timeout=%d", a.HardS)
	add(a.FinIdleS != 0, "fin_idle_timeout=%d", a.FinIdleS)
	add(a.FinHardS != 0, "fin_hard_timeout=%d", a.FinHardS)
	add(a.Priority != 0x8000, "priority=%d", a.Priority)
	add(a.Flags&LearnSendFlowRemoved != 0, "%s", "send_flow_rem")
	add(a.Flags&LearnDeleteLearned != 0, "%s", "delete_learned")
	add(a.Cookie != 0, "cookie=0x%x", a.Cookie)
	for _, s := range a.Specs {
		parts = append(parts, s.text())
	}
	return "learn(" + strings.Join(parts, ",") + ")"
}

func (s LearnSpec) text() string {
	src := s.Src.String()
	if s.Immediate {
		src = fmt.Sprintf("0x%x", s.Value)
	}
	switch s.Kind {
	case LearnOutput:
		return "output:" + src
	case LearnLoad:
		return "load:" + src + "->" + s.Dst.String()
	}
	if !s.Immediate && s.Src == s.Dst {
		return src
	}
	if s.Immediate {
		if info, ok := s.Dst.Field.info(); ok && s.Dst.First == 0 && int(s.Dst.Count) == info.bits && info.kind != ip {
			name := strings.TrimSuffix(s.Dst.String(), "[]")
			if s.Dst.Field == FieldEthType {
				return fmt.Sprintf("eth_type=0x%x", s.Value)
			}
			if f := info.name; f == "nw_proto" || f == "metadata" || f == "tun_id" || strings.HasPrefix(f, "reg") {
				name = f
			}
			return name + "=" + Uint(s.Dst.Field, s.Value).valueText()
		}
	}
	return s.Dst.String() + "=" + src
}

func flagsText(f FlowFlags) string {
	var b strings.Builder
	for i, name := range [...]string{"send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts"} {
		if f&(1<<i) != 0 {
			b.WriteString(name + " ")
		}
	}
	return b.String()
}

// String is an entry as ovs-ofctl dump-flows shows it, without statistics: "cookie=0x1, table=0, priority=10,ip,in_port=2 actions=output:1".
func (f FlowStats) String() string {
	return fmt.Sprintf("cookie=0x%x, table=%d, %s", f.Cookie, f.Table,
		entryText(f.Priority, f.IdleS, f.HardS, f.Flags, f.Match, f.Instructions))
}

// String is the change in a similar notation: "add cookie=0x1, table=0, priority=10,in_port=2 actions=output:1".
func (m *FlowMod) String() string {
	name := fmt.Sprintf("command %d", m.Command)
	if m.Command <= FlowDeleteStrict {
		name = [...]string{"add", "modify", "modify strict", "delete", "delete strict"}[m.Command]
	}
	cookie := fmt.Sprintf("0x%x", m.Cookie)
	if m.CookieMask != 0 {
		cookie += fmt.Sprintf("/0x%x", m.CookieMask)
	}
	return fmt.Sprintf("%s cookie=%s, table=%d, %s", name, cookie, m.Table,
		entryText(m.Priority, m.IdleS, m.HardS, m.Flags, m.Match, m.Instructions))
}

func entryText(priority, idle, hard uint16, flags FlowFlags, m Match, is []Instruction) string {
	var b strings.Builder
	if idle != 0 {
		fmt.Fprintf(&b, "idle_timeout=%d, ", idle)
	}
	if hard != 0 {
		fmt.Fprintf(&b, "hard_timeout=%d, ", hard)
	}
	b.WriteString(flagsText(flags))
	fmt.Fprintf(&b, "priority=%d", priority)
	if s := m.String(); s != "" {
		b.WriteString("," + s)
	}
	b.WriteString(" actions=" + InstructionString(is))
	return b.String()
}
