package control

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

// The planner decides what may be changed now, given what is wanted, what is known to be in force, and the time. It is asked again after
// each answer of a switch or host, and does the following:
//
//   - A policy's change begins at the far end of its way: hosts' rules first, then entries of the highest hop, and so on; hop 0, which catches
//     frames, when all behind it is in force. So every frame follows the old way, or the old way and then the new one to its end.
//   - Between the two, hosts lead frames elsewhere than before: each in one commit, when all that they then lead to is in force. So do rules
//     that take over frames which another policy leads out of the same chain.
//   - What the old way alone had needed is removed when the new way is in force and what was in flight has drained: first what had caught
//     frames, at last what these were led to.
//   - That no frame takes a turn from one way into the other is the compiler's business (see fabric.Variant and stage).
//   - Entries that flood are first reduced to what the old and the new tree have in common, everywhere; then they grow. So at no
//     time do they hold a loop, whatever the order in which switches act; between the two, what is under way has a moment. There are two
//     trees, and a switch has entries for odd senders unless its network cannot tell them: such an entry comes when those of all senders
//     shrink, and goes when they have grown to be for both.
//   - Other default forwarding is changed at once. A switch that has lost all its entries forwards nothing before it steers again what it has
//     to: else frames would go past their functions.
//   - What waits for a switch or host that does not answer waits alone.
const (
	staleAfter = 30 * time.Second // an unknown entry of an earlier life goes at last, even if a policy can not be settled
	maxBatch   = 4096             // entries in one bundle
	gateMost   = 2 * time.Second  // a host that does not answer holds up changes at others no longer
	shutMost   = 10 * time.Second // a policy that does not come into force holds up an empty switch no longer
)

// held is an entry as the switch has confirmed it.
type held struct {
	*rule
	cookie   uint64
	known    bool      // made by this router, else found in the switch
	unwanted time.Time // since when nothing wants it and its removal is due; zero: wanted or not due
}

// node is an OpenFlow switch as the planner sees it.
type node struct {
	reachable bool // connected and read back
	busy      bool // a batch is on its way
	held      map[key]*held
	target    map[key]*rule
	source    []*fabric.Entry // of target
	refused   map[key]refusal
	differs   map[key]struct{} // where held and target differ, or may do so when the switch has done what it was told
	told      map[key]*rule    // what the batch on its way puts in force, nil: removes
	pending   int              // of the target, not yet in force
	emptied   time.Time        // since when it forwards nothing, zero: it does
}

func newNode() *node {
	return &node{held: map[key]*held{}, target: map[key]*rule{}, refused: map[key]refusal{}, differs: map[key]struct{}{}}
}

func (n *node) settled() bool { return len(n.differs) == 0 }

// mark notes whether held and target differ at a key.
func (n *node) mark(k key) {
	h, r := n.held[k], n.target[k]
	_, told := n.told[k]
	switch {
	case told:
		n.differs[k] = struct{}{}
	case h == nil && r == nil:
		delete(n.differs, k)
	case h == nil || r == nil || h.content != r.content || h.identity != r.identity:
		n.differs[k] = struct{}{}
	default:
		if !h.known || !h.unwanted.IsZero() || h.rule != r {
			n.held[k] = &held{rule: r, cookie: h.cookie, known: true}
		}
		delete(n.differs, k)
	}
}

// want changes the target.
func (n *node) want(d delta) {
	n.source = d.source
	if d.whole {
		n.target = make(map[key]*rule, len(d.add))
		for _, r := range d.add {
			n.target[r.key] = r
		}
		n.compare()
		return
	}
	for _, k := range d.del {
		delete(n.target, k)
	}
	for _, r := range d.add {
		n.target[r.key] = r
		n.mark(r.key)
	}
	for _, k := range d.del {
		n.mark(k)
	}
}

