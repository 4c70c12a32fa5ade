package openflow

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// matchOrder is the order in which ovs-ofctl shows fields, behind the registers: its name for each, and how it writes the value if not by
// valueText. VLAN id and priority are one entry.
var matchOrder = [...]struct {
	field Field
	name  string
	text  func(OXM) string
}{
	{FieldTunnelID, "tun_id", nil}, {FieldNXMTunID, "tun_id", nil},
	{FieldMetadata, "metadata", nil}, {FieldInPort, "in_port", nil}, {FieldInPhyPort, "in_phy_port", nil},
	{FieldVLANVID, "", nil}, {FieldEthSrc, "dl_src", nil}, {FieldEthDst, "dl_dst", nil},
	{FieldEthType, "dl_type", func(o OXM) string { return fmt.Sprintf("0x%04x", o.Uint()) }},
	{FieldIPv6Src, "ipv6_src", nil}, {FieldIPv6Dst, "ipv6_dst", nil}, {FieldIPv6FLabel, "ipv6_label", OXM.labelText},
	{FieldARPSPA, "arp_spa", nil}, {FieldARPTPA, "arp_tpa", nil}, {FieldIPv4Src, "nw_src", nil}, {FieldIPv4Dst, "nw_dst", nil},
	{FieldIPProto, "nw_proto", nil}, {FieldARPOp, "arp_op", nil}, {FieldARPSHA, "arp_sha", nil}, {FieldARPTHA, "arp_tha", nil},
	{FieldIPDSCP, "nw_tos", func(o OXM) string { return fmt.Sprint(o.Uint() << 2) }}, {FieldIPECN, "nw_ecn", nil},
	{FieldMPLSLabel, "mpls_label", nil}, {FieldMPLSTC, "mpls_tc", nil}, {FieldMPLSBOS, "mpls_bos", nil},
	{FieldICMPv4Type, "icmp_type", nil}, {FieldICMPv4Code, "icmp_code", nil}, {FieldICMPv6Type, "icmp_type", nil},
	{FieldICMPv6Code, "icmp_code", nil}, {FieldNDTarget, "nd_target", nil}, {FieldNDSLL, "nd_sll", nil}, {FieldNDTLL, "nd_tll", nil},
	{FieldTCPSrc, "tp_src", OXM.portText}, {FieldTCPDst, "tp_dst", OXM.portText}, {FieldUDPSrc, "tp_src", OXM.portText},
	{FieldUDPDst, "tp_dst", OXM.portText}, {FieldSCTPSrc, "tp_src", OXM.portText}, {FieldSCTPDst, "tp_dst", OXM.portText},
}

// String is the match in the notation of ovs-ofctl dump-flows: "ip,in_port=2,nw_src=10.0.0.1"; "" matches everything.
func (m Match) String() string {
	t := matchText{m: m.Normal(), used: map[Field]bool{}}
	t.protocol()
	for i := range 16 {
		t.field(Reg(i), Reg(i).String(), nil)
	}
	for _, f := range matchOrder {
		if f.field == FieldVLANVID {
			t.vlan()
			continue
		}
		t.field(f.field, f.name, f.text)
	}
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
		t.used[f] = true
	}
	return o, ok
}

// field writes a field that has not been written; text is nil for valueText.
func (t *matchText) field(f Field, name string, text func(OXM) string) {
	if t.used[f] {
		return
	}
	if text == nil {
		text = OXM.valueText
	}
	if o, ok := t.take(f); ok {
		t.add(name, text(o))
	}
}

// protocol writes "tcp", "ip", "arp", ... for EtherType and IP protocol.
func (t *matchText) protocol() {
	et, _ := t.m.exact(FieldEthType)
	name := map[uint64]string{0x0800: "ip", 0x86dd: "ipv6", 0x0806: "arp", 0x8035: "rarp", 0x8847: "mpls", 0x8848: "mplsm"}[et]
	if name == "" {
		return
	}
	t.take(FieldEthType)
	proto, _ := t.m.exact(FieldIPProto)
	l4 := ""
	switch et {
	case 0x0800:
		l4 = map[uint64]string{6: "tcp", 17: "udp", 132: "sctp", 1: "icmp", 2: "igmp"}[proto]
	case 0x86dd:
		l4 = map[uint64]string{6: "tcp6", 17: "udp6", 132: "sctp6", 58: "icmp6"}[proto]
	}
	if l4 != "" {
		name = l4
		t.take(FieldIPProto)
	}
	t.parts = append(t.parts, name)
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

func (o OXM) labelText() string {
	s := fmt.Sprintf("0x%05x", o.Uint())
	if o.Masked {
		s += fmt.Sprintf("/0x%05x", o.UintMask())
	}
	return s
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
	s := "0" // as C's %#x
	if v := o.Uint(); v != 0 {
		s = fmt.Sprintf("0x%x", v)
	}
	if o.Masked {
		s += fmt.Sprintf("/0x%x", o.UintMask())
	}
	return s
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
	add(a.Priority != 0x8000, "priority=%d", a.Priority)
	add(a.Cookie != 0, "cookie=0x%x", a.Cookie)
	for _, s := range a.Specs {
		parts = append(parts, s.text())
	}
	return "learn(" + strings.Join(parts, ",") + ")"
}

func (s LearnSpec) text() string {
	switch {
	case s.Kind == LearnLoad:
		return "load:" + s.Src.String() + "->" + s.Dst.String()
	case s.Src == s.Dst:
		return s.Src.String()
	}
	return s.Dst.String() + "=" + s.Src.String()
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
