package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/policy"
	"weir.dev/weir/router/rollout"
)

const (
	retryMin = 200 * time.Millisecond // after a switch or the API refused something
	retryMax = 30 * time.Second
)

// steering is the part of the loop's state that is about rules.
type steering struct {
	rollout.Fleet
	out      fabric.Output
	errors   map[string]error                // of policies, also those that could not be encoded
	bad      map[string]error                // of the latter
	policies map[string]rollout.Version      // in the last input
	at       map[string]fabric.Endpoint      // places in the last input
	guards   map[discovery.Seat]portSecurity // at ports of stations
	dropped  dropped
	placed   map[string]string          // functions' hosts where they last ran
	inForce  map[string]bool            // policies that were in force at some time: they fail closed
	steady   map[string]bool            // policies that are in force while the router tidies up behind a change
	unproven map[string]bool            // policies that have other paths than when they were last seen in force
	wanted   fabric.Input               // the last one
	versions map[string]rollout.Version // of its policies
	edited   map[string]bool            // those that have changed since
	rounds   int
	again    time.Time
	patient  time.Time // until when a change waits for what is in its way
	changed  time.Time // first cause of what is being changed; zero: all is in force
	last     rollout.Steps
	stage    rollout.Stage
}

func newSteering(drain time.Duration) steering {
	return steering{
		Fleet:  rollout.Fleet{Nodes: map[fabric.SwitchID]*rollout.Node{}, Peers: map[string]*rollout.Peer{}, Drain: drain},
		errors: map[string]error{}, policies: map[string]rollout.Version{}, placed: map[string]string{}, inForce: map[string]bool{},
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
	for id, n := range l.Fleet.Nodes {
		have[id] = n.Source // never written to once it is there
	}
	bad, off, was, settled := l.bad, l.o.NoDefaultForwarding, l.out, l.settled()
	l.wg.Go(func() { // which has the stage until then
		next := l.stage.Next(in, versions, was, settled, now, l.o.Compile)
		t := rollout.Translate(next.Out, have, bad, off)
		post(l.ctx, l.events, func(l *loop) {
			l.computing = false
			l.steady = nil
			if next.Tidies {
				l.steady = l.proven()
			}
			l.computed(next.In, next.Out, t, next.Versions)
			if !l.stage.Waits.IsZero() {
				l.patient = l.stage.Waits.Add(rollout.PreparedMost)
			}
		})
	})
}

// proven are the policies that are in force as they were computed last.
func (l *loop) proven() map[string]bool {
	all := map[string]bool{}
	for name := range l.out.Paths.All() {
		if p := l.last.Progress[name]; p == nil || p.Done() {
			all[name] = true
		}
	}
	return all
}

// computed takes over a new target.
func (l *loop) computed(in fabric.Input, out fabric.Output, t rollout.Translation, versions map[string]rollout.Version) {
	l.rounds++
	l.out, l.policies, l.at = out, versions, in.Endpoints
	l.errors = maps.Clone(out.Errors)
	if l.errors == nil {
		l.errors = map[string]error{}
	}
	l.bad = t.Errors
	for name, err := range t.Errors {
		if name == "" {
			l.log.Error("default forwarding", "error", err)
			continue
		}
		l.errors[name] = err
	}
	renewed := map[fabric.SwitchID]bool{}
	for id, d := range t.Deltas {
		if n := l.Fleet.Nodes[id]; n != nil {
			n.Want(d)
			renewed[id] = d.Whole
		}
	}
	l.secure(renewed)
	paths := out.Paths.Without(t.Errors)
	for _, name := range paths.Changed(l.Fleet.Paths) {
		l.unproven[name] = true
	}
	l.Fleet.Paths = paths
	l.assignAll(&in, out, t)
	l.tellShort(out.Short)
	l.Fleet.Follow(&in, versions)
	l.status, l.again = true, time.Time{}
}

// assignAll gives every host its rules.
func (l *loop) assignAll(in *fabric.Input, out fabric.Output, t rollout.Translation) {
	for name, h := range l.intent.hosts {
		p := l.peer(name)
		p.Present = h.Deleting == nil
		changed := false
		if rules := out.Hosts[fabric.HostID(name)]; !p.Sourced || len(t.Errors) > 0 || !rollout.SameList(rules, p.Source) {
			target := make(map[string]api.HostRule, len(rules))
			for _, r := range rules {
				if t.Errors[r.Policy] == nil || r.Policy == "" {
					target[r.Cookie] = *r
				}
			}
			p.Source, p.Sourced = rules, len(t.Errors) == 0
			if changed = !maps.EqualFunc(target, p.Target, rollout.SameHostRule); changed {
				p.Target = target
			}
		}
		tunnels := l.mesh(name)
		if !changed && slices.Equal(tunnels, p.Tunnels) && p.Settled {
			continue
		}
		p.Tunnels, p.Settled = tunnels, false
	}
	for name, p := range l.Fleet.Peers {
		if _, there := l.intent.hosts[name]; !there {
			p.Present = false
		}
	}
}

func (l *loop) peer(name string) *rollout.Peer {
	p := l.Fleet.Peers[name]
	if p == nil {
		p = rollout.NewPeer(name)
		l.Fleet.Peers[name] = p
	}
	return p
}

// assignment takes what the API says about a host's assignment.
func (l *loop) assignment(a api.Assignment) {
	p := l.peer(a.Name)
	before := l.intent.assignments[a.Name]
	l.intent.assignments[a.Name] = a
	if !p.Wrote || !p.Writing {
		p.Written, p.Wrote = a.Spec, true
	}
	p.Settled = false
	if p.Versions == nil {
		p.Versions = map[int64]api.AssignmentSpec{}
	}
	p.Versions[a.Generation] = a.Spec
	p.Told(a.Generation, a.Spec)
	for g := range p.Versions {
		if g <= a.Generation-rollout.SpecRetention {
			delete(p.Versions, g)
		}
	}
	spec, known := p.Versions[a.Status.ObservedGeneration]
	if known && (a.Status.State == api.AssignmentInstalled || a.Status.State == api.AssignmentPartial) {
		acked := make(map[string]api.HostRule, len(spec.Rules))
		for _, r := range spec.Rules {
			if !slices.Contains(a.Status.Missing, r.Cookie) {
				acked[r.Cookie] = r
			}
		}
		p.Acked = acked
	}
	p.Answered(a.Status.ObservedGeneration)
	p.Message = ""
	if a.Status.State == api.AssignmentError {
		p.Message = a.Status.Message
		if before.Status.Message != a.Status.Message && l.damp("assignment "+a.Name+a.Status.Message) {
			l.event(api.Error, "AssignmentRefused", api.KindHost, a.Name, fmt.Sprintf("host %s cannot install its rules: %s", a.Name, a.Status.Message), 0)
		}
	}
	l.again, l.status = time.Time{}, true
}

func (l *loop) assignmentGone(name string) {
	delete(l.intent.assignments, name)
	if p := l.Fleet.Peers[name]; p != nil {
		p.Written, p.Wrote, p.Acked, p.Settled, p.Versions = api.AssignmentSpec{}, false, map[string]api.HostRule{}, false, nil
		p.Sent, p.Newest = nil, 0
		if _, there := l.intent.hosts[name]; !there {
			delete(l.Fleet.Peers, name)
		}
	}
	l.again = time.Time{}
}

// push plans, and sends what the plan allows.
func (l *loop) push(now time.Time) {
	s := rollout.Plan(&l.Fleet, now)
	l.last = s
	l.again = now.Add(time.Second)
	if !s.Again.IsZero() && s.Again.Before(l.again) {
		l.again = s.Again
	}
	for id, b := range s.Batches {
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
	for name, spec := range s.Specs {
		p := l.Fleet.Peers[name]
		if p.Writing {
			continue
		}
		p.Written, p.Wrote, p.Writing, p.Settled = spec, true, true, false
		p.Sends(spec, now)
		l.reports.assign(name, spec, func(err error) {
			post(l.ctx, l.events, func(l *loop) { l.assigned(name, err) })
		})
	}
	maps.DeleteFunc(l.steady, func(name string, _ bool) bool {
		p := s.Progress[name]
		return p == nil || p.Done() // what it lacks from now on is another matter
	})
	for name := range l.unproven {
		path, p := l.Fleet.Paths.Of(name), s.Progress[name]
		if path == nil || len(path.Forward) == 0 {
			delete(l.unproven, name) // until it has another path
		} else if p == nil || p.Done() {
			l.inForce[name] = true
			delete(l.unproven, name)
		}
	}
	for _, d := range l.switches {
		if d.session != nil && !d.Primed && d.node.Pending == 0 && !d.node.Busy {
			l.net.Prime(&d.Switch, now)
		}
	}
	l.settledAt(now)
	l.status = true
}

func (l *loop) assigned(name string, err error) {
	p := l.Fleet.Peers[name]
	if p == nil {
		return
	}
	p.Writing = false
	if a, ok := l.intent.assignments[name]; ok && err == nil && !rollout.SameSpec(a.Spec, p.Written) {
		// The watch has not told of it yet; it will.
		l.log.Debug("assignment written", "host", name)
	}
	if err != nil { // the reporter has given up: the store refuses it
		p.Wrote = false
		p.Refused()
	}
	l.again = time.Time{}
}

// send brings a batch into force, beside the loop.
func (l *loop) send(d *device, b rollout.Batch) {
	s, n := d.session, d.node
	n.Busy = true
	n.Tell(b)
	round := d.round
	began := l.o.Now()
	l.wg.Go(func() {
		no, err := s.apply(l.ctx, b, round)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s {
				return
			}
			n.Busy, l.again = false, time.Time{}
			now := l.o.Now()
			if err != nil {
				l.failed(d, s, err, now)
				return
			}
			l.confirmed(d, b, no, now)
			l.log.Debug("entries", "switch", d.Name, "added", len(b.Add)-len(no), "removed", len(b.Remove), "took", now.Sub(began))
		})
	})
}

