package steering

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/forwarding"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/policy"
)

type kind uint8

const (
	fromEdge  kind = iota // a station at an edge port
	fromEdges             // every edge port of every OpenFlow switch
	fromHost              // an endpoint of a host
	toEdge                // caught at the switch of the destination
	toHost                // caught where a host's endpoint is about to get it
)

// stream is one place where a direction catches frames.
type stream struct {
	kind
	forwarding.Place
	endpoint string
}

// visit is a stay at one host: functions there that follow each other.
type visit struct {
	host     int
	elements []element
	inline   bool   // not only taps
	end      string // names what becomes of frames that reach it, but see planner.endOf
}

// bundle is a direction of a policy: what it selects, where that is caught and which hosts it visits.
type bundle struct {
	policy.Direction
	policy  *compiled
	matches []selected
	mays    []selected // frames that cannot be read and may be meant
	streams []stream
	visits  []visit
	blind   int               // legs from this one on cannot match addresses: a function before them rewrites
	pinned  *forwarding.Place // the one destination
	loose   []loose
	toDest  bool // caught at the destination

	untagged bool // planned so, see swapped
	alone    bool // planned so, see catchOnTheWay

	made made
	legs []plannedLeg

	oneStream [1]stream // room for what most have
	twoLoose  [2]loose
}

// loose frames have left their chain and go on by default forwarding.
type loose struct {
	from         int
	groups, ones bool
}

func (b *bundle) claim() switches.Claim {
	return switches.Claim{Owner: b, Policy: b.policy.Name, Priority: b.policy.Priority}
}

// note says what is done with the frames of a match.
func (b *bundle) note(m *selected, what string) string {
	return "policy " + b.policy.Name + ": " + m.term + " " + what
}

func (b *bundle) steers() bool { return !b.policy.Replica() }

// first is 1 for forward, which takes the frames that both directions of a policy select.
func (b *bundle) first() uint16 {
	if b.Way == policy.Forward {
		return 1
	}
	return 0
}

// yields tells whether the policy's forward direction takes all frames of a match at the same place.
func (b *bundle) yields(at *stream, m *flow.Match) bool {
	f := b.policy.both[policy.Forward]
	return b != f && slices.Contains(f.streams, *at) && slices.ContainsFunc(f.matches, func(o selected) bool {
		x, ok := flow.Intersect(*m, o.Match)
		return ok && x == *m
	})
}

// direct finds where one way of a policy begins and ends.
func (w *world) direct(p *compiled, v policy.Way) (*bundle, error) {
	b := &p.pair[v]
	*b = bundle{Direction: p.Direction(v, policy.SourceFirst), policy: p, visits: p.chain.walks[v].visits, blind: p.chain.walks[v].blind}
	for _, s := range [2]*api.Selector{&b.Src, &b.Dst} {
		// Both ends have to be in the network.
		if s.Kind != api.SelectEndpoint {
			continue
		}
		at, ok := w.Places[s.Endpoint]
		if _, known := w.In.Endpoints[s.Endpoint]; !known {
			return nil, fmt.Errorf("endpoint %s: unknown: %w", s.Endpoint, policy.ErrNotReady)
		}
		if !ok {
			return nil, fmt.Errorf("endpoint %s: not seen in the network yet: %w", s.Endpoint, policy.ErrNotReady)
		}
		if s == &b.Dst {
			b.pinned = at
		}
	}
	open := false
	// Where frames are caught: everywhere, or at the place of one end.
	if b.At == policy.Anywhere {
		b.streams = w.everywhere(b.Src)
	} else {
		name := b.Caught()
		at, kinds := *w.Places[name], [2]kind{fromEdge, fromHost}
		if b.toDest = b.At == policy.AtDestination; b.toDest {
			kinds = [2]kind{toEdge, toHost}
			open = p.Exhaustive() && w.Graph.Switch[at.Node].Host
		}
		b.oneStream[0] = stream{w.kindOf(at, kinds[0], kinds[1]), at, name}
		b.streams = b.oneStream[:]
	}
	if err := w.find(b, open); err != nil {
		return nil, err
	}
	if b.At == policy.Anywhere && b.steers() {
		b.onlyUnicast()
	}
	for i := range b.matches {
		w.settleMatch(&b.matches[i])
	}
	b.readMays(w)
	return b, nil
}

func (w *world) kindOf(at forwarding.Place, edge, host kind) kind {
	if w.Graph.Switch[at.Node].Host {
		return host
	}
	return edge
}

// everywhere: no end has a place, so frames are caught wherever they enter.
func (w *world) everywhere(src api.Selector) []stream {
	var all []stream
	if slices.ContainsFunc(w.Graph.Edges, func(e []flow.Port) bool { return len(e) > 0 }) {
		all = append(all, stream{kind: fromEdges, Place: forwarding.Place{Node: nowhere}})
	}
	for node, guests := range w.Guests {
		for _, n := range slices.Sorted(maps.Keys(guests)) {
			if mayBe(src, guests[n]) {
				all = append(all, stream{fromHost, forwarding.Place{Node: node, Port: endpointPort(n, guests[n])}, n})
			}
		}
	}
	return all
}

