package fabric

import (
	"fmt"
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/term"
)

var whole = flow.MAC{255, 255, 255, 255, 255, 255}

// selected is one match of a direction, without its ports.
type selected struct {
	flow.Match
	term string
	key  string        // of an identity
	host api.HostMatch // as a host's rule has it
}

// settleMatch fills in what is made of the match.
func (w *world) settleMatch(m *selected) { m.key, m.host = matchKey(&m.Match), w.hostMatch(&m.Match) }

// byMAC tells by which address a policy's endpoints are recognised.
func (p *policy) byMAC() bool {
	if p.spec.MatchBy != "" {
		return p.spec.MatchBy == api.MatchByMAC
	}
	return p.exhaustive()
}

// side appends the matches of one end. source: as the frame's source. ARP has no addresses to match, so there MACs have to do.
func (w *world) side(all []flow.Match, p *policy, s *end, arp, source bool) ([]flow.Match, error) {
	mac := func(m flow.MAC) flow.Match {
		if source {
			return flow.Match{SrcMAC: m, SrcMACMask: whole}
		}
		return flow.Match{DstMAC: m, DstMACMask: whole}
	}
	ip := func(a netip.Prefix) flow.Match {
		if source {
			return flow.Match{Src: a, EtherType: flow.Family(a)}
		}
		return flow.Match{Dst: a, EtherType: flow.Family(a)}
	}
	switch s.Kind {
	case api.SelectPrefix:
		return append(all, ip(s.Prefix)), nil
	case api.SelectMAC:
		return append(all, mac(s.MAC)), nil
	case api.SelectAny:
		return append(all, flow.Match{}), nil
	}
	e := w.in.Endpoints[s.Endpoint]
	if !arp && !p.byMAC() || len(e.MACs) == 0 {
		for _, a := range e.Prefixes {
			all = append(all, ip(a))
		}
	}
	if len(all) == 0 {
		for _, m := range e.MACs {
			all = append(all, mac(m))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("endpoint %s: neither its address nor its MAC is known: %w", s.Endpoint, ErrNotReady)
	}
	return all, nil
}

// matches of a way from src to dst. open: any frame that reaches the destination's own port.
func (w *world) matches(p *policy, v way, src, dst *end, open bool) ([]selected, error) {
	var all []selected
	for _, t := range p.terms {
		arp := t.Protocol == api.ProtocolARP
		from, err := w.side(w.from[:0], p, src, arp, true)
		if err != nil {
			return nil, err
		}
		to, err := w.side(w.to[:0], p, dst, arp, false)
		if open {
			to, err = append(w.to[:0], flow.Match{}), nil
		}
		if err != nil {
			return nil, err
		}
		terms := expand(w.terms[:0], t, v)
		w.from, w.to, w.terms = from, to, terms
		text, found, why := "", false, term.Apart(t)
		for i := range terms {
			for j := range from {
				for k := range to {
					m, ok := flow.Intersect(from[j], to[k])
					if ok {
						m, ok = flow.Intersect(m, terms[i])
					}
					if !ok {
						continue
					}
					if m.ToItself() {
						why = "no station sends frames to itself"
						continue
					}
					if found = true; contains(all, &m) {
						continue
					}
					if text == "" {
						text = w.termText(t)
					}
					all = append(all, selected{Match: m, term: text})
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("match %q can never meet from %s to %s: %s", t, src.name, dst.name, why)
		}
	}
	return disjoint(all), nil
}

func contains(all []selected, m *flow.Match) bool {
	for i := range all {
		if all[i].Match == *m {
			return true
		}
	}
	return false
}

// disjoint leaves out matches that are within others: no two of one policy select a frame, for a switch has no order between them.
func disjoint(all []selected) []selected {
	if len(all) < 2 {
		return all
	}
	var kept []selected
	for i, m := range all {
		if !slices.ContainsFunc(all, func(o selected) bool {
			x, ok := flow.Intersect(m.Match, o.Match)
			return ok && x == m.Match && o.Match != all[i].Match
		}) {
			kept = append(kept, m)
		}
	}
	return kept
}

// merged joins port ranges that overlap, of one protocol.
func merged(terms []api.Term) []api.Term {
	if len(terms) < 2 {
		return terms
	}
	var out []api.Term
	for _, t := range terms {
		for i := 0; i < len(out); i++ {
			o := out[i]
			if o.Protocol != t.Protocol || o.First == 0 || t.First == 0 || o.Last < t.First || t.Last < o.First {
				continue
			}
			t.First, t.Last = min(t.First, o.First), max(t.Last, o.Last)
			out = slices.Delete(out, i, i+1)
			i = -1 // it may reach others now
		}
		out = append(out, t)
	}
	return out
}

// expand appends the matches of one service, each of one family, as OpenFlow wants protocols to be.
func expand(all []flow.Match, t api.Term, v way) []flow.Match {
	var few [2]flow.Match
	for _, m := range term.Matches(few[:0], t, v == reverse) {
		if m.Proto == 0 || m.EtherType != 0 {
			all = append(all, m)
			continue
		}
		for _, m.EtherType = range [...]uint16{flow.EtherTypeIPv4, flow.EtherTypeIPv6} {
			all = append(all, m)
		}
	}
	return all
}

// mayBeMulticast: TCP and SCTP never are, nor is what names one station as its destination.
func mayBeMulticast(m *flow.Match) bool {
	if m.Proto == flow.ProtoTCP || m.Proto == flow.ProtoSCTP || m.DstMACMask[0]&1 == 1 && !m.DstMAC.Multicast() {
		return false
	}
	return !m.Dst.IsValid() || !m.Dst.IsSingleIP() || m.Dst.Overlaps(multicast4) || m.Dst.Overlaps(multicast6) || m.Dst.Overlaps(broadcast4)
}

var (
	multicast4 = netip.MustParsePrefix("224.0.0.0/4")
	multicast6 = netip.MustParsePrefix("ff00::/8")
	broadcast4 = netip.MustParsePrefix("255.255.255.255/32")
)

// groups restricts a match to multicast frames, single to all others; ok is false when nothing is left.
func groups(m flow.Match) (flow.Match, bool) {
	if !mayBeMulticast(&m) {
		return m, false
	}
	if m.DstMACMask[0]&1 == 1 {
		return m, m.DstMAC.Multicast()
	}
	m.DstMAC[0] |= 1
	m.DstMACMask[0] |= 1
	return m, true
}

func single(m flow.Match) (flow.Match, bool) {
	if m.DstMACMask[0]&1 == 1 {
		return m, !m.DstMAC.Multicast()
	}
	m.DstMACMask[0] |= 1
	return m, true
}
