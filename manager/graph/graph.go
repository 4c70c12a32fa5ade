// Package graph makes a graph of what is declared and found: who steers which traffic through which functions, and what these run on. Pure.
package graph

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
)

// Objects are all of the kinds that a graph shows.
type Objects struct {
	Endpoints   []api.Endpoint
	Functions   []api.Function
	Chains      []api.Chain
	Policies    []api.Policy
	Hosts       []api.Host
	Switches    []api.Switch
	Assignments []api.Assignment
}

// ID of a node.
func ID(kind api.Kind, name string) string { return string(kind) + "/" + name }

// kindAddress are addresses that policies name and no endpoint has.
const kindAddress api.Kind = "address"

// builder collects nodes and edges, each once.
type builder struct {
	nodes map[string]api.GraphNode
	edges map[edgeKey]*api.GraphEdge
	// What the policies of an edge match, in the order of the policies: many can share a chain.
	matches map[edgeKey]*matches
}

// matches are different ones; the first few are shown.
type matches struct {
	seen  map[string]bool
	shown []string
}

const maxMatches = 20

func (m *matches) add(match string) {
	if m.seen[match] {
		return
	}
	m.seen[match] = true
	if len(m.shown) < maxMatches {
		m.shown = append(m.shown, match)
	}
}

func (m *matches) String() string {
	text := strings.Join(m.shown, ", ")
	if more := len(m.seen) - len(m.shown); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

type edgeKey struct {
	from, to, chain string
	kind            api.EdgeKind
}

// Of gives the graph, sorted. What a policy names and does not exist is left out, and so is a policy without its chain.
func Of(o Objects) api.Graph {
	b := &builder{nodes: map[string]api.GraphNode{}, edges: map[edgeKey]*api.GraphEdge{}, matches: map[edgeKey]*matches{}}
	b.objects(o)
	chains := map[string]api.Chain{}
	for _, c := range o.Chains {
		chains[c.Name] = c
	}
	for _, p := range o.Policies {
		if c, ok := chains[p.Spec.Chain]; ok {
			b.policy(p, c)
		}
	}
	for k, m := range b.matches {
		b.edges[k].Detail = m.String()
	}
	b.underlay(o)
	g := api.Graph{Nodes: []api.GraphNode{}, Edges: []api.GraphEdge{}}
	for _, id := range slices.Sorted(maps.Keys(b.nodes)) {
		g.Nodes = append(g.Nodes, b.nodes[id])
	}
	for _, e := range b.edges {
		g.Edges = append(g.Edges, *e)
	}
	slices.SortFunc(g.Edges, func(x, y api.GraphEdge) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To), cmp.Compare(x.Chain, y.Chain), cmp.Compare(x.Detail, y.Detail))
	})
	return g
}

func (b *builder) node(kind api.Kind, name, on, detail, state string, r api.Readiness) {
	id := ID(kind, name)
	b.nodes[id] = api.GraphNode{ID: id, Kind: string(kind), Name: name, On: on, Detail: detail, State: state, Ready: r.Ready(), Message: r.Message}
}

func (b *builder) objects(o Objects) {
	for _, h := range o.Hosts {
		b.node(api.KindHost, h.Name, "", h.Status.Address, string(h.Status.State), h.Ready())
	}
	seen := map[string]string{} // MAC of a station -> switch
	for _, s := range o.Switches {
		b.node(api.KindSwitch, s.Name, "", s.Status.DatapathID, string(s.Status.State), s.Ready())
		for _, p := range s.Status.Ports {
			for _, station := range p.Stations {
				mac, _, _ := strings.Cut(station, " ")
				seen[mac] = ID(api.KindSwitch, s.Name)
			}
		}
	}
	at := func(host string) string {
		if host == "" {
			return ""
		}
		return ID(api.KindHost, host)
	}
	for _, e := range o.Endpoints {
		on := at(cmp.Or(e.At(), e.Status.Host))
		if on == "" && e.Spec.Switch != "" {
			on = ID(api.KindSwitch, e.Spec.Switch)
		}
		if on == "" {
			on = seen[cmp.Or(e.Status.MAC, e.Spec.MAC)]
		}
		b.node(api.KindEndpoint, e.Name, on, cmp.Or(e.Spec.Address, e.Status.MAC, e.Spec.MAC), string(e.Status.State), e.Ready())
	}
	for _, f := range o.Functions {
		b.node(api.KindFunction, f.Name, at(cmp.Or(f.At(), f.Status.Host)), f.Spec.Image, string(f.Status.State), f.Ready())
	}
}

