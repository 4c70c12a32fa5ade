package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// ErrNotReady says that a part of the policy does not exist yet: it will come into force with it.
var ErrNotReady = errors.New("not ready")

// Way is a direction through a chain.
type Way uint8

// Ways through a chain.
const (
	Forward Way = iota
	Reverse
)

func (w Way) String() string { return [...]string{"forward", "reverse"}[w] }

// Policy is a policy as it was read.
type Policy struct {
	Name     string
	Spec     api.PolicySpec
	Priority int
	From, To api.Selector
	Terms    []api.Term // at least one
}

// Read reads a policy. After an error only its name, spec and priority are of use.
func Read(name string, spec api.PolicySpec) (Policy, error) {
	p := Policy{Name: name, Spec: spec, Priority: spec.PriorityOrDefault()}
	var errs [2]error
	p.From, errs[0] = api.ParseSelector(spec.From)
	p.To, errs[1] = api.ParseSelector(spec.To)
	if errs[0] != nil || errs[1] != nil {
		return p, errors.Join(errs[:]...)
	}
	if len(spec.Match) == 0 || p.Exhaustive() {
		p.Terms = []api.Term{{Protocol: api.ProtocolAll}}
		return p, nil
	}
	p.Terms = make([]api.Term, len(spec.Match))
	for i, text := range spec.Match {
		var err error
		if p.Terms[i], err = api.ParseMatch(text); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Replica tells whether the policy copies frames and lets them go on.
func (p *Policy) Replica() bool { return p.Spec.ModeOrDefault() == api.ModeReplica }

// Exhaustive tells whether the policy is for all frames of its endpoint.
func (p *Policy) Exhaustive() bool { return p.Spec.ModeOrDefault() == api.ModeExhaustive }

// FailsOpen tells whether a policy that was never in force lets its frames go on as without it: it only copies, or every function that its
// frames pass says so.
func (p *Policy) FailsOpen(c *Chain) bool { return p.Replica() || !c.Guarded }

// Order is which end of a direction decides where its frames are caught, if both are endpoints.
type Order uint8

const (
	// DestinationFirst is the order on one host. There, frames for an endpoint are caught when the bridge sends them out of its port: the bridge
	// has learned the sender by then, and the catch is exact for every kind of frame, flooded copies included.
	DestinationFirst Order = iota
	// SourceFirst is the order in the fabric. An OpenFlow switch has no such point: at a destination it knows frames only by their addresses,
	// which a sender may forge. The port by which they enter is certain.
	SourceFirst
)

// Where is the place where the frames of a direction are caught.
type Where uint8

// Places where frames are caught.
const (
	Anywhere Where = iota // neither end is an endpoint
	AtSource
	AtDestination
)

// Direction is one way of a policy.
type Direction struct {
	*Policy
	Way      Way
	Src, Dst api.Selector
	At       Where
}

// Ways are the policy's ways.
func (p *Policy) Ways() []Way {
	if p.Spec.IsSymmetric() {
		return []Way{Forward, Reverse}
	}
	return []Way{Forward}
}

// Direction gives one way of the policy.
func (p *Policy) Direction(w Way, o Order) Direction {
	d := Direction{Policy: p, Way: w, Src: p.From, Dst: p.To}
	if w == Reverse {
		d.Src, d.Dst = d.Dst, d.Src
	}
	src, dst := d.Src.Kind == api.SelectEndpoint, d.Dst.Kind == api.SelectEndpoint
	switch {
	case dst && (o == DestinationFirst || !src):
		d.At = AtDestination
	case src:
		d.At = AtSource
	}
	return d
}

// Caught is the endpoint where the direction's frames are caught, "" for anywhere.
func (d *Direction) Caught() string {
	switch d.At {
	case AtSource:
		return d.Src.Endpoint
	case AtDestination:
		return d.Dst.Endpoint
	}
	return ""
}

// Ends gives the matches by which a compiler knows the two ends of a direction, for one term.
type Ends func(t api.Term) (src, dst []flow.Match, err error)

// Families says how matches are written.
type Families bool

const (
	// Implied leaves out the EtherType where a protocol is of both families: hosts' switches match both with one rule.
	Implied Families = false
	// Named gives each family a match of its own, as OpenFlow asks for.
	Named Families = true
)

// Matches calls found with every match of the direction: what a term selects, from what its source is known by to what its destination is
// known by. One match may be found several times. A term that no frame can meet is an error.
func (d *Direction) Matches(ends Ends, families Families, found func(m flow.Match, t api.Term)) error {
	var room [4]flow.Match
	for _, t := range d.Terms {
		from, to, err := ends(t)
		if err != nil {
			return err
		}
		terms := Matches(room[:0], t, d.Way)
		if families == Named {
			terms = byFamily(terms)
		}
		any, itself := false, false
		for i := range terms {
			for j := range from {
				for k := range to {
					m, ok := flow.Intersect(from[j], to[k])
					if ok {
						m, ok = flow.Intersect(m, terms[i])
					}
					switch {
					case !ok:
					case m.ToItself():
						itself = true
					default:
						any = true
						found(m, t)
					}
				}
			}
		}
		switch {
		case any:
		case itself:
			return d.never(t, "no station sends frames to itself")
		default:
			return d.never(t, apart(t))
		}
	}
	return nil
}

func (d *Direction) never(t api.Term, why string) error {
	return fmt.Errorf("match %q can never meet from %s to %s: %s", t, d.Src, d.Dst, why)
}

// MayBeMulticast tells whether multicast frames can meet a match. TCP and SCTP talk to one station; so does what names one MAC.
func MayBeMulticast(m *flow.Match) bool {
	return m.Proto != flow.ProtoTCP && m.Proto != flow.ProtoSCTP && (m.DstMACMask[0]&1 == 0 || m.DstMAC.Multicast())
}

// Ranks numbers the priorities of replica policies, from 1 for the least. most is how many a compiler has room for between two priorities of
// steering policies: the least important ones above that have no rank. A rule has 16 bits for its priority. On a host there is nothing
// else in them; a switch of the fabric has bands for tags and for default forwarding, too.
func Ranks(priorities map[int]bool, most int) map[int]int {
	order := slices.Sorted(maps.Keys(priorities))
	order = order[max(0, len(order)-most):]
	ranks := make(map[int]int, len(order))
	for i, p := range order {
		ranks[p] = i + 1
	}
	return ranks
}

// Unranked is the error of a policy without a rank.
func Unranked(most int) error {
	return fmt.Errorf("more than %d different priorities of replica policies: this one's is the lowest", most)
}
