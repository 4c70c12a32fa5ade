package rollout

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

// The cookie space; see the package's comment.
const (
	CookieMark   uint64 = 0x57 << 56
	CookieMask   uint64 = 0xff << 56
	roundShift          = 48
	IdentityMask uint64 = 1<<roundShift - 1
	maxExpansion        = fabric.MaxPorts // entries that one with port ranges becomes
	tagTPID      uint16 = 0x88a8
	anyTag       uint16 = 0x1e00 // with the bit "has a tag": flow.TagFirst to flow.TagLast, and two ids that nobody uses
)

func Cookie(round uint8, identity uint64) uint64 {
	return CookieMark | uint64(round)<<roundShift | identity&IdentityMask
}

func RoundOf(cookie uint64) uint8 { return uint8(cookie >> roundShift) }

// Key is what makes two entries of a switch one: adding the second replaces the first (OpenFlow 1.3.5, 6.4).
type Key struct {
	Table    uint8
	Priority uint16
	Match    string
}

// KeyOf is the key of an entry that was read from a switch.
func KeyOf(e *openflow.FlowStats) Key { return Key{e.Table, e.Priority, e.Match.Key()} }

// Rule is one entry as it is sent. It is never changed once it is made.
type Rule struct {
	Key
	Identity uint64
	Content  string // instructions, canonical
	Match    openflow.Match
	Do       []openflow.Instruction
	Policy   string
	Note     string
	Hop      uint8
	Refusal  flow.Refusal    // of an entry of port security that drops
	flood    []openflow.Port // of an entry that floods: sorted ports of copies without a tag, not nil
}

// Order is the order in which a switch's entries are installed: those that lead frames on before those that catch them. They are removed in the
// reverse order.
func Order(a, b *Rule) int {
	switch {
	case a.Hop != b.Hop:
		return int(b.Hop) - int(a.Hop)
	case a.Table != b.Table:
		return int(b.Table) - int(a.Table)
	case a.Priority != b.Priority:
		return int(b.Priority) - int(a.Priority)
	}
	return cmp.Or(cmp.Compare(a.Identity, b.Identity), strings.Compare(a.Key.Match, b.Key.Match))
}

// flooding is where the entry sends copies, also if it was found and not made.
func (r *Rule) flooding() []openflow.Port {
	if r.flood != nil {
		return r.flood
	}
	return floodPorts(r.Do)
}

// below is the key of the entry that takes the frames of one for floods with tree bit 1 when that is gone; ok is false for all others.
func (r *Rule) below() (k Key, ok bool) {
	if r.Policy != "" {
		return Key{}, false
	}
	i := TreeBitField(r.Match)
	if i < 0 {
		return Key{}, false
	}
	return Key{r.Table, r.Priority - 1, slices.Delete(slices.Clone(r.Match), i, i+1).Key()}, true
}

// TreeBitField is the index of the field that matches tree bit 1 (the lowest bit of the source MAC), -1 if there is none.
func TreeBitField(m openflow.Match) int {
	return slices.IndexFunc(m, func(o openflow.OXM) bool { return o.Field == openflow.FieldEthSrc && o.UintMask() == 1 })
}

func (r *Rule) Mod(round uint8) openflow.FlowMod {
	return openflow.FlowMod{
		Command: openflow.FlowAdd, Table: r.Table, Priority: r.Priority, Cookie: Cookie(round, r.Identity), Match: r.Match, Instructions: r.Do,
	}
}

// Remove deletes the entry with this key, if it is Weir's.
func (r *Rule) Remove() openflow.FlowMod {
	return openflow.FlowMod{
		Command: openflow.FlowDeleteStrict, Table: r.Table, Priority: r.Priority, Cookie: CookieMark, CookieMask: CookieMask, Match: r.Match,
	}
}

// Encoder remembers what it has encoded: most entries send frames to one port and no more. The zero value is ready.
type Encoder struct {
	known map[plain]deed
}

