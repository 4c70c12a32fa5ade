package discovery

import (
	"maps"
	"net/netip"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

const (
	seekSoon  = time.Second // between questions, at first
	seekTimes = 10          // so often
	seekLater = 30 * time.Second
	maxSought = 64 // endpoints asked for at once; the others' turn comes
)

// sought is an endpoint whose station nobody has seen.
type sought struct {
	times int
	next  time.Time
}

// Missing is an endpoint of the fabric whose station is not known.
type Missing struct {
	Name  string
	IPs   []netip.Addr
	At    Seat // where it is declared to be, if fixed
	Fixed bool
}

// seek asks, at every edge port, for the stations of endpoints that say only an address, or a port where nothing has been heard: a station
// that nobody talks to says nothing by itself.
func (n *Network) seek(all []Missing, now time.Time) {
	asked := 0
	still := map[string]bool{}
	for _, m := range all {
		still[m.Name] = true
		s := n.sought[m.Name]
		if now.Before(s.next) || asked == maxSought {
			continue
		}
		for _, ip := range m.IPs {
			if ip.Is4() {
				asked++
				n.askEverywhere(ip, m.At, m.Fixed)
			}
		}
		s.times++
		s.next = now.Add(seekSoon)
		if s.times > seekTimes {
			s.next = now.Add(seekLater)
		}
		n.sought[m.Name] = s
	}
	maps.DeleteFunc(n.sought, func(name string, _ sought) bool { return !still[name] })
}

// askEverywhere sends an ARP probe out of every edge port, or of one.
func (n *Network) askEverywhere(ip netip.Addr, only Seat, one bool) {
	for _, d := range n.Switches {
		if !d.Connected {
			continue
		}
		var out []openflow.Message
		for _, p := range d.Ports {
			at := Seat{d.ID, uint32(p.Number)}
			if p.stations() && (!one || at == only) {
				out = append(out, arpProbe(flow.MAC{255, 255, 255, 255, 255, 255}, p.mac, ip, openflow.Port(p.Number)))
			}
		}
		if len(out) > 0 {
			n.send(d, out)
		}
	}
}

// arpProbe asks who has an IPv4 address, as from nobody (RFC 5227, 2.1.1): nobody's table changes.
func arpProbe(to flow.MAC, from [6]byte, ip netip.Addr, port openflow.Port) *openflow.PacketOut {
	b := append(append([]byte{}, to[:]...), from[:]...)
	b = append(b, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, from[:]...), 0, 0, 0, 0)
	target := ip.As4()
	b = append(append(b, 0, 0, 0, 0, 0, 0), target[:]...)
	return &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: port}}, Data: append(b, make([]byte, 60-len(b))...)}
}
