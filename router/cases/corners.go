package cases

import (
	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

func port(p uint16) flow.PortRange { return flow.PortRange{First: p, Last: p} }

func tcp(src, dst uint16) flow.Match {
	return flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoTCP, SrcPorts: port(src), DstPorts: port(dst)}
}

func corners() []Case {
	return []Case{oneWay(), prefixes(), anyToOne(), fromOneToPrefix(), macs(), priorities(), sharedLearned(), twoChains(), copyOfSteered(), onlyTap(), order()}
}

func oneWay() Case {
	no := false
	c := base("not symmetric: replies go straight", api.PolicySpec{From: alice, To: bob, Match: []string{"tcp/80"}, Symmetric: &no})
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Arrives: []string{alice}},
	}
	return c
}

func prefixes() Case {
	c := base("from CIDR to address, wherever they are", api.PolicySpec{From: IPv4(alice).String(), To: IPv4(bob).String(), Match: []string{"tcp"}})
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "other source", At: carol, Bytes: build(carol, bob, tcp(9, 80)), Arrives: []string{bob}},
		{Name: "ARP has no address", At: alice, Bytes: build(alice, bob, flow.Match{EtherType: flow.EtherTypeARP}), Arrives: []string{bob}},
		{Name: "IPv6 of the same stations", At: alice, Bytes: build(alice, bob, flow.Match{EtherType: flow.EtherTypeIPv6, Proto: flow.ProtoTCP}), Arrives: []string{bob}},
	}
	return c
}

func anyToOne() Case {
	c := base("any to an endpoint", api.PolicySpec{To: bob, Match: []string{"ip"}})
	c.Frames = []Frame{
		{Name: "from alice", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "from carol", At: carol, Bytes: build(carol, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back to carol", At: bob, Bytes: build(bob, carol, tcp(80, 9)), Meets: back(), Copies: copied(), Arrives: []string{carol}},
		{Name: "between others", At: alice, Bytes: build(alice, carol, tcp(80, 9)), Arrives: []string{carol}},
	}
	return c
}

func fromOneToPrefix() Case {
	c := base("an endpoint to a CIDR", api.PolicySpec{From: alice, To: IPv4(bob).String(), Match: []string{"all"}})
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "not to it", At: alice, Bytes: build(alice, carol, tcp(9, 80)), Arrives: []string{carol}},
		{Name: "not from it", At: carol, Bytes: build(carol, bob, tcp(9, 80)), Arrives: []string{bob}},
	}
	return c
}

func macs() Case {
	c := base("MAC to any", api.PolicySpec{From: MAC(alice).String(), Match: []string{"all"}})
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, flow.Match{EtherType: flow.EtherTypeARP}), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: build(bob, alice, flow.Match{EtherType: 0x88b6}), Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "broadcast", At: alice, Bytes: build(alice, broadcast, flow.Match{EtherType: flow.EtherTypeARP}), Meets: there(), Copies: copied(), Arrives: []string{bob, carol}},
		{Name: "others", At: bob, Bytes: build(bob, carol, tcp(80, 9)), Arrives: []string{carol}},
	}
	return c
}