// adopt takes over the entries that were read from the switch.
func (n *node) adopt(entries []openflow.FlowStats, now time.Time) {
	found := make(map[key]*held, len(entries))
	n.refused = map[key]refusal{}
	for _, e := range entries {
		k := key{e.Table, e.Priority, e.Match.Key()}
		r := &rule{key: k, identity: e.Cookie & identityMask, content: openflow.InstructionString(e.Instructions), match: e.Match, do: e.Instructions}
		if ports := floodPorts(r.do); mayFlood(&k, r.do) && len(ports) > 0 {
			r.flood = ports
		}
		h := &held{rule: r, cookie: e.Cookie}
		if o := n.held[k]; o != nil && o.content == r.content && o.identity == r.identity {
			h.rule, h.known = o.rule, o.known
		}
		found[k] = h
	}
	if n.emptied = (time.Time{}); len(found) == 0 {
		n.emptied = now
	}
	n.found(found)
	n.reachable, n.busy = true, false
}

// gives tells whether an entry goes before others come, which may need its room in a table: what it does the flood entry does, too.
func (h *held) gives() bool { return h.known && h.policy == "" && h.priority == fabric.StationPriority }

// found replaces what is held.
func (n *node) found(now map[key]*held) {
	n.held, n.told = now, nil
	n.compare()
}

func (n *node) compare() {
	n.differs = map[key]struct{}{}
	for k := range n.target {
		n.mark(k)
	}
	for k := range n.held {
		if n.target[k] == nil {
			n.mark(k)
		}
	}
}

// confirm notes that a rule is in force.
func (n *node) confirm(r *rule, cookie uint64) {
	n.held[r.key] = &held{rule: r, cookie: cookie, known: true}
	delete(n.refused, r.key)
	n.mark(r.key)
}

// removed notes that nothing is in force at a key.
func (n *node) removed(k key) {
	delete(n.held, k)
	n.mark(k)
}

// refusal is an entry that the switch did not take.
type refusal struct {
	content string
	until   time.Time
	wait    time.Duration
	err     error
}

// peer is a host as the planner sees it.
type peer struct {
	name     string
	present  bool                    // it has an agent that may answer
	target   map[string]api.HostRule // by cookie
	source   []*api.HostRule         // of target
	sourced  bool                    // it is all of these
	follows  bool                    // known is up to date with fleet.followed
	known    int64                   // the last decision that its rules follow
	coming   map[string]int64        // policies that it has steered, and the decisions by which the router takes them over when it is ready
	tunnels  []api.Tunnel
	written  api.AssignmentSpec      // as last written or seen
	wrote    bool                    // there is an assignment
	acked    map[string]api.HostRule // in force as the agent says
	unwanted map[string]time.Time
	settled  bool
	writing  bool                         // written is on its way to the API
	versions map[int64]api.AssignmentSpec // by generation, to know what an answer is about
	sent     []sent                       // that it has not answered for, in order
	newest   int64                        // generation that the API has told of
	held     time.Time                    // since when it may not lead frames elsewhere; zero: it may
	message  string
}

func newPeer(name string) *peer {
	return &peer{name: name, target: map[string]api.HostRule{}, acked: map[string]api.HostRule{}, unwanted: map[string]time.Time{}, coming: map[string]int64{}}
}

// inForce tells that the host's agent has all rules of the target, as they are there, and no others, now and when it has what is on its way.
func (h *peer) inForce() bool {
	if len(h.sent) > 0 {
		return false
	}
	for c, r := range h.target {
		if have, ok := h.acked[c]; !ok || !sameHostRule(have, r) {
			return false
		}
	}
	return len(h.acked) == len(h.target)
}

// fleet is everything that the planner looks at.
type fleet struct {
	nodes    map[fabric.SwitchID]*node
	peers    map[string]*peer
	paths    *fabric.Paths
	followed int64        // all decisions up to this one have been looked at
	places   fabric.Input // with these endpoints
	// fresh tells of a policy that it never was in force and does not fail open; nil: none is. Its frames are dropped until its way is ready.
	fresh func(policy string) bool
	drain time.Duration
	odds  time.Time // when some switch flooded to a port to which it shall not, last
}

// batch is what one switch is told next.
type batch struct {
	add    []*rule // in the order in which they are sent
	remove []*held
}

// steps is what may be done now.
type steps struct {
	batches  map[fabric.SwitchID]batch
	specs    map[string]api.AssignmentSpec
	progress map[string]*progress
	again    time.Time // plan again then at the latest; zero: when something is answered
}

func (s *steps) by(t time.Time) {
	if s.again.IsZero() || t.Before(s.again) {
		s.again = t
	}
}

