package router

import (
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/term"
)

// direct finds where one way of a policy begins and ends, and what it matches.
func (c *compiler) direct(p *policy, w way) (*direction, error) {
	src, dst := p.from, p.to
	if w == reverse {
		src, dst = dst, src
	}
	d := &direction{policy: p, way: w}
	var base flow.Match
	srcPort, err := c.endpoint(src)
	if err != nil {
		return nil, err
	}
	dstPort, err := c.endpoint(dst)
	if err != nil {
		return nil, err
	}
	base.InPort, base.OutPort = srcPort, dstPort
	switch {
	case dst.Kind == api.SelectEndpoint:
		d.stage = flow.Egress
		d.exit = exit{used: true, op: flow.Output, port: dstPort, to: "endpoint/" + dst.Endpoint}
	case src.Kind == api.SelectEndpoint:
		d.exit = exit{used: true, op: flow.Resume, port: srcPort, to: "endpoint/" + src.Endpoint}
	default:
		d.exit = exit{used: true, op: flow.Resume, learned: true, to: "where it was met"}
	}
	constrain(&base, src, dst)
	for _, t := range p.terms {
		found := 0
		for _, m := range term.Matches(nil, t, w == reverse) {
			if m, ok := flow.Intersect(base, m); ok {
				d.add(m, t)
				found++
			}
		}
		if found == 0 {
			return nil, fmt.Errorf("match %q can never meet from %s to %s: %s", t, src, dst, term.Apart(t))
		}
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
	return 0, fmt.Errorf("endpoint %s: %w", s.Endpoint, ErrNotReady)
}

// wholeMAC is the mask of one address.
var wholeMAC = flow.MAC{255, 255, 255, 255, 255, 255}

func constrain(m *flow.Match, src, dst api.Selector) {
	switch src.Kind {
	case api.SelectPrefix:
		m.Src = src.Prefix
	case api.SelectMAC:
		m.SrcMAC, m.SrcMACMask = src.MAC, wholeMAC
	}
	switch dst.Kind {
	case api.SelectPrefix:
		m.Dst = dst.Prefix
	case api.SelectMAC:
		m.DstMAC, m.DstMACMask = dst.MAC, wholeMAC
	}
}