func priorities() Case {
	c := Case{
		Name: "the higher priority wins", Endpoints: []string{alice, bob, carol}, Functions: []string{"f1", "f2"},
		Chains: map[string]api.ChainSpec{"c1": {Path: "f1"}, "c2": {Path: "f2"}},
		Policies: map[string]api.PolicySpec{
			"wide":   {From: alice, To: bob, Match: []string{"all"}, Chain: "c1", Priority: 10},
			"narrow": {From: alice, To: bob, Match: []string{"tcp/80"}, Chain: "c2", Priority: 11},
		},
	}
	c.Frames = []Frame{
		{Name: "narrow", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: []string{"function/f2/in"}, Arrives: []string{bob}},
		{Name: "wide", At: alice, Bytes: build(alice, bob, tcp(9, 81)), Meets: []string{"function/f1/in"}, Arrives: []string{bob}},
		{Name: "narrow back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: []string{"function/f2/out"}, Arrives: []string{alice}},
		{Name: "wide back", At: bob, Bytes: build(bob, alice, tcp(81, 9)), Meets: []string{"function/f1/out"}, Arrives: []string{alice}},
	}
	return c
}

func sharedLearned() Case {
	c := base("one chain for several ends", api.PolicySpec{From: alice, To: bob, Match: []string{"tcp"}})
	c.Policies["q"] = api.PolicySpec{From: alice, To: carol, Match: []string{"tcp"}, Chain: "web"}
	c.Frames = []Frame{
		{Name: "to bob", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "to carol", At: alice, Bytes: build(alice, carol, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{carol}},
		{Name: "to bob again", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "from bob", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "from carol", At: carol, Bytes: build(carol, alice, tcp(80, 9)), Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "tagged", At: alice, Bytes: build(alice, bob, flow.Match{EtherType: flow.EtherTypeIPv6, Proto: flow.ProtoTCP, VLAN: 9}), Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "to all, which TCP is not: past no chain, and lost where it ends", At: alice, Bytes: build(alice, broadcast, tcp(9, 80)),
			Meets: append(there(), there()...), Copies: append(copied(), copied()...)},
	}
	return c
}

func twoChains() Case {
	c := Case{
		Name: "one policy where it enters, one where it leaves", Endpoints: []string{alice, bob, carol}, Functions: []string{"f1", "f2", "f3"},
		Chains: map[string]api.ChainSpec{"c1": {Path: "f1 | f3"}, "c2": {Path: "f2"}},
		Policies: map[string]api.PolicySpec{
			"out": {From: alice, Mode: api.ModeExhaustive, Chain: "c1"},
			"in":  {To: bob, Match: []string{"tcp/80"}, Chain: "c2"},
		},
	}
	c.Frames = []Frame{
		{Name: "both", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: []string{"function/f1/in", "function/f3/in", "function/f2/in"}, Arrives: []string{bob}},
		{Name: "both back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: []string{"function/f2/out", "function/f3/out", "function/f1/out"}, Arrives: []string{alice}},
		{Name: "first only", At: alice, Bytes: build(alice, bob, tcp(9, 81)), Meets: []string{"function/f1/in", "function/f3/in"}, Arrives: []string{bob}},
		{Name: "second only", At: carol, Bytes: build(carol, bob, tcp(9, 80)), Meets: []string{"function/f2/in"}, Arrives: []string{bob}},
	}
	return c
}

func copyOfSteered() Case {
	c := Case{
		Name: "replica and selective do not hide each other", Endpoints: []string{alice, bob, carol}, Functions: []string{"f1", "f2"},
		Chains: map[string]api.ChainSpec{"c1": {Path: "f1"}, "c2": {Path: "f2"}},
		Policies: map[string]api.PolicySpec{
			"steer": {From: alice, To: bob, Match: []string{"tcp/80-89"}, Chain: "c1", Priority: 100},
			"copy":  {To: bob, Match: []string{"tcp"}, Mode: api.ModeReplica, Chain: "c2", Priority: 500},
		},
	}
	c.Frames = []Frame{
		{Name: "both", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: []string{"function/f1/in"}, Copies: []string{"function/f2/in"}, Arrives: []string{bob}},
		{Name: "copied only", At: alice, Bytes: build(alice, bob, tcp(9, 90)), Copies: []string{"function/f2/in"}, Arrives: []string{bob}},
		{Name: "steered on the way back, copied where it enters", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: []string{"function/f1/out"}, Copies: []string{"function/f2/out"}, Arrives: []string{alice}},
		{Name: "neither", At: alice, Bytes: build(alice, carol, tcp(9, 80)), Arrives: []string{carol}},
	}
	return c
}

func onlyTap() Case {
	c := Case{
		Name: "a chain of a tap alone", Endpoints: []string{alice, bob, carol}, Functions: []string{"tap:mon"},
		Chains:   map[string]api.ChainSpec{"c": {Path: "tap:mon"}},
		Policies: map[string]api.PolicySpec{"p": {From: alice, To: bob, Match: []string{"arp"}, Chain: "c"}},
	}
	arp := flow.Match{EtherType: flow.EtherTypeARP}
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, arp), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: build(bob, alice, arp), Copies: copied(), Arrives: []string{alice}},
		{Name: "broadcast", At: alice, Bytes: build(alice, broadcast, arp), Copies: copied(), Arrives: []string{bob, carol}},
		{Name: "another kind", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Arrives: []string{bob}},
	}
	return c
}

