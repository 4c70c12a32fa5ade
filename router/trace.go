package router

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
)

// Trace tells what becomes of a packet from one endpoint to another, and of the reply to it, by the policies of a document: they are compiled with
// invented ports and carried out by the reference switch. Functions hand on what they get, but for those that are down. macs are the endpoints'
// addresses where specs leave them open. Errors are [api.Problem]s about a query.
func Trace(d api.Document, q api.TraceQuery, macs map[string]string, down map[string]bool) (api.Trace, error) {
	m, err := packet(d, q, macs)
	if err != nil {
		return api.Trace{}, err
	}
	t := newTracer(d, down)
	there, err := t.follow(q.From, q.To, m)
	if err != nil {
		return api.Trace{}, err
	}
	back, err := t.follow(q.To, q.From, replyTo(m))
	return api.Trace{From: q.From, To: q.To, Request: there, Reply: back}, err
}

// badQuery refuses a parameter.
func badQuery(name, hint, format string, args ...any) error {
	return api.Refuse(http.StatusBadRequest, "the query is refused", api.Problem{Path: "query." + name, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// sourcePort of a packet whose query names none: the first that clients take (RFC 6335).
const sourcePort = 49152

// packet makes the match that only the packet asked about meets.
func packet(d api.Document, q api.TraceQuery, macs map[string]string) (flow.Match, error) {
	var none flow.Match
	for _, end := range [][2]string{{"from", q.From}, {"to", q.To}} {
		if _, ok := d.Endpoints[end[1]]; !ok {
			return none, badQuery(end[0], unknown(end[1], d.Endpoints, "endpoint"), "endpoint %q is not there", end[1])
		}
	}
	if q.From == q.To {
		return none, badQuery("to", "want another endpoint", "%q is where the packet comes from", q.To)
	}
	const form = "want tcp, udp or sctp with a port, as in tcp/80, or icmp or arp"
	t, err := api.ParseMatch(cmp.Or(q.Match, string(api.ProtocolICMP)))
	if err != nil {
		return none, badQuery("match", form, "%s", err)
	}
	if t.First != t.Last || t.First == 0 && t.Protocol != api.ProtocolICMP && t.Protocol != api.ProtocolARP {
		return none, badQuery("match", form, "%q is more than one packet", q.Match)
	}
	src, dst, err := ends(d, q, t)
	if err != nil {
		return none, err
	}
	for _, m := range policy.Matches(nil, t, policy.Forward) {
		if src.IsValid() {
			m.Src, m.Dst = netip.PrefixFrom(src, src.BitLen()), netip.PrefixFrom(dst, dst.BitLen())
		}
		if m.Validate() != nil { // the other family's
			continue
		}
		if t.First != 0 {
			port := cmp.Or(q.SourcePort, sourcePort)
			if port < 0 || port > 65535 {
				return none, badQuery("source_port", "want a number from 1 to 65535", "is %d", port)
			}
			m.SrcPorts = flow.PortRange{First: uint16(port), Last: uint16(port)}
		}
		if q.VLAN < 0 || q.VLAN > 4094 {
			return none, badQuery("vlan", "want a number from 1 to 4094", "is %d", q.VLAN)
		}
		m.VLAN = cmp.Or(uint16(q.VLAN), flow.VLANNone)
		m, _ = flow.Intersect(m, policy.ByMAC(stationMAC(d, q.From, macs, 1), true))
		m, _ = flow.Intersect(m, policy.ByMAC(stationMAC(d, q.To, macs, 2), false))
		return m, nil
	}
	return none, badQuery("match", form, "%s between %s and %s is no packet", t, src, dst)
}

// stationMAC is an endpoint's address as far as it is known, or an invented one.
func stationMAC(d api.Document, name string, macs map[string]string, invented byte) flow.MAC {
	mac, err := api.ParseMAC(cmp.Or(d.Endpoints[name].MAC, macs[name]))
	if err != nil {
		return flow.MAC{0x02, 0, 0, 0, 0, invented}
	}
	return mac
}

// ends are the packet's addresses: those of the query, else the endpoints' first ones of one family. Both are invalid where there are none.
func ends(d api.Document, q api.TraceQuery, t api.Term) (src, dst netip.Addr, err error) {
	if t.Protocol == api.ProtocolARP {
		if q.Source != "" || q.Destination != "" {
			return src, dst, badQuery("match", "leave the addresses out", "ARP has no IP header")
		}
		return src, dst, nil
	}
	from, err := addresses("source", q.Source, d.Endpoints[q.From])
	if err != nil {
		return src, dst, err
	}
	to, err := addresses("destination", q.Destination, d.Endpoints[q.To])
	if err != nil {
		return src, dst, err
	}
	for _, a := range from {
		for _, b := range to {
			if a.Is4() == b.Is4() {
				return a, b, nil
			}
		}
	}
	missing, of := "source", q.From
	if len(from) > 0 {
		missing, of = "destination", q.To
	}
	return src, dst, badQuery(missing, "name an address of the packet", "endpoint %q has no address of that family in its spec", of)
}

func addresses(parameter, given string, e api.EndpointSpec) ([]netip.Addr, error) {
	if given != "" {
		a, err := netip.ParseAddr(given)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return nil, badQuery(parameter, "want an IPv4 or IPv6 address", "is %q", given)
		}
		return []netip.Addr{a}, nil
	}
	var all []netip.Addr
	for _, text := range append([]string{e.Address}, e.Addresses...) {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Addr())
		}
	}
	return all, nil
}

