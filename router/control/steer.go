package control

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/policy"
)

const (
	retryMin = 200 * time.Millisecond // after a switch or the API refused something
	retryMax = 30 * time.Second
)

// steering is the part of the loop's state that is about rules.
type steering struct {
	fleet
	out         fabric.Output
	errors      map[string]error           // of policies, also those that could not be encoded
	bad         map[string]error           // of the latter
	policies    map[string]version         // in the last input
	at          map[string]fabric.Endpoint // places in the last input
	declared    map[flow.MAC]claim
	declaredIPs map[netip.Addr]claim
	guards      map[seat]portSecurity // at ports of stations
	dropped     dropped
	placed      map[string]string  // functions' hosts where they last ran
	inForce     map[string]bool    // policies that were in force at some time: they fail closed
	steady      map[string]bool    // policies that are in force while the router tidies up behind a change
	unproven    map[string]bool    // policies that have other paths than when they were last seen in force
	wanted      fabric.Input       // the last one
	versions    map[string]version // of its policies
	edited      map[string]bool    // those that have changed since
	rounds      int
	again       time.Time
	patient     time.Time // until when a change waits for what is in its way
	changed     time.Time // first cause of what is being changed; zero: all is in force
	last        steps
	stage       stage
}

func newSteering(drain time.Duration) steering {
	return steering{
		fleet:  fleet{nodes: map[fabric.SwitchID]*node{}, peers: map[string]*peer{}, drain: drain},
		errors: map[string]error{}, policies: map[string]version{}, declared: map[flow.MAC]claim{}, placed: map[string]string{}, inForce: map[string]bool{},
		unproven: map[string]bool{}, edited: map[string]bool{}, dropped: dropped{counts: router.Counts{}},
	}
}

// advance computes what has become necessary, and sends what may be sent.
func (l *loop) advance(now time.Time) {
	if !l.ready(now) {
		return
	}
	if !l.until.IsZero() && !now.Before(l.until) && !l.computing {
		l.compute(now)
	}
	if l.rounds > 0 && !now.Before(l.again) {
		l.push(now)
	}
	l.tell(now)
}

// compute has the rules computed, beside the loop.
func (l *loop) compute(now time.Time) {
	if l.changed.IsZero() {
		l.changed = l.since
	}
	l.since, l.until, l.computing = time.Time{}, time.Time{}, true
	in := l.input(now)
	in.Share(&l.wanted)
	l.wanted = in
	versions := l.versions
	have := map[fabric.SwitchID][]*fabric.Entry{}
	for id, n := range l.fleet.nodes {
		have[id] = n.source // never written to once it is there
	}
	bad, off, was, settled := l.bad, l.o.NoDefaultForwarding, l.out, l.settled()
	l.wg.Go(func() { // which has the stage until then
		next := l.stage.next(in, versions, was, settled, now, l.o.Compile)
		t := translate(next.out, have, bad, off)
		post(l.ctx, l.events, func(l *loop) {
			l.computing = false
			l.steady = nil
			if next.tidies {
				l.steady = l.proven()
			}
			l.computed(next.in, next.out, t, next.versions)
			if !l.stage.waits.IsZero() {
				l.patient = l.stage.waits.Add(preparedMost)
			}
		})
	})
}

// proven are the policies that are in force as they were computed last.
func (l *loop) proven() map[string]bool {
	all := map[string]bool{}
	for name := range l.out.Paths.All() {
		if p := l.last.progress[name]; p == nil || p.done() {
			all[name] = true
		}
	}
	return all
}