func order() Case {
	c := Case{
		Name: "nine functions and taps around them", Endpoints: []string{alice, bob, carol}, Functions: []string{"f1", "f2", "f3", "f4", "f5", "f6", "f7", "tap:t0", "tap:t4", "tap:t7", "tap:u7"},
		Chains:   map[string]api.ChainSpec{"c": {Path: "tap:t0 | f1 | f2 | f3 | f4 | tap:t4 | f5 | f6 | f7 | tap:t7 | tap:u7"}},
		Policies: map[string]api.PolicySpec{"p": {From: alice, To: bob, Chain: "c"}},
	}
	taps := []string{"function/t0/tap", "function/t4/tap", "function/t7/tap", "function/u7/tap"}
	back := []string{"function/t7/tap", "function/u7/tap", "function/t4/tap", "function/t0/tap"}
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Copies: taps, Arrives: []string{bob},
			Meets: []string{"function/f1/in", "function/f2/in", "function/f3/in", "function/f4/in", "function/f5/in", "function/f6/in", "function/f7/in"}},
		{Name: "back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Copies: back, Arrives: []string{alice},
			Meets: []string{"function/f7/out", "function/f6/out", "function/f5/out", "function/f4/out", "function/f3/out", "function/f2/out", "function/f1/out"}},
	}
	return c
}

// failures: functions that are down.
func failures() []Case {
	frames := func(there, back, taps []string, arrives bool) []Frame {
		a, b := []string{bob}, []string{alice}
		if !arrives {
			a, b = nil, nil
		}
		return []Frame{
			{Name: "there", At: alice, Bytes: build(alice, bob, tcp(9, 80)), Meets: there, Copies: taps, Arrives: a},
			{Name: "back", At: bob, Bytes: build(bob, alice, tcp(80, 9)), Meets: back, Copies: taps, Arrives: b},
		}
	}
	policy := api.PolicySpec{From: alice, To: bob, Match: []string{"tcp"}}
	first := base("the first function is down: drop", policy)
	first.Down = map[string]api.OnFail{"fw": api.OnFailDrop}
	first.Frames = frames(nil, []string{"function/w1/out"}, nil, false)
	first.Frames[1].Copies = copied()
	skip := base("the first function is down: bypass", policy)
	skip.Down = map[string]api.OnFail{"fw": api.OnFailBypass}
	skip.Frames = frames([]string{"function/w1/in"}, []string{"function/w1/out"}, copied(), true)
	none := base("all functions are down: bypass", policy)
	none.Down = map[string]api.OnFail{"fw": api.OnFailBypass, "w1": api.OnFailBypass}
	none.Frames = frames(nil, nil, copied(), true)
	tap := base("the tap is down", policy)
	tap.Down = map[string]api.OnFail{"mon": api.OnFailDrop}
	tap.Frames = frames(there(), back(), nil, true)
	ends := base("all functions are down: bypass, back to where it entered", api.PolicySpec{From: alice, Mode: api.ModeExhaustive})
	ends.Down = none.Down
	ends.Frames = frames(nil, nil, copied(), true)
	copies := base("a copy's first function is down: bypass", api.PolicySpec{From: alice, To: bob, Match: []string{"tcp"}, Mode: api.ModeReplica})
	copies.Down = skip.Down
	copies.Frames = frames(nil, nil, []string{"function/mon/tap", "function/w1/in"}, true)
	copies.Frames[1].Copies = []string{"function/w1/out", "function/mon/tap"}
	return []Case{first, skip, none, tap, ends, copies}
}
