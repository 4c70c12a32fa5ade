package control

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

const (
	probeEvery   = time.Second             // a link discovery frame out of every port
	probeSoon    = 150 * time.Millisecond  // the second one out of a new port
	missedAfter  = 3200 * time.Millisecond // three are missing: the link is lost
	lateTick     = 250 * time.Millisecond  // a tick so late shows that this process got no processor
	edgeAfter    = 500 * time.Millisecond  // a port where nothing is found for so long is an edge port
	maxFrameAge  = 2 * time.Second         // of our own frames: an older one is a replay
	lostCost     = 1000                    // of links of a switch that is lost: it may still forward, but there may be better ways
	silentCost   = 10 * lostCost           // of links whose ports are up, but where nothing is heard: the last way
	silentFor    = time.Minute             // so long; then they are gone
	maxPorts     = 4096                    // of one switch
	lldpTTL      = 4
	flapUps      = 8 // within flapWindow
	flapQuiet    = 10 * time.Second
	ethernetSize = 14
	settleTime   = 4 * time.Second // after the start, for switches that were there before to come back
)

// options of a network.
type networkOptions struct {
	key     []byte                            // signs switches' link discovery frames
	hostKey func(host string) ([]byte, error) // see control.Options
	known   func(host string) bool            // the host is one of this Weir's, as far as that is known yet
	log     *slog.Logger
}

// network is what has been found: switches' ports, the links between them and to hosts, and stations. It sends nothing and tells nobody: who gives
// it a frame, a port or the time asks what follows from that (take).
type network struct {
	networkOptions
	switches    map[uint64]*sw
	stations    stations
	contests    map[claimed]*contest
	sought      map[string]sought // by endpoint
	window      lldp.Window
	sequence    lldp.Sequence
	hostKeys    map[string]hostKey
	damped      damper
	lost        map[cable]outage // links that were there
	links       map[cable]bool   // links in the last survey
	declared    map[flow.MAC]claim
	declaredIPs map[netip.Addr]claim
	started     time.Time
	lastTick    time.Time
	next        findings
}

// findings are what follows from what a network was given.
type findings struct {
	out     map[uint64][]openflow.Message // by switch
	events  []api.Event                   // without their time
	changed bool                          // rules have to be computed anew
	atOnce  bool                          // without waiting for more
}

func newNetwork(o networkOptions, now time.Time) *network {
	return &network{
		networkOptions: o, switches: map[uint64]*sw{}, stations: newStations(), contests: map[claimed]*contest{}, sought: map[string]sought{},
		hostKeys: map[string]hostKey{}, damped: damper{}, lost: map[cable]outage{}, links: map[cable]bool{},
		declared: map[flow.MAC]claim{}, declaredIPs: map[netip.Addr]claim{}, started: now, lastTick: now,
	}
}

// take gives what has followed since the last time.
func (n *network) take() findings {
	f := n.next
	n.next = findings{}
	return f
}

func (n *network) dirty() { n.next.changed = true }

func (n *network) dirtyNow() { n.next.changed, n.next.atOnce = true, true }

func (n *network) send(d *sw, messages []openflow.Message) {
	if n.next.out == nil {
		n.next.out = map[uint64][]openflow.Message{}
	}
	n.next.out[d.dpid] = append(n.next.out[d.dpid], messages...)
}

func (n *network) event(severity api.Severity, reason string, kind api.Kind, object, message string, outage time.Duration) {
	n.next.events = append(n.next.events, api.Event{Severity: severity, Reason: reason, Kind: kind, Object: object, Message: message, OutageNs: outage.Nanoseconds()})
}

// damper tells each thing once a minute.
type damper map[string]time.Time

func (d damper) again(what string, now time.Time) bool {
	if at, ok := d[what]; ok && now.Sub(at) < time.Minute {
		return false
	}
	if len(d) > 4096 {
		clear(d)
	}
	d[what] = now
	return true
}

func (n *network) damp(what string, now time.Time) bool { return n.damped.again(what, now) }

