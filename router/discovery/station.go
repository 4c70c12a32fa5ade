package discovery

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

const (
	maxStations    = 65536
	maxPerPort     = 2048 // so that one port cannot crowd out the others
	maxAddresses   = 16   // of one station; the least recently seen goes
	stationExpiry  = 10 * time.Minute
	stationAsk     = 5 * time.Minute // of silence: it is asked whether it is there
	stationAskGap  = time.Minute
	flapMoves      = 5 // more moves than these in flapWindow are not followed
	flapWindow     = 10 * time.Second
	stationSweep   = time.Second
	etherTypeARP   = 0x0806
	etherTypeIPv6  = 0x86dd
	etherTypeVLAN  = 0x8100
	etherTypeSVLAN = 0x88a8
)

// Seat is the place of a station: an edge port.
type Seat struct {
	ID   fabric.SwitchID
	Port uint32
}

// Spotted is a station at an edge port.
type Spotted struct {
	MAC    flow.MAC
	At     Seat
	seen   time.Time
	ips    []address // most recently seen first
	asked  time.Time
	moves  int // since window
	window time.Time
}

type address struct {
	ip   netip.Addr
	seen time.Time
}

// stations is a bounded table of who is where.
type stations struct {
	by     map[flow.MAC]*Spotted
	atSeat map[Seat]int
	ips    map[netip.Addr]flow.MAC
	swept  time.Time
}

func newStations() stations {
	return stations{by: map[flow.MAC]*Spotted{}, atSeat: map[Seat]int{}, ips: map[netip.Addr]flow.MAC{}}
}

// outcome of seeing a station.
type outcome uint8

const (
	nothingNew outcome = iota
	learned
	moved
	flapping
	tableFull
)

// See takes note of a frame's sender.
func (t *stations) See(mac flow.MAC, ip netip.Addr, at Seat, now time.Time) (o outcome, before Seat) {
	s := t.by[mac]
	if s == nil {
		if len(t.by) >= maxStations || t.atSeat[at] >= maxPerPort {
			return tableFull, at
		}
		s = &Spotted{MAC: mac, At: at}
		t.by[mac] = s
		t.atSeat[at]++
		o = learned
	}
	before = s.At
	if s.At != at {
		if now.Sub(s.window) > flapWindow {
			s.window, s.moves = now, 0
		}
		if s.moves++; s.moves > flapMoves {
			return flapping, before
		}
		if t.atSeat[at] >= maxPerPort {
			return tableFull, before
		}
		t.leaveSeat(s.At)
		t.atSeat[at]++
		s.At, o = at, moved
	}
	s.seen = now
	if ip.IsValid() && t.address(s, ip, now) && o == nothingNew {
		o = learned
	}
	return o, before
}

// address notes that the station has the address; an address belongs to the station that has used it last.
func (t *stations) address(s *Spotted, ip netip.Addr, now time.Time) bool {
	if i := slices.IndexFunc(s.ips, func(a address) bool { return a.ip == ip }); i >= 0 && t.ips[ip] == s.MAC {
		s.ips[i].seen = now
		return false
	}
	if other := t.by[t.ips[ip]]; other != nil && other != s {
		other.ips = slices.DeleteFunc(other.ips, func(a address) bool { return a.ip == ip })
	}
	s.ips = slices.DeleteFunc(s.ips, func(a address) bool { return a.ip == ip })
	s.ips = append(s.ips, address{ip, now})
	t.ips[ip] = s.MAC
	if len(s.ips) > maxAddresses {
		slices.SortFunc(s.ips, func(a, b address) int { return b.seen.Compare(a.seen) })
		delete(t.ips, s.ips[maxAddresses].ip)
		s.ips = s.ips[:maxAddresses]
	}
	return true
}

func (t *stations) leaveSeat(at Seat) {
	if t.atSeat[at]--; t.atSeat[at] <= 0 {
		delete(t.atSeat, at)
	}
}

