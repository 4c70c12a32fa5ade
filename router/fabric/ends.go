package fabric

import (
	"fmt"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

// exit gives the steps of a chain's end: what its last host does with frames.
func (p *planner) exit(s *stream) ([]step, error) {
	b, w := p.b, p.c.w
	end := b.visits[len(b.visits)-1].host
	own := ""
	if s.kind == fromHost || s.kind == toHost {
		own = p.endpointPort(s)
	}
	resume := api.HostAction{Op: flow.Resume.String(), Port: own}
	deliver := api.HostAction{Op: flow.Output.String(), Port: own}
	switch {
	case !b.steers():
		return []step{{action: api.HostAction{Op: flow.Drop.String()}, what: "end of the copy"}}, nil
	case s.kind == toEdge:
		return p.deliverAtEdge(s, end)
	case s.kind == toHost && s.node == end:
		return []step{{action: deliver, what: own}}, nil
	case s.kind == toHost:
		return p.deliverAtHost(s, end, deliver, "deliver")
	case s.kind == fromHost && s.node == end:
		return []step{{action: resume, what: "resumes at " + own}}, nil
	case s.kind == fromHost && w.homeward(s, end):
		steps, err := p.deliverAtHost(s, end, resume, "resume")
		if err != nil {
			return nil, err
		}
		return append(steps, p.here(end, steps[0].action.Port)...), nil
	case !w.attached[end]:
		return nil, fmt.Errorf("%w from %s into the network", ErrNoPath, w.g.name(end))
	}
	return p.loose(s, end, resume)
}

func (p *planner) endpointPort(s *stream) string {
	if s.endpoint == "" {
		return ""
	}
	return endpointPort(s.endpoint, p.c.w.in.Endpoints[s.endpoint]).Name
}

// loose lets frames go on by default forwarding.
func (p *planner) loose(s *stream, end int, resume api.HostAction) ([]step, error) {
	b, w := p.b, p.c.w
	if w.in.Beside {
		return p.beside(s, end, resume)
	}
	uplink := p.uplink(end)
	steps := []step{{action: api.HostAction{Op: flow.Output.String(), Port: uplink}, what: "on to the destination"}}
	steps = append(steps, p.here(end, uplink)...)
	may := rewritten(b) || b.mayBeMulticast() || w.scarce()
	switch {
	case s.kind == fromHost:
		p.guard(s, resume)
		if !may {
			break
		}
		home, err := p.deliverAtHost(s, end, resume, "resume")
		if err != nil {
			return nil, err
		}
		home[0].when, home[0].rank, home[0].key = groups, 1, "groups"
		steps = append(steps, home...)
	case s.kind == fromEdges || !may:
	case w.returns(b, s):
		home, err := p.returnToEdge(s, end)
		if err != nil {
			return nil, err
		}
		steps = append(steps, home)
	default:
		n := p.c.nodes[s.node]
		for _, m := range w.in.Endpoints[s.endpoint].MACs {
			n.keepBack(pruned{b.claim(), m, s.port.Number})
		}
		b.made.pruned = append(b.made.pruned, s.node)
		if w.settled(end) {
			steps = append(steps, step{
				when: groups, rank: 1, key: "groups", what: "flooded, also to " + w.g.name(end),
				action: api.HostAction{Clones: []api.HostClone{{Port: uplink}}, Op: flow.Resume.String(), Port: uplink},
			})
		}
	}
	return steps, nil
}

// here are the steps for what is for a station of the chain's last host itself.
func (p *planner) here(end int, port string) []step {
	b, w := p.b, p.c.w
	if b.pinned != nil && b.pinned.node != end && !rewritten(b) {
		return nil
	}
	var steps []step
	for _, m := range w.local[end] {
		steps = append(steps, step{
			when: func(x flow.Match) (flow.Match, bool) {
				return flow.Intersect(x, flow.Match{DstMAC: m, DstMACMask: whole})
			},
			rank: 2, key: m.String(), what: m.String() + " here", action: api.HostAction{Op: flow.Resume.String(), Port: port},
		})
	}
	return steps
}

// uplink is a host's port into the OpenFlow network.
func (p *planner) uplink(host int) string {
	g := p.c.w.g
	if b := p.b; b.pinned != nil && b.pinned.node != host {
		if arcs, ok := g.path(host, b.pinned.node); ok {
			return g.arcs[arcs[0]].out.Name
		}
	}
	for _, a := range g.out[host] {
		if !g.sw[g.arcs[a].to].Host {
			return g.arcs[a].out.Name
		}
	}
	return ""
}

// guard keeps a host's own switch from learning its endpoint at the uplink, when frames of it come back to another of its endpoints.
func (p *planner) guard(s *stream, resume api.HostAction) {
	g, e := p.c.w.g, p.c.w.in.Endpoints[s.endpoint]
	var matches []flow.Match
	for _, m := range e.MACs {
		matches = append(matches, flow.Match{SrcMAC: m, SrcMACMask: whole})
	}
	if len(matches) == 0 {
		for _, a := range e.Prefixes {
			matches = append(matches, flow.Match{Src: a, EtherType: flow.Family(a)})
		}
	}
	for _, a := range g.out[s.node] {
		if g.sw[g.arcs[a].to].Host {
			continue
		}
		in := g.arcs[a].out.Name
		for _, m := range matches {
			m, _ = single(m)
			id := identity.Of("guard", s.endpoint, in, matchKey(&m))
			if p.share(s.node, id) {
				continue
			}
			r := api.HostRule{
				Priority: prioReturn, Match: p.c.w.hostMatch(&m), Action: resume, Note: "frames of endpoint " + s.endpoint + " back from a chain",
			}
			r.Match.InPort = in
			p.addRule(s.node, id, &r)
		}
	}
}

// deliverAtHost takes frames to an endpoint's host.
func (p *planner) deliverAtHost(s *stream, from int, do api.HostAction, how string) ([]step, error) {
	n := len(p.b.visits)
	l, err := p.home(from, s.node, how+"/"+s.endpoint)
	if err != nil {
		return nil, err
	}
	p.arrive(l, s.node, []step{{action: do, what: do.Op + " " + do.Port}}, n)
	return []step{p.onto(l, p.c.w.g.toward[s.node])}, nil
}

// home is a last leg with a fixed end. It always carries a tag, for fresh frames come the same way.
func (p *planner) home(from, to int, end string) (plannedLeg, error) {
	return p.leg(p.b.blind+len(p.b.visits)+1, []int{from}, to, end)
}

// deliverAtEdge takes frames to an edge port.
func (p *planner) deliverAtEdge(s *stream, from int) ([]step, error) {
	g, n := p.c.w.g, len(p.b.visits)
	end := "deliver/" + decimal(s.port.Number)
	l, err := p.home(from, s.node, end)
	if err != nil {
		return nil, err
	}
	p.transit(l, s.node, n)
	for _, a := range l.arcs {
		if x := g.arcs[a]; x.to == s.node {
			p.entry(s.node, &Entry{
				Cookie:   g.tagCookie(a, l.tag, l.end),
				Priority: prioTag, Match: flow.Match{InPort: x.in.Number, Tag: l.tag}, Outs: []Out{{Port: s.port.Number, Pop: true}},
				Hop: 255, Policy: p.b.policy.Name, Note: "tag " + strconv.Itoa(int(l.tag)) + " to endpoint/" + s.endpoint,
			})
		}
	}
	return []step{p.onto(l, g.toward[s.node])}, nil
}

// returnToEdge takes flooded frames back to the switch of their sender.
func (p *planner) returnToEdge(s *stream, from int) (step, error) {
	g := p.c.w.g
	l, err := p.home(from, s.node, "flood/"+decimal(s.port.Number))
	if err != nil {
		return step{}, err
	}
	p.transit(l, s.node, len(p.b.visits))
	n := p.c.nodes[s.node]
	for _, a := range l.arcs {
		if g.arcs[a].to == s.node {
			n.floodBack(returned{p.b.claim(), g.arcs[a].in.Number, s.port.Number, l.tag})
		}
	}
	p.b.made.pruned = append(p.b.made.pruned, s.node)
	home := p.onto(l, "back to be flooded")
	home.when, home.rank, home.key = groups, 1, "groups"
	return home, nil
}