// plain is what an entry does that has one copy at most and puts no tag back.
type plain struct {
	out   fabric.Out
	count int
	next  uint8
}

type deed struct {
	do      []openflow.Instruction
	content string
}

func (c *Encoder) deed(e *fabric.Entry) deed {
	k := plain{count: len(e.Outs), next: e.Goto}
	easy := k.count <= 1 && e.Resume == 0
	if k.count == 1 {
		k.out = e.Outs[0]
		easy = easy && (!k.out.Pop || k.next == 0)
	}
	if d, ok := c.known[k]; ok && easy {
		return d
	}
	d := deed{do: instructions(*e)}
	d.content = openflow.InstructionString(d.do)
	if easy {
		if c.known == nil {
			c.known = map[plain]deed{}
		}
		c.known[k] = d
	}
	return d
}

// Encode appends what a switch takes for an entry: several rules, if it names ranges of ports.
func (c *Encoder) Encode(to []*Rule, e *fabric.Entry) ([]*Rule, error) {
	var few [1]openflow.Match
	matches, err := c.encodeMatch(few[:0], &e.Match, e.Tagged)
	if err != nil {
		return to, fmt.Errorf("entry %012x (%s): %w", e.Cookie, e.Note, err)
	}
	d := c.deed(e)
	for _, m := range matches {
		if e.Tiny {
			m = append(slices.Clone(m), openflow.UintMask(openflow.FieldIPFrag, 1, 3), openflow.SrcPortMask(e.Match.Proto, 0, 0xffff), openflow.DstPortMask(e.Match.Proto, 0, 0xffff))
		}
		r := &Rule{
			Key:      Key{e.Table, e.Priority, m.Key()},
			Identity: e.Cookie, Content: d.content, Match: m, Do: d.do, Policy: e.Policy, Note: e.Note, Hop: e.Hop,
		}
		if e.Policy == "" && mayFlood(&r.Key, d.do) {
			r.flood = floodPorts(d.do)
		}
		to = append(to, r)
	}
	return to, nil
}

// mayFlood tells entries of default forwarding that flood from others by their priority. They are the last that a frame meets.
func mayFlood(k *Key, do []openflow.Instruction) bool {
	return k.Priority < fabric.StationPriority && !slices.ContainsFunc(do, func(i openflow.Instruction) bool { _, on := i.(openflow.GotoTable); return on })
}

// floodPorts are the ports that get copies without a tag, which come first: others go into a chain.
func floodPorts(do []openflow.Instruction) []openflow.Port {
	out := []openflow.Port{}
	for _, i := range do {
		as, ok := i.(openflow.ApplyActions)
		if !ok {
			continue
		}
		for _, a := range as[:plainActions(as)] {
			if o, ok := a.(openflow.Output); ok && o.Port < openflow.PortMax {
				out = append(out, o.Port)
			}
		}
	}
	slices.Sort(out)
	return out
}

// plainActions is how many come before the first tag.
func plainActions(as openflow.ApplyActions) int {
	i := slices.IndexFunc(as, func(a openflow.Action) bool { _, tag := a.(openflow.PushVLAN); return tag })
	if i < 0 {
		return len(as)
	}
	return i
}

// withPorts is a flood rule that sends to fewer ports.
func (r *Rule) withPorts(ports []openflow.Port) *Rule {
	n := *r
	n.Do = nil
	for _, i := range r.Do {
		as, ok := i.(openflow.ApplyActions)
		if !ok {
			n.Do = append(n.Do, i)
			continue
		}
		var kept openflow.ApplyActions
		tagged := plainActions(as)
		for i, a := range as {
			if o, ok := a.(openflow.Output); ok && i < tagged && o.Port < openflow.PortMax && !slices.Contains(ports, o.Port) {
				continue
			}
			kept = append(kept, a)
		}
		if len(kept) > 0 {
			n.Do = append(n.Do, kept)
		}
	}
	n.Content, n.flood = openflow.InstructionString(n.Do), append([]openflow.Port{}, ports...)
	return &n
}