// confirmed takes note of what is in force now.
func (l *loop) confirmed(d *device, b rollout.Batch, no []refused, now time.Time) {
	n := d.node
	n.Heard()
	not := map[*rollout.Rule]bool{}
	for _, r := range no {
		not[r.rule] = true
	}
	for _, h := range b.Remove { // in the order of session.apply: a table that is full shows its size between the two
		if h.Gives() {
			n.Removed(h.Key)
		}
	}
	for _, r := range b.Add {
		if !not[r] {
			n.Confirm(r, rollout.Cookie(d.round, r.Identity))
			l.twoTrees(d, r)
		}
	}
	for _, r := range no {
		l.refusedEntry(d, r, now)
	}
	for _, h := range b.Remove {
		if !h.Gives() {
			n.Removed(h.Key)
		}
	}
	if len(b.Remove) > 0 && rollout.WantsTags(l.out.Errors) {
		l.dirty() // there may be some now
	}
	if len(no) == 0 {
		d.backoff, d.retry, d.message = 0, time.Time{}, ""
	}
}

// refusedEntry waits longer each time. A table that is full shows its size by that.
func (l *loop) refusedEntry(d *device, r refused, now time.Time) {
	n := d.node
	x := n.Refused[r.rule.Key]
	x.Wait = min(max(2*x.Wait, retryMin), retryMax)
	x.Content, x.Until, x.Err = r.rule.Content, now.Add(x.Wait), fmt.Errorf("switch %s refuses an entry: %w", d.Name, r.err)
	n.Refused[r.rule.Key] = x
	d.message = x.Err.Error()
	if rollout.TreeBitField(r.rule.Match) >= 0 {
		l.oneTree(d, false)
	}
	full := &openflow.Error{Code: openflow.TableFull}
	if errors.Is(r.err, full) {
		size := uint32(0)
		for k := range n.Held {
			if k.Table == r.rule.Table {
				size++
			}
		}
		if d.full[r.rule.Table] != size && size > 0 {
			d.full[r.rule.Table] = size
			l.event(api.Error, "TableFull", api.KindSwitch, d.Name, fmt.Sprintf("table %d of %s takes no more than %d entries of Weir", r.rule.Table, d.Name, size), 0)
			l.dirty()
		}
		return
	}
	if l.damp("refused " + d.Name + r.err.Error()) {
		l.event(api.Error, "EntryRefused", api.KindSwitch, d.Name, fmt.Sprintf("%v (policy %q: %s)", x.Err, r.rule.Policy, r.rule.Note), 0)
	}
}

