package flow

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Matches reports whether a frame that entered at in (and, at the Egress stage, is about to leave at out) is selected. It compares
// InPort 0 as any port; that at the Ingress stage only endpoints' ports are meant, the switch sees to.
func (m Match) Matches(k Key, in, out Port) bool {
	if m.InPort != 0 && m.InPort != in || m.OutPort != 0 && m.OutPort != out {
		return false
	}
	if m.Tag != k.Tag || m.Unread != ReadAll && m.Unread != k.Unread {
		return false
	}
	if k.SrcMAC.and(m.SrcMACMask) != m.SrcMAC || k.DstMAC.and(m.DstMACMask) != m.DstMAC {
		return false
	}
	if m.VLAN != 0 && m.VLAN != k.VLAN || m.EtherType != 0 && m.EtherType != k.EtherType {
		return false
	}
	if m.Src.IsValid() && !(k.HasIP && m.Src.Contains(k.Src)) || m.Dst.IsValid() && !(k.HasIP && m.Dst.Contains(k.Dst)) {
		return false
	}
	if m.Proto != 0 && !(k.HasIP && m.Proto == k.Proto) {
		return false
	}
	return m.matchesPorts(k)
}

func (m Match) matchesPorts(k Key) bool {
	if m.SrcPorts.Any() && m.DstPorts.Any() {
		return true
	}
	return k.HasPorts && m.SrcPorts.contains(k.SrcPort) && m.DstPorts.contains(k.DstPort)
}

func (r PortRange) contains(p uint16) bool { return r.Any() || r.First <= p && p <= r.Last }

func (m MAC) and(mask MAC) MAC {
	for i := range m {
		m[i] &= mask[i]
	}
	return m
}

// ToItself tells that only frames from a station to the same station match. No network carries such frames.
func (m Match) ToItself() bool {
	whole := MAC{255, 255, 255, 255, 255, 255}
	if m.SrcMACMask == whole && m.DstMACMask == whole && m.SrcMAC == m.DstMAC {
		return true
	}
	return m.Src.IsValid() && m.Src == m.Dst && m.Src.IsSingleIP()
}

// Validate reports what makes a match meaningless or not canonical: every switch may rely on it.
func (m Match) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.SrcMAC.and(m.SrcMACMask) != m.SrcMAC {
		refuse("source MAC %s has bits outside its mask %s", m.SrcMAC, m.SrcMACMask)
	}
	if m.DstMAC.and(m.DstMACMask) != m.DstMAC {
		refuse("destination MAC %s has bits outside its mask %s", m.DstMAC, m.DstMACMask)
	}
	if m.Tag != 0 && !isFabricTag(m.Tag) {
		refuse("fabric tag %d: want %d to %d", m.Tag, TagFirst, TagLast)
	}
	if m.VLAN > 4094 && m.VLAN != VLANNone {
		refuse("VLAN %d: want 1 to 4094", m.VLAN)
	}
	if m.EtherType != 0 && m.EtherType < 0x600 {
		refuse("EtherType 0x%04x is a length: want 0x0600 or more", m.EtherType)
	}
	family := m.EtherType
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		if p == (netip.Prefix{}) {
			continue
		}
		if !p.IsValid() || p.Masked() != p || p.Addr().Is4In6() {
			refuse("prefix %s: want an IPv4 or IPv6 prefix without bits behind its length", p)
			continue
		}
		implied := Family(p)
		if family != 0 && family != implied {
			refuse("prefix %s contradicts %s", p, etherTypeName(family))
		}
		family = implied
	}
	if m.Proto != 0 && family != 0 && family != EtherTypeIPv4 && family != EtherTypeIPv6 {
		refuse("protocol %d needs IPv4 or IPv6, not %s", m.Proto, etherTypeName(family))
	}
	if m.Unread > UnreadUpper {
		refuse("unread %d: want at most %d", m.Unread, UnreadUpper)
	} else if m.hides() {
		refuse("a frame that is %s has none of the fields that the match names", m.Unread)
	}
	for _, r := range []PortRange{m.SrcPorts, m.DstPorts} {
		if r.First > r.Last {
			refuse("ports %d-%d: the first is greater than the last", r.First, r.Last)
		}
		if !r.Any() && !hasPorts(m.Proto) {
			refuse("ports %d-%d need protocol TCP, UDP or SCTP, not %d", r.First, r.Last, m.Proto)
		}
	}
	return errors.Join(errs...)
}

// Same tells that two rules do the same to the same frames, whatever their cookies and notes.
func (r *Rule) Same(o *Rule) bool {
	return r.Priority == o.Priority && r.Stage == o.Stage && r.Match == o.Match && r.Learn == o.Learn && r.Action.Same(o.Action)
}

// Same tells that two actions do the same.
func (a Action) Same(b Action) bool {
	return a.Op == b.Op && a.Port == b.Port && a.Pop == b.Pop && a.Push == b.Push && slices.Equal(a.Clones, b.Clones)
}

// Family is the EtherType of packets with addresses of a prefix.
func Family(p netip.Prefix) uint16 {
	if p.Addr().Is4() {
		return EtherTypeIPv4
	}
	return EtherTypeIPv6
}

// Validate reports what no switch can install.
func (r Rule) Validate() error {
	err := r.validate()
	if err != nil {
		return fmt.Errorf("rule %016x (%s): %w", r.Cookie, r.Note, err)
	}
	return nil
}

func (r Rule) validate() error {
	if err := r.Match.Validate(); err != nil {
		return err
	}
	if r.Stage > Egress || r.Action.Op > Resume {
		return fmt.Errorf("unknown stage %d or operation %d", r.Stage, r.Action.Op)
	}
	if r.Stage == Ingress && r.Match.OutPort != 0 {
		return errors.New("an ingress rule cannot know where the frame will leave")
	}
	if len(r.Action.Clones) > MaxClones {
		return fmt.Errorf("%d clones: want at most %d", len(r.Action.Clones), MaxClones)
	}
	for _, c := range r.Action.Clones {
		if c.Port == 0 {
			return errors.New("a clone needs a port")
		}
		if c.Push != 0 && !isFabricTag(c.Push) {
			return fmt.Errorf("push of fabric tag %d on a clone: want %d to %d", c.Push, TagFirst, TagLast)
		}
	}
	if r.Action.Port != 0 && (r.Action.Op == Normal || r.Action.Op == Drop) {
		return fmt.Errorf("%s takes no port", r.Action.Op)
	}
	return r.validateTag()
}

// validateTag: a fabric tag is matched where a frame enters, and neither functions nor ordinary switching ever meet it.
func (r Rule) validateTag() error {
	a := r.Action
	if r.Match.Tag != 0 && r.Stage == Egress {
		return errors.New("a fabric tag is seen where a frame enters only, not where it leaves")
	}
	if a.Pop && r.Match.Tag == 0 {
		return errors.New("there is a fabric tag to pop only where the rule matches one")
	}
	if a.Push != 0 && !isFabricTag(a.Push) {
		return fmt.Errorf("push of fabric tag %d: want %d to %d", a.Push, TagFirst, TagLast)
	}
	if a.Push != 0 && (a.Op != Output || a.Port == 0) {
		return errors.New("a fabric tag is pushed only with the output to a certain port")
	}
	if r.Match.Tag == 0 || a.Pop {
		return nil
	}
	if a.Push != 0 || len(a.Clones) > 0 || a.Op == Normal || a.Op == Resume || a.Op == Output && a.Port == 0 {
		return fmt.Errorf("a frame with a fabric tag can only be dropped or output to a certain port: %s needs the tag popped first", a)
	}
	return nil
}
