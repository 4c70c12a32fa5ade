package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// plannedLeg is the way of frames from where they are to the next host of their chain, or to where they leave it.
type plannedLeg struct {
	arcs  []int // all arcs that may be crossed
	tag   uint16
	plain bool   // no tag, or soon none any more
	end   string // what becomes of frames at its end: legs to the same end may share a tag
}

// planner makes the entries and host rules of a bundle.
type planner struct {
	c   *Compiler
	b   *bundle
	err error
}

// step is what a host does with a frame.
type step struct {
	when   func(flow.Match) (flow.Match, bool) // restricts the match; nil: not at all
	rank   uint16                              // among steps of one place
	key    string
	action api.HostAction
	what   string
}

func (p *planner) run() error {
	b := p.b
	if len(b.visits) == 0 {
		return nil // every function is left out
	}
	if err := p.clonesFit(); err != nil {
		return err
	}
	for i := range b.streams {
		if err := p.stream(&b.streams[i]); err != nil {
			return err
		}
	}
	return p.err
}

func (p *planner) clonesFit() error {
	for i := range p.b.visits {
		v, taps := &p.b.visits[i], 0
		for k := range v.elements {
			if taps++; !v.elements[k].tap {
				taps = 0
			}
			if taps > flow.MaxClones || taps == flow.MaxClones && !p.b.steers() {
				return fmt.Errorf("chain %s: more taps at one place of host %s than the %d copies that a frame can have there", p.b.policy.chain.name, p.c.w.g.name(v.host), flow.MaxClones)
			}
		}
	}
	return nil
}

func (p *planner) stream(s *stream) error {
	b, g := p.b, p.c.w.g
	if b.untagged = p.c.plainly(b); b.untagged {
		p.swapped(s)
		return nil
	}
	// From the end to the beginning, since each step must know where the next one leads.
	next, err := p.exit(s)
	if err == nil && len(b.streams) > 1 && s.kind == fromHost && b.steers() {
		next, err = p.own(s, next)
	}
	if err != nil {
		return err
	}
	for i := len(b.visits) - 1; i >= 0; i-- {
		v := b.visits[i]
		enter := p.visit(i, next)
		if i == 0 {
			return p.enter(s, enter)
		}
		from := b.visits[i-1].host
		leg, err := p.leg(i, []int{from}, v.host, p.endOf(i))
		if err != nil {
			return err
		}
		p.arrive(leg, v.host, enter, i)
		next = []step{p.onto(leg, g.toward[v.host])}
	}
	return nil
}

// own restricts steps to the frames of one endpoint, where a chain serves many that leave it by different ways.
func (p *planner) own(s *stream, steps []step) ([]step, error) {
	macs := p.c.w.in.Endpoints[s.endpoint].MACs
	if len(macs) == 0 {
		return nil, fmt.Errorf("endpoint %s: its MAC is not known: %w", s.endpoint, ErrNotReady)
	}
	var all []step
	for _, m := range macs {
		for _, st := range steps {
			own, when := st, st.when
			own.when = func(x flow.Match) (flow.Match, bool) {
				if when != nil {
					var ok bool
					if x, ok = when(x); !ok {
						return x, false
					}
				}
				return flow.Intersect(x, flow.Match{SrcMAC: m, SrcMACMask: whole})
			}
			own.rank, own.key = st.rank+3, m.String()+"/"+st.key
			all = append(all, own)
		}
	}
	return all, nil
}

// endOf names what becomes of frames that reach a visit.
func (p *planner) endOf(i int) string {
	v := &p.b.visits[i]
	if v.inline || !p.b.steers() {
		return v.end
	}
	return v.end + p.b.policy.name // what a visit of taps only does next depends on the policy, but for copies, which end with the chain
}

// onto is the step by which a host sends frames on a leg.
func (p *planner) onto(l plannedLeg, what string) step {
	return step{action: api.HostAction{Op: flow.Output.String(), Port: p.c.w.g.arcs[l.arcs[0]].out.Name, Push: l.tag}, what: what}
}

