package steering

import (
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
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
	g, name := p.c.w.Graph, p.b.policy.Name
	l, err := p.home(from, s.Node, "resume/"+graph.Decimal(s.Port.Number))
	if err != nil {
		return nil, err
	}
	p.transit(l, s.Node, len(p.b.visits))
	second := p.c.Nodes[s.Node].Second()
	if second == 0 {
		return nil, fmt.Errorf("switch %s has one table only: beside other forwarding, where frames go on from where they were caught, two are needed", g.Name(s.Node))
	}
	for _, a := range l.arcs {
		if x := g.Arcs[a]; x.To == s.Node {
			p.entry(s.Node, &fabric.Entry{
				Cookie:   g.TagCookie(a, l.tag, l.end),
				Priority: switches.PrioTag, Match: flow.Match{InPort: x.In.Number, Tag: l.tag}, Resume: s.Port.Number, Goto: second,
				Hop: 255, Policy: name, Note: fmt.Sprintf("tag %d resumes at %s", l.tag, graph.Decimal(s.Port.Number)),
			})
		}
	}
	p.entry(s.Node, &fabric.Entry{
		Cookie: identity.Entry("beside", string(g.IDs[s.Node])), Table: second, Outs: []fabric.Out{{Port: fabric.Normally}}, Hop: 255, Policy: name, Note: "on by what else forwards",
	})
	return []step{p.onto(l, "home to "+g.Name(s.Node))}, nil
}
