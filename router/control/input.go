package control

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

// input is the network and the intent as they are now. What it returns is not changed later.
func (l *loop) input(now time.Time) fabric.Input {
	in := fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: make(map[string]fabric.Endpoint, len(l.intent.endpoints)),
		Functions: make(map[string]fabric.Function, len(l.intent.functions)),
		Chains:    make(map[string]api.ChainSpec, len(l.intent.chains)),
		InForce:   maps.Clone(l.inForce),
		Lingering: l.Fleet.Lingering(),
		Reserve:   l.o.Reserve,
		Beside:    l.o.NoDefaultForwarding,
	}
	l.cables(&in, now)
	l.tunnels(&in)
	l.places(&in)
	l.carryOut(now) // the events of links that are new or gone do not wait for the loop's next turn
	taps := map[string]bool{}
	for name, c := range l.intent.chains {
		in.Chains[name] = c.Spec
		hops, _ := api.ParsePath(c.Spec.Path)
		for _, h := range hops {
			taps[h.Function] = taps[h.Function] || h.Tap
		}
	}
	for name, f := range l.intent.functions {
		if f.Deleting == nil {
			in.Functions[name] = l.function(name, f, taps, &in)
		}
	}
	l.policyInput(&in)
	return in
}

// policyInput adds the policies that the router steers: those of the input before, but for what has changed since.
func (l *loop) policyInput(in *fabric.Input) {
	names := slices.Collect(maps.Keys(l.edited))
	clear(l.edited)
	if l.wanted.Policies == nil {
		in.Policies, l.versions = make(map[string]api.PolicySpec, len(l.intent.policies)), make(map[string]rollout.Version, len(l.intent.policies))
		names = slices.Collect(maps.Keys(l.intent.policies))
	} else {
		in.Before, in.Edited = l.wanted.Policies, names
		if in.Policies = in.Before; len(names) > 0 {
			in.Policies, l.versions = maps.Clone(in.Before), maps.Clone(l.versions)
		}
	}
	for _, name := range names {
		delete(in.Policies, name)
		delete(l.versions, name)
		switch p, there := l.intent.policies[name]; {
		case !there:
		case p.Placement.Routed():
			if p.Deleting == nil {
				in.Policies[name], l.versions[name] = p.Spec, rollout.VersionOf(p)
			}
		case p.Placement.FormerRouter: // also one that is being deleted: its host takes it down when it has been given back
			l.versions[name] = rollout.VersionOf(p)
		}
	}
}

// cables adds switches, hosts, and the links between them that were found.
func (l *loop) cables(in *fabric.Input, now time.Time) {
	found := l.net.Survey(now)
	for _, d := range l.switches {
		s := fabric.Switch{Name: d.Name, OneTree: d.single.is, Fragments: readsFragments(d.product), Ports: found.Ports[d.DPID]}
		for _, t := range d.tables {
			size := t.size
			if shown := d.full[t.id]; shown > 0 {
				size = shown
			}
			s.Tables = append(s.Tables, size)
		}
		in.Switches[d.ID] = s
	}
	for name, h := range l.intent.hosts {
		if h.Deleting == nil {
			in.Switches[fabric.HostID(name)] = fabric.Switch{Name: name, Host: true}
		}
	}
	for name, used := range found.Uplinks {
		s, known := in.Switches[fabric.HostID(name)]
		if !known {
			continue
		}
		s.Ports = append(s.Ports, used.B.Port)
		in.Switches[fabric.HostID(name)] = s
		found.Links[discovery.CableOf(used.A, used.B)] = 1
	}
	for _, c := range slices.SortedFunc(maps.Keys(found.Links), func(x, y discovery.Cable) int { return cmp.Or(x.A.Compare(y.A), x.B.Compare(y.B)) }) {
		in.Links = append(in.Links, fabric.Link{A: c.A, B: c.B, Cost: found.Links[c]})
	}
	l.net.CompareLinks(found.Links, now)
}

// carryOut does what follows from what was found in the network.
func (l *loop) carryOut(now time.Time) {
	f := l.net.Take()
	for dpid, messages := range f.Out {
		if d := l.switches[dpid]; d != nil && d.session != nil {
			for some := range slices.Chunk(messages, probesAtOnce) {
				d.session.out(some)
			}
		}
	}
	for _, e := range f.Events {
		l.event(e.Severity, e.Reason, e.Kind, e.Object, e.Message, time.Duration(e.OutageNs))
	}
	switch {
	case f.AtOnce:
		l.dirtyNow(now)
	case f.Changed:
		l.dirty()
	}
}

