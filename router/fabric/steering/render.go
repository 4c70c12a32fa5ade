package steering

import (
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/policy"
)

// render shows what frames of a policy meet.
func (c *Compiler) render(p *compiled) {
	nodes, tags := c.tmp.nodes[:0], c.tmp.tags[:0]
	c.tmp.unmark()
	for _, b := range p.bundles {
		if len(b.visits) == 0 || len(b.streams) == 0 {
			continue
		}
		ports := c.ports(b)
		if b.Way == policy.Forward {
			p.path.Forward = ports
		} else {
			p.path.Reverse = ports
		}
		p.path.Rules += len(b.made.entries) + len(b.made.rules)
		for i := range b.legs {
			if b.legs[i].tag != 0 {
				tags = append(tags, b.legs[i].tag)
			}
		}
		for _, e := range b.made.entries {
			if c.tmp.first(c.tmp.nodeMark, e.node) {
				nodes = append(nodes, e.node)
			}
		}
		for _, r := range b.made.rules {
			if c.tmp.first(c.tmp.nodeMark, r.node) {
				nodes = append(nodes, r.node)
			}
		}
	}
	slices.Sort(nodes)
	if len(nodes) > 0 {
		p.path.Switches = make([]fabric.SwitchID, 0, len(nodes))
	}
	for _, n := range nodes { // in the order of their names
		p.path.Switches = append(p.path.Switches, c.w.Graph.IDs[n])
	}
	if slices.Sort(tags); len(tags) > 0 {
		p.path.Tags = slices.Clone(slices.Compact(tags))
	}
	c.tmp.nodes, c.tmp.tags = nodes, tags
}

func (c *Compiler) ports(b *bundle) []string {
	g := c.w.Graph
	out := append(c.tmp.texts[:0], b.Src.String())
	// Of several places where frames are caught the first one is shown.
	s := b.streams[0]
	at := -1
	if s.Node >= 0 {
		at = s.Node
		if s.kind == fromEdge {
			out = append(out, g.At(s.Node, s.Port))
		}
	}
	move := func(to int) {
		if at >= 0 {
			arcs, _ := g.Path(at, to)
			for _, a := range arcs {
				out = append(out, g.Arcs[a].A, g.Arcs[a].B)
			}
		}
		at = to
	}
	for _, v := range b.visits {
		move(v.host)
		for _, e := range v.elements {
			out = append(out, e.port(true, b.Way))
			if !e.tap {
				out = append(out, e.port(false, b.Way))
			}
		}
	}
	done := func(out []string) []string {
		c.tmp.texts = out
		return slices.Clone(out)
	}
	if !b.steers() {
		return done(out)
	}
	switch {
	case b.toDest:
		move(s.Node)
	case b.pinned != nil:
		move(b.pinned.Node)
	}
	if b.Dst.Kind == api.SelectEndpoint && at >= 0 && !g.Switch[at].Host {
		out = append(out, g.At(at, c.w.Places[b.Dst.Endpoint].Port))
	}
	return done(append(out, b.Dst.String()))
}
