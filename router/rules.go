package router

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
	"weir.dev/weir/router/policy"
)

// Priorities of rules: that of the policy; with n different priorities of replica policies, p*(n+1) plus the replica policy's rank
// from 1, or 0 without one.
const (
	maxReplicaPriorities = 65535/api.MaxPriority - 1
	hopPriority          = 1
)

// A frame that one policy selects in both directions goes forward: of two rules of one priority the lower cookie wins.
const (
	steersBack = 1 << 63
	copiesBack = 1 << 62
)

func backwards(identity, bit uint64, back bool) uint64 {
	if back {
		return identity | bit
	}
	return identity &^ bit
}

// planned is an entry rule before priorities are known.
type planned struct {
	owned
	policy *compiled
	way    policy.Way
}

// entries makes the entry rules of all policies; priorities are left to compose.
func (c *compiler) entries() (steering, copying []planned) {
	for _, p := range c.policies {
		for _, d := range p.ways {
			for _, e := range d.entries {
				r, ok := c.enter(d, e)
				if !ok {
					continue
				}
				if p.Replica() {
					copying = append(copying, r)
				} else {
					steering = append(steering, r)
				}
			}
		}
	}
	return steering, copying
}

// enter makes one entry rule; ok is false where there is nothing to do.
func (c *compiler) enter(d *direction, e entry) (planned, bool) {
	p, ch := d.policy, d.policy.chain
	r := planned{policy: p, way: d.Way, owned: owned{owner: Owner{Policies: []string{p.Name}, Ways: []policy.Way{d.Way}}}}
	r.Stage, r.Match = d.stage, e.match
	family := ""
	if e.match.EtherType != 0 {
		family = fmt.Sprintf("%04x", e.match.EtherType)
	}
	r.Cookie = identity.Of("policy", p.Name, d.Way.String(), d.stage.String(), p.From.String(), p.To.String(), e.term, family)
	r.Cookie = backwards(r.Cookie, steersBack, d.Way == policy.Reverse)
	what := d.describe(e)
	verb := map[policy.Way]string{policy.Forward: "enters", policy.Reverse: "returns through"}[d.Way]
	back := map[policy.Way]string{policy.Reverse: " on the way back"}[d.Way]
	if ch.Blocked != nil || d.refused != nil {
		r.Action.Op = flow.Drop
		r.Note = fmt.Sprintf("policy %s: %s%s is dropped, chain %s cannot work", p.Name, what, back, ch.Name)
		return r, !p.Replica()
	}
	into, first := ch.entrance(d.Way)
	for _, t := range first {
		r.Action.Clones = append(r.Action.Clones, flow.Clone{Port: t.port})
	}
	switch {
	case len(ch.inline) == 0:
		if len(first) == 0 {
			return r, false // every part of the chain is left out
		}
		r.Note = fmt.Sprintf("policy %s: a copy of %s%s goes to %s", p.Name, what, back, first[0].name)
	case p.Replica():
		r.Action.Clones = append(r.Action.Clones, flow.Clone{Port: into.port})
		r.Note = fmt.Sprintf("policy %s: a copy of %s %s %s at %s", p.Name, what, verb, ch.Name, into.name)
	default:
		r.Action.Op, r.Action.Port = flow.Output, into.port
		r.Learn = ch.exits[d.Way].learned
		r.Note = fmt.Sprintf("policy %s: %s %s %s at %s", p.Name, what, verb, ch.Name, into.name)
	}
	return r, true
}

// describe tells in short what an entry matches; the family only where one service needs an entry for each.
func (d *direction) describe(e entry) string {
	what, families := e.term, 0
	if what == string(api.ProtocolAll) {
		what = "everything"
	}
	for _, o := range d.entries {
		if o.term == e.term {
			families++
		}
	}
	switch {
	case families > 1 && e.match.EtherType == flow.EtherTypeIPv4:
		what += " (IPv4)"
	case families > 1 && e.match.EtherType == flow.EtherTypeIPv6:
		what += " (IPv6)"
	}
	return what
}

// entrance is the chain's first port in a direction, and the taps before it.
func (ch *chain) entrance(w policy.Way) (tap, []tap) {
	n := len(ch.inline)
	if n == 0 {
		return tap{}, ch.taps[0]
	}
	if w == policy.Forward {
		return tap{ch.inline[0].name + ".in", ch.inline[0].in}, ch.taps[0]
	}
	return tap{ch.inline[n-1].name + ".out", ch.inline[n-1].out}, ch.taps[n]
}

// compose gives priorities, and adds the rules for frames that both a steering and a replica policy select.
func (c *compiler) compose(steering, copying []planned) []owned {
	priorities := map[int]bool{}
	for _, r := range copying {
		priorities[r.policy.Priority] = true
	}
	ranks := policy.Ranks(priorities, maxReplicaPriorities)
	scale := uint16(len(ranks) + 1)
	var rules []owned
	for i := range steering {
		s := &steering[i]
		s.Priority = uint16(s.policy.Priority) * scale
		rules = append(rules, s.owned)
	}
	for _, r := range copying {
		rank := ranks[r.policy.Priority]
		if rank == 0 {
			r.policy.failOnce(policy.Unranked(maxReplicaPriorities))
			continue
		}
		if len(r.Action.Clones) > flow.MaxClones {
			r.policy.failOnce(fmt.Errorf("chain %s begins with %d taps: a replica policy's may begin with %d", r.policy.chain.Name, len(r.Action.Clones)-1, flow.MaxClones-1))
			continue
		}
		r.Priority = uint16(rank)
		rules = append(rules, r.owned)
		for _, s := range steering {
			if both, ok := r.together(s); ok {
				rules = append(rules, both)
			}
		}
	}
	return rules
}