// replyTo is the answer to a packet.
func replyTo(m flow.Match) flow.Match {
	m.SrcMAC, m.DstMAC = m.DstMAC, m.SrcMAC
	m.Src, m.Dst = m.Dst, m.Src
	m.SrcPorts, m.DstPorts = m.DstPorts, m.SrcPorts
	return m
}

// tracer has the policies of a document ready to be asked.
type tracer struct {
	doc     api.Document
	in      Input
	out     Output
	entries []planned
	down    map[string]bool
}

func newTracer(d api.Document, down map[string]bool) *tracer {
	t := &tracer{doc: d, down: down}
	t.in, _ = read(d, d).invent()
	c := newCompiler(t.in, slices.Sorted(maps.Keys(t.in.Policies)))
	steering, copying := c.entries()
	t.entries = slices.Concat(steering, copying)
	t.out = c.output(c.unread(steering, copying))
	return t
}

// follow lets a packet enter at an endpoint. The other endpoints are left out: what is flooded is followed to the one that is asked about.
func (t *tracer) follow(from, to string, m flow.Match) (api.TraceWay, error) {
	way := api.TraceWay{Policies: []api.TracePolicy{}, Steps: []api.TraceStep{}}
	frame, k, ok := flow.Witness(m)
	if !ok {
		return way, fmt.Errorf("trace: no frame meets %+v", m)
	}
	way.Packet = k.String()
	// The reference switch decides: a trace uses the rules, not a second reading of the policies.
	s := flow.New()
	for _, name := range []string{from, to} {
		if err := s.AddEndpoint(t.in.Endpoints[name], name); err != nil {
			return way, fmt.Errorf("trace: %w", err)
		}
	}
	s.Know(m.SrcMAC, t.in.Endpoints[from])
	s.Know(m.DstMAC, t.in.Endpoints[to])
	for name, f := range t.in.Functions {
		err := s.AddFunction(flow.Function{Name: name, In: f.In, Out: f.Out, Tap: f.Tap, Down: t.down[name], Bypass: t.doc.Functions[name].OnFail == api.OnFailBypass})
		if err != nil {
			return way, fmt.Errorf("trace: %w", err)
		}
	}
	if err := s.Commit(t.out.Rules); err != nil {
		return way, fmt.Errorf("trace: %w", err)
	}
	result, err := s.Inject(t.in.Endpoints[from], frame)
	if err != nil {
		return way, fmt.Errorf("trace: %w", err)
	}
	decides := map[string]bool{}
	for _, step := range result.Trail {
		for _, name := range t.out.Owners[step.Cookie].Policies {
			decides[name] = true
		}
		way.Steps = append(way.Steps, api.TraceStep{Event: string(step.Event), Branch: step.Branch, Why: step.Why, Hop: api.Hop{Port: step.Name}})
	}
	for _, d := range result.Deliveries {
		way.Delivered = way.Delivered || d.Port == t.in.Endpoints[to]
	}
	way.Policies = t.concerned(k, t.in.Endpoints[from], t.in.Endpoints[to], decides)
	return way, nil
}

// concerned are the policies that select a packet, and those that select others between its ends.
func (t *tracer) concerned(k flow.Key, in, out flow.Port, decides map[string]bool) []api.TracePolicy {
	rank := map[api.TraceVerdict]int{api.TraceDecides: 0, api.TraceOutranked: 1, api.TraceOthers: 2}
	found := map[string]api.TracePolicy{}
	for _, e := range t.entries {
		at := out
		if e.Stage == flow.Ingress {
			at = 0
		}
		p := api.TracePolicy{Policy: e.policy.Name, Chain: e.policy.Spec.Chain, Mode: e.policy.Spec.ModeOrDefault(), Priority: e.policy.Priority,
			Match: e.policy.Spec.Match, Reply: e.way == policy.Reverse}
		switch {
		case e.Match.Matches(k, in, at) && decides[p.Policy]:
			p.Verdict = api.TraceDecides
		case e.Match.Matches(k, in, at):
			p.Verdict = api.TraceOutranked
		case anyService(e.Match).Matches(k, in, at):
			p.Verdict = api.TraceOthers
		default:
			continue
		}
		if old, ok := found[p.Policy]; !ok || rank[p.Verdict] < rank[old.Verdict] {
			found[p.Policy] = p
		}
	}
	all := make([]api.TracePolicy, 0, len(found))
	for _, p := range found {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b api.TracePolicy) int {
		return cmp.Or(cmp.Compare(rank[a.Verdict], rank[b.Verdict]), -cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Policy, b.Policy))
	})
	return all
}

// anyService is a match without what a policy's own match says.
func anyService(m flow.Match) flow.Match {
	m.EtherType, m.Proto, m.SrcPorts, m.DstPorts = 0, 0, flow.PortRange{}, flow.PortRange{}
	return m
}
