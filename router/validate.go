package router

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/placement"
	"weir.dev/weir/router/policy"
)

// maxConflicts bounds how many conflicting pairs of policies are reported at once.
const maxConflicts = 20

// Validate checks a whole set of objects, each by itself and all together: names that are not there, things that exist
// twice, functions in two places, chains that cannot be shared, policies that contradict each other. No problems: Compile will serve it.
func Validate(d api.Document) []api.Problem { return ValidateChange(d, d) }

// ValidateChange is Validate of a document of which only a part is new or changed: what does not go with something that was there, such as
// an address that is taken or a policy for the same packets, is a problem of that part.
func ValidateChange(d, changed api.Document) []api.Problem {
	v := newValidator(d, changed)
	v.endpoints()
	v.chains()
	v.policies()
	v.rules()
	return v.problems
}

type validator struct {
	doc      api.Document
	changed  api.Document
	problems []api.Problem
	bad      map[string]bool          // "policies.guests": has a problem already
	paths    map[string][]api.PathHop // of chains; none of those that cannot be read
}

// read is a validator that has found no problem.
func read(d, changed api.Document) *validator {
	v := &validator{doc: d, changed: changed, bad: map[string]bool{}, paths: make(map[string][]api.PathHop, len(d.Chains))}
	for name, c := range d.Chains {
		if hops, err := api.ParsePath(c.Path); err == nil {
			v.paths[name] = hops
		}
	}
	return v
}

// newValidator has found the problems that each object has by itself.
func newValidator(d, changed api.Document) *validator {
	v := read(d, changed)
	for name := range d.Chains {
		v.named("chains", name)
	}
	for name := range d.Policies {
		v.named("policies", name)
	}
	for _, p := range d.Validate() {
		v.report(p)
	}
	return v
}

// named marks an object whose name will not do: a problem's path does not tell where such a name ends.
func (v *validator) named(kinds, name string) {
	if api.CheckName(name) != nil {
		v.bad[kinds+"."+name] = true
	}
}

func (v *validator) report(p api.Problem) {
	v.problems = append(v.problems, p)
	parts := strings.SplitN(p.Path, ".", 3)
	v.bad[strings.Join(parts[:min(2, len(parts))], ".")] = true
}

