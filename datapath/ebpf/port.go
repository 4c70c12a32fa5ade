package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf/internal/compile"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// The C's constants (bpf/weir.h).
const (
	portEndpoint, portFunction, portTap = compile.PortEndpoint, compile.PortFunction, compile.PortTap

	portPeer, portSpeaks, portFabric, portGuard  = 1, 2, 4, 8
	portSettles                                  = 16
	guardMAC, guardBound, guardDHCP, guardRouter = 1, 2, 4, 8

	near = 4096 // places in the table nearby
)

type (
	key    = bpf.SteerKey
	stage  = bpf.SteerStage
	stages = bpf.SteerStages
)

// ports are the switch's ports and functions, and the programs' tables from interfaces to ports.
type ports struct {
	opts    *Options
	maps    *mapSet
	bySlot  map[uint16]*port
	byIndex map[uint32]uint16 // interface index -> slot, of ports whose link is there
	byName  map[string]uint16 // "endpoint/alice", "function/fw/in" -> slot
	fns     map[string]*function
	near    map[uint32]uint32 // place in the table nearby -> interface index
	last    uint16            // slot that was given out last
}

func newPorts(o *Options, m *mapSet) *ports {
	return &ports{opts: o, maps: m, bySlot: map[uint16]*port{}, byIndex: map[uint32]uint16{}, byName: map[string]uint16{}, fns: map[string]*function{},
		near: map[uint32]uint32{}}
}

// named is nil if there is no such port.
func (s *ports) named(name string) *port {
	if slot, known := s.byName[name]; known {
		return s.bySlot[slot]
	}
	return nil
}

// there tells that the port's link is.
func (s *ports) there(p *port) bool { return s.byIndex[p.Index] == p.Slot }

// free tells that no other port has the link.
func (s *ports) free(p *port) error {
	if slot, taken := s.byIndex[p.Index]; taken && s.bySlot[slot].Name != p.Name {
		return fmt.Errorf("interface %s is already the port %s", p.Link, s.bySlot[slot].Name)
	}
	return nil
}

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

// value is what the programs know of a port, rules apart.
func (s *ports) value(p *port) bpf.SteerPort {
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
	fn := s.fns[p.functionName()]
	if p.Veth && (fn == nil || !fn.F.Whole) {
		v.Flags |= portPeer
	}
	if fn == nil {
		return v
	}
	if fn.F.Speaks {
		v.Flags |= portSpeaks
	}
	if fn.settles {
		v.Flags |= portSettles
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
func (s *ports) newNumber(p *port) uint32 {
	used := map[flow.Port]bool{}
	for _, q := range s.bySlot {
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

// newSlot for a port. Slots are used in turn, so that one is reused late, and not while a rule in force leads there: these are used.
func (s *ports) newSlot(used map[uint16]bool) (uint16, error) {
	for range s.opts.Ports {
		s.last++
		if int(s.last) >= s.opts.Ports {
			s.last = 1
		}
		slot := s.last
		if s.bySlot[slot] == nil && !used[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: the switch has %d ports: raise its Ports", datapath.ErrFull, s.opts.Ports-1)
}

// note makes a port one of the switch's, whose programs know it by setIndex only. It replaces one of the same slot.
func (s *ports) note(p *port) error {
	if old := s.bySlot[p.Slot]; old != nil && old.Index != p.Index {
		if err := s.clearIndex(old.Index); err != nil {
			return err
		}
	}
	s.bySlot[p.Slot], s.byName[p.Name], s.byIndex[p.Index] = p, p.Slot, p.Slot
	return nil
}

// forget is the reverse of note and setIndex.
func (s *ports) forget(p *port) error {
	if err := s.clearIndex(p.Index); err != nil {
		return err
	}
	delete(s.bySlot, p.Slot)
	delete(s.byName, p.Name)
	return nil
}

// setIndex tells the programs whose interface it is.
func (s *ports) setIndex(index uint32, slot uint16) error {
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

func (s *ports) clearIndex(index uint32) error {
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

// load reads the ports' files. A port whose link is gone keeps its slot and its name until it is added again or removed.
func (s *ports) load(h *home.Home) error {
	links, err := h.Space.Links("")
	if err != nil {
		return err
	}
	here := map[uint32]string{}
	for _, l := range links {
		here[uint32(l.Index)] = l.Name
	}
	endpoints, err := record.All[port](h.Store, "endpoint")
	if err != nil {
		return err
	}
	if err := s.known(endpoints, here); err != nil {
		return err
	}
	functions, err := record.All[function](h.Store, "function")
	if err != nil {
		return err
	}
	for _, fn := range functions {
		if err := probing.Draw(&fn.F, nil); err != nil { // an older version's
			return err
		}
		fn.written, fn.turn = fn.qdiscs(), &probing.Turn{}
		s.fns[fn.F.Name] = fn
		if err := s.known(fn.Ports, here); err != nil {
			return err
		}
	}
	return nil
}

// known are ports that have records; here are the links that there are, by index.
func (s *ports) known(all []*port, here map[uint32]string) error {
	for _, p := range all {
		if int(p.Slot) >= s.opts.Ports {
			return fmt.Errorf("%w: port %s has slot %d: raise the switch's Ports", datapath.ErrFull, p.Name, p.Slot)
		}
		s.bySlot[p.Slot], s.byName[p.Name] = p, p.Slot
		if here[p.Index] == p.Link {
			s.byIndex[p.Index] = p.Slot
		}
		s.last = max(s.last, p.Slot)
	}
	return nil
}

// places are the ports that rules may name.
func (s *ports) places() map[flow.Port]compile.Place {
	all := make(map[flow.Port]compile.Place, len(s.bySlot))
	for slot, p := range s.bySlot {
		all[p.number()] = compile.Place{Slot: slot, Kind: p.kind(), Fabric: p.E.Fabric}
	}
	return all
}

// newFunctionSlot is the lowest free one from 1.
func (s *ports) newFunctionSlot() (uint16, error) {
	used := map[uint16]bool{0: true}
	for _, f := range s.fns {
		used[f.Slot] = true
	}
	for slot := uint16(1); int(slot) < s.opts.Ports; slot++ {
		if !used[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: the switch has %d functions: raise its Ports", datapath.ErrFull, s.opts.Ports-1)
}

// checkIndex makes the tables from interface indexes to slots right, writing only what is wrong.
func (s *ports) checkIndex() error {
	// What the programs have.
	var index, slot uint32
	have := map[uint32]uint16{}
	it := s.maps.Ports.Iterate()
	for it.Next(&index, &slot) {
		have[index] = uint16(slot)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read port indexes: %w", err)
	}
	// The table nearby is an array: each place is right, or is cleared.
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
	// Interfaces that are no ports go before those that are missing come, for which there may be no room else.
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
