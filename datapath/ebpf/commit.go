package ebpf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf/internal/compile"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// drain is how long frames that are still inside a function go on by the rule that its port had, after a commit took it away.
const drain = 2 * time.Second

// rules are those in force, as the maps have them: everything that rules are made of is in the maps in two copies.
type rules struct {
	opts     *Options
	home     *home.Home
	maps     *mapSet
	ports    *ports
	control  *control
	counters *counters
	onward   func() error // comes before rules for which frames may pass the bridge by
	// leads comes before changed rules that lead to these slots, or out of them: functions there judge all flows anew.
	leads func(slots map[uint16]bool) error

	set     ruleSet         // in force
	image   *compile.Image  // in force
	pending compile.Changes // keys whose copy that is not in force is still the former one
}

// Commit puts exactly these rules in force, in one atomic step.
func (s *Switch) Commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return datapath.Commit{}, err
	}
	defer leave()
	c, err := s.rules.commit(rules)
	if err != nil {
		return c, fmt.Errorf("commit %d rules: %w", len(rules), err)
	}
	return c, nil
}

// Fits tells whether the tables hold rules in the place of as many others.
func (s *Switch) Fits(rules []flow.Rule, t flow.Topology) error { return s.opts.fits(rules, t) }

func (o *Options) fits(rules []flow.Rule, t flow.Topology) error {
	ports := map[flow.Port]compile.Place{}
	add := func(kind uint8, numbers ...flow.Port) {
		for _, n := range numbers {
			if n != 0 {
				ports[n] = compile.Place{Slot: uint16(len(ports) + 1), Kind: kind, Fabric: slices.Contains(t.Fabric, n)}
			}
		}
	}
	add(portEndpoint, t.Endpoints...)
	for _, f := range t.Functions {
		add(portFunction, f.In, f.Out)
		add(portTap, f.Tap)
	}
	if len(rules) >= o.Rules {
		return fmt.Errorf("%w: %d rules, the switch holds %d", datapath.ErrFull, len(rules), o.Rules-1)
	}
	if len(ports) >= o.Ports {
		return fmt.Errorf("%w: %d ports, the switch holds %d", datapath.ErrFull, len(ports), o.Ports-1)
	}
	slots := make(map[uint64]uint32, len(rules))
	for i := range rules {
		slots[rules[i].Cookie] = uint32(i + 1)
	}
	_, err := compile.Rules(o.limits(), rules, slots, ports, compile.NewImage())
	return err
}

// commit writes what changes to the copy that is not in force, then exchanges the copies by one write.
func (s *rules) commit(rules []flow.Rule) (datapath.Commit, error) {
	next, err := s.next(rules)
	if err != nil {
		return datapath.Commit{}, err
	}
	result := datapath.Compare(s.set.Rules, rules)
	result.Version = s.control.version
	img, err := compile.Rules(s.opts.limits(), next.Rules, next.Slots, s.ports.places(), s.image)
	if err != nil {
		return datapath.Commit{}, err
	}
	diff := s.image.Diff(img)
	if diff.None() {
		if result.Added+result.Changed+result.Removed > 0 || !datapath.SameNotes(s.set.Rules, rules) { // only in what no frame notices
			next.Version = s.control.version
			if err := s.home.Store.Write(record.Rules(next.Version), &next); err != nil {
				return datapath.Commit{}, err
			}
			s.set = next
		}
		return result, nil
	}
	if err := s.prepare(&next, img); err != nil {
		return datapath.Commit{}, err
	}
	s.pending = diff // whatever happens now, these are to be put right before the next commit
	if err := s.stage(img, diff); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.opts.at("staged"); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.leads(s.touched(img, diff)); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.control.flip(next.Version); err != nil {
		return datapath.Commit{}, err
	}
	s.image, s.set = img, next
	result.Version = next.Version
	return result, s.opts.at("flipped")
}

