package ovs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// drainS is how many seconds frames that are still inside a function go on by the rule that its port had, after a commit took it away.
const drainS = 2

// rules are those in force, and the entries into which they and the ports are made.
type rules struct {
	gate       *lifecycle.Gate
	home       *home.Home
	state      *state
	ports      *ports
	processes  *processes
	connection *connection
	counters   *counters
	set        ruleSet
	entries    []*entry // of the rules in force
	installed  entrySet // as the switch has, or is to have, them
	wanted     uint64   // changes of states and ports so far
	applied    uint64   // of these, in force
}

// Commit puts exactly these rules in force, by one atomic bundle.
func (s *Switch) Commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	leave, err := s.connection.enter(ctx)
	if err != nil {
		return datapath.Commit{}, fmt.Errorf("commit rules: %w", err)
	}
	defer leave()
	c, err := s.rules.commit(ctx, rules)
	if err != nil {
		return datapath.Commit{}, fmt.Errorf("commit rules: %w", err)
	}
	return c, nil
}

// Fits tells whether the tables hold the rules.
func (s *Switch) Fits(rules []flow.Rule, t flow.Topology) error {
	if len(rules) > maxRules {
		return fmt.Errorf("%w: %d rules, it holds %d", datapath.ErrFull, len(rules), maxRules)
	}
	ports := map[flow.Port]*port{}
	for _, f := range t.Functions {
		for _, n := range []flow.Port{f.In, f.Out, f.Tap} {
			ports[n] = &port{function: &function{}}
		}
	}
	_, err := (&world{rules: rules, ports: ports}).priorities(nil)
	return err
}

func (s *rules) commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	if len(rules) > maxRules {
		return datapath.Commit{}, fmt.Errorf("%w: %d rules, it holds %d", datapath.ErrFull, len(rules), maxRules)
	}
	if err := datapath.CheckRules(rules, s.ports.kind); err != nil {
		return datapath.Commit{}, err
	}
	// Rules that differ in their notes alone change no entry.
	result := datapath.Compare(s.set.Rules, rules)
	result.Version = s.set.Version
	if result.Added+result.Changed+result.Removed == 0 {
		if !datapath.SameNotes(s.set.Rules, rules) {
			s.set.Rules = cloneRules(rules) // texts for people, and the order of Status
			return result, s.home.Store.Write(record.Rules(s.set.Version), &s.set)
		}
		return result, nil
	}
	// The next entries, among them those by which frames get out of functions that lose their rules.
	next := ruleSet{Version: s.set.Version + 1, Rules: cloneRules(rules)}
	w := newWorld(s.ports.all, &next)
	var err error
	if next.Priority, err = w.priorities(s.set.Priority); err != nil {
		return datapath.Commit{}, err
	}
	w.prio = next.Priority
	ents, err := sealed(w.steering(next.Version))
	if err != nil {
		return datapath.Commit{}, err
	}
	drains, err := s.drains(w)
	if err != nil {
		return datapath.Commit{}, err
	}
	// The rules are on record before they are in force: reconcile finds them by the mark that comes with them.
	if err := s.home.Store.Write(record.Rules(next.Version), &next); err != nil {
		return datapath.Commit{}, err
	}
	former := s.set
	err = s.install(ctx, w, ents, drains, func() {
		s.set, s.entries = next, ents
		s.state.Version = next.Version
		s.counters.forget(s.set.Rules)
	})
	if err != nil {
		return datapath.Commit{}, err
	}
	result.Version = next.Version
	if err := s.home.Store.Write("switch.json", s.state); err != nil {
		s.home.Log.Warn("the switch's state was not written", "error", err, "version", next.Version, "before", former.Version)
	}
	return result, nil
}

func cloneRules(rules []flow.Rule) []flow.Rule {
	out := slices.Clone(rules)
	for i := range out {
		out[i].Action.Clones = slices.Clone(out[i].Action.Clones)
	}
	return out
}

// drains are the former entries of functions' ports that have no rules any more.
func (s *rules) drains(next *world) ([]*entry, error) {
	var all []*entry
	old := newWorld(s.ports.all, &s.set)
	for n, rules := range old.at {
		if len(next.at[n]) > 0 {
			continue
		}
		for _, r := range rules {
			for _, e := range old.entries(r, tableFunction) {
				e.table, e.hardS, e.owners = tableDrain, drainS, nil
				all = append(all, e)
			}
		}
	}
	return sealed(all)
}

