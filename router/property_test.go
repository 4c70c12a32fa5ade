package router

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/cases"
	"weir.dev/weir/router/policy"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

var stations = []string{"alice", "bob", "carol", "dave"}

// drawDocument gives a sound document: policies that contradict others are left out.
func drawDocument(t *rapid.T) api.Document {
	d := api.Document{Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{}}
	for _, s := range stations[:rapid.IntRange(2, len(stations)).Draw(t, "endpoints")] {
		d.Endpoints[s] = api.EndpointSpec{Netns: s, Interface: "eth0"}
	}
	for c := range rapid.IntRange(1, 4).Draw(t, "chains") {
		var hops []string
		for h := range rapid.IntRange(1, 4).Draw(t, "hops") {
			f := fmt.Sprintf("f%d%d", c, h)
			d.Functions[f] = api.FunctionSpec{Image: "x"}
			if rapid.IntRange(0, 3).Draw(t, "tap") == 0 {
				f = "tap:" + f
			}
			hops = append(hops, f)
		}
		d.Chains[fmt.Sprint("c", c)] = api.ChainSpec{Path: strings.Join(hops, " | ")}
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "policies") {
		name := fmt.Sprint("p", i)
		d.Policies[name] = drawPolicy(t, len(d.Chains))
		if len(Validate(d)) > 0 {
			delete(d.Policies, name)
		}
	}
	return d
}

func drawPolicy(t *rapid.T, chains int) api.PolicySpec {
	selectors := []string{"any", "alice", "bob", "carol", "10.9.0.0/24", "10.9.0.97", "10.9.0.98", "fd09::62", "02:00:00:00:00:61", "02:00:00:00:00:62"}
	terms := []string{"all", "ip", "arp", "icmp", "tcp", "udp", "sctp", "tcp/80", "tcp/70-90", "udp/53"}
	p := api.PolicySpec{
		From: rapid.SampledFrom(selectors).Draw(t, "from"), To: rapid.SampledFrom(selectors).Draw(t, "to"),
		Chain:    fmt.Sprint("c", rapid.IntRange(0, chains-1).Draw(t, "chain")),
		Mode:     rapid.SampledFrom([]api.Mode{"", api.ModeSelective, api.ModeExhaustive, api.ModeReplica}).Draw(t, "mode"),
		Match:    rapid.SliceOfN(rapid.SampledFrom(terms), 0, 2).Draw(t, "match"),
		Priority: rapid.IntRange(0, 4).Draw(t, "priority"),
	}
	if p.Mode == api.ModeExhaustive {
		p.To, p.Match = "", nil
	}
	if rapid.IntRange(0, 3).Draw(t, "symmetric") == 0 {
		no := false
		p.Symmetric = &no
	}
	return p
}

func drawFrame(t *rapid.T, endpoints int) (from string, frame []byte) {
	from = stations[rapid.IntRange(0, endpoints-1).Draw(t, "from")]
	to := stations[rapid.IntRange(0, endpoints-1).Draw(t, "to")]
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	m := flow.Match{SrcMAC: cases.MAC(from), SrcMACMask: whole, DstMAC: cases.MAC(to), DstMACMask: whole}
	if rapid.IntRange(0, 5).Draw(t, "broadcast") == 0 {
		m.DstMAC = whole
	}
	m.VLAN = rapid.SampledFrom([]uint16{0, 0, 7}).Draw(t, "vlan")
	m.EtherType = rapid.SampledFrom([]uint16{flow.EtherTypeIPv4, flow.EtherTypeIPv4, flow.EtherTypeIPv6, flow.EtherTypeARP, 0x88b6}).Draw(t, "ethertype")
	src, dst := cases.IPv4(from), cases.IPv4(to)
	if m.EtherType == flow.EtherTypeIPv6 {
		src, dst = cases.IPv6(from), cases.IPv6(to)
	}
	if m.EtherType == flow.EtherTypeIPv4 || m.EtherType == flow.EtherTypeIPv6 {
		m.Src, m.Dst = netip.PrefixFrom(src, src.BitLen()), netip.PrefixFrom(dst, dst.BitLen())
		icmp := map[uint16]uint8{flow.EtherTypeIPv4: flow.ProtoICMP, flow.EtherTypeIPv6: flow.ProtoICMPv6}[m.EtherType]
		m.Proto = rapid.SampledFrom([]uint8{flow.ProtoTCP, flow.ProtoTCP, flow.ProtoUDP, flow.ProtoSCTP, icmp, 47}).Draw(t, "proto")
		if m.Proto == flow.ProtoTCP || m.Proto == flow.ProtoUDP || m.Proto == flow.ProtoSCTP {
			port := func(label string) flow.PortRange {
				p := rapid.SampledFrom([]uint16{53, 80, 90, 40000}).Draw(t, label)
				return flow.PortRange{First: p, Last: p}
			}
			m.SrcPorts, m.DstPorts = port("sport"), port("dport")
		}
	}
	frame, _, ok := flow.Witness(m)
	if !ok {
		t.Fatalf("no frame for %+v", m)
	}
	return from, frame
}

