package ebpf

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf/internal/compile"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// readBack takes over maps that are in force: the copy in force is the truth, the other one is made equal to it.
func (s *rules) readBack() error {
	var err error
	if s.image, s.pending, err = s.readImage(); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.load(s.control.version); err != nil {
		return err
	}
	if err := s.checkPorts(); err != nil {
		return err
	}
	return s.ports.checkIndex()
}

// checkPorts makes right what the programs know of ports, writing only what is wrong.
func (s *rules) checkPorts() error {
	for slot, p := range s.ports.bySlot {
		var v bpf.SteerPort
		if err := s.maps.Slots.Lookup(uint32(slot), &v); err != nil {
			return fmt.Errorf("read port %d: %w", slot, err)
		}
		want := s.ports.value(p)
		want.Copy = v.Copy
		if v != want {
			if err := s.maps.Slots.Put(uint32(slot), want); err != nil {
				return fmt.Errorf("write port %d: %w", slot, err)
			}
		}
	}
	return nil
}

// load reads the file of the rules in force.
func (s *rules) load(version uint32) error {
	r := ruleSet{Slots: map[uint64]uint32{}}
	found, err := s.home.Store.Read(record.Rules(version), &r)
	if err != nil {
		return err
	}
	if !found || r.Version != version {
		if version > 1 {
			s.home.Log.Warn("the switch's rules are in force, but their file is missing: counters start anew with the next commit", "version", version)
		}
		return nil
	}
	s.set = r
	return nil
}

// fill makes fresh maps say what the files say: at the first Open, when the layout of the maps is another one now, or when
// somebody unmounted the bpffs. The version is known.
func (s *rules) fill() error {
	if err := s.load(s.control.version); err != nil {
		return err
	}
	places := s.ports.places()
	kind := compile.Kind(places)
	usable := slices.DeleteFunc(slices.Clone(s.set.Rules), func(r flow.Rule) bool {
		return datapath.CheckRule(&r, kind) != nil
	})
	img, err := compile.Rules(s.opts.limits(), usable, s.set.Slots, places, compile.NewImage())
	if err != nil {
		return err
	}
	diff := compile.NewImage().Diff(img)
	for slot := range s.ports.bySlot {
		diff.Stages[slot] = true
	}
	s.image = img
	if err := s.write(img, img, diff); err != nil {
		return err
	}
	return s.ports.checkIndex()
}

// latest is the highest version that a file names, 1 if there is none.
func (s *rules) latest() (uint32, error) {
	version := uint32(1)
	for _, v := range []uint32{0, 1} {
		var r ruleSet
		if found, err := s.home.Store.Read(record.Rules(v), &r); err != nil {
			return 0, err
		} else if found {
			version = max(version, r.Version)
		}
	}
	return version, nil
}

// readImage reads the copy in force back, and which keys differ in the other one.
func (s *rules) readImage() (*compile.Image, compile.Changes, error) {
	img, stale := compile.NewImage(), compile.Changes{Stages: map[uint16]bool{}, Lists: map[uint32]bool{}, Tuples: map[key]bool{}}
	v := s.control.version & 1
	slots := slices.Collect(maps.Keys(s.ports.bySlot))
	slots = append(slots, 0)
	for _, slot := range slots {
		var p bpf.SteerPort
		if err := s.maps.Slots.Lookup(uint32(slot), &p); err != nil {
			return nil, stale, fmt.Errorf("read port %d: %w", slot, err)
		}
		img.Stages[slot] = p.Copy[v]
		if p.Copy[0] != p.Copy[1] {
			stale.Stages[slot] = true
		}
	}
	var k key
	var t bpf.SteerTuple
	it := s.maps.Tuples.Iterate()
	for it.Next(&k, &t) {
		if t.Copy[v].Priority != 0 {
			img.Tuples[k] = t.Copy[v]
		}
		if t.Copy[0] != t.Copy[1] {
			stale.Tuples[k] = true
		}
	}
	if err := it.Err(); err != nil {
		return nil, stale, fmt.Errorf("read keys: %w", err)
	}
	return img, stale, s.readLists(img, &stale)
}

// readLists reads the lists that are in use, and all masks.
func (s *rules) readLists(img *compile.Image, stale *compile.Changes) error {
	ids := map[uint16]bool{}
	for _, st := range img.Stages {
		for _, st := range st.Stage {
			if st.Kind == compile.KindClassify {
				ids[st.Together] = true
			}
		}
	}
	for first, count := range img.Spans() {
		for at := first; at < first+uint32(count); at++ {
			if _, known := img.Lists[at]; known {
				continue
			}
			var l bpf.SteerList
			if err := s.maps.Lists.Lookup(at, &l); err != nil {
				return fmt.Errorf("read list: %w", err)
			}
			img.Lists[at] = l.Copy[s.control.version&1]
			if l.Copy[0] != l.Copy[1] {
				stale.Lists[at] = true
			}
			if img.Lists[at].Priority != 0 {
				ids[img.Lists[at].Mask] = true
			}
		}
	}
	for id := range ids {
		var m key
		if err := s.maps.Masks.Lookup(uint32(id), &m); err != nil {
			return fmt.Errorf("read mask: %w", err)
		}
		img.Masks[id] = m
	}
	return nil
}
