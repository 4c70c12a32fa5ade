package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// drain is how long frames that are still inside a function go on by the rule that its port had, after a commit took it away.
const drain = 2 * time.Second

// changes are the keys in which two images differ.
type changes struct {
	stages map[uint16]bool
	lists  map[uint32]bool
	tuples map[key]bool
	masks  map[uint16]bool // new ones
}

func (c *changes) none() bool { return len(c.stages)+len(c.lists)+len(c.tuples) == 0 }

// Commit puts exactly these rules in force, in one atomic step: everything that rules are made of is in the maps in two
// copies; what changes is written to the copy that is not in force, then one write exchanges them.
func (s *Switch) Commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return datapath.Commit{}, err
	}
	defer leave()
	c, err := s.commit(rules)
	if err != nil {
		return c, fmt.Errorf("commit %d rules: %w", len(rules), err)
	}
	return c, nil
}

// Fits tells whether the tables hold rules in the place of as many others.
func (s *Switch) Fits(rules []flow.Rule, t flow.Topology) error { return s.opts.fits(rules, t) }

func (o *Options) fits(rules []flow.Rule, t flow.Topology) error {
	ports := map[flow.Port]place{}
	add := func(kind uint8, numbers ...flow.Port) {
		for _, n := range numbers {
			if n != 0 {
				ports[n] = place{slot: uint16(len(ports) + 1), kind: kind, fabric: slices.Contains(t.Fabric, n)}
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
	_, err := o.compile(rules, slots, ports, newImage())
	return err
}

func (s *Switch) commit(rules []flow.Rule) (datapath.Commit, error) {
	next, err := s.nextRules(rules)
	if err != nil {
		return datapath.Commit{}, err
	}
	result := datapath.Compare(s.rules.Rules, rules)
	img, err := s.opts.compile(next.Rules, next.Slots, s.places(), s.image)
	if err != nil {
		return datapath.Commit{}, err
	}
	diff := s.image.diff(img)
	result.Version = s.version
	if diff.none() {
		if result.Added+result.Changed+result.Removed > 0 || !datapath.SameNotes(s.rules.Rules, rules) { // only in what no frame notices
			next.Version = s.version
			if err := s.store.Write(record.Rules(s.version), &next); err != nil {
				return datapath.Commit{}, err
			}
			s.rules = next
		}
		return result, nil
	}
	if err := s.settle(); err != nil {
		return datapath.Commit{}, err
	}
	next.Version = s.version + 1
	if err := s.store.Write(record.Rules(next.Version), &next); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.zeroCounters(&next); err != nil {
		return datapath.Commit{}, err
	}
	if img.onward() && !s.image.onward() {
		if err := errors.Join(s.lookAround(), s.leaveHomes()); err != nil {
			return datapath.Commit{}, err
		}
	}
	s.pending = diff // whatever happens now, these are to be put right before the next commit
	if err := s.stage(img, diff); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.at("staged"); err != nil {
		return datapath.Commit{}, err
	}
	if err := s.flip(next.Version); err != nil {
		return datapath.Commit{}, err
	}
	s.image, s.rules = img, next
	result.Version = s.version
	return result, s.at("flipped")
}

// nextRules gives every cookie its counters: the same as before, or a free slot. Slot 0 is nobody's.
func (s *Switch) nextRules(rules []flow.Rule) (ruleSet, error) {
	next := ruleSet{Rules: slices.Clone(rules), Slots: make(map[uint64]uint32, len(rules))}
	if len(rules) >= s.opts.Rules {
		return next, fmt.Errorf("%w: the switch holds %d rules: raise its Rules", datapath.ErrFull, s.opts.Rules-1)
	}
	taken := make(map[uint32]bool, len(s.rules.Slots)+len(rules))
	for _, slot := range s.rules.Slots {
		taken[slot] = true
	}
	free := uint32(1)
	for i := range rules {
		cookie := rules[i].Cookie
		slot, known := s.rules.Slots[cookie]
		if !known {
			for taken[free] {
				free++
			}
			if free >= uint32(2*s.opts.Rules) { // cannot be: those that go and those that come are no more
				return next, fmt.Errorf("%w: %d rules go while %d come, the switch holds %d together: raise its Rules",
					datapath.ErrFull, len(s.rules.Slots), len(rules), s.opts.Rules-1)
			}
			slot = free
			taken[free] = true
		}
		next.Slots[cookie] = slot
	}
	return next, nil
}

// places are the ports that rules may name.
func (s *Switch) places() map[flow.Port]place {
	all := make(map[flow.Port]place, len(s.ports))
	for slot, p := range s.ports {
		all[p.number()] = place{slot, p.kind(), p.E.Fabric}
	}
	return all
}

// diff tells what leads from i to next. A port that drains is as one without rules.
func (i *image) diff(next *image) changes {
	c := changes{stages: map[uint16]bool{}, lists: map[uint32]bool{}, tuples: map[key]bool{}, masks: map[uint16]bool{}}
	for slot, st := range next.stages {
		was := i.stages[slot]
		for k := range st.Stage {
			if was.Stage[k].Kind == kindDrain && st.Stage[k].Kind == kindPass {
				st.Stage[k] = was.Stage[k]
			}
		}
		next.stages[slot] = st
		if was != st {
			c.stages[slot] = true
		}
	}
	for slot := range i.stages { // a port that went away keeps its stages until its slot is used again
		if _, kept := next.stages[slot]; !kept {
			next.stages[slot] = stages{}
			c.stages[slot] = true
		}
	}
	differ(i.lists, next.lists, c.lists)
	differ(i.tuples, next.tuples, c.tuples)
	for id, m := range next.masks {
		if was, ok := i.masks[id]; !ok || was != m {
			c.masks[id] = true
		}
	}
	return c
}

func differ[K, V comparable](a, b map[K]V, into map[K]bool) {
	for k, v := range b {
		if was, ok := a[k]; !ok || was != v {
			into[k] = true
		}
	}
	for k := range a {
		if _, ok := b[k]; !ok {
			into[k] = true
		}
	}
}

// stage writes the next image to the copy that is not in force.
func (s *Switch) stage(next *image, c changes) error {
	until, err := now()
	if err != nil {
		return err
	}
	until += uint64(drain)
	for slot := range c.stages {
		st, was := next.stages[slot], s.image.stages[slot]
		if p := s.ports[slot]; p != nil && p.kind() != portEndpoint && st.Stage[flow.Ingress].Kind == kindPass && was.Stage[flow.Ingress].Kind == kindDirect {
			st.Stage[flow.Ingress] = stage{Kind: kindDrain, Action: was.Stage[flow.Ingress].Action, Until: until}
			st.Stage[flow.Ingress].Action.Rule = 0 // the rule is gone, its counter may become another's
			next.stages[slot] = st
		}
	}
	return s.write(s.image, next, c)
}

// write puts the changed keys into the maps: inForce into the copy in force, other into the other one.
func (s *Switch) write(inForce, other *image, c changes) error {
	v := s.version & 1
	for id := range c.masks {
		if err := s.maps.Masks.Put(uint32(id), other.masks[id]); err != nil {
			return fmt.Errorf("write mask: %w", err)
		}
	}
	var lists batch[uint32, bpf.SteerList]
	for at := range c.lists {
		var l bpf.SteerList
		l.Copy[v], l.Copy[v^1] = inForce.lists[at], other.lists[at]
		lists.add(at, l)
	}
	if err := lists.put(s.maps.Lists); err != nil {
		return fmt.Errorf("write lists: %w", err)
	}
	var tuples batch[key, bpf.SteerTuple]
	var gone batch[key, bpf.SteerTuple]
	for k := range c.tuples {
		var t bpf.SteerTuple
		t.Copy[v], t.Copy[v^1] = inForce.tuples[k], other.tuples[k]
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
	for slot := range c.stages {
		if err := s.writeSlot(slot, inForce.stages[slot], other.stages[slot]); err != nil {
			return err
		}
	}
	return nil
}

// writeSlot writes a port. Both copies are given, that in force first.
func (s *Switch) writeSlot(slot uint16, inForce, other stages) error {
	var v bpf.SteerPort
	if p := s.ports[slot]; p != nil {
		v = s.portValue(p)
	}
	v.Copy[s.version&1], v.Copy[s.version&1^1] = inForce, other
	if err := s.maps.Slots.Put(uint32(slot), v); err != nil {
		return fmt.Errorf("write port %d: %w", slot, err)
	}
	return nil
}

// flip puts the other copy in force.
func (s *Switch) flip(version uint32) error {
	was := s.version
	s.version = version
	if err := s.control(); err != nil {
		s.version = was
		return fmt.Errorf("exchange the copies: %w", err)
	}
	return nil
}

// settle makes the copy that is not in force equal to the one that is, once no program looks at it any more.
func (s *Switch) settle() error {
	if s.pending.none() {
		return nil
	}
	if err := barrier(); err != nil {
		return err
	}
	s.pending.masks = nil
	if err := s.write(s.image, s.image, s.pending); err != nil {
		return err
	}
	s.pending = changes{}
	return nil
}

// zeroCounters of slots that new rules take over.
func (s *Switch) zeroCounters(next *ruleSet) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]bpf.SteerRuleStats, cpus)
	for cookie, slot := range next.Slots {
		if _, known := s.rules.Slots[cookie]; known {
			continue
		}
		if err := s.maps.RuleCounts.Put(slot, zero); err != nil {
			return fmt.Errorf("clear counter: %w", err)
		}
	}
	forgotten := false
	for cookie := range s.state.Rules {
		if _, kept := next.Slots[cookie]; !kept {
			if _, now := s.rules.Slots[cookie]; !now {
				delete(s.state.Rules, cookie)
				forgotten = true
			}
		}
	}
	if forgotten {
		return s.store.Write("switch.json", &s.state)
	}
	return nil
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

// readImage reads the copy in force back, and which keys differ in the other one.
func (s *Switch) readImage() (*image, changes, error) {
	img, stale := newImage(), changes{stages: map[uint16]bool{}, lists: map[uint32]bool{}, tuples: map[key]bool{}}
	v := s.version & 1
	slots := slices.Collect(maps.Keys(s.ports))
	slots = append(slots, 0)
	for _, slot := range slots {
		var p bpf.SteerPort
		if err := s.maps.Slots.Lookup(uint32(slot), &p); err != nil {
			return nil, stale, fmt.Errorf("read port %d: %w", slot, err)
		}
		img.stages[slot] = p.Copy[v]
		if p.Copy[0] != p.Copy[1] {
			stale.stages[slot] = true
		}
	}
	var k key
	var t bpf.SteerTuple
	it := s.maps.Tuples.Iterate()
	for it.Next(&k, &t) {
		if t.Copy[v].Priority != 0 {
			img.tuples[k] = t.Copy[v]
		}
		if t.Copy[0] != t.Copy[1] {
			stale.tuples[k] = true
		}
	}
	if err := it.Err(); err != nil {
		return nil, stale, fmt.Errorf("read keys: %w", err)
	}
	return img, stale, s.readLists(img, &stale)
}

// readLists reads the lists that are in use, and all masks.
func (s *Switch) readLists(img *image, stale *changes) error {
	ids := map[uint16]bool{}
	for _, st := range img.stages {
		for _, st := range st.Stage {
			if st.Kind == kindClassify {
				ids[st.Together] = true
			}
		}
	}
	for first, count := range img.spans() {
		for at := first; at < first+uint32(count); at++ {
			if _, known := img.lists[at]; known {
				continue
			}
			var l bpf.SteerList
			if err := s.maps.Lists.Lookup(at, &l); err != nil {
				return fmt.Errorf("read list: %w", err)
			}
			img.lists[at] = l.Copy[s.version&1]
			if l.Copy[0] != l.Copy[1] {
				stale.lists[at] = true
			}
			if img.lists[at].Priority != 0 {
				ids[img.lists[at].Mask] = true
			}
		}
	}
	for id := range ids {
		var m key
		if err := s.maps.Masks.Lookup(uint32(id), &m); err != nil {
			return fmt.Errorf("read mask: %w", err)
		}
		img.masks[id] = m
	}
	return nil
}