// tunnels joins all hosts with each other, where that is the underlay.
func (l *loop) tunnels(in *fabric.Input) {
	names := l.meshed("")
	for i, a := range names {
		for _, b := range names[i+1:] {
			if _, ok := l.sealed(a, b); !ok {
				continue
			}
			ap, bp := fabric.Port{Name: "tunnel/" + b}, fabric.Port{Name: "tunnel/" + a}
			in.Links = append(in.Links, fabric.Link{A: fabric.At{Switch: fabric.HostID(a), Port: ap}, B: fabric.At{Switch: fabric.HostID(b), Port: bp}, Cost: 1})
			for name, p := range map[string]fabric.Port{a: ap, b: bp} {
				s := in.Switches[fabric.HostID(name)]
				s.Ports = append(s.Ports, p)
				in.Switches[fabric.HostID(name)] = s
			}
		}
	}
}

// meshed are the hosts that tunnels join, sorted, those that are being deleted apart, but also. One with an uplink has none: what is flooded would go round by both for ever.
func (l *loop) meshed(also string) []string {
	if l.o.Underlay != UnderlayVXLAN {
		return nil
	}
	var names []string
	for name, h := range l.intent.hosts {
		if _, err := netip.ParseAddr(h.Status.Address); err != nil || h.Deleting != nil && name != also {
			continue
		}
		if len(h.Status.Uplinks) == 0 {
			names = append(names, name)
		} else if l.damp("two ways/" + name) {
			l.event(api.Warning, "NoTunnels", api.KindHost, name, fmt.Sprintf("host %s has the uplink %s, so it gets no tunnels to other hosts: frames would go round by both; start its agent without --uplink",
				name, h.Status.Uplinks[0].Interface), 0)
		}
	}
	slices.Sort(names)
	return names
}

// mesh is one host's end of all tunnels.
func (l *loop) mesh(name string) []api.Tunnel {
	hosts := l.meshed(name) // also while it is being deleted
	if !slices.Contains(hosts, name) {
		return nil
	}
	var out []api.Tunnel
	for _, other := range hosts {
		if other == name {
			continue
		}
		sealed, ok := l.sealed(name, other)
		if !ok {
			continue
		}
		h := l.intent.hosts[other].Status
		t := api.Tunnel{Host: other, Remote: h.Address, VNI: l.vni(hosts, name, other), Port: l.o.VXLANUDP}
		if sealed {
			t.Key = h.TunnelKey
		}
		out = append(out, t)
	}
	return out
}

// sealed tells whether what goes from one host to the other is encrypted, and whether there may be a tunnel at all.
func (l *loop) sealed(a, b string) (sealed, ok bool) {
	var lacks []string
	for _, name := range []string{a, b} {
		if l.intent.hosts[name].Status.TunnelKey == "" {
			lacks = append(lacks, name)
		} else {
			delete(l.toldPlain, name)
		}
	}
	if l.o.Tunnels == TunnelsPlain || len(lacks) > 0 && l.o.Tunnels == TunnelsAuto {
		for _, name := range lacks {
			if l.o.Tunnels == TunnelsAuto && !l.toldPlain[name] {
				l.toldPlain[name] = true
				l.event(api.Warning, "TunnelsPlain", api.KindHost, name, fmt.Sprintf("tunnels to host %s are not encrypted: %s; whoever is on the way can read and change what the hosts send each other (--tunnels encrypted at the manager makes no such tunnel)",
					name, cannotSeal(l.intent.hosts[name])), 0)
			}
		}
		return false, true
	}
	for _, name := range lacks {
		if !l.toldPlain[name] {
			l.toldPlain[name] = true
			l.event(api.Error, "NoTunnels", api.KindHost, name, fmt.Sprintf("host %s gets no tunnels to other hosts: %s, and --tunnels encrypted allows no others", name, cannotSeal(l.intent.hosts[name])), 0)
		}
	}
	return len(lacks) == 0, len(lacks) == 0
}