// computed takes over a new target.
func (l *loop) computed(in fabric.Input, out fabric.Output, t translation, versions map[string]version) {
	l.rounds++
	l.out, l.policies, l.at = out, versions, in.Endpoints
	l.errors = maps.Clone(out.Errors)
	if l.errors == nil {
		l.errors = map[string]error{}
	}
	l.bad = t.errors
	for name, err := range t.errors {
		if name == "" {
			l.log.Error("default forwarding", "error", err)
			continue
		}
		l.errors[name] = err
	}
	renewed := map[fabric.SwitchID]bool{}
	for id, d := range t.deltas {
		if n := l.fleet.nodes[id]; n != nil {
			n.want(d)
			renewed[id] = d.whole
		}
	}
	l.secure(renewed)
	paths := out.Paths.Without(t.errors)
	for _, name := range paths.Changed(l.fleet.paths) {
		l.unproven[name] = true
	}
	l.fleet.paths = paths
	l.assignAll(&in, out, t)
	l.tellShort(out.Short)
	l.fleet.follow(&in, versions)
	l.status, l.again = true, time.Time{}
}

// assignAll gives every host its rules.
func (l *loop) assignAll(in *fabric.Input, out fabric.Output, t translation) {
	for name, h := range l.intent.hosts {
		p := l.peer(name)
		p.present = h.Deleting == nil
		changed := false
		if rules := out.Hosts[hostID(name)]; !p.sourced || len(t.errors) > 0 || !sameList(rules, p.source) {
			target := make(map[string]api.HostRule, len(rules))
			for _, r := range rules {
				if t.errors[r.Policy] == nil || r.Policy == "" {
					target[r.Cookie] = *r
				}
			}
			p.source, p.sourced = rules, len(t.errors) == 0
			if changed = !maps.EqualFunc(target, p.target, sameHostRule); changed {
				p.target = target
			}
		}
		tunnels := l.mesh(name)
		if !changed && slices.Equal(tunnels, p.tunnels) && p.settled {
			continue
		}
		p.tunnels, p.settled = tunnels, false
	}
	for name, p := range l.fleet.peers {
		if _, there := l.intent.hosts[name]; !there {
			p.present = false
		}
	}
}

func (l *loop) peer(name string) *peer {
	p := l.fleet.peers[name]
	if p == nil {
		p = newPeer(name)
		l.fleet.peers[name] = p
	}
	return p
}

// assignment takes what the API says about a host's assignment.
func (l *loop) assignment(a api.Assignment) {
	p := l.peer(a.Name)
	before := l.intent.assignments[a.Name]
	l.intent.assignments[a.Name] = a
	if !p.wrote || !p.writing {
		p.written, p.wrote = a.Spec, true
	}
	p.settled = false
	if p.versions == nil {
		p.versions = map[int64]api.AssignmentSpec{}
	}
	p.versions[a.Generation] = a.Spec
	p.told(a.Generation, a.Spec)
	for g := range p.versions {
		if g <= a.Generation-specRetention {
			delete(p.versions, g)
		}
	}
	spec, known := p.versions[a.Status.ObservedGeneration]
	if known && (a.Status.State == api.AssignmentInstalled || a.Status.State == api.AssignmentPartial) {
		acked := make(map[string]api.HostRule, len(spec.Rules))
		for _, r := range spec.Rules {
			if !slices.Contains(a.Status.Missing, r.Cookie) {
				acked[r.Cookie] = r
			}
		}
		p.acked = acked
	}
	p.answered(a.Status.ObservedGeneration)
	p.message = ""
	if a.Status.State == api.AssignmentError {
		p.message = a.Status.Message
		if before.Status.Message != a.Status.Message && l.damp("assignment "+a.Name+a.Status.Message) {
			l.event(api.Error, "AssignmentRefused", api.KindHost, a.Name, fmt.Sprintf("host %s cannot install its rules: %s", a.Name, a.Status.Message), 0)
		}
	}
	l.again, l.status = time.Time{}, true
}

func (l *loop) assignmentGone(name string) {
	delete(l.intent.assignments, name)
	if p := l.fleet.peers[name]; p != nil {
		p.written, p.wrote, p.acked, p.settled, p.versions = api.AssignmentSpec{}, false, map[string]api.HostRule{}, false, nil
		p.sent, p.newest = nil, 0
		if _, there := l.intent.hosts[name]; !there {
			delete(l.fleet.peers, name)
		}
	}
	l.again = time.Time{}
}

