package ovs

import (
	"net/netip"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// entries of one rule.
func (w *world) entries(r *flow.Rule, table uint8) []*entry {
	var all []*entry
	actions := w.act(r)
	for _, m := range matches(r, table) {
		all = append(all, &entry{table: table, priority: w.prio[r.Cookie], match: m, actions: actions, owners: []owner{{ownRule, r.Cookie}}})
	}
	if r.Action.Op == flow.Normal || r.Match.Proto != flow.ProtoTCP && r.Match.Proto != flow.ProtoSCTP {
		return all
	}
	// Open vSwitch reads ports from whole headers only. A first fragment that holds less might have any ports, and nobody sends such (RFC 1858).
	for _, m := range tiny(r, table) {
		all = append(all, &entry{table: table, priority: w.prio[r.Cookie], match: m, actions: list(goTo(tableDrop))})
	}
	return all
}

// tiny are first fragments without ports, of a rule that asks for ports.
func tiny(r *flow.Rule, table uint8) []openflow.Match {
	m := r.Match
	if m.SrcPorts.Any() && m.DstPorts.Any() {
		return nil
	}
	bare := *r
	bare.Match.SrcPorts, bare.Match.DstPorts = flow.PortRange{}, flow.PortRange{}
	all := matches(&bare, table)
	for i := range all {
		all[i] = append(all[i], openflow.UintMask(openflow.FieldIPFrag, 1, 3), openflow.SrcPortMask(m.Proto, 0, 0xffff), openflow.DstPortMask(m.Proto, 0, 0xffff))
	}
	return all
}

// tableOf a rule.
func (w *world) tableOf(r *flow.Rule) uint8 {
	if r.Stage == flow.Egress {
		return tableEgress
	}
	if p := w.ports[r.Match.InPort]; p != nil && p.function != nil {
		return tableFunction
	}
	return tableIngress
}

// steering is every entry of rules.
func (w *world) steering(version uint32) []*entry {
	all := []*entry{{table: tableMark, priority: 1, match: openflow.Match{openflow.Metadata(uint64(version)&1, 1)}, owners: []owner{{0, uint64(version)}}}}
	for i := range w.rules {
		r := &w.rules[i]
		all = append(all, w.entries(r, w.tableOf(r))...)
	}
	return all
}

// counted are entries that count for rules which down functions' entries carry out themselves.
func (w *world) counted() []*entry {
	var all []*entry
	for n, rules := range w.at {
		if len(rules) != 1 {
			continue
		}
		if p := w.ports[n]; p.function.State == datapath.Down && p.function.F.Tap == "" {
			all = append(all, &entry{table: tableCount, priority: 1, match: openflow.Match{openflow.Metadata(rules[0].Cookie, ^uint64(0))}, owners: []owner{{ownRule, rules[0].Cookie}}})
		}
	}
	return all
}

// act is what a rule does with a frame. The fabric tag of one that has it is in a register, not on the frame.
func (w *world) act(r *flow.Rule) []openflow.Action {
	a := r.Action
	// The exit is learned from the frame as it came in, before anything happens to it.
	var out []openflow.Action
	switch {
	case r.Learn && r.Stage == flow.Ingress:
		out = append(out, learn(tableSources, openflow.FieldEthSrc, openflow.FieldEthSrc, true, regIn, regTo))
	case r.Learn:
		out = append(out, learn(tableExits, openflow.FieldEthDst, openflow.FieldEthDst, true, regOut, regTo))
	}
	if r.Match.Tag != 0 && a.Pop {
		out = append(out, load(regTag, 0))
	}
	// Copies come before the frame's own way, which may change it.
	out = append(out, w.copies(r)...)
	to := load(regTo, uint64(a.Port)) // 0 if it is to be learned
	switch a.Op {
	case flow.Normal:
		switch {
		case r.Stage == flow.Egress:
			return append(out, goTo(tableDeliver))
		case w.tableOf(r) == tableFunction:
			return append(out, goTo(tableDrop)) // a function's port is no port of ordinary switching
		}
		return append(out, goTo(tableLearn))
	case flow.Drop:
		return append(out, goTo(tableDrop))
	case flow.Resume:
		if a.Port == 0 {
			return append(out, to, goTo(tableSources), goTo(tableResume))
		}
		return append(out, to, goTo(tableResume))
	}
	tag := a.Push
	if tag == 0 && !a.Pop {
		tag = r.Match.Tag // it stays on
	}
	switch {
	case a.Port == 0:
		return append(out, goTo(tableExit))
	case tag != 0:
		return append(out, wearing(tag, to))
	}
	return append(out, to, goTo(tableTo))
}

// wearing sends a copy with a fabric tag on: what comes after it, also of a flooded frame, is to have none.
func wearing(tag uint16, to openflow.Action) openflow.Action {
	return openflow.Clone{to, openflow.PushVLAN{EtherType: flow.EtherTypeQinQ}, openflow.SetField{OXM: openflow.VLANID(tag)}, goTo(tableTagged)}
}

// copies to taps, and into chains of copies.
func (w *world) copies(r *flow.Rule) []openflow.Action {
	var out []openflow.Action
	for _, c := range r.Action.Clones {
		to := load(regTo, uint64(c.Port))
		if c.Push != 0 {
			out = append(out, wearing(c.Push, to))
			continue
		}
		out = append(out, openflow.Clone{to, goTo(tableTo)})
	}
	return out
}

// matches are the rule's match in OpenFlow's terms: one for each family of addresses and each aligned block of L4 ports.
func matches(r *flow.Rule, table uint8) []openflow.Match {
	m := r.Match
	// Ports and fabric tags are in registers.
	var base openflow.Match
	switch table {
	case tableIngress:
		if m.InPort != 0 {
			base = append(base, reg(regIn, uint64(m.InPort)))
		}
		base = append(base, reg(regTag, uint64(m.Tag)))
	case tableEgress:
		if m.InPort != 0 {
			base = append(base, reg(regIn, uint64(m.InPort)))
		}
		if m.OutPort != 0 {
			base = append(base, reg(regOut, uint64(m.OutPort)))
		}
	default:
		base = append(base, reg(regAt, uint64(m.InPort)))
	}
	// Fields of the frame that do not depend on its family.
	if m.SrcMACMask != (flow.MAC{}) {
		base = append(base, openflow.EthSrcMask(openflow.MAC(m.SrcMAC), openflow.MAC(m.SrcMACMask)))
	}
	if m.DstMACMask != (flow.MAC{}) {
		base = append(base, openflow.EthDstMask(openflow.MAC(m.DstMAC), openflow.MAC(m.DstMACMask)))
	}
	switch m.VLAN {
	case 0:
	case flow.VLANNone:
		base = append(base, openflow.Untagged())
	default:
		base = append(base, openflow.VLANID(m.VLAN))
	}
	// Fields of IP and above.
	var all []openflow.Match
	if m.Unread != flow.ReadAll {
		for _, u := range unread(m) {
			all = append(all, append(base[:len(base):len(base)], u...))
		}
		return all
	}
	for _, family := range families(m) {
		f := base[:len(base):len(base)]
		if family != 0 {
			f = append(f, openflow.EthType(family))
		}
		if m.Src.IsValid() {
			f = append(f, openflow.IPSrc(m.Src))
		}
		if m.Dst.IsValid() {
			f = append(f, openflow.IPDst(m.Dst))
		}
		if m.Proto != 0 {
			f = append(f, openflow.IPProto(m.Proto))
		}
		if m.Proto == protoFragment && family == flow.EtherTypeIPv6 { // see unread
			f = append(f, openflow.UintMask(openflow.FieldIPFrag, 0, 2))
		}
		all = append(all, withPorts(f, m)...)
	}
	return all
}

// unread tells frames that Open vSwitch has not read to the end. Where headers of IP are not as they should be, it takes all of their fields for
// zero, and where extension headers are not, the protocol. Of an IPv6 fragment other than the first it says no protocol.
func unread(m flow.Match) []openflow.Match {
	zero4, zero6 := netip.PrefixFrom(netip.IPv4Unspecified(), 32), netip.PrefixFrom(netip.IPv6Unspecified(), 128)
	if m.Unread == flow.UnreadNetwork {
		all := []openflow.Match{
			{openflow.EthType(flow.EtherTypeVLAN)}, {openflow.EthType(flow.EtherTypeQinQ)},
			{openflow.EthType(flow.EtherTypeIPv4), openflow.IPSrc(zero4), openflow.IPDst(zero4), openflow.IPProto(0)},
			{openflow.EthType(flow.EtherTypeIPv6), openflow.IPSrc(zero6), openflow.IPDst(zero6), openflow.IPProto(0)},
		}
		if m.EtherType == 0 {
			return all
		}
		return slices.DeleteFunc(all, func(u openflow.Match) bool { return u[0] != openflow.EthType(m.EtherType) })
	}
	six := openflow.Match{openflow.EthType(flow.EtherTypeIPv6)}
	if m.Src.IsValid() {
		six = append(six, openflow.IPSrc(m.Src))
	}
	if m.Dst.IsValid() {
		six = append(six, openflow.IPDst(m.Dst))
	}
	return []openflow.Match{append(six[:len(six):len(six)], openflow.IPProto(0)), append(six[:len(six):len(six)], openflow.IPProto(protoFragment))}
}

const protoFragment = 44

func families(m flow.Match) []uint16 {
	switch {
	case m.Src.IsValid():
		return []uint16{flow.Family(m.Src)}
	case m.Dst.IsValid():
		return []uint16{flow.Family(m.Dst)}
	case m.EtherType == 0 && m.Proto != 0:
		return []uint16{flow.EtherTypeIPv4, flow.EtherTypeIPv6}
	}
	return []uint16{m.EtherType}
}

// withPorts: only packets that have ports can match, so no fragments other than the first.
func withPorts(m openflow.Match, of flow.Match) []openflow.Match {
	if of.SrcPorts.Any() && of.DstPorts.Any() {
		return []openflow.Match{m}
	}
	var all []openflow.Match
	sources, destinations := of.SrcPorts.AppendMasks(nil), of.DstPorts.AppendMasks(nil)
	for _, src := range sources {
		for _, dst := range destinations {
			n := append(m[:len(m):len(m)], openflow.UintMask(openflow.FieldIPFrag, 0, 2))
			if src.Mask != 0 {
				n = append(n, openflow.SrcPortMask(of.Proto, src.Port, src.Mask))
			}
			if dst.Mask != 0 {
				n = append(n, openflow.DstPortMask(of.Proto, dst.Port, dst.Mask))
			}
			all = append(all, n)
		}
	}
	return all
}
