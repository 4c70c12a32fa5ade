package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// assigned is what came of an assignment: rules with this switch's port numbers.
type assigned struct {
	rules    []flow.Rule
	policies map[uint64]string // by cookie
	catches  map[uint64]string // of a rule that frames meet first: the direction of its policy
	missing  []string          // cookies of rules that name a port which is not there
	errs     []error           // of rules that make no sense
}

// portNames gives the numbers of all ports that an assignment may name.
func (a *Agent) portNames(views map[string]view) map[string]flow.Port {
	ports := map[string]flow.Port{}
	for name, e := range a.endpoints {
		ports["endpoint/"+name] = e.port
	}
	for name, v := range views {
		for side := range flow.Sides {
			if p := *v.ports.At(side); p != 0 {
				ports[side.Of(name)] = p
			}
		}
	}
	if a.uplink.port != 0 {
		ports["uplink/"+a.Uplink] = a.uplink.port
	}
	for name, port := range a.tunnels.Ports() {
		ports["tunnel/"+name] = port
	}
	return ports
}

// leadsOut tells the names of ports into the fabric.
func leadsOut(port string) bool {
	return strings.HasPrefix(port, "uplink/") || strings.HasPrefix(port, "tunnel/")
}

// resolve turns an assignment into rules. What names a port that is not there is missing: without its match a rule can wait, without its
// target it drops, since what should have passed a function must not go past it.
func resolve(spec api.AssignmentSpec, ports map[string]flow.Port) assigned {
	out := assigned{policies: map[uint64]string{}, catches: map[uint64]string{}}
	for _, h := range spec.Rules {
		r, missing, err := resolveRule(h, ports)
		if missing {
			out.missing = append(out.missing, h.Cookie)
		}
		switch {
		case err != nil:
			out.errs = append(out.errs, fmt.Errorf("rule %s (%s): %w", h.Cookie, h.Note, err))
			continue
		case r == nil:
			continue
		case out.policies[r.Cookie] != "":
			out.errs = append(out.errs, fmt.Errorf("rule %s (%s): its cookie is taken by another", h.Cookie, h.Note))
			continue
		}
		out.rules = append(out.rules, *r)
		out.policies[r.Cookie], out.catches[r.Cookie] = h.Policy, h.Entry
		if h.Policy == "" {
			out.policies[r.Cookie] = "-"
		}
	}
	return out
}

// resolveRule gives nil for a rule that cannot match here yet.
func resolveRule(h api.HostRule, ports map[string]flow.Port) (r *flow.Rule, missing bool, err error) {
	r = &flow.Rule{Priority: h.Priority, Note: h.Note}
	if r.Cookie, err = strconv.ParseUint(h.Cookie, 16, 64); err != nil || len(h.Cookie) != 16 {
		return nil, false, fmt.Errorf("cookie %q: want 16 hexadecimal digits", h.Cookie)
	}
	// The stage. Rules for frames that cannot be read have stages of their own, which older agents refuse.
	in, out := flow.Ingress.String(), flow.Egress.String()
	if h.Match.Unread != "" {
		in, out = api.UnreadStage(in), api.UnreadStage(out)
	}
	switch h.Stage {
	case "", in:
	case out:
		r.Stage = flow.Egress
	default:
		return nil, false, fmt.Errorf("stage %q: want %s or %s", h.Stage, in, out)
	}
	if r.Match, err = resolveMatch(h.Match); err != nil {
		return nil, false, err
	}
	if r.Action.Op, err = parseOp(h.Action.Op); err != nil {
		return nil, false, err
	}
	r.Action.Pop, r.Action.Push = h.Action.Pop, h.Action.Push
	// Fabric tags are for ports into the fabric only: no endpoint or function may see one.
	if r.Action.Push != 0 && !leadsOut(h.Action.Port) {
		return nil, false, fmt.Errorf("fabric tag %d is pushed to %q, which is no port into the fabric", r.Action.Push, h.Action.Port)
	}
	if r.Match.Tag != 0 && h.Match.InPort != "" && !leadsOut(h.Match.InPort) {
		return nil, false, fmt.Errorf("fabric tag %d is matched at %q, which is no port into the fabric", r.Match.Tag, h.Match.InPort)
	}
	// A rule whose match names a missing port has nothing to match: it waits.
	for _, at := range []struct {
		name string
		port *flow.Port
	}{{h.Match.InPort, &r.Match.InPort}, {h.Match.OutPort, &r.Match.OutPort}} {
		if *at.port = ports[at.name]; at.name != "" && *at.port == 0 {
			return nil, true, nil
		}
	}
	// A missing port of a copy costs the copy. A missing target costs the frame: it must not pass unsteered.
	for _, c := range h.Action.Clones {
		if c.Push != 0 && !leadsOut(c.Port) {
			return nil, false, fmt.Errorf("fabric tag %d is pushed on a copy to %q, which is no port into the fabric", c.Push, c.Port)
		}
		if p := ports[c.Port]; p != 0 {
			r.Action.Clones = append(r.Action.Clones, flow.Clone{Port: p, Push: c.Push})
			continue
		}
		missing = true
	}
	if r.Action.Port = ports[h.Action.Port]; h.Action.Port != "" && r.Action.Port == 0 {
		missing = true
		r.Action = flow.Action{Op: flow.Drop}
		r.Note += " (dropped: " + h.Action.Port + " is not there)"
	}
	return r, missing, r.Validate()
}

