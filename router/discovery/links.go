package discovery

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
)

const (
	probeEvery   = time.Second             // a link discovery frame out of every port
	probeSoon    = 150 * time.Millisecond  // the second one out of a new port
	missedAfter  = 3200 * time.Millisecond // three are missing: the link is lost
	lateTick     = 250 * time.Millisecond  // a tick so late shows that this process got no processor
	edgeAfter    = 500 * time.Millisecond  // a port where nothing is found for so long is an edge port
	MaxFrameAge  = 2 * time.Second         // of our own frames: an older one is a replay
	lostCost     = 1000                    // of links of a switch that is lost: it may still forward, but there may be better ways
	silentCost   = 10 * lostCost           // of links whose ports are up, but where nothing is heard: the last way
	silentFor    = time.Minute             // so long; then they are gone
	maxPorts     = 4096                    // of one switch
	lldpTTL      = 4
	FlapUps      = 8 // within flapWindow
	flapQuiet    = 10 * time.Second
	ethernetSize = 14
	SettleTime   = 4 * time.Second // after the start, for switches that were there before to come back
)

// Port of a switch.
type Port struct {
	Number  uint32
	Name    string
	mac     [6]byte
	link    bool // it says that it is up
	Up      bool // it is, and does not flap
	ups     int  // since window
	window  time.Time
	quiet   time.Time // held down until then
	probed  int       // link discovery frames since it came up
	next    time.Time // the next one
	first   time.Time // the first one that could be answered
	edge    bool      // nothing was found behind it for long enough
	looped  bool      // it hears itself, or another port of its switch
	from    fabric.At // who is heard here
	heard   time.Time // zero: nobody
	told    time.Time // when a switch has heard this port last: then it is no edge, whoever is heard here
	silent  bool      // nothing more has come for too long, although the port is up
	latency time.Duration
}

// hostKey is a host's key and when it was asked for.
type hostKey struct {
	key []byte
	err error
	at  time.Time
}

// How long a host's key is believed; and after what time it is asked for again when a frame does not fit it: the host may have joined anew.
const (
	hostKeyFor   = 5 * time.Second
	hostKeyAgain = time.Second
	maxHostKeys  = 20_000
)

// ErrNoKey is of a HostKey: the host is not one of this Weir's (any more). Its links go.
var ErrNoKey = errors.New("it has no key of link discovery (any more)")

// SetPort takes over a port as the switch describes it.
func (n *Network) SetPort(d *Switch, desc openflow.PortDesc, known *Port, now time.Time) {
	if desc.Port >= openflow.PortMax || len(d.Ports) >= maxPorts {
		return
	}
	p := known
	if p == nil {
		p = &Port{Number: uint32(desc.Port)}
	}
	was := p.Up
	p.Name, p.mac, p.link = desc.Name, desc.MAC, desc.Up()
	d.Ports[p.Number] = p
	if p.link && !was {
		n.countUp(d, p, now)
	}
	p.Up = p.link && !now.Before(p.quiet)
	switch {
	case p.Up && !was:
		p.probed, p.next, p.first, p.told, p.edge, p.looped = 0, now, time.Time{}, time.Time{}, false, false
		if d.Primed {
			p.first = now
		}
	case !p.Up:
		p.heard, p.from, p.edge, p.looped, p.silent = time.Time{}, fabric.At{}, false, false, false
	case !p.heard.IsZero(): // as before, on a new connection: it has the time to be heard again
		p.heard = now
		p.next = now
	}
}

// countUp holds a port down for a while that comes up too often: each time the rules are computed anew.
func (n *Network) countUp(d *Switch, p *Port, now time.Time) {
	if now.Sub(p.window) > flapWindow {
		p.window, p.ups = now, 0
	}
	if p.ups++; p.ups > FlapUps && !now.Before(p.quiet) {
		p.quiet = now.Add(flapQuiet)
		n.event(api.Warning, "PortFlapping", api.KindSwitch, d.Name, fmt.Sprintf("port %d of %s came up %d times within %v: it is left out for %v", p.Number, d.Name,
			p.ups, flapWindow, flapQuiet), 0)
	}
}

// patience is how long a neighbour may be silent. When most of a network's ports fall silent at once, while their links are up, frames on
// their way to and from us are late, not links lost: then it is longer.
func (n *Network) patience(now time.Time) time.Duration {
	heard, silent := 0, 0
	for _, d := range n.Switches {
		for _, p := range d.Ports {
			if _, host := p.from.Switch.Host(); p.Up && !host && !p.heard.IsZero() && d.Connected {
				heard++
				if now.Sub(p.heard) > missedAfter {
					silent++
				}
			}
		}
	}
	if heard >= 4 && 2*silent > heard {
		return 2 * missedAfter
	}
	return missedAfter
}