func sealed(all []*entry) ([]*entry, error) {
	for _, e := range all {
		if err := e.seal(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// refresh brings the entries up to ports and states as they are now.
func (s *rules) refresh(ctx context.Context) error {
	return s.install(ctx, newWorld(s.ports.all, &s.set), s.entries, nil, func() {})
}

// change notes a change of ports or states. It is in force after apply with the number that this tells.
func (s *rules) change() uint64 {
	s.wanted++
	return s.wanted
}

// apply brings the entries up to a change of ports or states, together with all others that were noted by the time the lock is had. The lock
// must not be held.
func (s *rules) apply(ctx context.Context, change uint64) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if s.applied >= change || !s.connection.up() { // the next connection will see to it
		return nil
	}
	return s.refresh(ctx)
}

// install makes the switch's entries those of the world and its rules, by one bundle; besides is added to them. done is called when they are
// in force.
func (s *rules) install(ctx context.Context, w *world, rules, besides []*entry, done func()) error {
	next, err := all(w, rules)
	if err != nil {
		return err
	}
	if !s.connection.up() { // the next connection will see to it
		return errors.New("no connection to Open vSwitch")
	}
	to := s.installed.towards(next)
	for _, e := range besides {
		to.mods = append(to.mods, e.mod(openflow.FlowAdd))
	}
	if len(to.mods) == 0 {
		s.installed, s.applied = next, s.wanted
		done()
		return nil
	}
	// The counts of those that go are read first, and added up when the bundle is in force.
	if err := s.counters.readBefore(ctx, to.going, s.installed); err != nil {
		return err
	}
	if err := s.connection.bundle(ctx, to.mods); err != nil {
		return err
	}
	s.counters.follow(to)
	s.installed, s.applied = next, s.wanted
	done()
	s.processes.flush(ctx, s.connection.up)
	if len(to.going)+len(to.carry) > 0 {
		return s.counters.save()
	}
	return nil
}

// transition leads from one set of entries to another.
type transition struct {
	mods  []openflow.Message
	going []*entry          // whose counts are to be kept
	carry map[uint64]uint64 // counters that go on under another cookie
}

// towards next: what is wanted no more goes, what is missing or says something else comes.
func (s entrySet) towards(next entrySet) transition {
	t := transition{carry: map[uint64]uint64{}}
	for k, e := range s {
		n := next[k]
		if n == nil {
			t.mods = append(t.mods, e.mod(openflow.FlowDeleteStrict))
		}
		if e.counted() && (n == nil || !slices.Equal(n.owners, e.owners)) {
			t.going = append(t.going, e)
		}
	}
	for k, n := range next {
		e := s[k]
		if e != nil && e.cookie == n.cookie {
			continue
		}
		m := n.mod(openflow.FlowAdd)
		switch {
		case e == nil:
		case slices.Equal(e.owners, n.owners):
			t.carry[e.cookie] = n.cookie
		default:
			m.Flags |= openflow.FlagResetCounts
		}
		t.mods = append(t.mods, m)
	}
	return t
}

// all entries by key.
func all(w *world, rules []*entry) (entrySet, error) {
	others, err := sealed(append(w.pipeline(), w.counted()...))
	if err != nil {
		return nil, err
	}
	next := make(entrySet, len(others)+len(rules))
	for _, e := range slices.Concat(others, rules) {
		k := e.key()
		if twin := next[k]; twin != nil {
			if e.table == tableMark || reflect.DeepEqual(twin.owners, e.owners) {
				continue
			}
			return nil, fmt.Errorf("two entries of table %d with one match and priority %d (of %v and %v)", e.table, e.priority, twin.owners, e.owners)
		}
		next[k] = e
	}
	return next, nil
}

// reconcile makes a switch to which a connection has just been made have its entries, and writes only what differs.
func (s *rules) reconcile(ctx context.Context) error {
	// What is there tells which set of rules is in force.
	stats, err := s.connection.of.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	cookies := make(map[uint64]bool, len(stats))
	for i := range stats {
		cookies[stats[i].Cookie] = true
	}
	if err := s.adopt(cookies); err != nil {
		return err
	}
	w := newWorld(s.ports.all, &s.set)
	if s.entries, err = sealed(w.steering(s.set.Version)); err != nil {
		return err
	}
	if s.installed, err = all(w, s.entries); err != nil {
		return err
	}
	// Entries that are not ours go.
	entries := s.installed.byCookie()
	var mods []openflow.Message
	for i := range stats {
		f := &stats[i]
		if !kept(f.Table) {
			continue
		}
		if e := entries[f.Cookie]; e != nil && e.table == f.Table {
			s.counters.counts.saw(e, counter{Packets: f.Packets, Bytes: f.Bytes})
			continue
		}
		mods = append(mods, &openflow.FlowMod{Command: openflow.FlowDeleteStrict, Table: f.Table, Priority: f.Priority, Match: f.Match})
	}
	// Entries of ours that are missing come.
	missing := 0
	for _, e := range s.installed {
		if !cookies[e.cookie] {
			s.counters.counts.fold(e)
			m := e.mod(openflow.FlowAdd)
			m.Flags |= openflow.FlagResetCounts
			mods = append(mods, m)
			missing++
		}
	}
	if len(mods) == 0 {
		return nil
	}
	s.home.Log.Info("entries restored", "bridge", s.home.Instance.Bridge(), "missing", missing, "foreign", len(mods)-missing, "found", len(stats))
	if err := s.connection.bundle(ctx, mods); err != nil {
		return err
	}
	return s.counters.save()
}

// adopt finds out which set of rules is in force: a crash may have come between a commit and the note of it.
func (s *rules) adopt(cookies map[uint64]bool) error {
	for _, version := range []uint32{s.state.Version, s.state.Version + 1} {
		mark := (&world{}).steering(version)[0]
		if err := mark.seal(); err != nil {
			return err
		}
		if !cookies[mark.cookie] || version == s.set.Version {
			continue
		}
		var r ruleSet
		if ok, err := s.home.Store.Read(record.Rules(version), &r); err != nil || !ok || r.Version != version {
			return err
		}
		s.set = r
	}
	if s.set.Version != s.state.Version {
		s.state.Version = s.set.Version
		return s.home.Store.Write("switch.json", s.state)
	}
	return nil
}