// instructions sends copies: first those of the frame as it is, then those with other tags, each from the frame as it was.
func instructions(e fabric.Entry) []openflow.Instruction {
	if e.Resume != 0 {
		return resume(e)
	}
	outs := slices.Clone(e.Outs)
	slices.SortStableFunc(outs, func(a, b fabric.Out) int { return changes(a) - changes(b) })
	var as openflow.ApplyActions
	now := fabric.Out{} // what has been done to the frame so far
	for _, o := range outs {
		if o.Pop != now.Pop || o.Push != now.Push {
			if now.Push != 0 {
				as = append(as, openflow.PopVLAN{})
			}
			if now.Pop && !o.Pop { // put the tag of the match back
				as = append(as, push(e.Match.Tag)...)
			}
			if o.Pop && !now.Pop {
				as = append(as, openflow.PopVLAN{})
			}
			if o.Push != 0 {
				as = append(as, push(o.Push)...)
			}
			now = o
		}
		as = append(as, output(o.Port))
	}
	if e.Goto != 0 { // on goes the frame as it was
		if now.Push != 0 {
			as = append(as, openflow.PopVLAN{})
		}
		if now.Pop {
			as = append(as, push(e.Match.Tag)...)
		}
	}
	var do []openflow.Instruction
	if len(as) > 0 {
		do = append(do, as)
	}
	if e.Goto != 0 {
		do = append(do, openflow.GotoTable{Table: e.Goto})
	}
	return do
}

// resume lets a frame go on as if it had just come in by another port. (Open vSwitch's resubmit would not do: what its NORMAL learns is the
// port before.) Other switches refuse the entry.
func resume(e fabric.Entry) []openflow.Instruction {
	return []openflow.Instruction{
		openflow.ApplyActions{openflow.PopVLAN{}, openflow.RegLoad{Dst: openflow.Bits{Field: openflow.FieldNXMInPort, Count: 16}, Value: uint64(e.Resume)}},
		openflow.GotoTable{Table: e.Goto},
	}
}

// changes orders copies so that few tags are put back.
func changes(o fabric.Out) int {
	n := 0
	if o.Push != 0 {
		n = 1
	}
	if o.Pop {
		n += 2
	}
	return n
}

func push(tag uint16) []openflow.Action {
	return []openflow.Action{
		openflow.PushVLAN{EtherType: tagTPID},
		openflow.SetField{OXM: openflow.VLANID(tag)},
	}
}

func output(p flow.Port) openflow.Action {
	o := openflow.Output{Port: openflow.Port(p)}
	if o.Port == openflow.PortController {
		o.MaxLen = openflow.MaxLenNoBuffer
	}
	return o
}

