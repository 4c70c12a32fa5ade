package discovery

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// An address that a station has does not move because another port, or another station, claims it. The owner is asked, where it is, whether it
// is there still: if it answers nothing moves, if it is silent the claim holds. A port that is down cannot be asked: then the claim holds at once.
const (
	contestAsks = 4
	contestGap  = 200 * time.Millisecond
	maxContests = 1024 // beyond, claims are not heard
	maxAsked    = 64   // in one tick
)

// claimed is what is claimed: a MAC, or the IP address of one.
type claimed struct {
	mac flow.MAC // of the owner
	ip  netip.Addr
}

// contest is a claim under way.
type contest struct {
	by    flow.MAC // claims an IP address
	at    Seat     // of who claims
	since time.Time
	next  time.Time
	asked int
}

// live: the station there can be asked, and heard.
func (n *Network) live(at Seat) bool {
	d := n.switchOf(at.ID)
	if d == nil || !d.Connected {
		return false
	}
	p := d.Ports[at.Port]
	return p != nil && p.stations()
}

// contested begins, or goes on with, a contest if what a frame claims belongs to a station that can be asked. It returns what of the
// claim holds at once: ok is false when the MAC itself is contested, and ip is invalid when the address is.
func (n *Network) contested(mac flow.MAC, ip netip.Addr, at Seat, now time.Time) (free netip.Addr, ok bool) {
	if s := n.Stations.by[mac]; s != nil && s.At != at && n.live(s.At) {
		n.contest(claimed{mac: mac}, contest{by: mac, at: at}, now)
		return ip, false
	}
	if !ip.IsValid() {
		return ip, true
	}
	if c, declared := n.DeclaredIPs[ip]; declared && (c.At != at || c.MAC != flow.MAC{} && c.MAC != mac) {
		if n.Damp("claim "+ip.String(), now) {
			n.event(api.Warning, "StationRefused", api.KindSwitch, n.nameOf(at.ID), fmt.Sprintf("station %s at %s says that it has %s, but that address is declared by %s: ignored", mac, n.seatName(at), ip, c.Who), 0)
		}
		return netip.Addr{}, true
	}
	owner := n.Stations.by[n.Stations.ips[ip]]
	if owner != nil && owner.MAC != mac && n.live(owner.At) {
		n.contest(claimed{owner.MAC, ip}, contest{by: mac, at: at}, now)
		return netip.Addr{}, true
	}
	return ip, true
}

func (n *Network) contest(what claimed, c contest, now time.Time) {
	if _, known := n.contests[what]; known || len(n.contests) >= maxContests {
		return
	}
	c.since, c.next = now, now
	n.contests[what] = &c
}

// tickContests asks owners, and decides.
func (n *Network) tickContests(now time.Time) {
	asked := 0
	for what, c := range n.contests {
		owner := n.Stations.by[what.mac]
		switch {
		case owner == nil || what.ip.IsValid() && n.Stations.ips[what.ip] != what.mac || !what.ip.IsValid() && owner.At == c.at:
			delete(n.contests, what) // there is nothing to contest any more
		case owner.answered(what.ip, c.since):
			delete(n.contests, what)
			n.dismissed(what, c, owner, now)
		case !n.live(owner.At) || c.asked >= contestAsks && !now.Before(c.next):
			delete(n.contests, what)
			n.holds(what, c, now)
		case !now.Before(c.next) && asked < maxAsked:
			asked++
			c.asked++
			c.next = now.Add(contestGap)
			n.askOwner(owner, what.ip)
		}
	}
}

// answered: the station was heard at its place since then, with that address if one is given.
func (s *Spotted) answered(ip netip.Addr, since time.Time) bool {
	if !ip.IsValid() {
		return s.seen.After(since)
	}
	for _, a := range s.ips {
		if a.ip == ip {
			return a.seen.After(since)
		}
	}
	return false
}

func (n *Network) dismissed(what claimed, c *contest, owner *Spotted, now time.Time) {
	address := what.mac.String()
	if what.ip.IsValid() {
		address = what.ip.String()
	}
	if n.Damp("claim "+address, now) {
		n.event(api.Warning, "StationRefused", api.KindSwitch, n.nameOf(c.at.ID), fmt.Sprintf("station %s at %s claims %s, but station %s answers at %s: ignored",
			c.by, n.seatName(c.at), address, owner.MAC, n.seatName(owner.At)), 0)
	}
}

// holds: the owner is gone.
func (n *Network) holds(what claimed, c *contest, now time.Time) {
	if s := n.Stations.by[c.by]; what.ip.IsValid() && s != nil && s.At != c.at {
		return // who claimed it has moved on
	}
	if d := n.switchOf(c.at.ID); d != nil {
		n.seen(d, c.by, what.ip, c.at, now)
	}
}

// askOwner asks a station for one address, or for those that it has.
func (n *Network) askOwner(s *Spotted, only netip.Addr) {
	d := n.switchOf(s.At.ID)
	if d == nil || !d.Connected || d.Ports[s.At.Port] == nil {
		return
	}
	p, port := d.Ports[s.At.Port], openflow.Port(s.At.Port)
	var out []openflow.Message
	for _, a := range s.ips {
		switch {
		case only.IsValid() && a.ip != only || len(out) == 4:
		case a.ip.Is4():
			out = append(out, arpProbe(s.MAC, p.mac, a.ip, port))
		default:
			out = append(out, neighbourProbe(s.MAC, p.mac, a.ip, port))
		}
	}
	if len(out) > 0 {
		n.send(d, out)
	}
}

// neighbourProbe asks who has an IPv6 address, as from nobody (RFC 4862, 5.4.2): nobody's table changes, and the answer goes to all nodes.
func neighbourProbe(to flow.MAC, from [6]byte, ip netip.Addr, port openflow.Port) *openflow.PacketOut {
	target := ip.As16()
	group := [16]byte{0xff, 0x02, 11: 1, 0xff, target[13], target[14], target[15]}
	message := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target[:]...)
	sum := uint32(len(message)) + 58
	for _, part := range [][]byte{group[:], message} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	b := append(append([]byte{}, to[:]...), from[:]...)
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), 58, 255)
	b = append(append(append(b, make([]byte, 16)...), group[:]...), message...)
	return &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: port}}, Data: b}
}
