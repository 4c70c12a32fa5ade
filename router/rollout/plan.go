package rollout

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
	MaxBatch   = 4096             // entries in one bundle
	gateMost   = 2 * time.Second  // a host that does not answer holds up changes at others no longer
	shutMost   = 10 * time.Second // a policy that does not come into force holds up an empty switch no longer
)

// Held is an entry as the switch has confirmed it.
type Held struct {
	*Rule
	cookie   uint64
	Known    bool      // made by this router, else found in the switch
	unwanted time.Time // since when nothing wants it and its removal is due; zero: wanted or not due
}

// Node is an OpenFlow switch as the planner sees it.
type Node struct {
	Reachable bool // connected and read back
	Busy      bool // a batch is on its way
	Held      map[Key]*Held
	Target    map[Key]*Rule
	Source    []*fabric.Entry // of target
	Refused   map[Key]refusal
	Differs   map[Key]struct{} // where held and target differ, or may do so when the switch has done what it was told
	told      map[Key]*Rule    // what the batch on its way puts in force, nil: removes
	Pending   int              // of the target, not yet in force
	emptied   time.Time        // since when it forwards nothing, zero: it does
}

func NewNode() *Node {
	return &Node{Held: map[Key]*Held{}, Target: map[Key]*Rule{}, Refused: map[Key]refusal{}, Differs: map[Key]struct{}{}}
}

func (n *Node) Settled() bool { return len(n.Differs) == 0 }

// mark notes whether held and target differ at a key.
func (n *Node) mark(k Key) {
	h, r := n.Held[k], n.Target[k]
	_, told := n.told[k]
	switch {
	case told:
		n.Differs[k] = struct{}{}
	case h == nil && r == nil:
		delete(n.Differs, k)
	case h == nil || r == nil || h.Content != r.Content || h.Identity != r.Identity:
		n.Differs[k] = struct{}{}
	default:
		if !h.Known || !h.unwanted.IsZero() || h.Rule != r {
			n.Held[k] = &Held{Rule: r, cookie: h.cookie, Known: true}
		}
		delete(n.Differs, k)
	}
}

// Want changes the target.
func (n *Node) Want(d Delta) {
	n.Source = d.Source
	if d.Whole {
		n.Target = make(map[Key]*Rule, len(d.Add))
		for _, r := range d.Add {
			n.Target[r.Key] = r
		}
		n.compare()
		return
	}
	for _, k := range d.Del {
		delete(n.Target, k)
	}
	for _, r := range d.Add {
		n.Target[r.Key] = r
		n.mark(r.Key)
	}
	for _, k := range d.Del {
		n.mark(k)
	}
}

// Adopt takes over the entries that were read from the switch.
func (n *Node) Adopt(entries []openflow.FlowStats, now time.Time) {
	found := make(map[Key]*Held, len(entries))
	n.Refused = map[Key]refusal{}
	for _, e := range entries {
		k := KeyOf(&e)
		r := &Rule{Key: k, Identity: e.Cookie & IdentityMask, Content: openflow.InstructionString(e.Instructions), Match: e.Match, Do: e.Instructions}
		if ports := floodPorts(r.Do); mayFlood(&k, r.Do) && len(ports) > 0 {
			r.flood = ports
		}
		h := &Held{Rule: r, cookie: e.Cookie}
		if o := n.Held[k]; o != nil && o.Content == r.Content && o.Identity == r.Identity {
			h.Rule, h.Known = o.Rule, o.Known
		}
		found[k] = h
	}
	if n.emptied = (time.Time{}); len(found) == 0 {
		n.emptied = now
	}
	n.found(found)
	n.Reachable, n.Busy = true, false
}

// Gives tells whether an entry goes before others come, which may need its room in a table: what it does the flood entry does, too.
func (h *Held) Gives() bool { return h.Known && h.Policy == "" && h.Priority == fabric.StationPriority }

// found replaces what is held.
func (n *Node) found(now map[Key]*Held) {
	n.Held, n.told = now, nil
	n.compare()
}

func (n *Node) compare() {
	n.Differs = map[Key]struct{}{}
	for k := range n.Target {
		n.mark(k)
	}
	for k := range n.Held {
		if n.Target[k] == nil {
			n.mark(k)
		}
	}
}

// Confirm notes that a rule is in force.
func (n *Node) Confirm(r *Rule, cookie uint64) {
	n.Held[r.Key] = &Held{Rule: r, cookie: cookie, Known: true}
	delete(n.Refused, r.Key)
	n.mark(r.Key)
}