// sw is a switch as the network sees it.
type sw struct {
	dpid       uint64
	name       string
	id         fabric.SwitchID
	connected  bool
	remembered bool // known from before the start, not seen yet
	primed     bool // what brings link discovery frames to us is in force
	ports      map[uint32]*port
}

// port of a switch.
type port struct {
	number  uint32
	name    string
	mac     [6]byte
	link    bool // it says that it is up
	up      bool // it is, and does not flap
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

// cable is a link by its ends, the smaller one first.
type cable struct{ a, b fabric.At }

func cableOf(a, b fabric.At) cable {
	if a.Compare(b) > 0 {
		a, b = b, a
	}
	return cable{a, b}
}

// outage of a link: when it was last known to work.
type outage struct{ at time.Time }

// setPort takes over a port as the switch describes it.
func (n *network) setPort(d *sw, desc openflow.PortDesc, known *port, now time.Time) {
	if desc.Port >= openflow.PortMax || len(d.ports) >= maxPorts {
		return
	}
	p := known
	if p == nil {
		p = &port{number: uint32(desc.Port)}
	}
	was := p.up
	p.name, p.mac, p.link = desc.Name, desc.MAC, desc.Up()
	d.ports[p.number] = p
	if p.link && !was {
		n.countUp(d, p, now)
	}
	p.up = p.link && !now.Before(p.quiet)
	switch {
	case p.up && !was:
		p.probed, p.next, p.first, p.told, p.edge, p.looped = 0, now, time.Time{}, time.Time{}, false, false
		if d.primed {
			p.first = now
		}
	case !p.up:
		p.heard, p.from, p.edge, p.looped, p.silent = time.Time{}, fabric.At{}, false, false, false
	case !p.heard.IsZero(): // as before, on a new connection: it has the time to be heard again
		p.heard = now
		p.next = now
	}
}

// countUp holds a port down for a while that comes up too often: each time the rules are computed anew.
func (n *network) countUp(d *sw, p *port, now time.Time) {
	if now.Sub(p.window) > flapWindow {
		p.window, p.ups = now, 0
	}
	if p.ups++; p.ups > flapUps && !now.Before(p.quiet) {
		p.quiet = now.Add(flapQuiet)
		n.event(api.Warning, "PortFlapping", api.KindSwitch, d.name, fmt.Sprintf("port %d of %s came up %d times within %v: it is left out for %v", p.number, d.name,
			p.ups, flapWindow, flapQuiet), 0)
	}
}

// patience is how long a neighbour may be silent. When most of a network's ports fall silent at once, while their links are up, frames on
// their way to and from us are late, not links lost: then it is longer.
func (n *network) patience(now time.Time) time.Duration {
	heard, silent := 0, 0
	for _, d := range n.switches {
		for _, p := range d.ports {
			if _, host := rollout.HostName(p.from.Switch); p.up && !host && !p.heard.IsZero() && d.connected {
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

func (n *network) tickPorts(d *sw, missed time.Duration, now time.Time) {
	var out []openflow.Message
	for _, p := range d.ports {
		if p.link && !p.up && !now.Before(p.quiet) {
			p.up, p.probed, p.next, p.first, p.ups = true, 0, now, now, 0
			n.dirty()
		}
		if !p.up {
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
func (n *network) silence(d *sw, p *port, now time.Time) {
	if !p.silent && !p.looped {
		n.log.Info("a neighbour is silent", "switch", d.name, "port", p.number, "peer", p.from)
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
func (n *network) mayBeSilent(from fabric.At, now time.Time) bool {
	id, name, err := lldp.ParseChassis(string(from.Switch))
	switch {
	case err != nil:
		return false
	case name != "":
		return n.known(name)
	}
	d := n.switches[id]
	return d != nil && !d.connected
}

// frame is a port's next link discovery frame.
func (n *network) frame(d *sw, p *port, now time.Time) *openflow.PacketOut {
	p.probed++
	p.next = now.Add(probeEvery - time.Duration(p.number%16)*5*time.Millisecond)
	if p.probed == 1 {
		p.next = now.Add(probeSoon)
	}
	b, err := lldp.Encode(lldp.Frame{
		Source: p.mac, Chassis: string(d.id), Port: strconv.FormatUint(uint64(p.number), 10), TTL: lldpTTL, Sequence: n.sequence.Next(now),
	}, n.key)
	if err != nil {
		n.log.Error("link discovery", "error", err)
		return nil
	}
	return &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: openflow.Port(p.number)}}, Data: b}
}

// probe sends one now.
func (n *network) probe(d *sw, p *port, now time.Time) {
	if !d.connected || !p.up {
		return
	}
	if m := n.frame(d, p, now); m != nil {
		n.send(d, []openflow.Message{m})
	}
}

// prime: link discovery frames reach us from now on.
func (n *network) prime(d *sw, now time.Time) {
	if d.primed {
		return
	}
	d.primed = true
	for _, p := range d.ports {
		if p.up {
			p.next, p.probed = now, 0
			if p.first.IsZero() {
				p.first = now
			}
		}
	}
}

// heardLink takes a link discovery frame. What is not signed, old, or not possible is no news of a link.
func (n *network) heardLink(d *sw, p *port, frame []byte, now time.Time) {
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
		if n.damp(fmt.Sprintf("lldp %s %d", d.name, p.number), now) {
			n.event(api.Warning, "LinkForged", api.KindSwitch, d.name, fmt.Sprintf("a link discovery frame that came in at port %d of %s is ignored: %v", p.number, d.name, err), 0)
		}
		return
	}
	if from.Switch == d.id {
		if !p.looped {
			p.looped, p.edge = true, false
			n.event(api.Warning, "PortLooped", api.KindSwitch, d.name, fmt.Sprintf("port %d of %s hears port %d of the same switch: it is left out", p.number, d.name, from.Port.Number), 0)
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
		if !p.heard.IsZero() && n.damp(fmt.Sprintf("two at %s %d", d.name, p.number), now) {
			n.log.Warn("a port hears another neighbour", "switch", d.name, "port", p.number, "before", p.from, "now", from)
		}
		p.from, p.edge, p.looped = from, false, false
		n.dirtyNow()
		n.answer(from, fabric.At{Switch: d.id, Port: fabric.Port{Number: flow.Port(p.number)}}, now)
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
func (n *network) verify(frame []byte, now time.Time) (lldp.Frame, error) {
	f, err := lldp.Decode(frame)
	if err != nil {
		return f, err
	}
	_, host, err := lldp.ParseChassis(f.Chassis)
	if err != nil || host == "" {
		return lldp.Verify(frame, n.key)
	}
	if !n.known(host) {
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
func (n *network) keyOf(host string, life time.Duration, now time.Time) hostKey {
	k, asked := n.hostKeys[host]
	if asked && now.Sub(k.at).Abs() < life {
		return k
	}
	if n.hostKey == nil {
		return hostKey{err: ErrNoKey}
	}
	for name := range n.hostKeys {
		if !n.known(name) {
			delete(n.hostKeys, name)
		}
	}
	key, err := n.hostKey(host)
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
func (n *network) unplug(from fabric.At, here *port, now time.Time) {
	if _, host := rollout.HostName(from.Switch); !host {
		return
	}
	for _, d := range n.switches {
		for _, p := range d.ports {
			if p != here && p.from == from {
				p.heard, p.from, p.silent, p.first = time.Time{}, fabric.At{}, false, now
			}
		}
	}
}

// sender is where a verified frame was sent.
func (n *network) sender(f lldp.Frame, now time.Time) (fabric.At, error) {
	id, name, err := lldp.ParseChassis(f.Chassis)
	if err != nil {
		return fabric.At{}, err
	}
	at := fabric.At{Switch: fabric.SwitchID(f.Chassis)}
	if name != "" {
		if !n.known(name) {
			return fabric.At{}, fmt.Errorf("host %q is not known", name)
		}
		at.Port.Name = "uplink/" + f.Port
		return at, nil
	}
	number, err := strconv.ParseUint(f.Port, 10, 32)
	if err != nil {
		return fabric.At{}, fmt.Errorf("port %q of %s is no number", f.Port, f.Chassis)
	}
	if age := now.Sub(time.Unix(0, int64(f.Sequence))); age > maxFrameAge || age < -maxFrameAge {
		return fabric.At{}, fmt.Errorf("%w: it is %v old", lldp.ErrReplay, age.Round(time.Millisecond))
	}
	if d := n.switches[id]; d == nil || d.ports[uint32(number)] == nil {
		return fabric.At{}, fmt.Errorf("there is no port %d of %s", number, f.Chassis)
	}
	at.Port.Number = flow.Port(number)
	return at, nil
}

// answer sends a frame the other way at once: a link needs both directions.
func (n *network) answer(from, to fabric.At, now time.Time) {
	if p := n.portAt(from); p != nil && (p.heard.IsZero() || p.from != to) {
		n.probe(n.switchOf(from.Switch), p, now)
	}
}

// isLost: not connected, and after the start not merely not yet.
func (n *network) isLost(d *sw, now time.Time) bool {
	return !d.connected && !(d.remembered && now.Sub(n.started) < settleTime)
}

// compareLinks tells which links are new or gone.
func (n *network) compareLinks(links map[cable]uint32, now time.Time) {
	for c, cost := range links {
		if n.links[c] || cost == silentCost {
			continue
		}
		n.links[c] = true
		was, gone := n.lost[c]
		delete(n.lost, c)
		if gone {
			d := now.Sub(was.at)
			n.event(api.Info, "LinkRestored", api.KindSwitch, n.nameOf(c.a.Switch), fmt.Sprintf("the link %s is back", n.cableName(c)), d)
		} else {
			n.log.Info("link", "ends", n.cableName(c))
		}
	}
	for c := range n.links {
		if cost, there := links[c]; there && cost != silentCost {
			continue
		}
		delete(n.links, c)
		if len(n.lost) > 4096 {
			clear(n.lost)
		}
		n.lost[c] = outage{now}
		n.event(api.Warning, "LinkLost", api.KindSwitch, n.nameOf(c.a.Switch), fmt.Sprintf("the link %s is lost", n.cableName(c)), 0)
	}
}

func (n *network) cableName(c cable) string { return n.atName(c.a) + " - " + n.atName(c.b) }

// atName is a port as people know it: "s1:2", "h1:eth1".
func (n *network) atName(at fabric.At) string {
	if at.Port.Name != "" {
		return n.nameOf(at.Switch) + ":" + strings.TrimPrefix(at.Port.Name, "uplink/")
	}
	return fmt.Sprintf("%s:%d", n.nameOf(at.Switch), at.Port.Number)
}

func (n *network) nameOf(id fabric.SwitchID) string {
	if name, ok := strings.CutPrefix(string(id), rollout.HostPrefix); ok {
		return name
	}
	if d := n.switchOf(id); d != nil {
		return d.name
	}
	return string(id)
}

// portAt is a switch's port, nil for a host's.
func (n *network) portAt(at fabric.At) *port {
	if d := n.switchOf(at.Switch); d != nil {
		return d.ports[uint32(at.Port.Number)]
	}
	return nil
}

func (d *sw) sortedPorts() []*port {
	return slices.SortedFunc(maps.Values(d.ports), func(a, b *port) int { return cmp.Compare(a.number, b.number) })
}

func (n *network) switchOf(id fabric.SwitchID) *sw {
	dpid, host, err := lldp.ParseChassis(string(id))
	if err != nil || host != "" {
		return nil
	}
	return n.switches[dpid]
}

// tick sends link discovery frames, and finds what has become silent. look gives endpoints whose stations are missing, and the addresses of all others.
func (n *network) tick(now time.Time, look func() ([]missing, map[flow.MAC]bool)) {
	if gap := now.Sub(n.lastTick); gap > lateTick { // we were not running: nobody could be heard
		for _, d := range n.switches {
			for _, p := range d.ports {
				if !p.heard.IsZero() && !p.silent {
					p.heard = p.heard.Add(gap)
				}
			}
		}
	}
	n.lastTick = now
	missed := n.patience(now)
	for _, d := range n.switches {
		if d.connected {
			n.tickPorts(d, missed, now)
		}
	}
	n.tickStations(now, look)
	n.tickContests(now)
}

// frameIn is a frame that a switch has got at a port.
func (n *network) frameIn(d *sw, in uint32, frame []byte, now time.Time) {
	p := d.ports[in]
	switch {
	case p == nil || !p.up || len(frame) < ethernetSize:
	case lldp.Is(frame):
		n.heardLink(d, p, frame, now)
	default:
		n.station(d, p, frame, now)
	}
}

// forget drops a switch that does not come back, and the stations at its ports.
func (n *network) forget(d *sw) {
	delete(n.switches, d.dpid)
	n.stations.leave(d.id)
}

// survey is what there is between switches and hosts.
type survey struct {
	ports   map[uint64][]fabric.Port // of switches: those that frames may pass
	links   map[cable]uint32         // between switches, and their costs
	uplinks map[string]cable         // of hosts: the one that is in use
}

func (n *network) survey(now time.Time) survey {
	s := survey{ports: make(map[uint64][]fabric.Port, len(n.switches)), links: map[cable]uint32{}, uplinks: map[string]cable{}}
	for _, d := range n.switches {
		for _, p := range d.sortedPorts() {
			at := fabric.At{Switch: d.id, Port: fabric.Port{Number: flow.Port(p.number)}}
			if n.surveyPort(&s, d, p, at, now) {
				s.ports[d.dpid] = append(s.ports[d.dpid], at.Port)
			}
		}
	}
	return s
}

// surveyPort adds what is behind a port, and tells whether frames may pass it.
func (n *network) surveyPort(s *survey, d *sw, p *port, at fabric.At, now time.Time) bool {
	switch {
	case !p.up || p.looped:
		return false
	case p.heard.IsZero():
		return p.edge
	}
	id, host, err := lldp.ParseChassis(string(p.from.Switch))
	switch {
	case err != nil:
		return true
	case host != "":
		c := cable{at, p.from}
		used, there := s.uplinks[host]
		if !there || cmp.Or(strings.Compare(c.b.Port.Name, used.b.Port.Name), c.a.Compare(used.a)) < 0 {
			s.uplinks[host] = c
		}
		return true
	}
	// A link has to be heard at both ends. What is one at one end is no edge port: floods would go round by it.
	peer := n.switches[id]
	if peer == nil {
		return false
	}
	q := peer.ports[uint32(p.from.Port.Number)]
	if q == nil || !q.up || q.looped || q.heard.IsZero() || q.from != at {
		return false
	}
	cost := uint32(1)
	switch {
	case p.silent || q.silent:
		cost = silentCost
	case n.isLost(d, now) || n.isLost(peer, now):
		cost = lostCost
	}
	s.links[cableOf(at, p.from)] = cost
	return true
}

// edges are the ports where stations may be.
func (n *network) edges() map[seat]bool {
	all := map[seat]bool{}
	for _, d := range n.switches {
		for _, p := range d.ports {
			if p.stations() {
				all[seat{d.id, p.number}] = true
			}
		}
	}
	return all
}

// stations tells whether there may be stations behind a port.
func (p *port) stations() bool { return p.up && p.edge && !p.looped && p.heard.IsZero() }

// status is how a switch's ports are reported.
func (n *network) status(d *sw, stations map[seat][]string) (all []api.SwitchPort) {
	for _, p := range d.sortedPorts() {
		x := api.SwitchPort{Number: p.number, Name: p.name, State: api.LinkDown, Kind: "unknown"}
		if p.up {
			x.State = api.LinkUp
		}
		switch {
		case p.looped:
			x.Kind, x.Peer = "link", n.atName(p.from)
		case !p.heard.IsZero():
			x.Kind, x.Peer = "link", n.atName(p.from)
			if _, host := rollout.HostName(p.from.Switch); host {
				x.Kind = "host"
			}
		case p.edge:
			x.Kind, x.Stations = "edge", stations[seat{d.id, p.number}]
		}
		all = append(all, x)
	}
	return all
}