// leg finds the way to a target, and whether its frames need a tag.
func (p *planner) leg(i int, from []int, target int, end string) (plannedLeg, error) {
	b, g := p.b, p.c.w.g
	l := plannedLeg{end: string(g.ids[target]) + "/" + end}
	if len(from) == 1 {
		arcs, ok := g.path(from[0], target)
		if !ok {
			return l, fmt.Errorf("%w from %s to %s", ErrNoPath, g.name(from[0]), g.name(target))
		}
		l.arcs = arcs
	} else {
		p.c.tmp.unmark()
		for _, f := range from {
			arcs, _ := g.path(f, target)
			for _, a := range arcs {
				if p.c.tmp.first(p.c.tmp.arcMark, a) {
					l.arcs = append(l.arcs, a)
				}
			}
		}
	}
	if len(l.arcs) == 0 {
		return l, fmt.Errorf("%w to %s", ErrNoPath, g.name(target))
	}
	for _, have := range b.legs {
		if have.end == l.end && slices.Equal(have.arcs, l.arcs) {
			return have, nil
		}
	}
	if p.needsTag(i, l) {
		if l.tag = p.c.tags.take(l.arcs, l.end); l.tag == 0 {
			return l, fmt.Errorf("%w on the way to %s: all %d are taken by other policies", ErrTags, g.name(target), manyTags)
		}
	}
	l.plain = l.tag == 0 || b.policy.changing || p.soonPlain(i, l)
	if b.legs == nil {
		b.legs = make([]plannedLeg, 0, 4)
	}
	b.legs = append(b.legs, l)
	return l, nil
}

// crosses tells whether the last leg to cross an arc without a tag has another end.
func (b *bundle) crosses(arc int, end string) bool {
	for i := len(b.legs) - 1; i >= 0; i-- {
		if l := &b.legs[i]; l.plain && slices.Contains(l.arcs, arc) {
			return l.end != end
		}
	}
	return false
}

// needsTag: a frame on this leg cannot be told, on some arc, from one that is to go elsewhere.
func (p *planner) needsTag(i int, l plannedLeg) bool {
	b, w := p.b, p.c.w
	if w.in.Beside || b.toDest || !b.steers() || i >= b.blind {
		return true
	}
	for k := range b.matches {
		if m := &b.matches[k]; len(b.streams) == 1 && m.SrcMACMask != whole && !m.Src.IsValid() {
			return true
		}
	}
	for _, a := range l.arcs {
		if b.crosses(a, l.end) || w.crosses(b, a) {
			return true
		}
	}
	return p.changes(i, l) || p.c.rivals(b, func(o *bundle) bool {
		return slices.ContainsFunc(l.arcs, func(a int) bool { return w.crosses(o, a) })
	})
}

// rivals visits other bundles whose loose frames this one's entries might take for its own, until found says so. Of two policies the
// more important one takes the frames of both where they enter, so what the other one lets go cannot be taken for its own.
func (c *Compiler) rivals(b *bundle, found func(*bundle) bool) bool {
	check := func(list []*bundle, any bool) bool {
		for _, o := range list {
			if len(o.loose) > 0 && (any && o.policy != b.policy && !(c.careless && o.policy.ghost) || c.matters(b, o)) && found(o) {
				return true
			}
		}
		return false
	}
	if key, one := b.near(); one {
		if check(c.near[key], false) || check(c.wild, false) {
			return true
		}
	} else {
		for _, list := range c.near {
			if check(list, false) {
				return true
			}
		}
		if check(c.wild, false) {
			return true
		}
	}
	return check(c.blind, true)
}

// visit makes the rules inside a host and gives the step that enters it.
func (p *planner) visit(i int, next []step) []step {
	b := p.b
	v := &b.visits[i]
	var clones []api.HostClone
	var first step
	var last *element
	for k := range v.elements {
		e := &v.elements[k]
		at := e.port(true, b.way)
		if e.tap {
			clones = append(clones, api.HostClone{Port: at})
			continue
		}
		s := step{action: api.HostAction{Clones: clones, Op: flow.Output.String(), Port: at}, what: at}
		if last == nil {
			first = s
		} else {
			p.inner(v.host, last, &s)
		}
		last, clones = e, nil
	}
	if last == nil { // taps only
		var steps []step
		for _, n := range next {
			n.action.Clones = append(slices.Clone(clones), n.action.Clones...)
			steps = append(steps, n)
		}
		return steps
	}
	p.outOf(i, last, clones, next)
	return []step{first}
}