// Removed notes that nothing is in force at a key.
func (n *Node) Removed(k Key) {
	delete(n.Held, k)
	n.mark(k)
}

// refusal is an entry that the switch did not take.
type refusal struct {
	Content string
	Until   time.Time
	Wait    time.Duration
	Err     error
}

// Peer is a host as the planner sees it.
type Peer struct {
	name     string
	Present  bool                    // it has an agent that may answer
	Target   map[string]api.HostRule // by cookie
	Source   []*api.HostRule         // of target
	Sourced  bool                    // it is all of these
	follows  bool                    // known is up to date with fleet.followed
	known    int64                   // the last decision that its rules follow
	coming   map[string]int64        // policies that it has steered, and the decisions by which the router takes them over when it is ready
	Tunnels  []api.Tunnel
	Written  api.AssignmentSpec      // as last written or seen
	Wrote    bool                    // there is an assignment
	Acked    map[string]api.HostRule // in force as the agent says
	unwanted map[string]time.Time
	Settled  bool
	Writing  bool                         // written is on its way to the API
	Versions map[int64]api.AssignmentSpec // by generation, to know what an answer is about
	Sent     []sent                       // that it has not answered for, in order
	Newest   int64                        // generation that the API has told of
	held     time.Time                    // since when it may not lead frames elsewhere; zero: it may
	Message  string
}

func NewPeer(name string) *Peer {
	return &Peer{name: name, Target: map[string]api.HostRule{}, Acked: map[string]api.HostRule{}, unwanted: map[string]time.Time{}, coming: map[string]int64{}}
}

// inForce tells that the host's agent has all rules of the target, as they are there, and no others, now and when it has what is on its way.
func (h *Peer) inForce() bool {
	if len(h.Sent) > 0 {
		return false
	}
	for c, r := range h.Target {
		if have, ok := h.Acked[c]; !ok || !SameHostRule(have, r) {
			return false
		}
	}
	return len(h.Acked) == len(h.Target)
}

// Fleet is everything that the planner looks at.
type Fleet struct {
	Nodes    map[fabric.SwitchID]*Node
	Peers    map[string]*Peer
	Paths    *fabric.Paths
	followed int64              // all decisions up to this one have been looked at
	places   fabric.Input       // with these endpoints
	versions map[string]Version // of these policies
	// Fresh tells of a policy that it never was in force at a host and does not fail open; nil: none is. Its frames are dropped there until its
	// way is ready.
	Fresh func(policy, host string) bool
	Drain time.Duration
	odds  time.Time // when some switch flooded to a port to which it shall not, last
}

// Batch is what one switch is told next.
type Batch struct {
	Add    []*Rule // in the order in which they are sent
	Remove []*Held
}

// Steps is what may be done now.
type Steps struct {
	Batches  map[fabric.SwitchID]Batch
	Specs    map[string]api.AssignmentSpec
	Progress map[string]*Progress
	Again    time.Time // plan again then at the latest; zero: when something is answered
}

func (s *Steps) by(t time.Time) {
	if s.Again.IsZero() || t.Before(s.Again) {
		s.Again = t
	}
}

// Plan looks at everything and says what may be done now. It marks what is to be removed with the time, and nothing else.
func Plan(f *Fleet, now time.Time) Steps {
	s := Steps{Batches: map[fabric.SwitchID]Batch{}, Specs: map[string]api.AssignmentSpec{}}
	s.Progress = f.measure(now)
	trees := f.lulled(&s, now)
	calm := !slices.ContainsFunc(slices.Collect(maps.Values(s.Progress)), func(p *Progress) bool { return !p.Done() })
	for _, id := range slices.Sorted(maps.Keys(f.Nodes)) {
		n := f.Nodes[id]
		if n.Settled() || n.Busy || !n.Reachable {
			continue
		}
		if b := f.batch(n, &s, trees, calm, now); len(b.Add)+len(b.Remove) > 0 {
			s.Batches[id] = b
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Peers)) {
		h := f.Peers[name]
		if h.Settled || !h.Present {
			continue
		}
		h.overdue(now)
		spec := f.assign(h, &s, calm, now)
		if !h.Wrote && len(spec.Rules)+len(spec.Tunnels) == 0 && spec.Known == 0 {
			h.Settled = len(h.Target) == 0
			continue
		}
		if !h.Wrote || !SameSpec(spec, h.Written) {
			s.Specs[name] = spec
		} else if len(spec.Rules) == len(h.Target) && len(h.coming) == 0 && h.inForce() {
			h.Settled = true
		}
	}
	return s
}