func (t *stations) remove(s *Spotted) {
	t.leaveSeat(s.At)
	for _, a := range s.ips {
		if t.ips[a.ip] == s.MAC {
			delete(t.ips, a.ip)
		}
	}
	delete(t.by, s.MAC)
}

// leave forgets all stations of a switch.
func (t *stations) leave(id fabric.SwitchID) {
	for _, s := range t.by {
		if s.At.ID == id {
			t.remove(s)
		}
	}
}

// Sorted by MAC address.
func (t *stations) Sorted() []*Spotted {
	return slices.SortedFunc(maps.Values(t.by), func(a, b *Spotted) int { return slices.Compare(a.MAC[:], b.MAC[:]) })
}

// Addresses sorted.
func (s *Spotted) Addresses() []netip.Addr {
	out := make([]netip.Addr, len(s.ips))
	for i, a := range s.ips {
		out[i] = a.ip
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// station learns from a frame that came in at an edge port.
func (n *Network) station(d *Switch, p *Port, frame []byte, now time.Time) {
	if !p.stations() {
		return
	}
	mac, ip, ok := senderOf(frame)
	if !ok {
		return
	}
	at := Seat{d.ID, uint32(p.Number)}
	if c, ok := n.Declared[mac]; ok && c.At != at {
		if n.Damp("claim "+mac.String(), now) {
			n.event(api.Warning, "StationRefused", api.KindSwitch, d.Name, fmt.Sprintf("a frame from %s came in at port %d of %s, but that address is declared by %s: ignored", mac, p.Number, d.Name, c.Who), 0)
		}
		return
	}
	if ip, ok = n.contested(mac, ip, at, now); ok {
		n.seen(d, mac, ip, at, now)
	}
}

// seen takes note of a station whose claim is not contested.
func (n *Network) seen(d *Switch, mac flow.MAC, ip netip.Addr, at Seat, now time.Time) {
	o, before := n.Stations.See(mac, ip, at, now)
	switch o {
	case nothingNew:
		return
	case moved:
		n.event(api.Info, "StationMoved", api.KindSwitch, d.Name, fmt.Sprintf("station %s moved from %s to %s", mac, n.seatName(before), n.seatName(at)), 0)
		n.dirtyNow()
	case learned:
		n.dirty()
	case flapping:
		if n.Damp("flap "+mac.String(), now) {
			n.event(api.Warning, "StationFlapping", api.KindSwitch, d.Name, fmt.Sprintf("station %s is seen at %s and %s in turn: it stays at the first", mac, n.seatName(before), n.seatName(at)), 0)
		}
	case tableFull:
		if n.Damp("stations full", now) {
			n.event(api.Warning, "TooManyStations", api.KindSwitch, d.Name, fmt.Sprintf("there are too many stations at %s (at most %d a port, %d in all)", n.seatName(at), maxPerPort, maxStations), 0)
		}
	}
}

func (n *Network) seatName(s Seat) string {
	if d := n.switchOf(s.ID); d != nil {
		return fmt.Sprintf("%s:%d", d.Name, s.Port)
	}
	return fmt.Sprintf("%s:%d", s.ID, s.Port)
}

// Claim is an address that someone has declared, and where, if that is an edge port.
type Claim struct {
	Who string
	At  Seat
	MAC flow.MAC // of an IP address: whose it is, if that is declared
}

// senderOf reads who sent a frame: ARP (RFC 826) and neighbour discovery (RFC 4861) tell the address, too.
func senderOf(b []byte) (mac flow.MAC, ip netip.Addr, ok bool) {
	if len(b) < ethernetSize {
		return mac, ip, false
	}
	copy(mac[:], b[6:12])
	if mac.Multicast() || mac == (flow.MAC{}) {
		return mac, ip, false
	}
	kind, rest := binary.BigEndian.Uint16(b[12:]), b[14:]
	for range 2 {
		if kind != etherTypeVLAN && kind != etherTypeSVLAN || len(rest) < 4 {
			break
		}
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch kind {
	case etherTypeARP:
		if len(rest) >= 28 && binary.BigEndian.Uint32(rest) == 0x00010800 && rest[4] == 6 && rest[5] == 4 && flow.MAC(rest[8:14]) == mac {
			ip = netip.AddrFrom4([4]byte(rest[14:18]))
		}
	case etherTypeIPv6:
		// only what is not forwarded by a router is the sender's own: neighbour discovery has hop limit 255
		if len(rest) >= 48 && rest[6] == 58 && rest[7] == 255 && rest[40] >= 133 && rest[40] <= 137 {
			ip = netip.AddrFrom16([16]byte(rest[8:24]))
			if rest[40] == 136 && len(rest) >= 64 { // an advertisement: its target is the sender's address
				ip = netip.AddrFrom16([16]byte(rest[48:64]))
			}
		}
	}
	if ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
		ip = netip.Addr{}
	}
	return mac, ip, true
}

// tickStations asks silent stations whether they are there, and forgets those that do not answer.
func (n *Network) tickStations(now time.Time, look func() ([]Missing, map[flow.MAC]bool)) {
	if now.Sub(n.Stations.swept) < stationSweep {
		return
	}
	n.Stations.swept = now
	all, named := look()
	n.seek(all, now)
	asked := 0
	for _, s := range n.Stations.by {
		silent := now.Sub(s.seen)
		if silent < stationAsk {
			continue
		}
		d := n.switchOf(s.At.ID)
		if d == nil || !d.Connected {
			continue // it cannot be heard
		}
		if silent >= stationExpiry && !named[s.MAC] {
			n.Stations.remove(s)
			n.dirty()
			continue
		}
		if now.Sub(s.asked) >= stationAskGap && asked < 256 {
			s.asked = now
			asked++
			n.ask(d, s)
		}
	}
}

// ask sends ARP probes (RFC 5227: the sender's address is 0.0.0.0, so that nobody's table changes) to a station.
func (n *Network) ask(d *Switch, s *Spotted) {
	p := d.Ports[s.At.Port]
	if p == nil {
		return
	}
	var out []openflow.Message
	for _, a := range s.ips {
		if a.ip.Is4() && len(out) < 4 {
			out = append(out, arpProbe(s.MAC, p.mac, a.ip, openflow.Port(s.At.Port)))
		}
	}
	if len(out) > 0 {
		n.send(d, out)
	}
}

// Text is a station as it is reported: "06:57:00:00:00:01 10.0.0.1 10.0.0.2".
func (s *Spotted) Text() string {
	parts := []string{s.MAC.String()}
	for _, ip := range s.Addresses() {
		parts = append(parts, ip.String())
	}
	return strings.Join(parts, " ")
}

// parseStation reads what text writes.
func parseStation(text string) (mac flow.MAC, ips []netip.Addr, ok bool) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return mac, nil, false
	}
	mac, ok = ParseMAC(fields[0])
	for _, f := range fields[1:] {
		if ip, err := netip.ParseAddr(f); err == nil {
			ips = append(ips, ip)
		}
	}
	return mac, ips, ok
}

// Candidates are the stations that an endpoint may be, by MAC: that of its MAC, else those of its addresses, else all (at its port).
func (t *stations) Candidates(e api.EndpointSpec, prefixes []netip.Prefix, all []*Spotted) []*Spotted {
	if mac, ok := ParseMAC(e.MAC); ok {
		if s := t.by[mac]; s != nil {
			return []*Spotted{s}
		}
		return nil
	}
	if len(prefixes) == 0 {
		if e.Switch == "" {
			return nil
		}
		return all
	}
	var out []*Spotted
	for _, p := range prefixes {
		if p.IsSingleIP() {
			if s := t.by[t.ips[p.Addr()]]; s != nil {
				out = append(out, s)
			}
			continue
		}
		for _, s := range all {
			if slices.ContainsFunc(s.ips, func(a address) bool { return p.Contains(a.ip) }) {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Spotted) int { return slices.Compare(a.MAC[:], b.MAC[:]) })
	return slices.Compact(out)
}

func ParseMAC(s string) (flow.MAC, bool) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return flow.MAC{}, false
	}
	return flow.MAC(hw), true
}
