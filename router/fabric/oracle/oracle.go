// Package oracle says what policies mean for one frame, told from the policies themselves: no paths, entries or tags. The compiler is
// tested against it in memory, and whole networks with real packets.
//
// A frame passes two stages: where its source is, and where a destination is about to get it. At each, the most important policy that
// steers takes it, and the most important one that copies gets a copy. Which stage a policy's direction belongs to: that of its source
// if that is an endpoint, else that of its destination if that is one, else of every source. Policies local to one host put the
// destination first.
package oracle

import (
	"net/netip"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// Rewrite is what a function does to frames: the port where it gets one ("function/nat/in") and the frame, to the frame that leaves by
// the other port.
type Rewrite func(port string, frame []byte) []byte

// Prediction is what becomes of one frame.
type Prediction struct {
	Meets    []string          // ports where functions of steering policies get it, in order: "function/fw/in"; for several destinations one after the other
	Copies   []string          // ports where taps and functions of copying policies get a copy, sorted
	Arrives  map[string][]byte // endpoints that get it, once each, and the frame that they get
	Policies []string          // that take or copy it, sorted
}

type direction struct {
	name     string
	spec     api.PolicySpec
	reverse  bool
	src, dst api.Selector
	local    bool
}

// Predict tells what happens to a frame that the endpoint from sends. All stations of the network are endpoints of the input, with MACs
// and prefixes. Functions that rewrite have their model in rewrites; all others are wires or taps.
func Predict(in fabric.Input, from string, frame []byte, rewrites map[string]Rewrite) Prediction {
	o := &oracle{in: in, rewrites: rewrites, p: Prediction{Arrives: map[string][]byte{}}}
	o.directions()
	out, ok := o.stage(false, from, "", frame)
	if ok {
		for _, to := range o.destinations(from, out) {
			if last, ok := o.stage(true, from, to, out); ok {
				o.p.Arrives[to] = last
			}
		}
	}
	slices.Sort(o.p.Copies)
	slices.Sort(o.p.Policies)
	o.p.Policies = slices.Compact(o.p.Policies)
	return o.p
}

type oracle struct {
	in       fabric.Input
	rewrites map[string]Rewrite
	all      []direction
	p        Prediction
}

// directions of all policies that can be in force.
func (o *oracle) directions() {
	crosses := Crossing(o.in)
	for name, spec := range o.in.Policies {
		from, err1 := api.ParseSelector(spec.From)
		to, err2 := api.ParseSelector(spec.To)
		if err1 != nil || err2 != nil {
			continue
		}
		if o.blocked(spec) && spec.ModeOrDefault() == api.ModeReplica {
			continue // it copies nothing
		}
		if o.empty(spec) {
			continue
		}
		o.all = append(o.all, direction{name, spec, false, from, to, !crosses[name]})
		if spec.IsSymmetric() {
			o.all = append(o.all, direction{name, spec, true, to, from, !crosses[name]})
		}
	}
}

// blocked tells whether nothing can pass a policy's chain now.
func (o *oracle) blocked(p api.PolicySpec) bool {
	hops, err := api.ParsePath(o.in.Chains[p.Chain].Path)
	return err != nil || slices.ContainsFunc(hops, func(h api.PathHop) bool {
		f := o.in.Functions[h.Function]
		return !h.Tap && !f.Ready && f.OnFail != api.OnFailBypass
	})
}

// empty tells whether all of a policy's chain is left out: then it takes nothing.
func (o *oracle) empty(p api.PolicySpec) bool {
	hops, _ := api.ParsePath(o.in.Chains[p.Chain].Path)
	return !o.blocked(p) && !slices.ContainsFunc(hops, func(h api.PathHop) bool { return o.in.Functions[h.Function].Ready })
}

// Crossing tells which policies are not local to one host: ends that are no endpoint of it, functions elsewhere, or a chain shared with
// such a policy.
func Crossing(in fabric.Input) map[string]bool {
	crosses, chains := map[string]bool{}, map[string]bool{}
	alone := len(in.Switches) == 1
	for name, p := range in.Policies {
		host := ""
		inside := false
		see := func(s fabric.SwitchID) bool {
			if host == "" {
				host = string(s)
			}
			_, isHost := s.Host()
			return isHost && host == string(s)
		}
		ok := true
		for _, end := range []string{p.From, p.To} {
			if e, known := in.Endpoints[end]; known {
				ok = see(e.At.Switch) && ok
				inside = true
			}
		}
		hops, _ := api.ParsePath(in.Chains[p.Chain].Path)
		for _, h := range hops {
			ok = see(in.Functions[h.Function].Host) && ok
		}
		if !alone && (!ok || !inside) {
			crosses[name], chains[p.Chain] = true, true
		}
	}
	for more := true; more; {
		more = false
		for name, p := range in.Policies {
			if crosses[name] {
				continue
			}
			if chains[p.Chain] || meets(in, p, crosses) {
				crosses[name], chains[p.Chain], more = true, true, true
			}
		}
	}
	return crosses
}

// meets tells whether a local policy takes frames where a crossing one does.
func meets(in fabric.Input, p api.PolicySpec, crosses map[string]bool) bool {
	for name := range crosses {
		for _, theirs := range places(in, in.Policies[name], false) {
			for _, mine := range places(in, p, true) {
				if mine == theirs || theirs == "in any" && strings.HasPrefix(mine, "in ") {
					return true
				}
			}
		}
	}
	return false
}

// places where a policy takes frames: "in alice" is where alice sends them, "out alice" where they reach her.
func places(in fabric.Input, p api.PolicySpec, local bool) []string {
	ends := [][2]string{{p.From, p.To}}
	if p.IsSymmetric() {
		ends = append(ends, [2]string{p.To, p.From})
	}
	var all []string
	for _, e := range ends {
		_, src := in.Endpoints[e[0]]
		_, dst := in.Endpoints[e[1]]
		switch {
		case dst && (local || !src):
			all = append(all, "out "+e[1])
		case src:
			all = append(all, "in "+e[0])
		default:
			all = append(all, "in any")
		}
	}
	return all
}

// destinations that ordinary forwarding takes a frame to.
func (o *oracle) destinations(from string, frame []byte) []string {
	var dst flow.MAC
	copy(dst[:], frame)
	var all []string
	for name, e := range o.in.Endpoints {
		if slices.Contains(e.MACs, dst) {
			if name == from {
				return nil
			}
			return []string{name}
		}
		if name != from {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// stage carries out what is selected at a frame's source, or at one of its destinations; false when it does not survive that.
func (o *oracle) stage(atDestination bool, from, to string, frame []byte) ([]byte, bool) {
	k, ok := flow.Decode(frame)
	if !ok {
		return nil, false
	}
	var winner [2]*direction
	for i := range o.all {
		d := &o.all[i]
		if d.atDestination() != atDestination || !o.selects(d, atDestination, from, to, k) {
			continue
		}
		kind := 0
		if d.spec.ModeOrDefault() == api.ModeReplica {
			kind = 1
		}
		if w := winner[kind]; w == nil || rank(d) > rank(w) {
			winner[kind] = d
		}
	}
	if d := winner[1]; d != nil {
		o.pass(d, frame)
	}
	if d := winner[0]; d != nil {
		return o.pass(d, frame)
	}
	return frame, true
}

func rank(d *direction) int {
	n := 2 * d.spec.PriorityOrDefault()
	if !d.reverse {
		n++
	}
	return n
}

func (d *direction) atDestination() bool {
	src, dst := d.src.Kind == api.SelectEndpoint, d.dst.Kind == api.SelectEndpoint
	if d.local {
		return dst
	}
	return dst && !src
}

func (o *oracle) selects(d *direction, atDestination bool, from, to string, k flow.Key) bool {
	exhaustive := d.spec.ModeOrDefault() == api.ModeExhaustive
	// Where everything is caught everywhere, frames for many are left alone: they could not be kept from their sender.
	if !d.local && !atDestination && d.src.Kind != api.SelectEndpoint && d.spec.ModeOrDefault() != api.ModeReplica && k.DstMAC.Multicast() {
		return false
	}
	terms := d.spec.Match
	if len(terms) == 0 || exhaustive {
		terms = []string{"all"}
	}
	for _, text := range terms {
		t, err := api.ParseMatch(text)
		if err != nil || !service(t, d.reverse, k) {
			continue
		}
		byMAC := exhaustive || d.spec.MatchBy == api.MatchByMAC
		if d.spec.MatchBy == api.MatchByIP {
			byMAC = false
		}
		byMAC = byMAC || t.Protocol == api.ProtocolARP
		if o.side(d, d.src, from, false, byMAC, k.SrcMAC, k.Src, k) && o.side(d, d.dst, to, atDestination && exhaustive, byMAC, k.DstMAC, k.Dst, k) {
			return true
		}
	}
	return false
}

// side: is this end of the frame what the selector names? any: whatever reaches the port is meant.
func (o *oracle) side(d *direction, s api.Selector, at string, any, byMAC bool, mac flow.MAC, ip netip.Addr, k flow.Key) bool {
	switch s.Kind {
	case api.SelectAny:
		return true
	case api.SelectMAC:
		return mac == s.MAC
	case api.SelectPrefix:
		return k.HasIP && s.Prefix.Contains(ip)
	}
	if at != "" && at != s.Endpoint {
		return false
	}
	if d.local || any {
		return at == s.Endpoint
	}
	e := o.in.Endpoints[s.Endpoint]
	if byMAC || len(e.Prefixes) == 0 {
		return slices.Contains(e.MACs, mac)
	}
	return k.HasIP && slices.ContainsFunc(e.Prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func service(t api.Term, reverse bool, k flow.Key) bool {
	proto, has := map[api.Protocol]uint8{api.ProtocolTCP: 6, api.ProtocolUDP: 17, api.ProtocolSCTP: 132}[t.Protocol]
	switch {
	case t.Protocol == api.ProtocolAll:
		return true
	case t.Protocol == api.ProtocolIP:
		return k.EtherType == 0x800 || k.EtherType == 0x86dd
	case t.Protocol == api.ProtocolARP:
		return k.EtherType == 0x806
	case t.Protocol == api.ProtocolICMP:
		return k.HasIP && (k.EtherType == 0x800 && k.Proto == 1 || k.EtherType == 0x86dd && k.Proto == 58)
	}
	if !has || !k.HasIP || k.Proto != proto {
		return false
	}
	port := k.DstPort
	if reverse {
		port = k.SrcPort
	}
	return t.Last == 0 || k.HasPorts && t.First <= port && port <= t.Last
}

// pass takes a frame through a direction's chain.
func (o *oracle) pass(d *direction, frame []byte) ([]byte, bool) {
	o.p.Policies = append(o.p.Policies, d.name)
	hops, err := api.ParsePath(o.in.Chains[d.spec.Chain].Path)
	if err != nil {
		return nil, false
	}
	if d.reverse {
		slices.Reverse(hops)
	}
	replica := d.spec.ModeOrDefault() == api.ModeReplica
	if o.blocked(d.spec) {
		return nil, false
	}
	for _, h := range hops {
		f := o.in.Functions[h.Function]
		port := flow.In.Of(h.Function)
		if d.reverse {
			port = flow.Out.Of(h.Function)
		}
		switch {
		case !f.Ready: // left out
		case h.Tap:
			o.p.Copies = append(o.p.Copies, flow.Tap.Of(h.Function))
		case replica:
			o.p.Copies = append(o.p.Copies, port)
		default:
			o.p.Meets = append(o.p.Meets, port)
			if r := o.rewrites[h.Function]; r != nil {
				frame = r(port, slices.Clone(frame))
			}
		}
	}
	return frame, true
}