// The meaning of policies, told anew and without rules.

// selects: does a way of a policy take a frame that is at this stage?
func selects(p api.PolicySpec, w policy.Way, stage flow.Stage, in, out string, k flow.Key) bool {
	src, dst := p.From, p.To
	if w == policy.Reverse {
		if !p.IsSymmetric() {
			return false
		}
		src, dst = dst, src
	}
	isEndpoint := func(s string) bool { return slices.Contains(stations, s) }
	if egress := isEndpoint(dst); egress != (stage == flow.Egress) {
		return false
	}
	return side(src, in, k.SrcMAC, k.Src, k.HasIP, isEndpoint) && side(dst, out, k.DstMAC, k.Dst, k.HasIP, isEndpoint) &&
		(len(p.Match) == 0 || slices.ContainsFunc(p.Match, func(term string) bool { return service(term, w, k) }))
}

func side(selector, at string, mac flow.MAC, ip netip.Addr, hasIP bool, isEndpoint func(string) bool) bool {
	switch {
	case selector == "" || selector == "any":
		return true
	case isEndpoint(selector):
		return selector == at
	case strings.Contains(selector, "/"):
		return hasIP && prefix(selector).Contains(ip)
	case strings.Count(selector, ":") == 5:
		return selector == mac.String()
	}
	return hasIP && selector == ip.String()
}

func service(term string, w policy.Way, k flow.Key) bool {
	proto, ports, _ := strings.Cut(term, "/")
	switch proto {
	case "all":
		return true
	case "ip":
		return k.EtherType == 0x800 || k.EtherType == 0x86dd
	case "arp":
		return k.EtherType == 0x806
	case "icmp":
		return k.EtherType == 0x800 && k.Proto == 1 || k.EtherType == 0x86dd && k.Proto == 58
	}
	if !k.HasIP || k.Proto != map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132}[proto] {
		return false
	}
	if ports == "" {
		return true
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	var lo, hi uint16
	fmt.Sscan(first, &lo)
	fmt.Sscan(last, &hi)
	port := k.DstPort
	if w == policy.Reverse {
		port = k.SrcPort
	}
	return k.HasPorts && lo <= port && port <= hi
}

// best is the policy way that takes a frame at a stage, among those that copy or those that do not.
func best(d api.Document, replica bool, stage flow.Stage, in, out string, k flow.Key) (name string, w policy.Way) {
	rank := -1
	for n, p := range d.Policies {
		if (p.ModeOrDefault() == api.ModeReplica) != replica {
			continue
		}
		for _, v := range []policy.Way{policy.Forward, policy.Reverse} {
			r := 2*p.PriorityOrDefault() + 1 - int(v)
			if r > rank && selects(p, v, stage, in, out, k) {
				name, w, rank = n, v, r
			}
		}
	}
	return name, w
}

