package ovs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// drainS is how many seconds frames that are still inside a function go on by the rule that its port had, after a commit took it away.
const drainS = 2

// Commit puts exactly these rules in force, by one atomic bundle.
func (s *Switch) Commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	leave, err := s.enterReady(ctx)
	if err != nil {
		return datapath.Commit{}, fmt.Errorf("commit rules: %w", err)
	}
	defer leave()
	c, err := s.commit(ctx, rules)
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

func (s *Switch) commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	if len(rules) > maxRules {
		return datapath.Commit{}, fmt.Errorf("%w: %d rules, it holds %d", datapath.ErrFull, len(rules), maxRules)
	}
	if err := datapath.CheckRules(rules, s.kind); err != nil {
		return datapath.Commit{}, err
	}
	result := datapath.Compare(s.rules.Rules, rules)
	result.Version = s.rules.Version
	if result.Added+result.Changed+result.Removed == 0 {
		if !datapath.SameNotes(s.rules.Rules, rules) {
			s.rules.Rules = cloneRules(rules) // texts for people, and the order of Status
			return result, s.store.Write(record.Rules(s.rules.Version), &s.rules)
		}
		return result, nil
	}
	next := ruleSet{Version: s.rules.Version + 1, Rules: cloneRules(rules)}
	w := s.world(&next)
	var err error
	if next.Priority, err = w.priorities(s.rules.Priority); err != nil {
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
	if err := s.store.Write(record.Rules(next.Version), &next); err != nil {
		return datapath.Commit{}, err
	}
	former := s.rules
	err = s.install(ctx, w, ents, drains, func() {
		s.rules, s.ruleEnts = next, ents
		s.state.Version = next.Version
		s.forgetCounters()
	})
	if err != nil {
		return datapath.Commit{}, err
	}
	result.Version = next.Version
	if err := s.store.Write("switch.json", &s.state); err != nil {
		s.log.Warn("the switch's state was not written", "error", err, "version", next.Version, "before", former.Version)
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
func (s *Switch) drains(next *world) ([]*entry, error) {
	var all []*entry
	old := s.world(&s.rules)
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
func (s *Switch) refresh(ctx context.Context) error {
	return s.install(ctx, s.world(&s.rules), s.ruleEnts, nil, func() {})
}

// install makes the switch's entries those of the world and its rules, by one bundle; besides is added to them. done is called when they are
// in force.
func (s *Switch) install(ctx context.Context, w *world, rules, besides []*entry, done func()) error {
	next, err := all(w, rules)
	if err != nil {
		return err
	}
	if s.of == nil || s.of.Err() != nil { // the next connection will see to it
		return errors.New("no connection to Open vSwitch")
	}
	// Entries that are wanted no more go; those among going take counts with them.
	var mods []openflow.Message
	var going []*entry
	for k, e := range s.installed {
		n := next[k]
		if n == nil {
			mods = append(mods, e.mod(openflow.FlowDeleteStrict))
		}
		if n == nil || !slices.Equal(n.owners, e.owners) {
			going = append(going, e)
		}
	}
	// Entries that are not there yet, or under another cookie, come.
	carry := map[uint64]uint64{} // counters that go on under another cookie
	for k, n := range next {
		e := s.installed[k]
		if e != nil && e.cookie == n.cookie {
			continue
		}
		m := n.mod(openflow.FlowAdd)
		switch {
		case e == nil:
		case slices.Equal(e.owners, n.owners):
			carry[e.cookie] = n.cookie
		default:
			m.Flags |= openflow.FlagResetCounts
		}
		mods = append(mods, m)
	}
	for _, e := range besides {
		mods = append(mods, e.mod(openflow.FlowAdd))
	}
	if len(mods) == 0 {
		s.installed, s.applied = next, s.wanted
		done()
		return nil
	}
	// The counts of those that go are read first, and added up when the bundle is in force.
	going = slices.DeleteFunc(going, func(e *entry) bool { return len(e.owners) == 0 || e.owners[0].Kind == 0 })
	if err := s.readBefore(ctx, going); err != nil {
		return err
	}
	if err := s.bundle(ctx, mods); err != nil {
		return err
	}
	for _, e := range going {
		s.counts.fold(e)
	}
	for from, to := range carry {
		if last, ok := s.counts.Last[from]; ok {
			s.counts.Last[to] = last
			delete(s.counts.Last, from)
		}
	}
	s.installed, s.applied = next, s.wanted
	done()
	s.flush(ctx)
	if len(going)+len(carry) > 0 {
		return s.saveCounters()
	}
	return nil
}

// flush the cached flows of private processes, so that what has been changed holds for the very next frame; they take the change over by
// themselves a few milliseconds later. The host's own Open vSwitch has other users: there these milliseconds are waited for by nobody.
func (s *Switch) flush(ctx context.Context) {
	if s.procs == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience) // a busy machine may not let it answer sooner
	defer cancel()
	err := s.procs.Control(ctx, "revalidator/purge")
	if err != nil && s.of.Err() == nil {
		s.log.Warn("cached flows of Open vSwitch were not flushed", "error", err)
	}
}

// bundle executes flow-mods, all or none. When it is not known which, the connection is given up: the next one looks.
func (s *Switch) bundle(ctx context.Context, mods []openflow.Message) error {
	err := s.of.Bundle(ctx, openflow.BundleAtomic|openflow.BundleOrdered, mods...)
	if err == nil {
		return nil
	}
	var refused *openflow.FlowError
	var told *openflow.Error
	if !errors.As(err, &refused) && !errors.As(err, &told) {
		s.of.Close()
	}
	return fmt.Errorf("bundle of %d changes: %w", len(mods), err)
}

// all entries by key.
func all(w *world, rules []*entry) (map[entryKey]*entry, error) {
	others, err := sealed(append(w.pipeline(), w.counted()...))
	if err != nil {
		return nil, err
	}
	next := make(map[entryKey]*entry, len(others)+len(rules))
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
func (s *Switch) reconcile(ctx context.Context) error {
	// What is there tells which set of rules is in force.
	stats, err := s.of.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
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
	w := s.world(&s.rules)
	if s.ruleEnts, err = sealed(w.steering(s.rules.Version)); err != nil {
		return err
	}
	if s.installed, err = all(w, s.ruleEnts); err != nil {
		return err
	}
	// Entries that are not ours go.
	entries := s.byCookie()
	var mods []openflow.Message
	for i := range stats {
		f := &stats[i]
		if !kept(f.Table) {
			continue
		}
		if e := entries[f.Cookie]; e != nil && e.table == f.Table {
			s.counts.saw(e, counter{Packets: f.Packets, Bytes: f.Bytes})
			continue
		}
		mods = append(mods, &openflow.FlowMod{Command: openflow.FlowDeleteStrict, Table: f.Table, Priority: f.Priority, Match: f.Match})
	}
	// Entries of ours that are missing come.
	missing := 0
	for _, e := range s.installed {
		if !cookies[e.cookie] {
			s.counts.fold(e)
			m := e.mod(openflow.FlowAdd)
			m.Flags |= openflow.FlagResetCounts
			mods = append(mods, m)
			missing++
		}
	}
	if len(mods) == 0 {
		return nil
	}
	s.log.Info("entries restored", "bridge", s.opts.Instance.Bridge(), "missing", missing, "foreign", len(mods)-missing, "found", len(stats))
	if err := s.bundle(ctx, mods); err != nil {
		return err
	}
	return s.saveCounters()
}

// adopt finds out which set of rules is in force: a crash may have come between a commit and the note of it.
func (s *Switch) adopt(cookies map[uint64]bool) error {
	for _, version := range []uint32{s.state.Version, s.state.Version + 1} {
		mark := (&world{}).steering(version)[0]
		if err := mark.seal(); err != nil {
			return err
		}
		if !cookies[mark.cookie] || version == s.rules.Version {
			continue
		}
		var r ruleSet
		if ok, err := s.store.Read(record.Rules(version), &r); err != nil || !ok || r.Version != version {
			return err
		}
		s.rules = r
	}
	if s.rules.Version != s.state.Version {
		s.state.Version = s.rules.Version
		return s.store.Write("switch.json", &s.state)
	}
	return nil
}