// push plans, and sends what the plan allows.
func (l *loop) push(now time.Time) {
	s := plan(&l.fleet, now)
	l.last = s
	l.again = now.Add(time.Second)
	if !s.again.IsZero() && s.again.Before(l.again) {
		l.again = s.again
	}
	for id, b := range s.batches {
		d := l.deviceOf(id)
		if d == nil || d.session == nil {
			continue
		}
		if now.Before(d.retry) {
			if d.retry.Before(l.again) {
				l.again = d.retry
			}
			continue
		}
		l.send(d, b)
	}
	for name, spec := range s.specs {
		p := l.fleet.peers[name]
		if p.writing {
			continue
		}
		p.written, p.wrote, p.writing, p.settled = spec, true, true, false
		p.sends(spec, now)
		l.reports.assign(name, spec, func(err error) {
			post(l.ctx, l.events, func(l *loop) { l.assigned(name, err) })
		})
	}
	for name := range l.unproven {
		path, p := l.fleet.paths.Of(name), s.progress[name]
		if path == nil || len(path.Forward) == 0 {
			delete(l.unproven, name) // until it has another path
		} else if p == nil || p.done() {
			l.inForce[name] = true
			delete(l.unproven, name)
		}
	}
	for _, d := range l.switches {
		if d.session != nil && !d.primed && d.node.pending == 0 && !d.node.busy {
			l.prime(d, now)
		}
	}
	l.settledAt(now)
	l.status = true
}

func (l *loop) assigned(name string, err error) {
	p := l.fleet.peers[name]
	if p == nil {
		return
	}
	p.writing = false
	if a, ok := l.intent.assignments[name]; ok && err == nil && !sameSpec(a.Spec, p.written) {
		// The watch has not told of it yet; it will.
		l.log.Debug("assignment written", "host", name)
	}
	if err != nil { // the reporter has given up: the store refuses it
		p.wrote = false
		p.refused()
	}
	l.again = time.Time{}
}

// send brings a batch into force, beside the loop.
func (l *loop) send(d *device, b batch) {
	s, n := d.session, d.node
	n.busy = true
	n.tell(b)
	round := d.round
	began := l.o.Now()
	l.wg.Go(func() {
		no, err := s.apply(l.ctx, b, round)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s {
				return
			}
			n.busy, l.again = false, time.Time{}
			now := l.o.Now()
			if err != nil {
				l.failed(d, s, err, now)
				return
			}
			l.confirmed(d, b, no, now)
			l.log.Debug("entries", "switch", d.name, "added", len(b.add)-len(no), "removed", len(b.remove), "took", now.Sub(began))
		})
	})
}

// confirmed takes note of what is in force now.
func (l *loop) confirmed(d *device, b batch, no []refused, now time.Time) {
	n := d.node
	n.heard()
	not := map[*rule]bool{}
	for _, r := range no {
		not[r.rule] = true
	}
	for _, h := range b.remove { // in the order of session.apply: a table that is full shows its size between the two
		if h.gives() {
			n.removed(h.key)
		}
	}
	for _, r := range b.add {
		if !not[r] {
			n.confirm(r, cookie(d.round, r.identity))
			l.twoTrees(d, r)
		}
	}
	for _, r := range no {
		l.refusedEntry(d, r, now)
	}
	for _, h := range b.remove {
		if !h.gives() {
			n.removed(h.key)
		}
	}
	if len(b.remove) > 0 && wantsTags(l.out.Errors) {
		l.dirty() // there may be some now
	}
	if len(no) == 0 {
		d.backoff, d.retry, d.message = 0, time.Time{}, ""
	}
}

