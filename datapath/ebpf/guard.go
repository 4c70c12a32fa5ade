package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"weir.dev/weir/bpf"
	"weir.dev/weir/flow"
)

// Port security (flow.Guard): the programs find a port's in the map guards, by slot. Its flag and the address that most packets have are in the port's
// own entry. The map owners has the MACs of all guards: what has one of these enters nowhere else.

// guards are the tables of port security.
type guards struct {
	maps    *mapSet
	ports   *ports
	control *control
	owned   map[flow.MAC]bool // in the programs' table of guarded MACs
}

// guardValue is a guard as the programs read it.
func guardValue(g flow.Guard) bpf.SteerGuard {
	v := bpf.SteerGuard{Macs: uint8(len(g.MACs))}
	if len(g.MACs) > 0 {
		v.Flags |= guardMAC
	}
	if g.Bound {
		v.Flags |= guardBound
	}
	if g.DHCPServer {
		v.Flags |= guardDHCP
	}
	if g.Router {
		v.Flags |= guardRouter
	}
	for i, m := range g.MACs {
		v.Mac[i] = m
	}
	for _, p := range g.Addresses {
		mask := maskOf(p)
		if a := p.Addr(); a.Is4() {
			v.V4[v.V4s] = bpf.SteerGuard4{Addr: native4(a), Mask: binary.NativeEndian.Uint32(mask[:4])}
			v.V4s++
		} else {
			b := a.As16()
			v.V6[v.V6s] = bpf.SteerGuard6{Addr: native6(b), Mask: native6(mask)}
			v.V6s++
		}
	}
	for _, a := range g.Shared { // behind the others: see struct guard
		mask := maskOf(netip.PrefixFrom(a, a.BitLen()))
		if a.Is4() {
			v.V4[v.V4s] = bpf.SteerGuard4{Addr: native4(a), Mask: binary.NativeEndian.Uint32(mask[:4])}
			v.V4s++
			v.V4Shared++
		} else {
			v.V6[v.V6s] = bpf.SteerGuard6{Addr: native6(a.As16()), Mask: native6(mask)}
			v.V6s++
			v.V6Shared++
		}
	}
	return v
}

func native4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func native6(b [16]byte) [2]uint64 {
	return [2]uint64{binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
}

func maskOf(p netip.Prefix) (mask [16]byte) {
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// usual are the IPv4 and the IPv6 address that packets with the MAC of the port's station may have without a further look: 0 none.
func usual(p *port) (v4 uint32, v6 [2]uint64) {
	g := p.E.Guard
	if len(g.MACs) == 0 || g.MACs[0] != p.E.Peer || !g.Bound {
		return v4, v6
	}
	for _, a := range g.Addresses {
		switch {
		case !a.IsSingleIP():
		case a.Addr().Is4() && v4 == 0:
			v4 = native4(a.Addr())
		case a.Addr().Is6() && v6 == [2]uint64{}:
			v6 = native6(a.Addr().As16())
		}
	}
	return v4, v6
}

// put writes the port's guard, before its flag.
func (g *guards) put(p *port) error {
	if p.kind() != portEndpoint {
		return nil
	}
	err := g.maps.GuardCounts.Update(uint32(p.Slot), bpf.SteerGuardStats{}, ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("write port security of %s: %w", p.Name, err)
	}
	if !p.E.Guard.On {
		return nil
	}
	if err := g.maps.Guards.Put(uint32(p.Slot), guardValue(p.E.Guard)); err != nil {
		return fmt.Errorf("write port security of %s: %w", p.Name, err)
	}
	return g.placeOwners()
}

// drop is for a port that has none any more; its flag is cleared.
func (g *guards) drop(slot uint16) error {
	err := g.maps.Guards.Delete(uint32(slot))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove port security: %w", err)
	}
	return g.placeOwners()
}

// placeOwners makes the table of guarded MACs right.
func (g *guards) placeOwners() error {
	want := map[flow.MAC]bool{}
	for _, p := range g.ports.bySlot {
		if p.kind() == portEndpoint && p.E.Guard.On {
			for _, m := range p.E.Guard.MACs {
				want[m] = true
			}
		}
	}
	for m := range want {
		if g.owned[m] {
			continue
		}
		if err := g.maps.Owners.Put(stationKey(m), uint32(1)); err != nil {
			return fmt.Errorf("write guarded MAC %s: %w", m, err)
		}
		g.owned[m] = true
	}
	for m := range g.owned {
		if want[m] {
			continue
		}
		if err := g.maps.Owners.Delete(stationKey(m)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove guarded MAC %s: %w", m, err)
		}
		delete(g.owned, m)
	}
	return g.control.count(len(g.owned))
}

// restore makes the tables right after a start, before ports' flags are.
func (g *guards) restore() error {
	var k bpf.SteerStationKey
	var one uint32
	it := g.maps.Owners.Iterate()
	for it.Next(&k, &one) {
		g.owned[k.Mac] = true
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read guarded MACs: %w", err)
	}
	for _, p := range g.ports.bySlot {
		if err := g.put(p); err != nil {
			return err
		}
	}
	return g.placeOwners()
}

// refused are the packets that the port's guard dropped, by reason.
func (g *guards) refused(p *port) ([flow.Refusals]uint64, error) {
	var v bpf.SteerGuardStats
	if p.kind() != portEndpoint {
		return v.Refused, nil
	}
	err := g.maps.GuardCounts.Lookup(uint32(p.Slot), &v)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return v.Refused, fmt.Errorf("read port security: %w", err)
	}
	return v.Refused, nil
}