// exits is at how many endpoints a chain ends.
func exits(d api.Document, chain string, w policy.Way) int {
	ends := map[string]bool{}
	for _, p := range d.Policies {
		switch end := map[policy.Way]string{policy.Forward: p.To, policy.Reverse: p.From}[w]; {
		case p.Chain != chain || p.ModeOrDefault() == api.ModeReplica || w == policy.Reverse && !p.IsSymmetric():
		case slices.Contains(stations, end):
			ends[end] = true
		}
	}
	return len(ends)
}

// told is what a frame meets at one stage; false when it does not survive that.
func told(d api.Document, down map[string]api.OnFail, stage flow.Stage, in, out string, k flow.Key, f *cases.Frame) bool {
	survives := true
	for _, replica := range []bool{false, true} {
		name, w := best(d, replica, stage, in, out, k)
		if name == "" {
			continue
		}
		hops, _ := api.ParsePath(d.Chains[d.Policies[name].Chain].Path)
		if w == policy.Reverse {
			slices.Reverse(hops)
		}
		for _, h := range hops {
			onFail, isDown := down[h.Function]
			if isDown && !h.Tap && onFail == api.OnFailDrop {
				survives = survives && replica
				break
			}
			port := "function/" + h.Function + "/" + map[policy.Way]string{policy.Forward: "in", policy.Reverse: "out"}[w]
			switch {
			case isDown:
			case h.Tap:
				f.Copies = append(f.Copies, "function/"+h.Function+"/tap")
			case replica:
				f.Copies = append(f.Copies, port)
			default:
				f.Meets = append(f.Meets, port)
			}
		}
		inline := slices.ContainsFunc(hops, func(h api.PathHop) bool { return !h.Tap })
		if !replica && inline && k.DstMAC.Multicast() && exits(d, d.Policies[name].Chain, w) > 1 {
			survives = false // which of them it is for is found by its address
		}
	}
	return survives
}

// within tells whether all of some are among all, each as often.
func within(some, all []string) bool {
	left := slices.Clone(all)
	for _, s := range some {
		i := slices.Index(left, s)
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

// Random topologies, policies, failures and packets: each frame meets the functions of its policies in order and once, unless one is
// down; copies leave the original alone, all arrives unchanged, nothing loops.
func TestSteeringIsWhatPoliciesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDocument(t)
		var functions []string
		for _, c := range d.Chains {
			for _, h := range strings.Split(c.Path, "|") {
				functions = append(functions, strings.TrimSpace(h))
			}
		}
		slices.Sort(functions)
		down := map[string]api.OnFail{}
		for _, f := range functions {
			if rapid.IntRange(0, 5).Draw(t, "down") == 0 {
				down[strings.TrimPrefix(f, "tap:")] = rapid.SampledFrom([]api.OnFail{api.OnFailDrop, api.OnFailBypass}).Draw(t, "on_fail")
			}
		}
		endpoints := stations[:len(d.Endpoints)]
		w := newWorld(t, endpoints, functions, down)
		w.in.Chains, w.in.Policies = d.Chains, d.Policies
		out := Compile(w.in)
		// The taps of two policies at one place may be too many for the frames that both select: Validate does not look at which policies meet, the policy's status says it. Only the
		// first copies are made then; all else is as ever.
		fewer := len(out.Errors) > 0
		for name, err := range out.Errors {
			if !strings.Contains(err.Error(), "a frame would be copied more than") {
				t.Fatalf("Validate found no problem, Compile does: policy %s: %v", name, err)
			}
		}
		if err := verify(out.Rules, topologyOf(w.in)); err != nil {
			t.Fatal(err)
		}
		must(t, w.Commit(out.Rules))
		for range 8 {
			from, frame := drawFrame(t, len(endpoints))
			k, _ := flow.Decode(frame)
			r, err := w.Inject(w.in.Endpoints[from], frame)
			must(t, err)
			var want cases.Frame
			survives := told(d, down, flow.Ingress, from, "", k, &want)
			for _, to := range endpoints {
				if !survives || to == from || k.DstMAC != cases.MAC(to) && !k.DstMAC.Multicast() {
					continue
				}
				if told(d, down, flow.Egress, from, to, k, &want) {
					want.Arrives = append(want.Arrives, to)
				}
			}
			got := seen(r)
			if fewer {
				if !within(got.Copies, want.Copies) {
					t.Fatalf("%v at %s: copies %v, want some of %v\n%v\n%v", k, from, got.Copies, want.Copies, d.Policies, r.Trail)
				}
				want.Copies = got.Copies
			}
			if !k.DstMAC.Multicast() {
				if diff := cmp.Diff(want.Meets, got.Meets, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("%v at %s: %s\n%v\n%v", k, from, diff, d.Policies, r.Trail)
				}
			}
			sorted := cmpopts.SortSlices(strings.Compare)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), sorted); diff != "" {
				t.Fatalf("%v at %s: %s\n%v\n%v", k, from, diff, d.Policies, r.Trail)
			}
			for _, e := range append(r.Deliveries, r.Taps...) {
				if string(e.Frame) != string(frame) {
					t.Fatal("changed on the way")
				}
			}
		}
	})
}