// plan looks at everything and says what may be done now. It marks what is to be removed with the time, and nothing else.
func plan(f *fleet, now time.Time) steps {
	s := steps{batches: map[fabric.SwitchID]batch{}, specs: map[string]api.AssignmentSpec{}}
	s.progress = f.measure(now)
	trees := f.lulled(&s, now)
	calm := !slices.ContainsFunc(slices.Collect(maps.Values(s.progress)), func(p *progress) bool { return !p.done() })
	for _, id := range slices.Sorted(maps.Keys(f.nodes)) {
		n := f.nodes[id]
		if n.settled() || n.busy || !n.reachable {
			continue
		}
		if b := f.batch(n, &s, trees, calm, now); len(b.add)+len(b.remove) > 0 {
			s.batches[id] = b
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.peers)) {
		h := f.peers[name]
		if h.settled || !h.present {
			continue
		}
		h.overdue(now)
		spec := f.assign(h, &s, calm, now)
		if !h.wrote && len(spec.Rules)+len(spec.Tunnels) == 0 && spec.Known == 0 {
			h.settled = len(h.target) == 0
			continue
		}
		if !h.wrote || !sameSpec(spec, h.written) {
			s.specs[name] = spec
		} else if len(spec.Rules) == len(h.target) && len(h.coming) == 0 && h.inForce() {
			h.settled = true
		}
	}
	return s
}

// treesAgree reports that no reachable switch floods to a port to which it shall not.
func (f *fleet) treesAgree() bool {
	for _, n := range f.nodes {
		if !n.reachable {
			continue
		}
		for k := range n.differs {
			if !n.agrees(k) {
				return false
			}
		}
	}
	return true
}

// agrees reports that what may be in force at a key, or takes its frames if nothing is, floods to no port to which it shall not.
func (n *node) agrees(k key) bool {
	r := n.target[k]
	if r != nil && r.flood == nil {
		return true
	}
	for _, now := range n.may(k) {
		switch {
		case now != nil && r != nil:
			if !subset(now.flooding(), r.flood) {
				return false
			}
		case now != nil:
			if t := n.instead(now); t != nil && !subset(now.flooding(), t.flood) || t == nil && now.flood != nil {
				return false
			}
		case r != nil:
			below, odd := r.below()
			for _, now := range n.may(below) {
				if odd && now != nil && !subset(now.flooding(), r.flood) {
					return false
				}
			}
		}
	}
	return true
}

// may is what may be in force at a key, nil nothing: what the switch has confirmed, and what it was told if it has not answered yet.
func (n *node) may(k key) [2]*rule {
	var now *rule
	if h := n.held[k]; h != nil {
		now = h.rule
	}
	if next, told := n.told[k]; told {
		return [2]*rule{now, next}
	}
	return [2]*rule{now, now}
}

// instead is what is to take the frames of an entry for odd senders that nothing wants; nil for all others.
func (n *node) instead(r *rule) *rule {
	if below, odd := r.below(); odd {
		if t := n.target[below]; t != nil && t.flood != nil {
			return t
		}
	}
	return nil
}

func subset(a, b []openflow.Port) bool {
	for _, p := range a {
		if _, ok := slices.BinarySearch(b, p); !ok {
			return false
		}
	}
	return true
}

// both are the ports of two sorted lists.
func both(a, b []openflow.Port) []openflow.Port {
	return slices.DeleteFunc(slices.Clone(a), func(p openflow.Port) bool {
		_, ok := slices.BinarySearch(b, p)
		return !ok
	})
}

// shut tells whether the switch must not forward yet: it came empty, and has not all entries that steer.
func (n *node) shut(s *steps, now time.Time) bool {
	end := n.emptied.Add(shutMost)
	if n.emptied.IsZero() || !now.Before(end) {
		n.emptied = time.Time{}
		return false
	}
	for k := range n.differs {
		r := n.target[k]
		if r == nil || r.policy == "" {
			continue
		}
		if x, ok := n.refused[k]; !ok || x.content != r.content {
			s.by(end)
			return true
		}
	}
	n.emptied = time.Time{}
	return false
}

