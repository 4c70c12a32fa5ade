package discovery

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
)

// Cable is a link by its ends, the smaller one first.
type Cable struct{ A, B fabric.At }

func CableOf(a, b fabric.At) Cable {
	if a.Compare(b) > 0 {
		a, b = b, a
	}
	return Cable{a, b}
}

// outage of a link: when it was last known to work.
type outage struct{ at time.Time }

// Survey is what there is between switches and hosts.
type Survey struct {
	Ports   map[uint64][]fabric.Port // of switches: those that frames may pass
	Links   map[Cable]uint32         // between switches, and their costs
	Uplinks map[string]Cable         // of hosts: the one that is in use
}

func (n *Network) Survey(now time.Time) Survey {
	s := Survey{Ports: make(map[uint64][]fabric.Port, len(n.Switches)), Links: map[Cable]uint32{}, Uplinks: map[string]Cable{}}
	for _, d := range n.Switches {
		for _, p := range d.sortedPorts() {
			at := fabric.At{Switch: d.ID, Port: fabric.Port{Number: flow.Port(p.Number)}}
			if n.surveyPort(&s, d, p, at, now) {
				s.Ports[d.DPID] = append(s.Ports[d.DPID], at.Port)
			}
		}
	}
	return s
}

// surveyPort adds what is behind a port, and tells whether frames may pass it.
func (n *Network) surveyPort(s *Survey, d *Switch, p *Port, at fabric.At, now time.Time) bool {
	switch {
	case !p.Up || p.looped:
		return false
	case p.heard.IsZero():
		return p.edge
	}
	id, host, err := lldp.ParseChassis(string(p.from.Switch))
	switch {
	case err != nil:
		return true
	case host != "":
		c := Cable{at, p.from}
		used, there := s.Uplinks[host]
		if !there || cmp.Or(strings.Compare(c.B.Port.Name, used.B.Port.Name), c.A.Compare(used.A)) < 0 {
			s.Uplinks[host] = c
		}
		return true
	}
	// A link has to be heard at both ends. What is one at one end is no edge port: floods would go round by it.
	peer := n.Switches[id]
	if peer == nil {
		return false
	}
	q := peer.Ports[uint32(p.from.Port.Number)]
	if q == nil || !q.Up || q.looped || q.heard.IsZero() || q.from != at {
		return false
	}
	cost := uint32(1)
	switch {
	case p.silent || q.silent:
		cost = silentCost
	case n.isLost(d, now) || n.isLost(peer, now):
		cost = lostCost
	}
	s.Links[CableOf(at, p.from)] = cost
	return true
}

// Edges are the ports where stations may be.
func (n *Network) Edges() map[Seat]bool {
	all := map[Seat]bool{}
	for _, d := range n.Switches {
		for _, p := range d.Ports {
			if p.stations() {
				all[Seat{d.ID, p.Number}] = true
			}
		}
	}
	return all
}

// stations tells whether there may be stations behind a port.
func (p *Port) stations() bool { return p.Up && p.edge && !p.looped && p.heard.IsZero() }

// Status is how a switch's ports are reported.
func (n *Network) Status(d *Switch, stations map[Seat][]string) (all []api.SwitchPort) {
	for _, p := range d.sortedPorts() {
		x := api.SwitchPort{Number: p.Number, Name: p.Name, State: api.LinkDown, Kind: "unknown"}
		if p.Up {
			x.State = api.LinkUp
		}
		switch {
		case p.looped:
			x.Kind, x.Peer = "link", n.atName(p.from)
		case !p.heard.IsZero():
			x.Kind, x.Peer = "link", n.atName(p.from)
			if _, host := p.from.Switch.Host(); host {
				x.Kind = "host"
			}
		case p.edge:
			x.Kind, x.Stations = "edge", stations[Seat{d.ID, p.Number}]
		}
		all = append(all, x)
	}
	return all
}

// isLost: not connected, and after the start not merely not yet.
func (n *Network) isLost(d *Switch, now time.Time) bool {
	return !d.Connected && !(d.Remembered && now.Sub(n.started) < SettleTime)
}

// CompareLinks tells which links are new or gone.
func (n *Network) CompareLinks(links map[Cable]uint32, now time.Time) {
	for c, cost := range links {
		if n.Links[c] || cost == silentCost {
			continue
		}
		n.Links[c] = true
		was, gone := n.lost[c]
		delete(n.lost, c)
		if gone {
			d := now.Sub(was.at)
			n.event(api.Info, "LinkRestored", api.KindSwitch, n.nameOf(c.A.Switch), fmt.Sprintf("the link %s is back", n.cableName(c)), d)
		} else {
			n.Log.Info("link", "ends", n.cableName(c))
		}
	}
	for c := range n.Links {
		if cost, there := links[c]; there && cost != silentCost {
			continue
		}
		delete(n.Links, c)
		if len(n.lost) > 4096 {
			clear(n.lost)
		}
		n.lost[c] = outage{now}
		n.event(api.Warning, "LinkLost", api.KindSwitch, n.nameOf(c.A.Switch), fmt.Sprintf("the link %s is lost", n.cableName(c)), 0)
	}
}

func (n *Network) cableName(c Cable) string { return n.atName(c.A) + " - " + n.atName(c.B) }

// atName is a port as people know it: "s1:2", "h1:eth1".
func (n *Network) atName(at fabric.At) string {
	if at.Port.Name != "" {
		return n.nameOf(at.Switch) + ":" + strings.TrimPrefix(at.Port.Name, "uplink/")
	}
	return fmt.Sprintf("%s:%d", n.nameOf(at.Switch), at.Port.Number)
}

func (n *Network) nameOf(id fabric.SwitchID) string {
	if name, ok := id.Host(); ok {
		return name
	}
	if d := n.switchOf(id); d != nil {
		return d.Name
	}
	return string(id)
}
