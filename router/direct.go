package router

import (
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
)

// direct finds where one way of a policy begins and ends, and what it matches.
func (c *compiler) direct(p *compiled, w policy.Way) (*direction, error) {
	d := &direction{Direction: p.Direction(w, policy.DestinationFirst), policy: p}
	srcPort, err := c.endpoint(d.Src)
	if err != nil {
		return nil, err
	}
	dstPort, err := c.endpoint(d.Dst)
	if err != nil {
		return nil, err
	}
	switch d.At {
	case policy.AtDestination:
		d.stage = flow.Egress
		d.exit = exit{used: true, op: flow.Output, port: dstPort, to: d.Dst.String()}
	case policy.AtSource:
		d.exit = exit{used: true, op: flow.Resume, port: srcPort, to: d.Src.String()}
	default:
		d.exit = exit{used: true, op: flow.Resume, learned: true, to: "where it was met"}
	}
	src, dst := policy.BySelector(d.Src, true), policy.BySelector(d.Dst, false)
	src.InPort, dst.OutPort = srcPort, dstPort
	from, to := []flow.Match{src}, []flow.Match{dst}
	if err := d.Matches(func(api.Term) ([]flow.Match, []flow.Match, error) { return from, to, nil }, policy.Implied, d.add); err != nil {
		return nil, err
	}
	return d, nil
}

// add leaves out a match that the direction has already ("tcp" and "all" do overlap; that is harmless, the action is one).
func (d *direction) add(m flow.Match, t api.Term) {
	for _, e := range d.entries {
		if e.match == m {
			return
		}
	}
	d.entries = append(d.entries, entry{m, t.String()})
}

// endpoint gives the port of a selector that names one.
func (c *compiler) endpoint(s api.Selector) (flow.Port, error) {
	if s.Kind != api.SelectEndpoint {
		return 0, nil
	}
	if port := c.in.Endpoints[s.Endpoint]; port != 0 {
		return port, nil
	}
	return 0, fmt.Errorf("endpoint %s: %w", s.Endpoint, policy.ErrNotReady)
}
