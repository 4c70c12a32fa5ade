package steering

import (
	"fmt"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
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
	case s.kind == toHost && s.Node == end:
		return []step{{action: deliver, what: own}}, nil
	case s.kind == toHost:
		return p.deliverAtHost(s, end, deliver, "deliver")
	case s.kind == fromHost && s.Node == end:
		return []step{{action: resume, what: "resumes at " + own}}, nil
	case s.kind == fromHost && w.homeward(s, end):
		steps, err := p.deliverAtHost(s, end, resume, "resume")
		if err != nil {
			return nil, err
		}
		return append(steps, p.here(end, steps[0].action.Port)...), nil
	case !w.Attached[end]:
		return nil, fmt.Errorf("%w from %s into the network", fabric.ErrNoPath, w.Graph.Name(end))
	}
	return p.loose(s, end, resume)
}

func (p *planner) endpointPort(s *stream) string {
	if s.endpoint == "" {
		return ""
	}
	return endpointPort(s.endpoint, p.c.w.In.Endpoints[s.endpoint]).Name
}

// loose lets frames go on by default forwarding.
func (p *planner) loose(s *stream, end int, resume api.HostAction) ([]step, error) {
	b, w := p.b, p.c.w
	if w.In.Beside {
		return p.beside(s, end, resume)
	}
	uplink := p.uplink(end)
	steps := []step{{action: api.HostAction{Op: flow.Output.String(), Port: uplink}, what: "on to the destination"}}
	steps = append(steps, p.here(end, uplink)...)
	may := rewritten(b) || b.mayBeMulticast() || w.Scarce()
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
		n := p.c.Nodes[s.Node]
		for _, m := range w.In.Endpoints[s.endpoint].MACs {
			n.KeepBack(switches.Pruned{Claim: b.claim(), MAC: m, Port: s.Port.Number})
		}
		b.made.pruned = append(b.made.pruned, s.Node)
		if w.Settled(end) {
			steps = append(steps, step{
				when: groups, rank: 1, key: "groups", what: "flooded, also to " + w.Graph.Name(end),
				action: api.HostAction{Clones: []api.HostClone{{Port: uplink}}, Op: flow.Resume.String(), Port: uplink},
			})
		}
	}
	return steps, nil
}

// here are the steps for what is for a station of the chain's last host itself.
func (p *planner) here(end int, port string) []step {
	b, w := p.b, p.c.w
	if b.pinned != nil && b.pinned.Node != end && !rewritten(b) {
		return nil
	}
	var steps []step
	for _, m := range w.Local[end] {
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
	g := p.c.w.Graph
	if b := p.b; b.pinned != nil && b.pinned.Node != host {
		if arcs, ok := g.Path(host, b.pinned.Node); ok {
			return g.Arcs[arcs[0]].Out.Name
		}
	}
	for _, a := range g.Out[host] {
		if !g.Switch[g.Arcs[a].To].Host {
			return g.Arcs[a].Out.Name
		}
	}
	return ""
}

// guard keeps a host's own switch from learning its endpoint at the uplink, when frames of it come back to another of its endpoints.
func (p *planner) guard(s *stream, resume api.HostAction) {
	g, e := p.c.w.Graph, p.c.w.In.Endpoints[s.endpoint]
	var matches []flow.Match
	for _, m := range e.MACs {
		matches = append(matches, flow.Match{SrcMAC: m, SrcMACMask: whole})
	}
	if len(matches) == 0 {
		for _, a := range e.Prefixes {
			matches = append(matches, flow.Match{Src: a, EtherType: flow.Family(a)})
		}
	}
	for _, a := range g.Out[s.Node] {
		if g.Switch[g.Arcs[a].To].Host {
			continue
		}
		in := g.Arcs[a].Out.Name
		for _, m := range matches {
			m, _ = single(m)
			id := identity.Of("guard", s.endpoint, in, matchKey(&m))
			if p.share(s.Node, id) {
				continue
			}
			r := api.HostRule{
				Priority: switches.PrioReturn, Match: p.c.w.hostMatch(&m), Action: resume, Note: "frames of endpoint " + s.endpoint + " back from a chain",
			}
			r.Match.InPort = in
			p.addRule(s.Node, id, &r)
		}
	}
}

// deliverAtHost takes frames to an endpoint's host.
func (p *planner) deliverAtHost(s *stream, from int, do api.HostAction, how string) ([]step, error) {
	n := len(p.b.visits)
	l, err := p.home(from, s.Node, how+"/"+s.endpoint)
	if err != nil {
		return nil, err
	}
	p.arrive(l, s.Node, []step{{action: do, what: do.Op + " " + do.Port}}, n)
	return []step{p.onto(l, p.c.w.Graph.Toward[s.Node])}, nil
}

// home is a last leg with a fixed end. It always carries a tag, for fresh frames come the same way.
func (p *planner) home(from, to int, end string) (plannedLeg, error) {
	return p.leg(p.b.blind+len(p.b.visits)+1, []int{from}, to, end)
}

// deliverAtEdge takes frames to an edge port.
func (p *planner) deliverAtEdge(s *stream, from int) ([]step, error) {
	g, n := p.c.w.Graph, len(p.b.visits)
	end := "deliver/" + graph.Decimal(s.Port.Number)
	l, err := p.home(from, s.Node, end)
	if err != nil {
		return nil, err
	}
	p.transit(l, s.Node, n)
	for _, a := range l.arcs {
		if x := g.Arcs[a]; x.To == s.Node {
			p.entry(s.Node, &fabric.Entry{
				Cookie:   g.TagCookie(a, l.tag, l.end),
				Priority: switches.PrioTag, Match: flow.Match{InPort: x.In.Number, Tag: l.tag}, Outs: []fabric.Out{{Port: s.Port.Number, Pop: true}},
				Hop: 255, Policy: p.b.policy.Name, Note: "tag " + strconv.Itoa(int(l.tag)) + " to endpoint/" + s.endpoint,
			})
		}
	}
	return []step{p.onto(l, g.Toward[s.Node])}, nil
}

// returnToEdge takes flooded frames back to the switch of their sender.
func (p *planner) returnToEdge(s *stream, from int) (step, error) {
	g := p.c.w.Graph
	l, err := p.home(from, s.Node, "flood/"+graph.Decimal(s.Port.Number))
	if err != nil {
		return step{}, err
	}
	p.transit(l, s.Node, len(p.b.visits))
	n := p.c.Nodes[s.Node]
	for _, a := range l.arcs {
		if g.Arcs[a].To == s.Node {
			n.FloodBack(switches.Returned{Claim: p.b.claim(), In: g.Arcs[a].In.Number, Port: s.Port.Number, Tag: l.tag})
		}
	}
	p.b.made.pruned = append(p.b.made.pruned, s.Node)
	home := p.onto(l, "back to be flooded")
	home.when, home.rank, home.key = groups, 1, "groups"
	return home, nil
}
