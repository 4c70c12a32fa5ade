package ebpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/flow"
)

// A frame between two stations that Weir gave their links need not cross the bridge to meet the rules of the port where it leaves: the programs
// know that port by the table stations (MAC -> slot), as long as the bridge agrees (homes, which only the programs set). What takes that way the
// bridge does not see, so a station's address is a static entry there: it does not age, but moves, as any, when the station turns up elsewhere.

// stationKey of a MAC.
func stationKey(mac flow.MAC) bpf.SteerStationKey { return bpf.SteerStationKey{Mac: mac} }

// stations are the MACs in the programs' table, as long as one port alone claims each.
type stations struct {
	home   *home.Home
	maps   *mapSet
	ports  *ports
	bridge *bridge
	slots  map[flow.MAC]uint16 // what the table says
}

// has: the MAC behind the port is the only one there, and the port forwards.
func (s *stations) has(p *port) bool {
	return p.kind() == portEndpoint && p.Veth && !p.E.Fabric && !p.E.Isolated && !p.E.Held && p.E.Peer != flow.MAC{} && s.ports.there(p)
}

// place makes tables and bridge say where a station is now: nowhere when several ports claim its address, as the links of a bond do. Of one
// that came just now that is news to the bridge; of another the bridge may know better.
func (s *stations) place(mac flow.MAC, came bool) error {
	if mac == (flow.MAC{}) {
		return nil
	}
	var only *port
	for _, p := range s.ports.bySlot {
		if p.E.Peer != mac || !s.has(p) {
			continue
		}
		if only != nil {
			return s.drop(mac)
		}
		only = p
	}
	if only == nil {
		return s.drop(mac)
	}
	if s.slots[mac] == only.Slot {
		return nil
	}
	if err := s.fix(mac, only, came); err != nil {
		return fmt.Errorf("make the address of %s a static one of the bridge: %w", only.Name, err)
	}
	if err := s.leaveHome(only.Slot); err != nil {
		return err
	}
	if err := s.maps.Stations.Put(stationKey(mac), uint32(only.Slot)); err != nil {
		return fmt.Errorf("write the station of %s: %w", only.Name, err)
	}
	s.slots[mac] = only.Slot
	return nil
}

// drop is for one that is gone, or of which it is not known where it is: the bridge learns it.
func (s *stations) drop(mac flow.MAC) error {
	slot, known := s.slots[mac]
	if !known {
		return nil
	}
	if err := s.maps.Stations.Delete(stationKey(mac)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget station %s: %w", mac, err)
	}
	if err := s.leaveHome(slot); err != nil {
		return err
	}
	err := error(unix.ENODEV) // the bridge forgot it with the port
	if p := s.ports.bySlot[slot]; p != nil && s.ports.there(p) {
		err = s.home.NL.NeighDel(fdbEntry(mac, p.Index))
	}
	if noPort(err) || errors.Is(err, unix.ENOENT) {
		err = s.loosen(mac)
	}
	if err != nil {
		return fmt.Errorf("let the bridge learn %s: %w", mac, err)
	}
	delete(s.slots, mac)
	return nil
}

// fix makes the address of a station at its port a static one. Where the bridge has met it elsewhere, that stays, unless it came just now.
func (s *stations) fix(mac flow.MAC, p *port, came bool) error {
	entry := fdbEntry(mac, p.Index)
	if came {
		return s.home.NL.NeighSet(entry)
	}
	err := s.home.NL.NeighAdd(entry)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, err := s.bridge.addresses()
	if at, known := have[mac]; err != nil || known && at.index != int(p.Index) {
		return err
	}
	return s.home.NL.NeighSet(entry)
}

// loosen makes an address that has moved, with its static entry, one that the bridge learned.
func (s *stations) loosen(mac flow.MAC) error {
	have, err := s.bridge.addresses()
	at, known := have[mac]
	if err != nil || !known || !at.static {
		return err
	}
	entry := fdbEntry(mac, uint32(at.index))
	entry.State = netlink.NUD_REACHABLE
	if err := s.home.NL.NeighSet(entry); !noPort(err) {
		return err
	}
	return nil
}

// noPort: the link is gone, or not in the bridge.
func noPort(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// keepStatic gives stations their static entries again, should they have lost them: with the port to which the address had moved, or by
// somebody's hand. Where the bridge has met a station elsewhere, that stays.
func (s *stations) keepStatic() error {
	have, err := s.bridge.addresses()
	if err != nil {
		return err
	}
	for mac, slot := range s.slots {
		p := s.ports.bySlot[slot]
		e, known := have[mac]
		if p == nil || known && (e.static || e.index != int(p.Index)) {
			continue
		}
		if err := s.home.NL.NeighSet(fdbEntry(mac, p.Index)); err != nil && !noPort(err) {
			return fmt.Errorf("make the address of %s a static one of the bridge: %w", p.Name, err)
		}
	}
	return nil
}

// leaveHome: the bridge has to meet a station once before frames pass it by.
func (s *stations) leaveHome(slot uint16) error {
	if err := s.maps.Homes.Put(uint32(slot), uint32(0)); err != nil {
		return fmt.Errorf("write home %d: %w", slot, err)
	}
	return nil
}

// leaveHomes comes before rules for which frames may pass the bridge by: while there are none, nobody notes who moves.
func (s *stations) leaveHomes() error {
	for slot, p := range s.ports.bySlot {
		if p.kind() == portEndpoint {
			if err := s.leaveHome(slot); err != nil {
				return err
			}
		}
	}
	return nil
}

// fdbEntry is a static entry: it does not age.
func fdbEntry(mac flow.MAC, index uint32) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: int(index), Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: mac[:]}
}

// restore makes the table right after a start, writing only what is wrong. Endpoints are ports of the bridge since before.
func (s *stations) restore() error {
	var k bpf.SteerStationKey
	var slot uint32
	it := s.maps.Stations.Iterate()
	for it.Next(&k, &slot) {
		s.slots[k.Mac] = uint16(slot)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read stations: %w", err)
	}
	for mac, slot := range s.slots {
		if p := s.ports.bySlot[slot]; p == nil || p.E.Peer != mac || !s.has(p) {
			if err := s.drop(mac); err != nil {
				return err
			}
		}
	}
	for _, p := range s.ports.bySlot {
		if !s.has(p) {
			continue
		}
		if err := s.place(p.E.Peer, false); err != nil && !noPort(err) {
			return err // else it will be added again
		}
	}
	return s.keepStatic()
}