// encodeMatch appends a match as OXM fields with their prerequisites. Ranges of ports become several matches (see fabric.PortMasks).
func (c *Encoder) encodeMatch(to []openflow.Match, m *flow.Match, tagged bool) ([]openflow.Match, error) {
	var few [10]openflow.OXM
	out := openflow.Match(few[:0])
	if m.InPort != 0 {
		out = append(out, openflow.InPort(openflow.Port(m.InPort)))
	}
	if m.DstMACMask != (flow.MAC{}) {
		out = append(out, openflow.EthDstMask(openflow.MAC(m.DstMAC), openflow.MAC(m.DstMACMask)))
	}
	if m.SrcMACMask != (flow.MAC{}) {
		out = append(out, openflow.EthSrcMask(openflow.MAC(m.SrcMAC), openflow.MAC(m.SrcMACMask)))
	}
	switch {
	case m.Tag != 0:
		out = append(out, openflow.VLANID(m.Tag))
	case tagged:
		out = append(out, openflow.UintMask(openflow.FieldVLANVID, uint64(anyTag), uint64(anyTag)))
	case m.VLAN == flow.VLANNone:
		out = append(out, openflow.Untagged())
	case m.VLAN != 0:
		out = append(out, openflow.VLANID(m.VLAN))
	}
	if m.Unread != flow.ReadAll {
		return c.unread(to, out, m), nil
	}
	// A field has to come after those that it depends on (OpenFlow 1.3.5, 7.2.3.6): the EtherType, then the protocol, then ports.
	kind, err := etherType(m)
	if err != nil {
		return to, err
	}
	if kind != 0 {
		out = append(out, openflow.EthType(kind))
	}
	if m.Proto != 0 {
		if kind != 0x0800 && kind != 0x86dd {
			return to, fmt.Errorf("IP protocol %d without an IP version: OpenFlow wants one", m.Proto)
		}
		out = append(out, openflow.IPProto(m.Proto))
	}
	if m.Src.IsValid() {
		out = append(out, openflow.IPSrc(m.Src))
	}
	if m.Dst.IsValid() {
		out = append(out, openflow.IPDst(m.Dst))
	}
	return c.expand(to, out, m)
}

// unread appends a match for each header that the switch may have stopped at.
func (c *Encoder) unread(to []openflow.Match, out openflow.Match, m *flow.Match) []openflow.Match {
	for _, h := range fabric.Headers(m) {
		each := append(out[:len(out):len(out)], openflow.EthType(h.EtherType))
		if h.Proto >= 0 {
			each = append(each, openflow.IPProto(uint8(h.Proto)))
		}
		src, dst := m.Src, m.Dst
		if h.NoAddress {
			src = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
			if h.EtherType == flow.EtherTypeIPv6 {
				src = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
			}
			dst = src
		}
		if src.IsValid() {
			each = append(each, openflow.IPSrc(src))
		}
		if dst.IsValid() {
			each = append(each, openflow.IPDst(dst))
		}
		to = append(to, slices.Clone(each))
	}
	return to
}

func etherType(m *flow.Match) (uint16, error) {
	kind := m.EtherType
	for _, p := range [...]netip.Prefix{m.Src, m.Dst} {
		if !p.IsValid() {
			continue
		}
		want := flow.Family(p)
		if kind != 0 && kind != want {
			return 0, fmt.Errorf("address %v with EtherType %#04x", p, kind)
		}
		kind = want
	}
	return kind, nil
}

// expand appends a match for each pair of masks of its ports.
func (c *Encoder) expand(to []openflow.Match, m openflow.Match, f *flow.Match) ([]openflow.Match, error) {
	if f.SrcPorts.Any() && f.DstPorts.Any() {
		return append(to, slices.Clone(m)), nil
	}
	if f.Proto != flow.ProtoTCP && f.Proto != flow.ProtoUDP && f.Proto != flow.ProtoSCTP {
		return to, fmt.Errorf("ports of IP protocol %d: only TCP, UDP and SCTP have some", f.Proto)
	}
	var one, other [1]flow.PortMask
	src, dst := fabric.PortMasks(one[:0], f.SrcPorts), fabric.PortMasks(other[:0], f.DstPorts)
	if n := len(src) * len(dst); n > maxExpansion {
		return to, fmt.Errorf("ports %d-%d to %d-%d are %d entries, OpenFlow 1.3 knows no ranges: at most %d", f.SrcPorts.First, f.SrcPorts.Last,
			f.DstPorts.First, f.DstPorts.Last, n, maxExpansion)
	}
	for _, x := range src {
		for _, y := range dst {
			each := m
			if x.Mask != 0 {
				each = append(each, openflow.SrcPortMask(f.Proto, x.Port, x.Mask))
			}
			if y.Mask != 0 {
				each = append(each, openflow.DstPortMask(f.Proto, y.Port, y.Mask))
			}
			to = append(to, slices.Clone(each))
		}
	}
	return to, nil
}
