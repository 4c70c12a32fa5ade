package steering

import (
	"fmt"
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
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
func (p *compiled) byMAC() bool {
	if p.Spec.MatchBy != "" {
		return p.Spec.MatchBy == api.MatchByMAC
	}
	return p.Exhaustive()
}

// side appends the matches of one end. source: as the frame's source. ARP has no addresses to match, so there MACs have to do.
func (w *world) side(all []flow.Match, p *compiled, s *api.Selector, arp, source bool) ([]flow.Match, error) {
	if s.Kind != api.SelectEndpoint {
		return append(all, policy.BySelector(*s, source)), nil
	}
	e := w.In.Endpoints[s.Endpoint]
	if !arp && !p.byMAC() || len(e.MACs) == 0 {
		for _, a := range e.Prefixes {
			all = append(all, policy.ByAddress(a, source))
		}
	}
	if len(all) == 0 {
		for _, m := range e.MACs {
			all = append(all, policy.ByMAC(m, source))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("endpoint %s: neither its address nor its MAC is known: %w", s.Endpoint, policy.ErrNotReady)
	}
	return all, nil
}

// find fills in what a bundle selects. open: any frame that reaches the destination's own port.
func (w *world) find(b *bundle, open bool) error {
	ends := func(t api.Term) (from, to []flow.Match, err error) {
		arp := t.Protocol == api.ProtocolARP
		if from, err = w.side(w.from[:0], b.policy, &b.Src, arp, true); err != nil {
			return nil, nil, err
		}
		if to, err = append(w.to[:0], flow.Match{}), nil; !open {
			to, err = w.side(w.to[:0], b.policy, &b.Dst, arp, false)
		}
		w.from, w.to = from, to
		return from, to, err
	}
	err := b.Matches(ends, policy.Named, func(m flow.Match, t api.Term) {
		if !contains(b.matches, &m) {
			b.matches = append(b.matches, selected{Match: m, term: w.termText(t)})
		}
	})
	b.matches = disjoint(b.matches)
	return err
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

// mayBeMulticast: nor can what names one station's address be sent to many.
func mayBeMulticast(m *flow.Match) bool {
	return policy.MayBeMulticast(m) &&
		(!m.Dst.IsValid() || !m.Dst.IsSingleIP() || m.Dst.Overlaps(multicast4) || m.Dst.Overlaps(multicast6) || m.Dst.Overlaps(broadcast4))
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