func parseOp(s string) (flow.Op, error) {
	for _, op := range []flow.Op{flow.Normal, flow.Drop, flow.Output, flow.Resume} {
		if op.String() == s {
			return op, nil
		}
	}
	return 0, fmt.Errorf("operation %q: want normal, drop, output or resume", s)
}

// resolveMatch reads everything but the ports' names.
func resolveMatch(h api.HostMatch) (flow.Match, error) {
	m := flow.Match{Tag: h.Tag, VLAN: h.VLAN, EtherType: h.EtherType, Proto: h.Proto}
	var errs [7]error
	m.SrcMAC, m.SrcMACMask, errs[0] = parseMAC(h.SrcMAC)
	m.DstMAC, m.DstMACMask, errs[1] = parseMAC(h.DstMAC)
	m.Src, errs[2] = parsePrefix(h.Src)
	m.Dst, errs[3] = parsePrefix(h.Dst)
	m.SrcPorts, errs[4] = parsePorts(h.SrcPorts)
	m.DstPorts, errs[5] = parsePorts(h.DstPorts)
	m.Unread, errs[6] = flow.ParseUnread(h.Unread)
	return m, errors.Join(errs[:]...)
}

// parseMAC reads "MAC" or "MAC/MASK".
func parseMAC(s string) (mac, mask flow.MAC, err error) {
	if s == "" {
		return mac, mask, nil
	}
	mask = flow.MAC{255, 255, 255, 255, 255, 255}
	value, masked, has := strings.Cut(s, "/")
	for _, part := range []struct {
		text string
		into *flow.MAC
		use  bool
	}{{value, &mac, true}, {masked, &mask, has}} {
		if !part.use {
			continue
		}
		hw, err := net.ParseMAC(part.text)
		if err != nil || len(hw) != len(mac) {
			return mac, mask, fmt.Errorf("MAC %q: want one such as 02:00:00:00:00:01, or with a mask behind a slash", s)
		}
		*part.into = flow.MAC(hw)
	}
	return mac, mask, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	return netip.ParsePrefix(s)
}

// parsePorts reads "80" or "80-90".
func parsePorts(s string) (flow.PortRange, error) {
	if s == "" {
		return flow.PortRange{}, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil {
		return flow.PortRange{}, fmt.Errorf("ports %q: want one such as 80, or 80-90", s)
	}
	return flow.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// reportAssignment answers the router: which generation is in force, and what is missing of it. err is that of the commit.
func (a *Agent) reportAssignment(want share, got assigned, err error) {
	if want.assignment == nil {
		return
	}
	s := api.AssignmentStatus{ObservedGeneration: want.assignment.Generation, State: api.AssignmentInstalled, Missing: got.missing}
	if len(got.missing) > 0 {
		s.State = api.AssignmentPartial
		s.Message = fmt.Sprintf("%d of %d rules name ports that are not there", len(got.missing), len(want.assignment.Spec.Rules))
	}
	errs := append(got.errs, a.tunnels.Errors()...)
	if len(errs) > 0 {
		s.State, s.Message = api.AssignmentError, errors.Join(errs...).Error()
	}
	if err != nil {
		s.ObservedGeneration, s.State, s.Message = a.observed, api.AssignmentError, err.Error()
	} else {
		a.observed = want.assignment.Generation
	}
	a.report.Assignment(want.assignment.UID, s)
}