func (v *validator) add(path, hint, format string, args ...any) {
	v.report(api.Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// endpoints: nothing may be claimed twice.
func (v *validator) endpoints() {
	taken := map[string]string{} // what -> by which endpoint
	claim := func(name, field, what, hint string) {
		if other, twice := taken[what]; twice {
			v.add("endpoints."+name+"."+field, hint, "%s is that of endpoint %q already", what, other)
			return
		}
		taken[what] = name
	}
	for _, name := range inOrder(v.doc.Endpoints, v.changed.Endpoints) {
		e := v.doc.Endpoints[name]
		where := ""
		if e.Host != "" {
			where = " of host " + e.Host
		}
		switch {
		case !e.OfHost(): // a station of the fabric
		case e.Netns == "":
			claim(name, "interface", "interface "+e.Interface+where, "an interface is one port of the switch")
		default:
			claim(name, "interface", "interface "+e.Interface+" in netns "+strings.TrimPrefix(e.Netns, "/run/netns/")+where, "choose another interface name or netns")
		}
		if mac, err := api.ParseMAC(e.MAC); err == nil {
			claim(name, "mac", "MAC "+flow.MAC(mac).String(), "two stations of one network cannot share a MAC")
		}
		mine := map[netip.Addr]bool{}
		for i, text := range append([]string{e.Address}, e.Addresses...) {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			field := "address"
			if i > 0 {
				field = fmt.Sprintf("addresses[%d]", i-1)
			}
			if mine[p.Addr()] {
				v.add("endpoints."+name+"."+field, "", "address %s is given twice", p.Addr())
				continue
			}
			mine[p.Addr()] = true
			claim(name, field, "address "+p.Addr().String(), "two stations of one network cannot share an address")
		}
	}
	v.shared(taken)
}

// shared addresses are nobody's own. taken are the addresses of endpoints, see endpoints.
func (v *validator) shared(taken map[string]string) {
	security := func(name string) api.PortSecurity {
		if p := v.doc.Endpoints[name].PortSecurity; p != nil {
			return *p
		}
		return api.PortSecurity{}
	}
	may := map[netip.Addr]string{} // addresses of which port_security lets an endpoint tell
	for name := range v.doc.Endpoints {
		for _, text := range security(name).Addresses {
			if p, err := api.ParseCIDR(text); err == nil && p.IsSingleIP() && (may[p.Addr()] == "" || name < may[p.Addr()]) {
				may[p.Addr()] = name
			}
		}
	}
	const hint = "a shared address belongs to no endpoint: endpoints that send from it all name it in port_security.shared, and none in address, addresses or port_security.addresses"
	for _, name := range inOrder(v.doc.Endpoints, v.changed.Endpoints) {
		for i, text := range security(name).Shared {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			field := fmt.Sprintf("endpoints.%s.port_security.shared[%d]", name, i)
			switch owner, other := taken["address "+a.String()], may[a]; {
			case owner != "" && owner != name: // its own is a problem of the endpoint alone
				v.add(field, hint, "address %s is that of endpoint %q", a, owner)
			case other != "":
				v.add(field, hint, "address %s is also in port_security.addresses of endpoint %q, which may claim it by ARP", a, other)
			}
		}
	}
}

// inOrder are names as they are looked at: what was there has what it claims, before what is new or changed.
func inOrder[S any](all, changed map[string]S) []string {
	var before, after []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, later := changed[name]; later {
			after = append(after, name)
		} else {
			before = append(before, name)
		}
	}
	return append(before, after...)
}

// chains: functions exist, each in one place only.
func (v *validator) chains() {
	place := map[string]string{}
	for _, name := range inOrder(v.doc.Chains, v.changed.Chains) {
		path := "chains." + name + ".path"
		for _, h := range v.paths[name] {
			if _, ok := v.doc.Functions[h.Function]; !ok {
				v.add(path, unknown(h.Function, v.doc.Functions, "function"), "function %q is not there", h.Function)
				continue
			}
			if other, twice := place[h.Function]; twice {
				v.add(path, "a function's port tells which chain a frame is in: make a second function of the same image",
					"function %q is in chain %q already", h.Function, other)
				continue
			}
			place[h.Function] = name
		}
	}
}

// policies: chain and endpoints exist.
func (v *validator) policies() {
	for _, name := range slices.Sorted(maps.Keys(v.doc.Policies)) {
		p := v.doc.Policies[name]
		path := "policies." + name
		if _, ok := v.doc.Chains[p.Chain]; !ok && p.Chain != "" {
			v.add(path+".chain", unknown(p.Chain, v.doc.Chains, "chain"), "chain %q is not there", p.Chain)
		}
		for _, end := range [][2]string{{"from", p.From}, {"to", p.To}} {
			s, err := api.ParseSelector(end[1])
			if err != nil || s.Kind != api.SelectEndpoint {
				continue
			}
			if _, ok := v.doc.Endpoints[s.Endpoint]; !ok {
				v.add(path+"."+end[0], unknown(s.Endpoint, v.doc.Endpoints, "endpoint"), "endpoint %q is not there", s.Endpoint)
			}
		}
	}
}

// unknown says what the writer may have meant.
func unknown[T any](name string, known map[string]T, kind string) string {
	best, distance := "", 3
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := api.EditDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best != "" && distance < len(name) {
		return fmt.Sprintf("did you mean %q?", best)
	}
	if len(known) == 0 {
		return fmt.Sprintf("there is no %s at all yet", kind)
	}
	return fmt.Sprintf("define the %s %q first, or name one that is there", kind, name)
}

// rules compiles what is sound so far, with invented ports, and looks for contradictions.
func (v *validator) rules() {
	in, names := v.invent()
	c := newCompiler(in, inOrder(in.Policies, v.changed.Policies))
	steering, copying := c.entries()
	v.bothWays(c)
	c.compose(steering, copying)
	for _, p := range c.policies {
		for _, err := range p.errs {
			if !errors.Is(err, policy.ErrNotReady) { // a part with a problem of its own
				v.add("policies."+p.Name, "", "%s", err)
			}
		}
	}
	found := 0
	look := func(entries []planned, counts func(a, b *compiled) bool) {
		byPriority := map[int][]planned{}
		for _, e := range entries {
			p := e.policy.Priority
			byPriority[p] = append(byPriority[p], e)
		}
		for _, priority := range slices.Sorted(maps.Keys(byPriority)) {
			conflicts(byPriority[priority], func(a, b planned) bool {
				if !counts(a.policy, b.policy) {
					return true
				}
				if found++; found > maxConflicts {
					return false
				}
				v.conflict(a, b, names)
				return true
			})
		}
	}
	kinds := [][]planned{steering, copying}
	for _, entries := range kinds {
		look(entries, func(a, b *compiled) bool { return true })
	}
	crosses := v.crossing(c)
	if len(crosses) == 0 {
		return
	}
	for _, entries := range kinds {
		look(v.whereTheyEnter(entries), func(a, b *compiled) bool {
			return between(a) != between(b) && (crosses[a.chain.Name] || crosses[b.chain.Name])
		})
	}
}

// between tells that both ends are endpoints.
func between(p *compiled) bool {
	return p.From.Kind == api.SelectEndpoint && p.To.Kind == api.SelectEndpoint
}

// crossing are the chains of policies that the router will steer, as far as the document tells where things are.
func (v *validator) crossing(c *compiler) map[string]bool {
	p := placement.Places{Endpoints: map[string]string{}, Functions: map[string]string{}, Chains: v.doc.Chains}
	hosts := map[string]bool{}
	at := func(host string) string { // one without a name is a host, too
		hosts[host] = true
		return "host " + host
	}
	stations := false
	for name, e := range v.doc.Endpoints {
		if e.OfHost() {
			p.Endpoints[name] = at(e.Host)
		} else {
			stations = true
		}
	}
	for name, f := range v.doc.Functions {
		p.Functions[name] = at(f.Host)
	}
	if !stations && len(hosts) < 2 {
		return nil // all is on one host
	}
	crosses := map[string]bool{}
	for name, owner := range placement.Owners(p, c.in.Policies) {
		if owner.Host == "" {
			crosses[c.in.Policies[name].Chain] = true
		}
	}
	return crosses
}

// whereTheyEnter are the entries at the place where frames enter, as a fabric has them: a policy between two endpoints takes them there
// already, if one of the two or its functions are elsewhere, and knows the other end by its address.
func (v *validator) whereTheyEnter(entries []planned) []planned {
	var all []planned
	for _, e := range entries {
		if !between(e.policy) {
			if e.Stage == flow.Ingress {
				all = append(all, e)
			}
			continue
		}
		from, to := e.policy.From.Endpoint, e.policy.To.Endpoint
		if e.way == policy.Reverse {
			from, to = to, from
		}
		e.Stage, e.Match.OutPort = flow.Ingress, 0
		for _, src := range v.knownBy(e, from, true) {
			for _, dst := range v.knownBy(e, to, false) {
				if m, ok := flow.Intersect(src, dst); ok {
					if m, ok = flow.Intersect(m, e.Match); ok {
						this := e
						this.Match = m
						all = append(all, this)
					}
				}
			}
		}
	}
	return all
}

// knownBy are the matches of an endpoint's frames in a fabric, but for its port.
func (v *validator) knownBy(e planned, endpoint string, source bool) []flow.Match {
	spec := v.doc.Endpoints[endpoint]
	var all []flow.Match
	if e.policy.Spec.MatchBy != api.MatchByMAC && e.Match.EtherType != flow.EtherTypeARP {
		for _, text := range append([]string{spec.Address}, spec.Addresses...) {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			all = append(all, policy.ByAddress(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), source))
		}
	}
	if mac, err := api.ParseMAC(spec.MAC); err == nil && len(all) == 0 {
		all = append(all, policy.ByMAC(mac, source))
	}
	if len(all) == 0 {
		all = append(all, flow.Match{})
	}
	return all
}