// What a policy's status shows is what its rules do.
func TestPathsAreWhatRulesDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDocument(t)
		v := &validator{doc: d, bad: map[string]bool{}}
		in, _ := v.invent()
		names := map[flow.Port]string{}
		for name, f := range in.Functions {
			names[f.In], names[f.Out] = "function/"+name+"/in", "function/"+name+"/out"
		}
		out := Compile(in)
		for name, path := range out.Paths {
			if d.Policies[name].Mode == api.ModeReplica {
				continue
			}
			for _, r := range out.Rules {
				if !slices.Equal(out.Owners[r.Cookie].Policies, []string{name}) || r.Match.Unread != flow.ReadAll {
					continue
				}
				ports, _, err := wayOf(out.Rules, topologyOf(in), r.Cookie)
				must(t, err)
				var got []string
				for _, p := range ports {
					got = append(got, names[p])
				}
				enters := func(shown []string) []string {
					var in []string
					inside := false // each function shows the port where a frame enters, then the one where it leaves
					for _, s := range shown {
						if strings.HasPrefix(s, "function/") && !strings.HasSuffix(s, "/tap") {
							if inside = !inside; inside {
								in = append(in, s)
							}
						}
					}
					return in
				}
				if !slices.Equal(got, enters(path.Forward)) && !slices.Equal(got, enters(path.Reverse)) {
					t.Fatalf("policy %s: rule %s leads to %v, shown are %+v", name, r.Note, got, path)
				}
			}
		}
	})
}

// The sweep finds the pairs that comparing all finds.
func TestConflictsAreThoseOfAllPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := api.Document{Endpoints: map[string]api.EndpointSpec{"alice": {}, "bob": {}, "carol": {}}, Chains: map[string]api.ChainSpec{"c0": {Path: "f"}}, Policies: map[string]api.PolicySpec{}}
		for i := range rapid.IntRange(2, 12).Draw(t, "policies") {
			p := drawPolicy(t, 1)
			if p.Mode = ""; len(p.Validate()) == 0 {
				d.Policies[fmt.Sprintf("p%02d", i)] = p
			}
		}
		v := &validator{doc: d, bad: map[string]bool{}}
		in, _ := v.invent()
		steering, _ := newCompiler(in, slices.Sorted(maps.Keys(in.Policies))).entries()
		want, got := map[[2]string]bool{}, map[[2]string]bool{}
		for _, a := range steering {
			for _, b := range steering {
				if _, _, meet := flow.Overlap(a.Match, b.Match); meet && a.policy.Name < b.policy.Name && a.Stage == b.Stage {
					want[[2]string{a.policy.Name, b.policy.Name}] = true
				}
			}
		}
		conflicts(steering, func(a, b planned) bool {
			got[[2]string{a.policy.Name, b.policy.Name}] = true
			return true
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