// refusedEntry waits longer each time. A table that is full shows its size by that.
func (l *loop) refusedEntry(d *device, r refused, now time.Time) {
	n := d.node
	x := n.refused[r.rule.key]
	x.wait = min(max(2*x.wait, retryMin), retryMax)
	x.content, x.until, x.err = r.rule.content, now.Add(x.wait), fmt.Errorf("switch %s refuses an entry: %w", d.name, r.err)
	n.refused[r.rule.key] = x
	d.message = x.err.Error()
	if oddSenders(r.rule.match) >= 0 {
		l.oneTree(d, false)
	}
	full := &openflow.Error{Code: openflow.TableFull}
	if errors.Is(r.err, full) {
		size := uint32(0)
		for k := range n.held {
			if k.table == r.rule.table {
				size++
			}
		}
		if d.full[r.rule.table] != size && size > 0 {
			d.full[r.rule.table] = size
			l.event(api.Error, "TableFull", api.KindSwitch, d.name, fmt.Sprintf("table %d of %s takes no more than %d entries of Weir", r.rule.table, d.name, size), 0)
			l.dirty()
		}
		return
	}
	if l.damp("refused " + d.name + r.err.Error()) {
		l.event(api.Error, "EntryRefused", api.KindSwitch, d.name, fmt.Sprintf("%v (policy %q: %s)", x.err, r.rule.policy, r.rule.note), 0)
	}
}

// failed: nothing is known about what is in force. It is read again.
func (l *loop) failed(d *device, s *session, err error, now time.Time) {
	d.backoff = min(max(2*d.backoff, retryMin), retryMax)
	d.retry = now.Add(d.backoff)
	d.message = err.Error()
	l.log.Warn("change of entries", "switch", d.name, "error", err, "retry", d.backoff)
	l.reread(d, s)
}

// reread takes what is in force from the switch.
func (l *loop) reread(d *device, s *session) {
	d.node.busy = true
	l.wg.Go(func() {
		entries, err := s.readAgain(l.ctx)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s {
				return
			}
			d.node.busy, l.again = false, time.Time{}
			d.node.heard()
			if err != nil {
				l.log.Warn("read entries", "switch", d.name, "error", err)
				s.conn.Close() // it does not answer: a new connection starts from what there is
				return
			}
			round := d.round
			l.adopt(d, entries)
			d.round = round
		})
	})
}

// audit compares how many entries a switch has with how many it should have, now and then.
func (l *loop) audit(d *device, now time.Time) {
	if now.Sub(d.audited) < auditEvery || !d.node.settled() || d.node.busy {
		return
	}
	d.audited = now
	s, want := d.session, len(d.node.held)
	l.wg.Go(func() {
		got, err := s.count(l.ctx)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s || err != nil || !d.node.settled() || d.node.busy || len(d.node.held) != want || got == want {
				return
			}
			l.event(api.Warning, "EntriesChanged", api.KindSwitch, d.name, fmt.Sprintf("switch %s has %d entries of Weir, want %d: someone else changed them; they are put right", d.name, got, want), 0)
			l.reread(d, s)
		})
	})
}

// settled tells whether all that was computed, and nothing else, is in force at all that answers, and has been for as long as it takes to drain.
func (l *loop) settled() bool {
	for _, n := range l.fleet.nodes {
		if !n.reachable {
			continue
		}
		if n.busy {
			return false
		}
		for k := range n.differs {
			if r := n.target[k]; r == nil || n.refused[k].content != r.content {
				return false
			}
		}
	}
	for _, h := range l.fleet.peers {
		if h.present && !h.settled {
			return false
		}
	}
	return true
}

// settledAt notes when all that is wanted is in force.
func (l *loop) settledAt(now time.Time) {
	pending := 0
	for _, d := range l.switches {
		if d.session != nil {
			pending += d.node.pending
		}
	}
	for _, h := range l.fleet.peers {
		if h.present && !h.settled {
			for c, r := range h.target {
				if a, ok := h.has(c); !ok || !sameHostRule(a, r) {
					pending++
				}
			}
		}
	}
	if !l.computing && l.until.IsZero() && l.stage.more() && (l.settled() || !l.patient.IsZero() && !now.Before(l.patient)) {
		l.patient = time.Time{}
		l.dirty()
	}
	if pending == 0 && !l.computing && l.since.IsZero() && !l.changed.IsZero() {
		l.log.Debug("in force", "after", now.Sub(l.changed))
		l.changed = time.Time{}
	}
	l.c.progress(l, now, pending)
}

func isNotReady(err error) bool { return errors.Is(err, policy.ErrNotReady) }
