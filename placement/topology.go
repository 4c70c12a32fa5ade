package placement

import (
	"strings"

	"weir.dev/weir/api"
)

// SwitchNode is the node that a fabric switch is; a host's node is its name.
func SwitchNode(name string) string { return "switch:" + name }

// Topology is how hosts and switches are joined, as the router has found it.
type Topology struct {
	links map[string][]string
	known map[string]map[string]int // distances from a node
	// tunnelled hosts are one hop from each other: a full mesh.
	tunnelled map[string]bool
}

// NewTopology reads the switches' ports. tunnelled tells that hosts with an underlay address reach each other by tunnels (one hop).
func NewTopology(switches []api.Switch, hosts []api.Host, tunnelled bool) *Topology {
	t := &Topology{links: map[string][]string{}, known: map[string]map[string]int{}, tunnelled: map[string]bool{}}
	join := func(a, b string) { t.links[a], t.links[b] = append(t.links[a], b), append(t.links[b], a) }
	for _, s := range switches {
		for _, p := range s.Status.Ports {
			peer := p.Peer
			if i := strings.LastIndexByte(peer, ':'); i >= 0 {
				peer = peer[:i]
			}
			switch {
			case peer == "" || p.State == "down":
			case p.Kind == "host":
				join(SwitchNode(s.Name), peer)
			case p.Kind == "link":
				join(SwitchNode(s.Name), SwitchNode(peer))
			}
		}
	}
	for i := range hosts {
		if tunnelled && hosts[i].Status.Address != "" {
			t.tunnelled[hosts[i].Name] = true
		}
	}
	return t
}

// Distance is the number of links on a shortest way. Not safe for several goroutines.
func (t *Topology) Distance(a, b string) (hops int, ok bool) {
	if a == b {
		return 0, true
	}
	if t.tunnelled[a] && t.tunnelled[b] {
		return 1, true
	}
	from, ok := t.known[a]
	if !ok {
		from = t.search(a)
		t.known[a] = from
	}
	hops, ok = from[b]
	return hops, ok
}

// search goes breadth first.
func (t *Topology) search(a string) map[string]int {
	from := map[string]int{a: 0}
	for queue := []string{a}; len(queue) > 0; queue = queue[1:] {
		for _, next := range t.links[queue[0]] {
			if _, seen := from[next]; !seen {
				from[next] = from[queue[0]] + 1
				queue = append(queue, next)
			}
		}
	}
	return from
}