// touched are the slots where the rules that change apply, and those where they lead.
func (s *rules) touched(next *compile.Image, c compile.Changes) map[uint16]bool {
	slots := map[uint16]bool{}
	add := func(a bpf.SteerAction) {
		slots[a.Target] = true
		for _, c := range a.Clone[:a.Clones] {
			slots[c.Port] = true
		}
	}
	for k := range c.Tuples {
		slots[k.Port] = true
		add(s.image.Tuples[k].Action)
		add(next.Tuples[k].Action)
	}
	for slot := range c.Stages {
		slots[slot] = true
		for _, st := range []stages{s.image.Stages[slot], next.Stages[slot]} {
			for _, one := range st.Stage {
				add(one.Action)
			}
		}
	}
	return slots
}

// prepare all that must be right before the first frame meets the next rules. They have a version then, and a file.
func (s *rules) prepare(next *ruleSet, img *compile.Image) error {
	if err := s.settle(); err != nil {
		return err
	}
	next.Version = s.control.version + 1
	if err := s.home.Store.Write(record.Rules(next.Version), next); err != nil {
		return err
	}
	if err := s.counters.renew(s.set.Slots, next.Slots); err != nil {
		return err
	}
	if img.Onward() && !s.image.Onward() {
		return s.onward()
	}
	return nil
}

// next gives every cookie its counters: the same as before, or a free slot. Slot 0 is nobody's.
func (s *rules) next(rules []flow.Rule) (ruleSet, error) {
	next := ruleSet{Rules: slices.Clone(rules), Slots: make(map[uint64]uint32, len(rules))}
	if len(rules) >= s.opts.Rules {
		return next, fmt.Errorf("%w: the switch holds %d rules: raise its Rules", datapath.ErrFull, s.opts.Rules-1)
	}
	taken := make(map[uint32]bool, len(s.set.Slots)+len(rules))
	for _, slot := range s.set.Slots {
		taken[slot] = true
	}
	free := uint32(1)
	for i := range rules {
		cookie := rules[i].Cookie
		slot, known := s.set.Slots[cookie]
		if !known {
			for taken[free] {
				free++
			}
			if free >= uint32(2*s.opts.Rules) { // cannot be: those that go and those that come are no more
				return next, fmt.Errorf("%w: %d rules go while %d come, the switch holds %d together: raise its Rules",
					datapath.ErrFull, len(s.set.Slots), len(rules), s.opts.Rules-1)
			}
			slot = free
			taken[free] = true
		}
		next.Slots[cookie] = slot
	}
	return next, nil
}

// stage writes the next image to the copy that is not in force.
func (s *rules) stage(next *compile.Image, c compile.Changes) error {
	until, err := now()
	if err != nil {
		return err
	}
	until += uint64(drain)
	for slot := range c.Stages {
		st, was := next.Stages[slot], s.image.Stages[slot]
		if p := s.ports.bySlot[slot]; p != nil && p.kind() != portEndpoint && st.Stage[flow.Ingress].Kind == compile.KindPass && was.Stage[flow.Ingress].Kind == compile.KindDirect {
			st.Stage[flow.Ingress] = stage{Kind: compile.KindDrain, Action: was.Stage[flow.Ingress].Action, Until: until}
			st.Stage[flow.Ingress].Action.Rule = 0 // the rule is gone, its counter may become another's
			next.Stages[slot] = st
		}
	}
	return s.write(s.image, next, c)
}

// write puts the changed keys into the maps: inForce into the copy in force, other into the other one.
func (s *rules) write(inForce, other *compile.Image, c compile.Changes) error {
	v := s.control.version & 1
	// Masks come first: lists and keys name them, and they have one copy only.
	for id := range c.Masks {
		if err := s.maps.Masks.Put(uint32(id), other.Masks[id]); err != nil {
			return fmt.Errorf("write mask: %w", err)
		}
	}
	var lists batch[uint32, bpf.SteerList]
	for at := range c.Lists {
		var l bpf.SteerList
		l.Copy[v], l.Copy[v^1] = inForce.Lists[at], other.Lists[at]
		lists.add(at, l)
	}
	if err := lists.put(s.maps.Lists); err != nil {
		return fmt.Errorf("write lists: %w", err)
	}
	// Keys that are in neither copy make room for new ones.
	var tuples batch[key, bpf.SteerTuple]
	var gone batch[key, bpf.SteerTuple]
	for k := range c.Tuples {
		var t bpf.SteerTuple
		t.Copy[v], t.Copy[v^1] = inForce.Tuples[k], other.Tuples[k]
		if t.Copy[0].Priority|t.Copy[1].Priority == 0 {
			gone.add(k, t)
			continue
		}
		tuples.add(k, t)
	}
	if err := gone.remove(s.maps.Tuples); err != nil {
		return fmt.Errorf("remove keys: %w", err)
	}
	if err := tuples.put(s.maps.Tuples); err != nil {
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("%w: the former rules and the new ones together need more than %d keys: raise the switch's Keys", datapath.ErrFull, s.opts.Keys)
		}
		return fmt.Errorf("write keys: %w", err)
	}
	for slot := range c.Stages {
		if err := s.writeSlot(slot, inForce.Stages[slot], other.Stages[slot]); err != nil {
			return err
		}
	}
	return nil
}