func (n *Network) tickPorts(d *Switch, missed time.Duration, now time.Time) {
	var out []openflow.Message
	for _, p := range d.Ports {
		if p.link && !p.Up && !now.Before(p.quiet) {
			p.Up, p.probed, p.next, p.first, p.ups = true, 0, now, now, 0
			n.dirty()
		}
		if !p.Up {
			continue
		}
		if !now.Before(p.next) {
			if m := n.frame(d, p, now); m != nil {
				out = append(out, m)
			}
		}
		if !p.heard.IsZero() && now.Sub(p.heard) > missed && !n.mayBeSilent(p.from, now) {
			n.silence(d, p, now)
		}
		if !p.edge && p.heard.IsZero() && !p.looped && !p.first.IsZero() && now.Sub(p.first) >= edgeAfter && now.Sub(p.told) > silentFor {
			p.edge = true
			n.dirty()
		}
	}
	n.send(d, out)
}

// silence of a neighbour at a port that is up: frames on their way to us may be late, or the link may be cut where neither end sees it. It
// stays as the last way until it is certain.
func (n *Network) silence(d *Switch, p *Port, now time.Time) {
	if !p.silent && !p.looped {
		n.Log.Info("a neighbour is silent", "switch", d.Name, "port", p.Number, "peer", p.from)
		p.silent = true
		n.dirty()
	}
	if p.looped || now.Sub(p.heard) > silentFor {
		p.heard, p.from, p.looped, p.silent = time.Time{}, fabric.At{}, false, false
		p.first, p.edge = now, false
		n.dirty()
	}
}

// mayBeSilent: who can not say anything is not missed. A lost switch cannot be made to send; a host goes on forwarding without its agent.
func (n *Network) mayBeSilent(from fabric.At, now time.Time) bool {
	id, name, err := lldp.ParseChassis(string(from.Switch))
	switch {
	case err != nil:
		return false
	case name != "":
		return n.Known(name)
	}
	d := n.Switches[id]
	return d != nil && !d.Connected
}

// frame is a port's next link discovery frame.
func (n *Network) frame(d *Switch, p *Port, now time.Time) *openflow.PacketOut {
	p.probed++
	p.next = now.Add(probeEvery - time.Duration(p.Number%16)*5*time.Millisecond)
	if p.probed == 1 {
		p.next = now.Add(probeSoon)
	}
	b, err := lldp.Encode(lldp.Frame{
		Source: p.mac, Chassis: string(d.ID), Port: strconv.FormatUint(uint64(p.Number), 10), TTL: lldpTTL, Sequence: n.sequence.Next(now),
	}, n.Key)
	if err != nil {
		n.Log.Error("link discovery", "error", err)
		return nil
	}
	return &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: openflow.Port(p.Number)}}, Data: b}
}

// Probe sends one now.
func (n *Network) Probe(d *Switch, p *Port, now time.Time) {
	if !d.Connected || !p.Up {
		return
	}
	if m := n.frame(d, p, now); m != nil {
		n.send(d, []openflow.Message{m})
	}
}

// Prime: link discovery frames reach us from now on.
func (n *Network) Prime(d *Switch, now time.Time) {
	if d.Primed {
		return
	}
	d.Primed = true
	for _, p := range d.Ports {
		if p.Up {
			p.next, p.probed = now, 0
			if p.first.IsZero() {
				p.first = now
			}
		}
	}
}

// heardLink takes a link discovery frame. What is not signed, old, or not possible is no news of a link.
func (n *Network) heardLink(d *Switch, p *Port, frame []byte, now time.Time) {
	f, err := n.verify(frame, now)
	if errors.Is(err, lldp.ErrForeign) {
		return // a station that speaks LLDP itself
	}
	var from fabric.At
	if err == nil {
		from, err = n.sender(f, now)
	}
	if err == nil {
		err = n.window.Accept(f, now)
	}
	if errors.Is(err, ErrNoKey) && string(p.from.Switch) == f.Chassis { // revoked: the host is at no port any more
		n.unplug(p.from, nil, now)
		n.dirtyNow()
	}
	if err != nil {
		if n.Damp(fmt.Sprintf("lldp %s %d", d.Name, p.Number), now) {
			n.event(api.Warning, "LinkForged", api.KindSwitch, d.Name, fmt.Sprintf("a link discovery frame that came in at port %d of %s is ignored: %v", p.Number, d.Name, err), 0)
		}
		return
	}
	if from.Switch == d.ID {
		if !p.looped {
			p.looped, p.edge = true, false
			n.event(api.Warning, "PortLooped", api.KindSwitch, d.Name, fmt.Sprintf("port %d of %s hears port %d of the same switch: it is left out", p.Number, d.Name, from.Port.Number), 0)
			n.dirty()
		}
		p.from, p.heard = from, now
		return
	}
	if q := n.portAt(from); q != nil {
		if q.told = now; q.edge {
			q.edge = false
			n.dirtyNow()
		}
	}
	if p.from != from || p.heard.IsZero() {
		n.unplug(from, p, now)
		if !p.heard.IsZero() && n.Damp(fmt.Sprintf("two at %s %d", d.Name, p.Number), now) {
			n.Log.Warn("a port hears another neighbour", "switch", d.Name, "port", p.Number, "before", p.from, "now", from)
		}
		p.from, p.edge, p.looped = from, false, false
		n.dirtyNow()
		n.answer(from, fabric.At{Switch: d.ID, Port: fabric.Port{Number: flow.Port(p.Number)}}, now)
	}
	if p.silent {
		p.silent = false
		n.dirty()
	}
	p.heard = now
	if age := now.Sub(time.Unix(0, int64(f.Sequence))); age >= 0 {
		p.latency = age
	}
}