// failed: nothing is known about what is in force. It is read again.
func (l *loop) failed(d *device, s *session, err error, now time.Time) {
	d.backoff = min(max(2*d.backoff, retryMin), retryMax)
	d.retry = now.Add(d.backoff)
	d.message = err.Error()
	l.log.Warn("change of entries", "switch", d.Name, "error", err, "retry", d.backoff)
	l.reread(d, s)
}

// reread takes what is in force from the switch.
func (l *loop) reread(d *device, s *session) {
	d.node.Busy = true
	l.wg.Go(func() {
		entries, err := s.readAgain(l.ctx)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s {
				return
			}
			d.node.Busy, l.again = false, time.Time{}
			d.node.Heard()
			if err != nil {
				l.log.Warn("read entries", "switch", d.Name, "error", err)
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
	if now.Sub(d.audited) < auditEvery || !d.node.Settled() || d.node.Busy {
		return
	}
	d.audited = now
	s, want := d.session, len(d.node.Held)
	l.wg.Go(func() {
		got, err := s.count(l.ctx)
		post(l.ctx, l.events, func(l *loop) {
			if d.session != s || err != nil || !d.node.Settled() || d.node.Busy || len(d.node.Held) != want || got == want {
				return
			}
			l.event(api.Warning, "EntriesChanged", api.KindSwitch, d.Name, fmt.Sprintf("switch %s has %d entries of Weir, want %d: someone else changed them; they are put right", d.Name, got, want), 0)
			l.reread(d, s)
		})
	})
}

// settled tells whether all that was computed, and nothing else, is in force at all that answers, and has been for as long as it takes to drain.
func (l *loop) settled() bool {
	for _, n := range l.Fleet.Nodes {
		if !n.Reachable {
			continue
		}
		if n.Busy {
			return false
		}
		for k := range n.Differs {
			if r := n.Target[k]; r == nil || n.Refused[k].Content != r.Content {
				return false
			}
		}
	}
	for _, h := range l.Fleet.Peers {
		if h.Present && !h.Settled {
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
			pending += d.node.Pending
		}
	}
	for _, h := range l.Fleet.Peers {
		if h.Present && !h.Settled {
			for c, r := range h.Target {
				if a, ok := h.Has(c); !ok || !rollout.SameHostRule(a, r) {
					pending++
				}
			}
		}
	}
	if !l.computing && l.until.IsZero() && l.stage.More() && (l.settled() || !l.patient.IsZero() && !now.Before(l.patient)) {
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