// forwards tells whether an entry sends frames on, not only to the router.
func (r *rule) forwards() bool {
	for _, i := range r.do {
		as, ok := i.(openflow.ApplyActions)
		if !ok {
			return true // to the next table
		}
		for _, a := range as {
			if o, ok := a.(openflow.Output); ok && o.Port != openflow.PortController {
				return true
			}
		}
	}
	return false
}

// batch is what a switch may be told now.
func (f *fleet) batch(n *node, s *steps, trees, calm bool, now time.Time) batch {
	var b batch
	shut := n.shut(s, now)
	covered, narrow := n.covered(), n.narrow(trees)
	for k, less := range narrow {
		if now := n.held[k]; now != nil && now.content != less.content {
			b.add = append(b.add, less)
		}
	}
	for k := range n.differs {
		h, r := n.held[k], n.target[k]
		if narrow[k] != nil {
			continue
		}
		if r == nil {
			if h == nil {
				continue
			}
			if t := n.instead(h.rule); t != nil && !trees {
				if n.refuses(h, t) {
					if below, _ := h.below(); narrow[below] != nil && n.held[below].content == narrow[below].content {
						b.remove = append(b.remove, h) // its frames go on as they might have with less ports
					}
					continue
				}
				if less := h.withPorts(both(h.flooding(), t.flood)); less.content != h.content {
					b.add = append(b.add, less)
				}
			} else if t != nil || f.expired(h, s, calm, now) {
				b.remove = append(b.remove, h)
			}
			continue
		}
		if shut && r.policy == "" && r.forwards() {
			continue
		}
		if x, ok := n.refused[k]; ok && x.content == r.content && now.Before(x.until) {
			s.by(x.until)
			continue
		}
		if r = f.allowed(n, r, s.progress, trees && !covered[k]); r != nil {
			b.add = append(b.add, r)
		}
	}
	slices.SortFunc(b.add, func(x, y *rule) int { // what leads on before what catches
		return cmp.Or(cmp.Compare(y.hop, x.hop), cmp.Compare(y.table, x.table), cmp.Compare(y.priority, x.priority), cmp.Compare(x.identity, y.identity),
			cmp.Compare(x.key.match, y.key.match))
	})
	slices.SortFunc(b.remove, func(x, y *held) int {
		return cmp.Or(cmp.Compare(x.hop, y.hop), cmp.Compare(x.table, y.table), cmp.Compare(x.priority, y.priority), cmp.Compare(x.key.match, y.key.match))
	})
	if len(b.add) > maxBatch {
		return batch{add: b.add[:maxBatch]}
	}
	b.remove = b.remove[:min(len(b.remove), maxBatch-len(b.add))]
	return b
}

// covered are the keys of entries whose frames of odd senders another one is to take that is not there yet.
func (n *node) covered() map[key]bool {
	var all map[key]bool
	for k := range n.differs {
		if r := n.target[k]; r != nil && n.held[k] == nil {
			if below, odd := r.below(); odd {
				if all == nil {
					all = map[key]bool{}
				}
				all[below] = true
			}
		}
	}
	return all
}

// allowed is the rule that may be put in force now, nil for none yet. trees: it may grow if it floods.
func (f *fleet) allowed(n *node, r *rule, progress map[string]*progress, trees bool) *rule {
	if r.policy == "" {
		h := n.held[r.key]
		if r.flood == nil || trees || h == nil && len(r.flood) == 0 {
			return r
		}
		now := h
		if below, odd := r.below(); odd && h == nil {
			now = n.held[below]
		}
		if now == nil {
			return nil
		}
		less := r.withPorts(both(now.flooding(), r.flood))
		if h != nil && h.content == less.content {
			return nil
		}
		return less
	}
	p := progress[r.policy]
	switch {
	case p == nil:
		return r
	case r.hop > 0 && p.hosts == 0 && int(r.hop) >= p.deepest:
		return r
	case r.hop == 0 && p.ready():
		return r
	}
	return nil
}

// expired reports that an entry that nothing wants may go now.
func (f *fleet) expired(h *held, s *steps, calm bool, now time.Time) bool {
	if h.known && h.policy == "" || h.flood != nil {
		return true
	}
	if h.unwanted.IsZero() {
		due, wait := f.due(removal{known: h.known, policy: h.policy, hop: int(h.hop), early: f.early(h)}, s, calm)
		if !due && h.known {
			return false
		}
		if due && !wait {
			return true
		}
		h.unwanted = now
	}
	limit := f.drain
	if !h.known && !calm {
		limit = staleAfter
	}
	if at := h.unwanted.Add(limit); now.Before(at) {
		s.by(at)
		return false
	}
	return true
}