// inner is the rule between two functions of one host; all policies of the chain share it.
func (p *planner) inner(host int, from *element, s *step) {
	at, ch := from.port(false, p.b.way), p.b.policy.chain.name
	id := digest("chain", ch, at)
	if p.share(host, id) {
		return
	}
	p.addRule(host, id, &api.HostRule{
		Priority: prioHop, Match: api.HostMatch{InPort: at}, Action: s.action, Note: "chain " + ch + ": " + at + " -> " + s.what,
	})
}

// outOf are the rules of the last function at a host. Where frames can be anything, all policies of the chain leave it in one way: what a
// function before has rewritten, and what was flooded to a destination. Copies always do.
func (p *planner) outOf(i int, from *element, clones []api.HostClone, next []step) {
	b := p.b
	at := from.port(false, b.way)
	for k := range next {
		s := &next[k]
		if len(clones) > 0 {
			s.action.Clones = append(slices.Clone(clones), s.action.Clones...)
		}
		switch {
		case !b.steers():
			p.common(i, at, s, "copies")
			continue
		case b.blind <= i+1:
			p.common(i, at, s, "rewrites addresses")
			continue
		}
		p.each(b.visits[i].host, at, plannedLeg{}, s)
		if b.toDest && b.policy.exhaustive() {
			p.common(i, at, s, "takes what is flooded to its endpoint")
		}
	}
}

// common makes the rule of a function's port for frames that no address tells apart.
func (p *planner) common(i int, at string, s *step, why string) {
	b := p.b
	host, match, ch := b.visits[i].host, flow.Match{}, b.policy.chain.name
	if s.when != nil {
		match, _ = s.when(match)
	}
	id := digest("out", ch, b.way.String(), at, s.key)
	if have := p.c.nodes[host].rules[id]; have != nil && !sameAction(&have.Action, &s.action) {
		p.err = fmt.Errorf("chain %s cannot be shared by the policies %s and %s: one of them %s, so frames of both must leave it alike, and one goes on %s; give each a chain of its own",
			ch, have.Policy, b.policy.name, why, s.what)
	}
	if p.share(host, id) {
		return
	}
	r := api.HostRule{
		Priority: prioHop + s.rank, Match: p.c.w.hostMatch(&match), Action: s.action,
		Policy: b.policy.name, Note: "chain " + ch + ": " + at + " -> " + s.what,
	}
	r.Match.InPort = at
	p.addRule(host, id, &r)
}

func sameAction(a, b *api.HostAction) bool {
	return a.Op == b.Op && a.Port == b.Port && a.Pop == b.Pop && a.Push == b.Push && slices.Equal(a.Clones, b.Clones)
}

// each makes a step's rules, one for each match; with a tag only that is matched.
func (p *planner) each(host int, in string, l plannedLeg, s *step) {
	if l.tag != 0 {
		p.eachTagged(host, in, &l, s)
		return
	}
	b, w := p.b, p.c.w
	name, note := b.policy.name, ""
	is := labelOf("policy", name, b.way.String(), in, "0")
	for i := range b.matches {
		m := &b.matches[i]
		match, key := m.Match, m.key
		if s.when != nil {
			var ok bool
			if match, ok = s.when(match); !ok {
				continue
			}
			key = matchKey(&match)
		}
		if b.toDest && match == (flow.Match{}) {
			continue // see common
		}
		id := is.with(key).with(s.key).digest()
		if p.share(host, id) {
			continue
		}
		if note == "" {
			note = "policy " + name + ": " + in + " -> " + s.what
		}
		r := api.HostRule{Priority: prioInside + uint16(b.policy.priority)*insideScale + s.rank, Match: m.host, Action: s.action, Policy: name, Note: note}
		if s.when != nil {
			r.Match = w.hostMatch(&match)
		}
		r.Match.InPort = in
		p.addRule(host, id, &r)
	}
}