// treesAgree reports that no reachable switch floods to a port to which it shall not.
func (f *Fleet) treesAgree() bool {
	for _, n := range f.Nodes {
		if !n.Reachable {
			continue
		}
		for k := range n.Differs {
			if !n.agrees(k) {
				return false
			}
		}
	}
	return true
}

// agrees reports that what may be in force at a key, or takes its frames if nothing is, floods to no port to which it shall not.
func (n *Node) agrees(k Key) bool {
	r := n.Target[k]
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
func (n *Node) may(k Key) [2]*Rule {
	var now *Rule
	if h := n.Held[k]; h != nil {
		now = h.Rule
	}
	if next, told := n.told[k]; told {
		return [2]*Rule{now, next}
	}
	return [2]*Rule{now, now}
}

// instead is what is to take the frames of an entry for odd senders that nothing wants; nil for all others.
func (n *Node) instead(r *Rule) *Rule {
	if below, odd := r.below(); odd {
		if t := n.Target[below]; t != nil && t.flood != nil {
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
func (n *Node) shut(s *Steps, now time.Time) bool {
	end := n.emptied.Add(shutMost)
	if n.emptied.IsZero() || !now.Before(end) {
		n.emptied = time.Time{}
		return false
	}
	for k := range n.Differs {
		r := n.Target[k]
		if r == nil || r.Policy == "" {
			continue
		}
		if x, ok := n.Refused[k]; !ok || x.Content != r.Content {
			s.by(end)
			return true
		}
	}
	n.emptied = time.Time{}
	return false
}

// forwards tells whether an entry sends frames on, not only to the router.
func (r *Rule) forwards() bool {
	for _, i := range r.Do {
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
func (f *Fleet) batch(n *Node, s *Steps, trees, calm bool, now time.Time) Batch {
	var b Batch
	shut := n.shut(s, now)
	covered, narrow := n.covered(), n.narrow(trees)
	for k, less := range narrow {
		if now := n.Held[k]; now != nil && now.Content != less.Content {
			b.Add = append(b.Add, less)
		}
	}
	for k := range n.Differs {
		h, r := n.Held[k], n.Target[k]
		if narrow[k] != nil {
			continue
		}
		if r == nil {
			if h == nil {
				continue
			}
			if t := n.instead(h.Rule); t != nil && !trees {
				if n.refuses(h, t) {
					if below, _ := h.below(); narrow[below] != nil && n.Held[below].Content == narrow[below].Content {
						b.Remove = append(b.Remove, h) // its frames go on as they might have with less ports
					}
					continue
				}
				if less := h.withPorts(both(h.flooding(), t.flood)); less.Content != h.Content {
					b.Add = append(b.Add, less)
				}
			} else if t != nil || f.expired(h, s, calm, now) {
				b.Remove = append(b.Remove, h)
			}
			continue
		}
		if shut && r.Policy == "" && r.forwards() {
			continue
		}
		if x, ok := n.Refused[k]; ok && x.Content == r.Content && now.Before(x.Until) {
			s.by(x.Until)
			continue
		}
		if r = f.allowed(n, r, s.Progress, trees && !covered[k]); r != nil {
			b.Add = append(b.Add, r)
		}
	}
	slices.SortFunc(b.Add, Order)
	slices.SortFunc(b.Remove, func(x, y *Held) int { return Order(y.Rule, x.Rule) })
	if len(b.Add) > MaxBatch {
		return Batch{Add: b.Add[:MaxBatch]}
	}
	b.Remove = b.Remove[:min(len(b.Remove), MaxBatch-len(b.Add))]
	return b
}

// covered are the keys of entries whose frames of odd senders another one is to take that is not there yet.
func (n *Node) covered() map[Key]bool {
	var all map[Key]bool
	for k := range n.Differs {
		if r := n.Target[k]; r != nil && n.Held[k] == nil {
			if below, odd := r.below(); odd {
				if all == nil {
					all = map[Key]bool{}
				}
				all[below] = true
			}
		}
	}
	return all
}

// allowed is the rule that may be put in force now, nil for none yet. trees: it may grow if it floods.
func (f *Fleet) allowed(n *Node, r *Rule, progress map[string]*Progress, trees bool) *Rule {
	if r.Policy == "" {
		h := n.Held[r.Key]
		if r.flood == nil || trees || h == nil && len(r.flood) == 0 {
			return r
		}
		now := h
		if below, odd := r.below(); odd && h == nil {
			now = n.Held[below]
		}
		if now == nil {
			return nil
		}
		less := r.withPorts(both(now.flooding(), r.flood))
		if h != nil && h.Content == less.Content {
			return nil
		}
		return less
	}
	p := progress[r.Policy]
	switch {
	case p == nil:
		return r
	case r.Hop > 0 && p.Hosts == 0 && int(r.Hop) >= p.deepest:
		return r
	case r.Hop == 0 && p.ready():
		return r
	}
	return nil
}

// expired reports that an entry that nothing wants may go now.
func (f *Fleet) expired(h *Held, s *Steps, calm bool, now time.Time) bool {
	if h.Known && h.Policy == "" || h.flood != nil {
		return true
	}
	if h.unwanted.IsZero() {
		due, wait := f.due(removal{known: h.Known, policy: h.Policy, hop: int(h.Hop), early: f.early(h)}, s, calm)
		if !due && h.Known {
			return false
		}
		if due && !wait {
			return true
		}
		h.unwanted = now
	}
	limit := f.Drain
	if !h.Known && !calm {
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
func (f *Fleet) due(r removal, s *Steps, calm bool) (due, wait bool) {
	if !r.known {
		return calm, true
	}
	p := s.Progress[r.policy]
	inForce := f.Paths.Of(r.policy) != nil
	switch {
	case r.policy == "":
		return calm, true
	case p == nil:
	case inForce && !p.Done(), r.hop > 0 && p.leaving > 0, r.hop > 0 && p.early > 0 && !(r.early && r.hop == p.early), r.hop > 0 && p.over > 0 && !r.early && !r.over:
		return false, false // frames set out for it yet
	}
	return true, r.hop > 0 && !(r.early && !inForce)
}

// assign is what a host's assignment may say now.
func (f *Fleet) assign(h *Peer, s *Steps, calm bool, now time.Time) api.AssignmentSpec {
	spec := api.AssignmentSpec{Tunnels: h.Tunnels}
	had := map[string]api.HostRule{}
	for _, r := range h.Written.Rules {
		had[r.Cookie] = r
	}
	// Wanted rules are written in their new form, in their old form, or not yet.
	t := h.turns()
	turn := f.mayTurn(h.name, h, t, s, now)
	for c, r := range h.Target {
		delete(h.unwanted, c)
		old, there := had[c]
		p := s.Progress[r.Policy]
		switch {
		case there && SameHostRule(old, r):
			spec.Rules = append(spec.Rules, r)
		case t.in[c] && !turn:
			if there {
				spec.Rules = append(spec.Rules, old)
			}
		case !r.Catches() && !t.over[c], p == nil, p.ready(), t.over[c] && p.led():
			spec.Rules = append(spec.Rules, r)
		case there:
			spec.Rules = append(spec.Rules, old)
		case r.Catches() && f.Fresh != nil && f.Fresh(r.Policy, h.name):
			spec.Rules = append(spec.Rules, closing(r))
		}
	}
	// Unwanted rules go at once, with the host's turn, or after their frames have drained.
	for c, r := range had {
		if _, wanted := h.Target[c]; wanted {
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
		if at := since.Add(f.Drain); now.Before(at) {
			s.by(at)
			spec.Rules = append(spec.Rules, r)
			continue
		}
		delete(h.unwanted, c)
	}
	// Rules are in one order, so that an equal assignment is not written again.
	slices.SortFunc(spec.Rules, func(a, b api.HostRule) int { return cmp.Compare(a.Cookie, b.Cookie) })
	h.handOver(&spec, s.Progress)
	return spec
}

func SameHostRule(a, b api.HostRule) bool {
	return a.Cookie == b.Cookie && a.Priority == b.Priority && a.Stage == b.Stage && a.Match == b.Match && a.Policy == b.Policy && a.Action.Same(&b.Action)
}

func SameSpec(a, b api.AssignmentSpec) bool {
	return slices.EqualFunc(a.Rules, b.Rules, SameHostRule) && slices.Equal(a.Tunnels, b.Tunnels) && a.Known == b.Known && a.Taken == b.Taken
}