// mayBe tells whether an endpoint may send what a selector selects.
func mayBe(s api.Selector, e fabric.Endpoint) bool {
	switch {
	case s.Kind == api.SelectMAC && len(e.MACs) > 0:
		return slices.Contains(e.MACs, flow.MAC(s.MAC))
	case s.Kind != api.SelectPrefix || len(e.Prefixes) == 0:
		return true
	}
	for _, p := range e.Prefixes {
		if p.Overlaps(s.Prefix) {
			return true
		}
	}
	return false
}

func endpointPort(name string, e fabric.Endpoint) fabric.Port {
	if e.At.Port.Name != "" {
		return fabric.Port{Name: e.At.Port.Name}
	}
	return fabric.Port{Name: "endpoint/" + name}
}

// onlyUnicast: where a frame came from is not known when its chain ends, so a flooded one could not be kept from its sender.
func (b *bundle) onlyUnicast() {
	kept := b.matches[:0]
	for _, m := range b.matches {
		if one, ok := single(m.Match); ok {
			kept = append(kept, selected{Match: one, term: m.term})
		}
	}
	b.matches = kept
}

// loosen notes where this bundle's frames are let go into default forwarding.
func (w *world) loosen(b *bundle) {
	b.loose = b.twoLoose[:0]
	if !b.steers() || len(b.visits) == 0 || b.toDest || b.policy.chain.Blocked != nil {
		return
	}
	may := b.mayBeMulticast()
	end := b.visits[len(b.visits)-1].host
	for i := range b.streams {
		s := &b.streams[i]
		switch {
		case s.kind == fromHost && (s.Node == end || w.homeward(s, end)):
			b.loose = append(b.loose, loose{s.Node, may, true})
		case s.kind == fromHost:
			b.loose = append(b.loose, loose{end, false, true}, loose{s.Node, may, false})
		case w.returns(b, s):
			b.loose = append(b.loose, loose{end, false, true}, loose{s.Node, may, false})
		default:
			b.loose = append(b.loose, loose{end, may, true})
		}
	}
}

// homeward tells whether frames of a host's endpoint go back to it when they have left their chain. Without an OpenFlow switch between, only
// that host knows how they go on without confusing what others learn; where frames for known stations are flooded, they would come by there.
func (w *world) homeward(s *stream, end int) bool {
	return !w.Attached[end] || !w.Attached[s.Node] || w.Scarce()
}

func (b *bundle) mayBeMulticast() bool {
	for i := range b.matches {
		if mayBeMulticast(&b.matches[i].Match) {
			return true
		}
	}
	return false
}

// returns tells whether flooded frames go back to the switch of their sender before they are flooded, since the sender's address does
// not tell any more where they must not go.
func (w *world) returns(b *bundle, s *stream) bool {
	return s.kind == fromEdge && (b.blind <= len(b.visits) || len(w.In.Endpoints[s.endpoint].MACs) == 0)
}

// crosses tells whether loose frames may cross an arc.
func (w *world) crosses(b *bundle, a int) bool {
	x := &w.Graph.Arcs[a]
	sure := b.sure()
	for _, l := range b.loose {
		if (l.groups || !sure || w.Scarce()) && w.Graph.Floods(l.from, a) {
			return true // also what is for a station that nobody knows yet, or that has no entry everywhere
		}
		if x.From == l.from && w.Graph.Switch[x.From].Host && !w.Attached[x.From] {
			return true // a host's own switch floods, too
		}
		if !l.ones || w.Graph.Switch[x.To].Host && !w.Settled(x.To) {
			continue
		}
		d := w.Graph.To(l.from)
		if d[x.From] == graph.Unreachable || d[x.From]+x.Cost != d[x.To] {
			continue
		}
		if sure && !rewritten(b) {
			to := w.Graph.To(b.pinned.Node)
			if to[x.To] == graph.Unreachable || d[x.From]+x.Cost+to[x.To] != d[b.pinned.Node] {
				continue
			}
		}
		return true
	}
	return false
}

// sure tells whether behind the chain all frames of the bundle go to its one destination. Default forwarding looks at the destination MAC.
// So a destination IP address is not enough: a hostile station sends such frames to any MAC, and a router in the fabric gets them, too.
func (b *bundle) sure() bool {
	return b.pinned != nil && !slices.ContainsFunc(b.matches, func(m selected) bool { return m.DstMACMask != whole })
}

func rewritten(b *bundle) bool { return b.blind <= len(b.visits) }

// overlap tells whether two bundles may select one frame.
func overlap(a, b *bundle) bool {
	for i := range a.matches {
		for j := range b.matches {
			if _, ok := flow.Intersect(a.matches[i].Match, b.matches[j].Match); ok {
				return true
			}
		}
	}
	return false
}