// cannotSeal is why a host has no encrypted tunnels.
func cannotSeal(h api.Host) string {
	for _, f := range h.Status.Features {
		if f.Name == api.FeatureSealed && !f.OK {
			return f.Detail
		}
	}
	return "it has not said that it can encrypt"
}

// places finds endpoints and stations, and who has declared which address.
func (l *loop) places(in *fabric.Input) {
	l.net.Declared, l.net.DeclaredIPs, l.guards = map[flow.MAC]discovery.Claim{}, map[netip.Addr]discovery.Claim{}, map[discovery.Seat]portSecurity{}
	edge := l.net.Edges()
	for name, h := range l.intent.hosts {
		for _, u := range h.Status.Uplinks {
			if mac, ok := discovery.ParseMAC(u.MAC); ok {
				l.net.Declared[mac] = discovery.Claim{Who: "host " + name}
			}
		}
	}
	taken := map[flow.MAC]string{} // stations that an endpoint is
	all := l.net.Stations.Sorted()
	for _, name := range slices.Sorted(maps.Keys(l.intent.endpoints)) {
		e := l.intent.endpoints[name]
		if e.Deleting != nil {
			continue
		}
		var f fabric.Endpoint
		if host := hostOfEndpoint(e); onHost(e) {
			f = l.hostEndpoint(name, host, e, in)
		} else {
			f = l.stationEndpoint(name, e, all, edge, taken)
		}
		in.Endpoints[name] = f
	}
	for _, s := range l.net.Stations.Sorted() { // endpoints may have added some
		if !edge[s.At] {
			continue
		}
		if c, ok := l.net.Declared[s.MAC]; ok && c.At != s.At {
			continue
		}
		in.Stations = append(in.Stations, fabric.Station{
			MAC: s.MAC, IPs: s.Addresses(), At: fabric.At{Switch: s.At.ID, Port: fabric.Port{Number: flow.Port(s.At.Port)}}, Endpoint: taken[s.MAC],
		})
	}
}

// onHost tells endpoints of hosts from stations of the fabric.
func onHost(e api.Endpoint) bool { return e.Spec.Interface != "" || e.Spec.Netns != "" }

func hostOfEndpoint(e api.Endpoint) string {
	return cmp.Or(placedAt(e.Placement), e.Spec.Host, e.Status.Host)
}

// hostEndpoint is at its host's switch. Its station is there, too.
func (l *loop) hostEndpoint(name, host string, e api.Endpoint, in *fabric.Input) fabric.Endpoint {
	f := fabric.Endpoint{Prefixes: prefixes(e.Spec)}
	mac, ok := discovery.ParseMAC(cmp.Or(e.Spec.MAC, e.Status.MAC))
	s, known := in.Switches[fabric.HostID(host)]
	if ok {
		f.MACs = []flow.MAC{mac}
		l.net.Declared[mac] = discovery.Claim{Who: "endpoint " + name}
	}
	for _, p := range f.Prefixes {
		if p.IsSingleIP() {
			l.net.DeclaredIPs[p.Addr()] = discovery.Claim{Who: "endpoint " + name}
		}
	}
	if !known || e.Status.State != api.EndpointUp {
		return f
	}
	f.At = fabric.At{Switch: fabric.HostID(host), Port: fabric.Port{Name: "endpoint/" + name}}
	s.Ports = append(s.Ports, f.At.Port)
	in.Switches[fabric.HostID(host)] = s
	if ok {
		var ips []netip.Addr
		for _, p := range f.Prefixes {
			if p.IsSingleIP() {
				ips = append(ips, p.Addr())
			}
		}
		in.Stations = append(in.Stations, fabric.Station{MAC: mac, IPs: ips, At: f.At, Endpoint: name})
	}
	return f
}