// removal is an entry or a host's rule that nothing wants.
type removal struct {
	known  bool
	policy string
	hop    int
	early  bool // see fleet.early
	over   bool // see turn.over
}

// due: it may go, at once or when what is in flight has drained.
func (f *fleet) due(r removal, s *steps, calm bool) (due, wait bool) {
	if !r.known {
		return calm, true
	}
	p := s.progress[r.policy]
	inForce := f.paths.Of(r.policy) != nil
	switch {
	case r.policy == "":
		return calm, true
	case p == nil:
	case inForce && !p.done(), r.hop > 0 && p.leaving > 0, r.hop > 0 && p.early > 0 && !(r.early && r.hop == p.early), r.hop > 0 && p.over > 0 && !r.early && !r.over:
		return false, false // frames set out for it yet
	}
	return true, r.hop > 0 && !(r.early && !inForce)
}

// assign is what a host's assignment may say now.
func (f *fleet) assign(h *peer, s *steps, calm bool, now time.Time) api.AssignmentSpec {
	spec := api.AssignmentSpec{Tunnels: h.tunnels}
	had := map[string]api.HostRule{}
	for _, r := range h.written.Rules {
		had[r.Cookie] = r
	}
	t := h.turns()
	turn := f.mayTurn(h.name, h, t, s, now)
	for c, r := range h.target {
		delete(h.unwanted, c)
		old, there := had[c]
		p := s.progress[r.Policy]
		switch {
		case there && sameHostRule(old, r):
			spec.Rules = append(spec.Rules, r)
		case t.in[c] && !turn:
			if there {
				spec.Rules = append(spec.Rules, old)
			}
		case !r.Catches() && !t.over[c], p == nil, p.ready(), t.over[c] && p.led():
			spec.Rules = append(spec.Rules, r)
		case there:
			spec.Rules = append(spec.Rules, old)
		case r.Catches() && f.fresh != nil && f.fresh(r.Policy):
			spec.Rules = append(spec.Rules, closing(r))
		}
	}
	for c, r := range had {
		if _, wanted := h.target[c]; wanted {
			continue
		}
		if t.out[c] {
			if !turn {
				spec.Rules = append(spec.Rules, r)
			}
			continue
		}
		since, marked := h.unwanted[c]
		if !marked {
			hop := fabric.FirstLeg + 1
			if r.Catches() {
				hop = 0
			}
			due, wait := f.due(removal{known: true, policy: r.Policy, hop: hop, over: t.over[c]}, s, calm)
			switch {
			case due && !wait:
				continue
			case due:
				since = now
				h.unwanted[c] = now
			default:
				spec.Rules = append(spec.Rules, r)
				continue
			}
		}
		if at := since.Add(f.drain); now.Before(at) {
			s.by(at)
			spec.Rules = append(spec.Rules, r)
			continue
		}
		delete(h.unwanted, c)
	}
	slices.SortFunc(spec.Rules, func(a, b api.HostRule) int { return cmp.Compare(a.Cookie, b.Cookie) })
	h.handOver(&spec, s.progress)
	return spec
}

func sameHostRule(a, b api.HostRule) bool {
	return a.Cookie == b.Cookie && a.Priority == b.Priority && a.Stage == b.Stage && a.Match == b.Match && a.Policy == b.Policy && a.Action.Same(&b.Action)
}

func sameSpec(a, b api.AssignmentSpec) bool {
	return slices.EqualFunc(a.Rules, b.Rules, sameHostRule) && slices.Equal(a.Tunnels, b.Tunnels) && a.Known == b.Known && a.Taken == b.Taken
}

const hostPrefix = "host:"

func hostID(name string) fabric.SwitchID { return fabric.SwitchID(hostPrefix + name) }

func hostName(id fabric.SwitchID) (string, bool) {
	if len(id) > len(hostPrefix) && id[:len(hostPrefix)] == hostPrefix {
		return string(id[len(hostPrefix):]), true
	}
	return "", false
}