// end is the node that a policy's from or to names.
func (b *builder) end(name string) string {
	name = cmp.Or(name, "any")
	if id := ID(api.KindEndpoint, name); b.nodes[id].ID != "" {
		return id
	}
	id := ID(kindAddress, name)
	b.nodes[id] = api.GraphNode{ID: id, Kind: string(kindAddress), Name: name, Ready: true}
	return id
}

// policy adds the way of a policy's packets. That of copies ends where the chain does.
func (b *builder) policy(p api.Policy, c api.Chain) {
	from, to := b.end(p.Spec.From), b.end(p.Spec.To)
	kind := api.EdgeSteers
	if p.Spec.Mode == api.ModeReplica {
		kind = api.EdgeCopies
	}
	at := from
	for _, h := range c.Spec.Hops() {
		f := ID(api.KindFunction, h.Function)
		if b.nodes[f].ID == "" {
			continue
		}
		if h.Tap {
			b.edge(p, c, at, f, api.EdgeCopies)
			continue
		}
		b.edge(p, c, at, f, kind)
		at = f
	}
	if kind == api.EdgeSteers {
		b.edge(p, c, at, to, kind)
		return
	}
	b.edge(p, c, from, to, api.EdgeSteers) // the original goes on
}

func (b *builder) edge(p api.Policy, c api.Chain, from, to string, kind api.EdgeKind) {
	k := edgeKey{from, to, c.Name, kind}
	e := b.edges[k]
	if e == nil {
		e = &api.GraphEdge{From: from, To: to, Kind: kind, Chain: c.Name, Ready: true}
		b.edges[k] = e
	}
	e.Policies = append(e.Policies, p.Name)
	e.Both = e.Both || kind == api.EdgeSteers && (p.Spec.Symmetric == nil || *p.Spec.Symmetric)
	e.Ready = e.Ready && p.Ready().Ready()
	match := strings.Join(p.Spec.Match, " ")
	if p.Spec.Mode == api.ModeExhaustive {
		match = cmp.Or(match, "all")
	}
	if match == "" {
		return
	}
	if b.matches[k] == nil {
		b.matches[k] = &matches{seen: map[string]bool{}}
	}
	b.matches[k].add(match)
}

// underlay adds cables and tunnels. A cable that both its ends name is one edge.
func (b *builder) underlay(o Objects) {
	link := func(from, to, detail string, kind api.EdgeKind, up bool) {
		if b.nodes[from].ID == "" || b.nodes[to].ID == "" {
			return
		}
		if from > to {
			from, to = to, from
		}
		// Two switches may have several cables: each has ports of its own.
		k := edgeKey{from, to, detail, kind}
		if kind == api.EdgeTunnel {
			k.chain = ""
		}
		if e := b.edges[k]; e == nil {
			b.edges[k] = &api.GraphEdge{From: from, To: to, Kind: kind, Detail: detail, Ready: up}
		}
	}
	for _, s := range o.Switches {
		here := ID(api.KindSwitch, s.Name)
		for _, p := range s.Status.Ports {
			peer, port, found := strings.Cut(p.Peer, ":")
			if !found {
				continue
			}
			switch p.Kind {
			case "link":
				ends := []string{s.Name + ":" + p.Name, peer + ":" + port}
				if other := ID(api.KindSwitch, peer); here < other || b.nodes[other].ID == "" {
					link(here, other, strings.Join(ends, " - "), api.EdgeLink, p.State == api.LinkUp)
				}
			case "host":
				link(here, ID(api.KindHost, peer), s.Name+":"+p.Name+" - "+p.Peer, api.EdgeLink, p.State == api.LinkUp)
			}
		}
	}
	for _, e := range o.Endpoints {
		if on := b.nodes[ID(api.KindEndpoint, e.Name)].On; strings.HasPrefix(on, string(api.KindSwitch)+"/") {
			link(on, ID(api.KindEndpoint, e.Name), e.Spec.SwitchPort, api.EdgeLink, e.Ready().Ready())
		}
	}
	for _, a := range o.Assignments {
		for _, t := range a.Spec.Tunnels {
			detail := "VXLAN"
			if t.Key != "" {
				detail = "VXLAN in WireGuard"
			}
			link(ID(api.KindHost, a.Name), ID(api.KindHost, t.Host), detail, api.EdgeTunnel, true)
		}
	}
}