// stationEndpoint is where its switch and port say, else where its address or MAC was seen.
func (l *loop) stationEndpoint(name string, e api.Endpoint, all []*discovery.Spotted, edge map[discovery.Seat]bool, taken map[flow.MAC]string) fabric.Endpoint {
	f := fabric.Endpoint{Prefixes: prefixes(e.Spec)}
	mac, hasMAC := discovery.ParseMAC(e.Spec.MAC)
	at, fixed := l.seatOf(e.Spec)
	if hasMAC {
		f.MACs = []flow.MAC{mac}
		if fixed {
			l.net.Declared[mac] = discovery.Claim{Who: "endpoint " + name, At: at}
		}
	}
	for _, p := range f.Prefixes {
		if fixed && p.IsSingleIP() {
			l.net.DeclaredIPs[p.Addr()] = discovery.Claim{Who: "endpoint " + name, At: at, MAC: mac}
		}
	}
	for _, s := range l.net.Stations.Candidates(e.Spec, f.Prefixes, all) {
		if !edge[s.At] || (fixed || at != discovery.Seat{}) && s.At != at {
			continue
		}
		at = s.At
		if !slices.Contains(f.MACs, s.MAC) {
			f.MACs = append(f.MACs, s.MAC)
		}
		if taken[s.MAC] == "" {
			taken[s.MAC] = name
		}
	}
	if !edge[at] {
		return f
	}
	f.At = fabric.At{Switch: at.ID, Port: fabric.Port{Number: flow.Port(at.Port)}}
	known := mac
	if !hasMAC && len(f.MACs) == 1 {
		known = f.MACs[0]
	}
	if g := router.Guard(e.Spec, known); g.On {
		l.guardAt(at, name, g)
	}
	if hasMAC && fixed && taken[mac] == "" {
		l.net.Stations.See(mac, netip.Addr{}, at, l.o.Now()) // where it was declared, before it has said anything
		taken[mac] = name
	}
	return f
}

// seatOf is the port that an endpoint's spec names.
func (l *loop) seatOf(e api.EndpointSpec) (discovery.Seat, bool) {
	d := l.byName[e.Switch]
	if d == nil || e.SwitchPort == "" {
		return discovery.Seat{}, false
	}
	if n, err := strconv.ParseUint(e.SwitchPort, 10, 32); err == nil {
		return discovery.Seat{ID: d.ID, Port: uint32(n)}, true
	}
	for _, p := range d.Ports {
		if p.Name == e.SwitchPort {
			return discovery.Seat{ID: d.ID, Port: p.Number}, true
		}
	}
	return discovery.Seat{}, false
}

// prefixes are an endpoint's addresses. One with host bits is that host's, with the mask of its network: 10.9.0.1/24 is 10.9.0.1.
func prefixes(e api.EndpointSpec) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range append([]string{e.Address}, e.Addresses...) {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		} else if p, err := netip.ParsePrefix(s); err == nil {
			if p.Masked().Addr() != p.Addr() {
				p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
			}
			out = append(out, p)
		}
	}
	return out
}

// function is where a function really can be met: at its new place when it runs there, before that at the old one, as long as that can be
// reached. Where nobody has told of it since it was placed, it is taken to run on where it ran last: that host keeps it as long as rules
// lead to it.
func (l *loop) function(name string, f api.Function, taps map[string]bool, in *fabric.Input) fabric.Function {
	tap := f.Status.Ports.Tap != 0
	if f.Status.Ports == (api.FunctionPorts{}) { // it has not run yet
		tap = taps[name]
	}
	out := fabric.Function{
		Tap: tap, OnFail: cmp.Or(f.Spec.OnFail, api.OnFailDrop), Rewrites: len(f.Status.Rewrites) > 0,
	}
	runs := f.Status.State == api.FunctionStarted && f.Status.Healthy
	host := placedAt(f.Placement)
	if runs && f.Status.Host == host && host != "" {
		l.placed[name] = host
		out.Host, out.Ready = fabric.HostID(host), true
		return out
	}
	old := l.placed[name]
	if old == "" && runs { // the router was started after that
		old = f.Status.Host
	}
	if old != "" && (old != host || f.Status.Host == "") && l.reachable(old, in) {
		out.Host, out.Ready = fabric.HostID(old), runs || f.Status.Host != old
		return out
	}
	if host != "" {
		out.Host = fabric.HostID(host)
	}
	return out
}

// reachable: the host is at the fabric, or joined to others by tunnels and not lost.
func (l *loop) reachable(host string, in *fabric.Input) bool {
	h, known := l.intent.hosts[host]
	if !known {
		return false
	}
	if l.o.Underlay == UnderlayVXLAN && len(h.Status.Uplinks) == 0 {
		return h.Status.State != api.HostLost
	}
	id := fabric.HostID(host)
	return slices.ContainsFunc(in.Links, func(k fabric.Link) bool { return k.A.Switch == id || k.B.Switch == id })
}
