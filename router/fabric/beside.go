package fabric

import (
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

// Beside others that forward, frames that come out of a chain must not be learned where they come out. So they go back to the place where
// they were caught, and go on from there as if they had just come in: at the sender's own edge port, or its port of a host. As it is
// not known which links they pass then, frames look like fresh ones there, and all legs of chains carry tags.
//
// The fabric's first table is shared with those others; what Weir needs in a second one is in the last that it looks at.

// beside takes frames home to where they were caught.
func (p *planner) beside(s *stream, end int, resume api.HostAction) ([]step, error) {
	switch s.kind {
	case fromHost:
		steps, err := p.deliverAtHost(s, end, resume, "resume")
		if err != nil {
			return nil, err
		}
		return append(steps, p.here(end, steps[0].action.Port)...), nil
	case fromEdge:
		return p.resumeAtEdge(s, end)
	}
	return nil, fmt.Errorf("beside other forwarding (--default-forwarding=false) frames go on from where they were caught: name an endpoint as the policy's source or destination, not %s",
		p.b.policy.Spec.From)
}

// resumeAtEdge takes frames to the switch of their sender.
func (p *planner) resumeAtEdge(s *stream, from int) ([]step, error) {
	g, name := p.c.w.g, p.b.policy.Name
	l, err := p.home(from, s.node, "resume/"+decimal(s.port.Number))
	if err != nil {
		return nil, err
	}
	p.transit(l, s.node, len(p.b.visits))
	second := p.c.nodes[s.node].second()
	if second == 0 {
		return nil, fmt.Errorf("switch %s has one table only: beside other forwarding, where frames go on from where they were caught, two are needed", g.name(s.node))
	}
	for _, a := range l.arcs {
		if x := g.arcs[a]; x.to == s.node {
			p.entry(s.node, &Entry{
				Cookie:   g.tagCookie(a, l.tag, l.end),
				Priority: prioTag, Match: flow.Match{InPort: x.in.Number, Tag: l.tag}, Resume: s.port.Number, Goto: second,
				Hop: 255, Policy: name, Note: fmt.Sprintf("tag %d resumes at %s", l.tag, decimal(s.port.Number)),
			})
		}
	}
	p.entry(s.node, &Entry{
		Cookie: identity.Entry("beside", string(g.ids[s.node])), Table: second, Outs: []Out{{Port: Normally}}, Hop: 255, Policy: name, Note: "on by what else forwards",
	})
	return []step{p.onto(l, "home to "+g.name(s.node))}, nil
}