// verify checks a link discovery frame by the key of whom it names: this router's own for a switch, a host's for the host.
func (n *Network) verify(frame []byte, now time.Time) (lldp.Frame, error) {
	f, err := lldp.Decode(frame)
	if err != nil {
		return f, err
	}
	_, host, err := lldp.ParseChassis(f.Chassis)
	if err != nil || host == "" {
		return lldp.Verify(frame, n.Key)
	}
	if !n.Known(host) {
		return lldp.Frame{}, fmt.Errorf("host %q is not known", host)
	}
	for _, life := range []time.Duration{hostKeyFor, hostKeyAgain} {
		k := n.keyOf(host, life, now)
		if k.err != nil {
			return f, fmt.Errorf("host %s: %w", host, k.err)
		}
		if f, err = lldp.Verify(frame, k.key); err == nil {
			break
		}
	}
	return f, err
}

// keyOf is a host's key, asked for at most so long ago.
func (n *Network) keyOf(host string, life time.Duration, now time.Time) hostKey {
	k, asked := n.hostKeys[host]
	if asked && now.Sub(k.at).Abs() < life {
		return k
	}
	if n.HostKey == nil {
		return hostKey{err: ErrNoKey}
	}
	for name := range n.hostKeys {
		if !n.Known(name) {
			delete(n.hostKeys, name)
		}
	}
	key, err := n.HostKey(host)
	if err != nil && !errors.Is(err, ErrNoKey) && k.key != nil { // the store does not answer: the last key holds
		key, err = k.key, nil
	}
	k = hostKey{key, err, now}
	if asked || len(n.hostKeys) < maxHostKeys {
		n.hostKeys[host] = k
	}
	return k
}

// unplug: a host's uplink is at one port only, the one where it was heard last.
func (n *Network) unplug(from fabric.At, here *Port, now time.Time) {
	if _, host := from.Switch.Host(); !host {
		return
	}
	for _, d := range n.Switches {
		for _, p := range d.Ports {
			if p != here && p.from == from {
				p.heard, p.from, p.silent, p.first = time.Time{}, fabric.At{}, false, now
			}
		}
	}
}

// sender is where a verified frame was sent.
func (n *Network) sender(f lldp.Frame, now time.Time) (fabric.At, error) {
	id, name, err := lldp.ParseChassis(f.Chassis)
	if err != nil {
		return fabric.At{}, err
	}
	at := fabric.At{Switch: fabric.SwitchID(f.Chassis)}
	if name != "" {
		if !n.Known(name) {
			return fabric.At{}, fmt.Errorf("host %q is not known", name)
		}
		at.Port.Name = "uplink/" + f.Port
		return at, nil
	}
	number, err := strconv.ParseUint(f.Port, 10, 32)
	if err != nil {
		return fabric.At{}, fmt.Errorf("port %q of %s is no number", f.Port, f.Chassis)
	}
	if age := now.Sub(time.Unix(0, int64(f.Sequence))); age > MaxFrameAge || age < -MaxFrameAge {
		return fabric.At{}, fmt.Errorf("%w: it is %v old", lldp.ErrReplay, age.Round(time.Millisecond))
	}
	if d := n.Switches[id]; d == nil || d.Ports[uint32(number)] == nil {
		return fabric.At{}, fmt.Errorf("there is no port %d of %s", number, f.Chassis)
	}
	at.Port.Number = flow.Port(number)
	return at, nil
}

// answer sends a frame the other way at once: a link needs both directions.
func (n *Network) answer(from, to fabric.At, now time.Time) {
	if p := n.portAt(from); p != nil && (p.heard.IsZero() || p.from != to) {
		n.Probe(n.switchOf(from.Switch), p, now)
	}
}