func (p *planner) eachTagged(host int, in string, l *plannedLeg, s *step) {
	match := flow.Match{}
	if s.when != nil {
		var ok bool
		if match, ok = s.when(match); !ok {
			return
		}
	}
	id := p.c.w.g.tagRuleID(host, in, l.tag, l.end, s.key)
	if p.share(host, id) {
		return
	}
	r := api.HostRule{
		Priority: prioTag + s.rank, Match: p.c.w.hostMatch(&match), Action: s.action, Policy: p.b.policy.name,
		Note: "chain " + p.b.policy.chain.name + ": tag " + strconv.Itoa(int(l.tag)) + " -> " + s.what,
	}
	r.Action.Pop, r.Match.InPort, r.Match.Tag = true, in, l.tag
	p.addRule(host, id, &r)
}

// arrive makes the rules of a leg up to the host where it ends.
func (p *planner) arrive(l plannedLeg, host int, steps []step, i int) {
	g := p.c.w.g
	p.transit(l, host, i)
	for _, a := range l.arcs {
		if g.arcs[a].to != host {
			continue
		}
		for k := range steps {
			p.each(host, g.arcs[a].in.Name, l, &steps[k])
		}
	}
}

// transit makes the entries of the OpenFlow switches that a leg passes.
func (p *planner) transit(l plannedLeg, target, i int) {
	b, g := p.b, p.c.w.g
	p.c.tmp.notes = p.c.tmp.notes[:0] // by match: the same at all switches
	for _, a := range l.arcs {
		x := &g.arcs[a]
		if x.to == target || g.sw[x.to].Host {
			continue
		}
		on, ok := g.path(x.to, target)
		if !ok {
			continue
		}
		e := Entry{Hop: hopNumber(i, maxHops-len(on)), Policy: b.policy.name, Outs: g.outs(g.arcs[on[0]].out.Number)}
		if l.tag != 0 {
			if len(p.c.tmp.notes) == 0 {
				p.c.tmp.notes = append(p.c.tmp.notes, "chain "+b.policy.chain.name+": tag "+strconv.Itoa(int(l.tag))+" "+g.toward[target])
			}
			e.Priority, e.Match = prioTag, flow.Match{InPort: x.in.Number, Tag: l.tag}
			e.Cookie = g.tagCookie(a, l.tag, l.end)
			e.Note = p.c.tmp.notes[0]
			p.entry(x.to, &e)
			continue
		}
		e.Priority = prioSource + uint16(b.policy.priority)*p.c.scale
		is := p.c.nodes[x.to].transit.port(x.in.Number).with(b.policy.name).with(b.way.String())
		for k := range b.matches {
			m := &b.matches[k]
			if len(p.c.tmp.notes) == k {
				p.c.tmp.notes = append(p.c.tmp.notes, "policy "+b.policy.name+": "+m.term+" "+g.toward[target])
			}
			e.Match = m.Match
			e.Match.InPort = x.in.Number
			e.Cookie = is.with(m.key).identity()
			e.Note = p.c.tmp.notes[k]
			p.entry(x.to, &e)
		}
	}
}

// maxHops of a leg can be told apart by their numbers.
const maxHops = 16

// hopNumber of a leg's n-th hop, from 0; behind all others is the one next to its end, however many ways lead there.
func hopNumber(leg, n int) uint8 {
	return uint8(min(255, 1+(leg+1)*maxHops+min(max(n, 0), maxHops-1)))
}

// MaxPorts bounds the entries that one with port ranges becomes (see PortMasks).
const MaxPorts = 256

func (p *planner) entry(node int, e *Entry) {
	if n := size(&e.Match); n > MaxPorts && p.err == nil {
		p.err = fmt.Errorf("its ports would take %d entries at %s, since OpenFlow 1.3 matches no ranges: at most %d; name one of the two ranges, or a simpler one",
			n, p.c.w.g.name(node), MaxPorts)
	}
	made := &p.b.made.entries
	if *made == nil {
		*made = make([]ref, 0, 8)
	}
	*made = append(*made, ref{node, p.c.nodes[node].add(e)})
}