// invent gives every sound object ports as it would get them.
func (v *validator) invent() (Input, map[flow.Port]string) {
	in := Input{Endpoints: map[string]flow.Port{}, Functions: map[string]Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	names := map[flow.Port]string{}
	next := flow.Port(0)
	port := func() flow.Port { next++; return next }
	for _, name := range slices.Sorted(maps.Keys(v.doc.Endpoints)) {
		p := port()
		in.Endpoints[name], names[p] = p, name
	}
	for name, spec := range v.doc.Chains {
		hops, readable := v.paths[name]
		if !readable || v.bad["chains."+name] {
			continue
		}
		in.Chains[name] = spec
		for _, h := range hops {
			if h.Tap {
				in.Functions[h.Function] = Function{Tap: port()}
			} else {
				in.Functions[h.Function] = Function{In: port(), Out: port()}
			}
		}
	}
	for name, spec := range v.doc.Policies {
		if !v.bad["policies."+name] && !v.bad["chains."+spec.Chain] {
			in.Policies[name] = spec
		}
	}
	return in, names
}

// bothWays refuses a policy whose replies may look like its requests. Where it names ports, those tell.
func (v *validator) bothWays(c *compiler) {
	for _, p := range c.policies {
		if len(p.ways) < 2 || p.ways[0].stage != p.ways[1].stage {
			continue
		}
		v.ambiguous(p)
	}
}

func (v *validator) ambiguous(p *compiled) {
	for _, there := range p.ways[0].entries {
		for _, back := range p.ways[1].entries {
			m, ok := flow.Intersect(there.match, back.match)
			if !ok || !m.SrcPorts.Any() || !m.DstPorts.Any() || m.ToItself() {
				continue
			}
			if m.Src.IsValid() || m.Dst.IsValid() {
				v.add("policies."+p.Name, "set symmetric: false, or let from and to have no address in common",
					"from %s to %s, frames and their replies (%s) look the same between two addresses of %s, so the chain's direction cannot be told",
					p.From, p.To, there.term, shared(m))
				return
			}
			v.add("policies."+p.Name, "set symmetric: false, or name an endpoint, CIDR or MAC in from or to",
				"from %s to %s, frames and their replies (%s) look the same, so the chain's direction cannot be told", p.From, p.To, there.term)
			return
		}
	}
}

// shared is the network of the addresses that may be on either end.
func shared(m flow.Match) netip.Prefix {
	if m.Src.IsValid() {
		return m.Src
	}
	return m.Dst
}

// conflict is b's, unless a alone is new or changed.
func (v *validator) conflict(a, b planned, names map[flow.Port]string) {
	_, newer := v.changed.Policies[a.policy.Name]
	if _, both := v.changed.Policies[b.policy.Name]; newer && !both {
		a, b = b, a
	}
	m, _ := flow.Intersect(a.Match, b.Match)
	m = v.lifelike(m, names)
	_, k, ok := flow.Witness(m)
	if !ok {
		return
	}
	where := "entering anywhere"
	if in := names[m.InPort]; in != "" {
		where = "entering at endpoint/" + in
	}
	if out := names[m.OutPort]; out != "" {
		where += ", leaving at endpoint/" + out
	}
	text := k.String()
	if k.HasIP && (m.SrcMACMask != flow.MAC{} || m.DstMACMask != flow.MAC{}) {
		text += fmt.Sprintf(" (%s -> %s)", k.SrcMAC, k.DstMAC)
	}
	v.add("policies."+b.policy.Name, "give one of them another priority, or narrow from, to or match",
		"conflicts with policy %q: both have the priority %d and select this packet: %s, %s",
		a.policy.Name, b.policy.Priority, text, where)
}

// lifelike gives the packet to be shown the addresses that its endpoints really have, where the match leaves that open.
func (v *validator) lifelike(m flow.Match, names map[flow.Port]string) flow.Match {
	for i, at := range [2]flow.Port{m.InPort, m.OutPort} {
		e := v.doc.Endpoints[names[at]]
		for _, text := range append([]string{e.Address}, e.Addresses...) {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			closer, ok := flow.Intersect(m, policy.ByAddress(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), i == 0))
			if _, _, real := flow.Witness(closer); ok && real {
				m = closer
				break
			}
		}
	}
	return m
}
