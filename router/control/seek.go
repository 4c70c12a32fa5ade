package control

import (
	"net/netip"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
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

// seek asks, at every edge port, for the stations of endpoints that say only an address, or a port where nothing has been heard: a station
// that nobody talks to says nothing by itself.
func (l *loop) seek(now time.Time) {
	if l.sought == nil {
		l.sought = map[string]sought{}
	}
	asked := 0
	for name, e := range l.intent.endpoints {
		if e.Deleting != nil || onHost(e) || len(l.at[name].MACs) > 0 && l.at[name].At != (fabric.At{}) {
			delete(l.sought, name)
			continue
		}
		s := l.sought[name]
		if now.Before(s.next) || asked == maxSought {
			continue
		}
		at, fixed := l.seatOf(e.Spec)
		for _, p := range prefixes(e.Spec) {
			if p.IsSingleIP() && p.Addr().Is4() {
				asked++
				l.askEverywhere(p.Addr(), at, fixed)
			}
		}
		s.times++
		s.next = now.Add(seekSoon)
		if s.times > seekTimes {
			s.next = now.Add(seekLater)
		}
		l.sought[name] = s
	}
	for name := range l.sought {
		if _, wanted := l.intent.endpoints[name]; !wanted {
			delete(l.sought, name)
		}
	}
}

// askEverywhere sends an ARP probe out of every edge port, or of one.
func (l *loop) askEverywhere(ip netip.Addr, only seat, one bool) {
	for _, d := range l.switches {
		if d.session == nil {
			continue
		}
		var out []openflow.Message
		for _, p := range d.ports {
			at := seat{d.id, uint32(p.number)}
			if p.up && p.edge && !p.looped && p.heard.IsZero() && (!one || at == only) {
				out = append(out, arpProbe(flow.MAC{255, 255, 255, 255, 255, 255}, p.mac, ip, openflow.Port(p.number)))
			}
		}
		if len(out) > 0 {
			d.session.out(out)
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

// named are the MAC addresses of endpoints' stations: they are remembered as long as their port is up, however silent they are.
func (l *loop) named() map[flow.MAC]bool {
	macs := map[flow.MAC]bool{}
	for _, e := range l.at {
		for _, m := range e.MACs {
			macs[m] = true
		}
	}
	return macs
}
