package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

type counter = datapath.Counter

func (p *port) kind() uint8 {
	switch {
	case strings.HasPrefix(p.Name, "endpoint/"):
		return portEndpoint
	case strings.HasSuffix(p.Name, "/tap"):
		return portTap
	}
	return portFunction
}

// functionName of a function's port.
func (p *port) functionName() string {
	_, rest, _ := strings.Cut(p.Name, "/")
	at := strings.LastIndexByte(rest, '/')
	if p.kind() == portEndpoint || at < 0 {
		return ""
	}
	return rest[:at]
}

// portValue is what the programs know of a port, rules apart.
func (s *Switch) portValue(p *port) bpf.SteerPort {
	v := bpf.SteerPort{Ifindex: p.Index, Kind: p.kind()}
	if p.kind() == portEndpoint {
		v.Peer = p.E.Peer
		if p.E.Fabric {
			v.Flags |= portFabric
			return v
		}
		if p.Veth && p.E.Peer != [6]byte{} {
			v.Flags |= portPeer
		}
		if p.E.Guard.On {
			v.Flags |= portGuard
			v.Source, v.Source6 = usual(p)
		}
		return v
	}
	if p.Veth {
		v.Flags |= portPeer
	}
	fn := s.fns[p.functionName()]
	if fn == nil {
		return v
	}
	if fn.F.Speaks {
		v.Flags |= portSpeaks
	}
	v.Function = fn.Slot
	for i, q := range fn.Ports {
		v.Own[i] = q.Own
		if q != p {
			v.Opposite = q.Slot
		}
	}
	if len(fn.Ports) == 1 {
		v.Own[1] = v.Own[0]
	}
	return v
}

// number by which rules name the port.
func (p *port) number() flow.Port { return flow.Port(cmp.Or(p.Number, p.Index)) }

// newNumber for a port: its interface's index, or a free number beyond all indexes if a function's port that has moved to another interface has that.
func (s *Switch) newNumber(p *port) uint32 {
	used := map[flow.Port]bool{}
	for _, q := range s.ports {
		if q.Name != p.Name {
			used[q.number()] = true
		}
	}
	n := p.Index
	for used[flow.Port(n)] { // ends: there are less ports than numbers
		n += 1 << 20
	}
	return n
}

// newSlot for a port. Slots are used in turn, so that one is reused late, and not while a rule in force leads there.
func (s *Switch) newSlot() (uint16, error) {
	used := s.targets()
	for range s.opts.Ports {
		s.lastSlot++
		if int(s.lastSlot) >= s.opts.Ports {
			s.lastSlot = 1
		}
		slot := s.lastSlot
		if s.ports[slot] == nil && !used[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: the switch has %d ports: raise its Ports", datapath.ErrFull, s.opts.Ports-1)
}

// targets of the rules in force.
func (s *Switch) targets() map[uint16]bool {
	used := map[uint16]bool{}
	add := func(a *action) {
		used[a.Target] = true
		for _, c := range a.Clone[:a.Clones] {
			used[c.Port] = true
		}
	}
	for _, t := range s.image.tuples {
		add(&t.Action)
	}
	for _, st := range s.image.stages {
		for i := range st.Stage {
			add(&st.Stage[i].Action)
		}
	}
	return used
}

// enlist makes a port known to the programs; its record is on disk already.
func (s *Switch) enlist(p *port) error {
	if old := s.ports[p.Slot]; old != nil && old.Index != p.Index {
		if err := s.clearIndex(old.Index); err != nil {
			return err
		}
	}
	s.ports[p.Slot], s.byName[p.Name], s.byIndex[p.Index] = p, p.Slot, p.Slot
	st, known := s.image.stages[p.Slot]
	if !known {
		if p.kind() == portEndpoint {
			st = s.image.stages[0] // the rules for any endpoint
		}
		s.image.stages[p.Slot] = st
		if err := s.clearCounters(p.Slot); err != nil {
			return err
		}
	}
	if err := s.putGuard(p); err != nil {
		return err
	}
	if err := s.writeSlot(p.Slot, st, st); err != nil {
		return err
	}
	if p.kind() == portEndpoint && !p.E.Guard.On {
		if err := s.dropGuard(p.Slot); err != nil {
			return err
		}
	}
	return s.setIndex(p.Index, p.Slot)
}

// delist is the reverse.
func (s *Switch) delist(p *port) error {
	if err := s.clearIndex(p.Index); err != nil {
		return err
	}
	delete(s.ports, p.Slot)
	delete(s.byName, p.Name)
	delete(s.image.stages, p.Slot)
	delete(s.pending.stages, p.Slot)
	delete(s.todo, p.Slot)
	if err := s.writeSlot(p.Slot, stages{}, stages{}); err != nil {
		return err
	}
	if err := s.dropGuard(p.Slot); err != nil {
		return err
	}
	for slot, st := range s.image.stages { // nobody drains into a slot that will be another's
		if d := &st.Stage[0]; d.Kind == kindDrain && d.Action.Target == p.Slot {
			*d = stage{}
			s.image.stages[slot] = st
			if err := s.writeSlot(slot, st, st); err != nil {
				return err
			}
		}
	}
	if _, had := s.state.Ports[p.Name]; had {
		delete(s.state.Ports, p.Name)
		if err := s.store.Write("switch.json", &s.state); err != nil {
			return err
		}
	}
	return s.unlearn(p.Slot)
}

func (s *Switch) setIndex(index uint32, slot uint16) error {
	s.byIndex[index] = slot
	if err := s.maps.Ports.Put(index, uint32(slot)); err != nil {
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("%w: the switch has %d ports: raise its Ports", datapath.ErrFull, s.opts.Ports-1)
		}
		return fmt.Errorf("write port index: %w", err)
	}
	at := index % near
	if taken := s.near[at]; taken != 0 && taken != index {
		return nil
	}
	s.near[at] = index
	if err := s.maps.Nearby.Put(at, bpf.SteerNear{Ifindex: index, Slot: uint32(slot)}); err != nil {
		return fmt.Errorf("write port index: %w", err)
	}
	return nil
}

func (s *Switch) clearIndex(index uint32) error {
	delete(s.byIndex, index)
	at := index % near
	if s.near[at] == index {
		delete(s.near, at)
		if err := s.maps.Nearby.Put(at, bpf.SteerNear{}); err != nil {
			return fmt.Errorf("clear port index: %w", err)
		}
	}
	if err := s.maps.Ports.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear port index: %w", err)
	}
	return nil
}

func (s *Switch) clearCounters(slot uint16) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	if err := s.maps.PortCounts.Put(uint32(slot), make([]bpf.SteerPortStats, cpus)); err != nil {
		return fmt.Errorf("clear counters: %w", err)
	}
	if err := s.maps.GuardCounts.Delete(uint32(slot)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear counters: %w", err)
	}
	return nil
}

// unlearn forgets the addresses met at a port that goes.
func (s *Switch) unlearn(slot uint16) error {
	var k bpf.SteerExitKey
	var at uint32
	var stale []bpf.SteerExitKey
	it := s.maps.Learned.Iterate()
	for it.Next(&k, &at) {
		if at == uint32(slot) {
			stale = append(stale, k)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read learned addresses: %w", err)
	}
	for _, k := range stale {
		if err := s.maps.Learned.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget learned address: %w", err)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	var moves uint32
	if err := s.maps.Moves.Lookup(uint32(0), &moves); err != nil {
		return fmt.Errorf("read moves: %w", err)
	}
	if err := s.maps.Moves.Put(uint32(0), moves+1); err != nil {
		return fmt.Errorf("write moves: %w", err)
	}
	return nil
}