// share uses a rule that is there already.
func (p *planner) share(host int, id uint64) bool {
	have := p.c.nodes[host].share(id, p.b.policy.name)
	if have != nil {
		p.made(host, have)
	}
	return have != nil
}

// addRule makes one that is not.
func (p *planner) addRule(host int, id uint64, r *api.HostRule) {
	if r.Cookie = cookieText(id); r.Stage == "" {
		r.Stage = flow.Ingress.String()
	}
	p.made(host, p.c.nodes[host].addRule(id, r, p.b.policy.name))
}

func (p *planner) made(host int, r *countedRule) {
	made := &p.b.made.rules
	if *made == nil {
		*made = make([]ruleRef, 0, 8)
	}
	*made = append(*made, ruleRef{host, r})
}

// rule shares or makes one.
func (p *planner) rule(host int, id uint64, r *api.HostRule) {
	if !p.share(host, id) {
		p.addRule(host, id, r)
	}
}

// fits checks the tables of every switch that a policy has entries in.
func (c *Compiler) fits(p *policy) error {
	c.tmp.unmark()
	for _, b := range p.bundles {
		for _, e := range b.made.entries {
			if !c.tmp.first(c.tmp.nodeMark, e.node) {
				continue
			}
			n := c.nodes[e.node]
			for table := range n.sw.Tables {
				if err := n.room(uint8(table), c.w.in.Reserve, func() int { return len(c.floodOf(e.node, n)) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// matchKey is a match in an identity.
func matchKey(m *flow.Match) string {
	b := make([]byte, 0, 96)
	b = append(b, m.SrcMAC[:]...)
	b = append(b, m.SrcMACMask[:]...)
	b = append(b, m.DstMAC[:]...)
	b = append(b, m.DstMACMask[:]...)
	for _, n := range [...]uint16{m.VLAN, m.EtherType, uint16(m.Proto), m.SrcPorts.First, m.SrcPorts.Last, m.DstPorts.First, m.DstPorts.Last} {
		b = append(b, byte(n>>8), byte(n))
	}
	b = appendPrefix(b, m.Src)
	b = append(b, 0xff)
	b = appendPrefix(b, m.Dst)
	return string(b)
}

func appendPrefix(b []byte, p netip.Prefix) []byte {
	if !p.IsValid() {
		return b
	}
	if a := p.Addr(); a.Is4() {
		four := a.As4()
		b = append(b, four[:]...)
	} else {
		sixteen := a.As16()
		b = append(b, sixteen[:]...)
	}
	return append(b, byte(p.Bits()))
}

func (w *world) hostMatch(m *flow.Match) api.HostMatch {
	return api.HostMatch{
		VLAN: m.VLAN, EtherType: m.EtherType, Proto: m.Proto, SrcMAC: macText(m.SrcMAC, m.SrcMACMask), DstMAC: macText(m.DstMAC, m.DstMACMask),
		Src: w.prefixText(m.Src), Dst: w.prefixText(m.Dst), SrcPorts: w.rangeText(m.SrcPorts), DstPorts: w.rangeText(m.DstPorts),
	}
}

// maxTexts bounds what is remembered of texts.
const maxTexts = 1 << 16

// prefixText remembers: many rules have the same.
func (w *world) prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	text, known := w.texts[p]
	if !known {
		if text = p.String(); len(w.texts) < maxTexts {
			w.texts[p] = text
		}
	}
	return text
}

func (w *world) termText(t api.Term) string {
	text, known := w.services[t]
	if !known {
		if text = t.String(); len(w.services) < maxTexts {
			w.services[t] = text
		}
	}
	return text
}

func macText(m, mask flow.MAC) string {
	switch mask {
	case flow.MAC{}:
		return ""
	case whole:
		return m.String()
	}
	return m.String() + "/" + mask.String()
}

func (w *world) rangeText(r flow.PortRange) string {
	if r.Any() {
		return ""
	}
	text, known := w.ranges[r]
	if !known {
		if text = strconv.Itoa(int(r.First)); r.First != r.Last {
			text += "-" + strconv.Itoa(int(r.Last))
		}
		if len(w.ranges) < maxTexts {
			w.ranges[r] = text
		}
	}
	return text
}
