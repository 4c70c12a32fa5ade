package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// restore finds out what is in force and goes on with it.
func (s *Switch) restore(ctx context.Context) error {
	var c bpf.SteerControl
	if err := s.maps.Controls.Lookup(uint32(0), &c); err != nil {
		return fmt.Errorf("read control: %w", err)
	}
	if err := s.loadRecords(); err != nil {
		return err
	}
	s.past = c.Past != 0
	if err := s.restoreGuards(); err != nil {
		return err
	}
	var err error
	if c.Version == 0 {
		err = s.fill()
	} else {
		s.version = c.Version
		err = s.readBack()
	}
	if err != nil {
		return err
	}
	if int(c.Owned) != len(s.owned) {
		if err := s.control(); err != nil {
			return err
		}
	}
	filled := func() error { return s.at("filled") }
	for _, step := range []func() error{
		ctx.Err, filled, s.attachAll, s.restoreStations, s.lookAround, s.watchProcesses, s.finishUpgrade, s.sweep,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// loadRecords reads the ports' files. A port whose link is gone keeps its slot and its name until it is added again or removed.
func (s *Switch) loadRecords() error {
	links, err := s.home.Links("")
	if err != nil {
		return err
	}
	here := map[uint32]string{}
	for _, l := range links {
		here[uint32(l.Index)] = l.Name
	}
	know := func(p *port) error {
		if int(p.Slot) >= s.opts.Ports {
			return fmt.Errorf("%w: port %s has slot %d: raise the switch's Ports", datapath.ErrFull, p.Name, p.Slot)
		}
		s.ports[p.Slot], s.byName[p.Name] = p, p.Slot
		if here[p.Index] == p.Link {
			s.byIndex[p.Index] = p.Slot
		}
		s.lastSlot = max(s.lastSlot, p.Slot)
		return nil
	}
	endpoints, err := record.All[port](s.store, "endpoint")
	if err != nil {
		return err
	}
	for _, p := range endpoints {
		if err := know(p); err != nil {
			return err
		}
	}
	functions, err := record.All[function](s.store, "function")
	if err != nil {
		return err
	}
	for _, fn := range functions {
		if err := probing.Draw(&fn.F, nil); err != nil { // an older version's
			return err
		}
		fn.written, fn.turn = fn.qdiscs(), &sync.Mutex{}
		s.fns[fn.F.Name] = fn
		for _, p := range fn.Ports {
			if err := know(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// readBack takes over maps that are in force: the copy in force is the truth, the other one is made equal to it.
func (s *Switch) readBack() error {
	var err error
	if s.image, s.pending, err = s.readImage(); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.loadRules(s.version); err != nil {
		return err
	}
	for slot, p := range s.ports {
		var v bpf.SteerPort
		if err := s.maps.Slots.Lookup(uint32(slot), &v); err != nil {
			return fmt.Errorf("read port %d: %w", slot, err)
		}
		want := s.portValue(p)
		want.Copy = v.Copy
		if v != want {
			if err := s.maps.Slots.Put(uint32(slot), want); err != nil {
				return fmt.Errorf("write port %d: %w", slot, err)
			}
		}
	}
	return s.checkIndex()
}

// checkIndex makes the tables from interface indexes to slots right, writing only what is wrong.
func (s *Switch) checkIndex() error {
	var index, slot uint32
	have := map[uint32]uint16{}
	it := s.maps.Ports.Iterate()
	for it.Next(&index, &slot) {
		have[index] = uint16(slot)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read port indexes: %w", err)
	}
	for at := range uint32(near) {
		var n bpf.SteerNear
		if err := s.maps.Nearby.Lookup(at, &n); err != nil {
			return fmt.Errorf("read port indexes: %w", err)
		}
		switch want, known := s.byIndex[n.Ifindex]; {
		case n.Ifindex == 0:
		case known && uint32(want) == n.Slot:
			s.near[at] = n.Ifindex
		default:
			if err := s.maps.Nearby.Put(at, bpf.SteerNear{}); err != nil {
				return fmt.Errorf("clear port index: %w", err)
			}
		}
	}
	for index := range have {
		if _, known := s.byIndex[index]; !known {
			if err := s.clearIndex(index); err != nil {
				return err
			}
		}
	}
	for index, slot := range maps.Clone(s.byIndex) {
		if have[index] != slot || s.near[index%near] == 0 {
			if err := s.setIndex(index, slot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Switch) loadRules(version uint32) error {
	r := ruleSet{Slots: map[uint64]uint32{}}
	found, err := s.store.Read(record.Rules(version), &r)
	if err != nil {
		return err
	}
	if !found || r.Version != version {
		if version > 1 {
			s.log.Warn("the switch's rules are in force, but their file is missing: counters start anew with the next commit", "version", version)
		}
		return nil
	}
	s.rules = r
	return nil
}

// fill makes fresh maps say what the files say: at the first Open, when the layout of the maps is another one now, or when
// somebody unmounted the bpffs.
func (s *Switch) fill() error {
	s.version = 1
	for _, v := range []uint32{0, 1} {
		var r ruleSet
		if found, err := s.store.Read(record.Rules(v), &r); err != nil {
			return err
		} else if found {
			s.version = max(s.version, r.Version)
		}
	}
	if s.state.Previous != "" {
		if err := s.carryOver(); err != nil {
			return err
		}
	}
	if err := s.loadRules(s.version); err != nil {
		return err
	}
	c := compiler{ports: s.places()}
	usable := slices.DeleteFunc(slices.Clone(s.rules.Rules), func(r flow.Rule) bool {
		return datapath.CheckRule(&r, c.kind) != nil
	})
	img, err := s.opts.compile(usable, s.rules.Slots, c.ports, newImage())
	if err != nil {
		return err
	}
	diff := newImage().diff(img)
	for slot := range s.ports {
		diff.stages[slot] = true
	}
	s.image = img
	if err := s.write(img, img, diff); err != nil {
		return err
	}
	if err := s.checkIndex(); err != nil {
		return err
	}
	for _, fn := range s.fns {
		if err := s.changeFunction(fn, func(v *bpf.SteerFunction) { v.OnFail = uint32(fn.F.OnFail) }); err != nil {
			return err
		}
	}
	return s.flip(s.version)
}

// carryOver takes the version in force, the functions' states and the learned addresses from the maps being replaced. In every
// layout, control begins with the version, a function with state, on_fail and process; other maps are carried over when
// they still look the same.
func (s *Switch) carryOver() error {
	return errors.Join(s.carry("controls", s.carryVersion), s.carry("functions", s.carryFunctions), s.carry("learned", s.carryLearned))
}

// carry calls over with a map that is being replaced, if there is one.
func (s *Switch) carry(name string, over func(*ebpf.Map) error) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(s.mapsDir(s.state.Previous), name), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	return over(old)
}

func (s *Switch) carryVersion(controls *ebpf.Map) error {
	if raw, err := controls.LookupBytes(uint32(0)); err == nil && len(raw) >= 4 {
		s.version = word(raw)
	}
	return nil
}

func (s *Switch) carryFunctions(functions *ebpf.Map) error {
	for _, fn := range s.fns {
		raw, err := functions.LookupBytes(uint32(fn.Slot))
		if err != nil || len(raw) < 12 {
			continue
		}
		v := bpf.SteerFunction{State: word(raw), OnFail: word(raw[4:]), Pid: word(raw[8:]), Used: 1}
		if err := s.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
			return fmt.Errorf("carry function %s over: %w", fn.F.Name, err)
		}
		if v.Pid != 0 && s.exit {
			if err := s.maps.Processes.Put(v.Pid, uint32(fn.Slot)); err != nil {
				return fmt.Errorf("carry function %s over: %w", fn.F.Name, err)
			}
		}
	}
	return nil
}

func (s *Switch) carryLearned(learned *ebpf.Map) error {
	if learned.KeySize() != s.maps.Learned.KeySize() || learned.ValueSize() != s.maps.Learned.ValueSize() {
		return nil
	}
	var k bpf.SteerExitKey
	var slot uint32
	it := learned.Iterate()
	for it.Next(&k, &slot) {
		if err := s.maps.Learned.Put(k, slot); err != nil {
			return fmt.Errorf("carry learned addresses over: %w", err)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("carry learned addresses over: %w", err)
	}
	return nil
}

// attachAll makes sure of every program. What is attached already is looked at only.
func (s *Switch) attachAll() error {
	for _, p := range s.ports {
		if s.byIndex[p.Index] != p.Slot {
			continue // the link is gone
		}
		if p.kind() == portEndpoint {
			if err := s.attachOuter(p, false); err != nil && !errors.Is(err, unix.ENODEV) { // the link went just now
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	for _, fn := range s.fns {
		if err := s.attachAgain(fn); err != nil {
			return fmt.Errorf("function/%s: %w", fn.F.Name, err)
		}
	}
	return nil
}

func (s *Switch) attachAgain(fn *function) error {
	inside := false
	for _, p := range fn.Ports {
		if s.byIndex[p.Index] != p.Slot {
			return nil // to be added again
		}
		if fn.F.Forwarder == "" {
			continue
		}
		at := s.inner(p)
		linked, err := at.linked()
		if err != nil {
			return err
		}
		inside = inside || !linked
	}
	if !inside {
		before := fn.qdiscs()
		for _, p := range fn.Ports {
			if err := s.attachOuter(p, false); err != nil {
				return err
			}
		}
		if before != fn.qdiscs() {
			return s.store.Write(record.File("function", fn.F.Name), fn)
		}
		return nil
	}
	if !netns.Exists(fn.F.Netns) {
		return nil
	}
	space, err := netns.At(fn.F.Netns)
	if err != nil {
		return err
	}
	defer space.Close()
	return s.attachFunction(fn, space)
}

// finishUpgrade adds what the replaced maps had counted, once nobody counts there any more, and removes them.
func (s *Switch) finishUpgrade() error {
	if s.state.Previous == "" {
		return nil
	}
	if err := barrier(); err != nil {
		return err
	}
	err := errors.Join(s.carry("rule_counts", s.addRuleCounts), s.carry("port_counts", s.addPortCounts))
	if err != nil {
		return err
	}
	was := s.state.Previous
	s.state.Previous = ""
	if err := s.store.Write("switch.json", &s.state); err != nil {
		return err
	}
	s.log.Info("switch tables replaced", "from", was, "to", s.state.ABI)
	for _, fn := range s.fns { // one may have ended between the programs
		if err := s.changeFunction(fn, func(*bpf.SteerFunction) {}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Switch) addRuleCounts(counts *ebpf.Map) error {
	for cookie, slot := range s.rules.Slots {
		if sum, err := sums(counts, slot, 2); err == nil {
			c := s.state.Rules[cookie]
			s.state.Rules[cookie] = counter{Packets: c.Packets + sum[0], Bytes: c.Bytes + sum[1]}
		}
	}
	return nil
}

func (s *Switch) addPortCounts(counts *ebpf.Map) error {
	for slot, p := range s.ports {
		if sum, err := sums(counts, uint32(slot), 6); err == nil {
			s.state.Ports[p.Name] = s.state.Ports[p.Name].plus(sum)
		}
	}
	return nil
}

// sweep removes pins that nothing uses: of other builds and layouts, and of ports that are no more.
func (s *Switch) sweep() error {
	root := s.opts.Instance.BPFFS()
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	keep := map[string]bool{s.linksDir(): true, s.mapsDir(s.state.ABI): true, s.programsDir(s.state.ABI, s.state.Build): true}
	for _, e := range entries {
		if path := filepath.Join(root, e.Name()); !keep[path] && !strings.Contains(e.Name(), ".") { // the kernel's own have dots
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove old pins: %w", err)
			}
		}
	}
	if entries, err = os.ReadDir(s.linksDir()); err != nil {
		return err
	}
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "-")
		slot, err := strconv.ParseUint(number, 10, 16)
		if err != nil || s.ports[uint16(slot)] != nil {
			continue
		}
		if err := os.Remove(filepath.Join(s.linksDir(), e.Name())); err != nil {
			return fmt.Errorf("remove old pins: %w", err)
		}
	}
	return nil
}