// together makes the rule for the frames of a replica policy and a steering policy.
func (r planned) together(s planned) (owned, bool) {
	if r.Stage != s.Stage {
		return owned{}, false
	}
	m, ok := flow.Intersect(r.Match, s.Match)
	if !ok {
		return owned{}, false
	}
	both := s.owned
	both.Cookie = identity.Of("both", fmt.Sprint(r.Cookie), fmt.Sprint(s.Cookie))
	both.Cookie = backwards(both.Cookie, steersBack, s.way == policy.Reverse)
	both.Cookie = backwards(both.Cookie, copiesBack, r.way == policy.Reverse)
	both.Priority += r.Priority
	both.Match = m
	both.Action.Clones = slices.Concat(s.Action.Clones, r.Action.Clones)
	if len(both.Action.Clones) > flow.MaxClones {
		r.policy.failOnce(fmt.Errorf("with the taps of policy %s a frame would be copied more than %d times at one place: only the first copies are made", s.policy.Name, flow.MaxClones))
		both.Action.Clones = both.Action.Clones[:flow.MaxClones]
	}
	both.Note = s.Note + "; " + strings.TrimPrefix(r.Note, "policy ")
	both.owner = Owner{Policies: []string{s.policy.Name, r.policy.Name}, Ways: []policy.Way{s.way, r.way}}
	return both, true
}

func (p *compiled) failOnce(err error) {
	for _, e := range p.errs {
		if e.Error() == err.Error() {
			return
		}
	}
	p.fail(err)
}

// hops makes the rules of the functions' ports, of chains that some policy uses.
func (c *compiler) hops() []owned {
	var rules []owned
	for _, name := range slices.Sorted(maps.Keys(c.chains)) {
		ch := c.chains[name]
		if ch.Blocked != nil {
			continue
		}
		for w := range ch.exits {
			if ch.exits[w].used {
				rules = append(rules, ch.hops(policy.Way(w))...)
			}
		}
	}
	return rules
}

func (ch *chain) hops(w policy.Way) []owned {
	var rules []owned
	n := len(ch.inline)
	for i, f := range ch.inline {
		r := owned{owner: Owner{Chain: ch.Name}}
		at, next, to, end, taps := f.name+".out", "", flow.Port(0), i == n-1, ch.taps[i+1]
		r.Match.InPort = f.out
		if w == policy.Reverse {
			at, end, taps = f.name+".in", i == 0, ch.taps[i]
			r.Match.InPort = f.in
		}
		for _, t := range taps {
			r.Action.Clones = append(r.Action.Clones, flow.Clone{Port: t.port})
		}
		switch {
		case !end && w == policy.Forward:
			next, to = ch.inline[i+1].name+".in", ch.inline[i+1].in
			r.Action.Op, r.Action.Port = flow.Output, to
		case !end:
			next, to = ch.inline[i-1].name+".out", ch.inline[i-1].out
			r.Action.Op, r.Action.Port = flow.Output, to
		case ch.replica:
			next = "end of the copy"
			r.Action.Op = flow.Drop
		default:
			x := ch.exits[w]
			next = x.to
			r.Action.Op, r.Action.Port = x.op, x.port
		}
		r.Cookie = identity.Of("chain", ch.Name, at)
		r.Priority = hopPriority
		r.Note = fmt.Sprintf("chain %s: %s -> %s", ch.Name, at, next)
		rules = append(rules, r)
	}
	return rules
}

// path renders what a frame of the policy meets.
func (c *compiler) path(p *compiled) Path {
	var path Path
	for _, d := range p.ways {
		if p.chain.Blocked != nil || d.refused != nil {
			continue
		}
		ends := []string{p.From.String(), p.To.String()}
		if d.Way == policy.Reverse {
			slices.Reverse(ends)
		}
		ports := append([]string{ends[0]}, p.chain.ports(d.Way)...)
		if !p.Replica() {
			ports = append(ports, ends[1])
		}
		if d.Way == policy.Forward {
			path.Forward = ports
		} else {
			path.Reverse = ports
		}
	}
	return path
}

// ports of the chain in the order in which a frame meets them.
func (ch *chain) ports(w policy.Way) []string {
	var names []string
	tapped := func(i int) {
		for _, t := range ch.taps[i] {
			names = append(names, flow.Tap.Of(t.name))
		}
	}
	n := len(ch.inline)
	for step := range n {
		i, a, b := step, flow.In, flow.Out
		if w == policy.Reverse {
			i, a, b = n-1-step, flow.Out, flow.In
			tapped(i + 1)
		} else {
			tapped(i)
		}
		names = append(names, a.Of(ch.inline[i].name), b.Of(ch.inline[i].name))
	}
	if w == policy.Forward {
		tapped(n)
	} else {
		tapped(0)
	}
	return names
}