// writeSlot writes a port. Both copies are given, that in force first.
func (s *rules) writeSlot(slot uint16, inForce, other stages) error {
	var v bpf.SteerPort
	if p := s.ports.bySlot[slot]; p != nil {
		v = s.ports.value(p)
	}
	v.Copy[s.control.version&1], v.Copy[s.control.version&1^1] = inForce, other
	if err := s.maps.Slots.Put(uint32(slot), v); err != nil {
		return fmt.Errorf("write port %d: %w", slot, err)
	}
	return nil
}

// settle makes the copy that is not in force equal to the one that is, once no program looks at it any more.
func (s *rules) settle() error {
	if s.pending.None() {
		return nil
	}
	if err := barrier(); err != nil {
		return err
	}
	s.pending.Masks = nil
	if err := s.write(s.image, s.image, s.pending); err != nil {
		return err
	}
	s.pending = compile.Changes{}
	return nil
}

// give a port the stages that it has, or those of its kind to one that is new.
func (s *rules) give(p *port) (st stages, fresh bool) {
	st, known := s.image.Stages[p.Slot]
	if known {
		return st, false
	}
	if p.kind() == portEndpoint {
		st = s.image.Stages[0] // the rules for any endpoint
	}
	s.image.Stages[p.Slot] = st
	return st, true
}

// take a port's stages away.
func (s *rules) take(slot uint16) error {
	delete(s.image.Stages, slot)
	delete(s.pending.Stages, slot)
	return s.writeSlot(slot, stages{}, stages{})
}

// stopDrains into a slot that will be another's.
func (s *rules) stopDrains(into uint16) error {
	for slot, st := range s.image.Stages {
		if d := &st.Stage[0]; d.Kind == compile.KindDrain && d.Action.Target == into {
			*d = stage{}
			s.image.Stages[slot] = st
			if err := s.writeSlot(slot, st, st); err != nil {
				return err
			}
		}
	}
	return nil
}

// targets of the rules in force.
func (s *rules) targets() map[uint16]bool {
	used := map[uint16]bool{}
	add := func(a *bpf.SteerAction) {
		used[a.Target] = true
		for _, c := range a.Clone[:a.Clones] {
			used[c.Port] = true
		}
	}
	for _, t := range s.image.Tuples {
		add(&t.Action)
	}
	for _, st := range s.image.Stages {
		for i := range st.Stage {
			add(&st.Stage[i].Action)
		}
	}
	return used
}

// batch of map entries: one system call where the kernel can (5.6).
type batch[K, V any] struct {
	keys   []K
	values []V
}

func (b *batch[K, V]) add(k K, v V) {
	b.keys = append(b.keys, k)
	b.values = append(b.values, v)
}

func (b *batch[K, V]) put(m *ebpf.Map) error {
	if len(b.keys) == 0 {
		return nil
	}
	n, err := m.BatchUpdate(b.keys, b.values, nil)
	if err == nil || errors.Is(err, unix.E2BIG) {
		return err
	}
	if !errors.Is(err, ebpf.ErrNotSupported) {
		n = 0 // which ones are in is unknown: say it again, one by one, for an error that names one
	}
	for i := n; i < len(b.keys); i++ {
		if err := m.Put(b.keys[i], b.values[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch[K, V]) remove(m *ebpf.Map) error {
	for _, k := range b.keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}
