package control

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	lateTick     = 5 * tickEvery           // a tick so late shows that this process got no processor
	edgeAfter    = 500 * time.Millisecond  // a port where nothing is found for so long is an edge port
	maxFrameAge  = 2 * time.Second         // of our own frames: an older one is a replay
	forgetAfter  = 10 * time.Minute        // a switch that does not come back, and the paths across it
	lostCost     = 1000                    // of links of a switch that is lost: it may still forward, but there may be better ways
	silentCost   = 10 * lostCost           // of links whose ports are up, but where nothing is heard: the last way
	silentFor    = time.Minute             // so long; then they are gone
	auditEvery   = 10 * time.Second
	maxPorts     = 4096 // of one switch
	lldpTTL      = 4
	flapUps      = 8 // within flapWindow
	flapQuiet    = 10 * time.Second
	ethernetSize = 14
)

// device is a switch that has been seen, with or without a connection.
type device struct {
	dpid       uint64
	name       string
	id         fabric.SwitchID
	session    *session // nil: lost
	since      time.Time
	remembered bool // known from before this router started, not seen yet
	node       *rollout.Node
	primed     bool // what brings link discovery frames to us is in force
	round      uint8
	seen       bool // entries have been read in this life
	ports      map[uint32]*port
	tables     []table
	single     singleTree
	guarded    map[uint32]guarded     // by port: port security in the target
	hits       map[rollout.Key]uint64 // of its entries that drop, at the last look
	counted    time.Time              // when that was
	counting   bool
	capacity
	backoff time.Duration
	retry   time.Time
	audited time.Time
	product string
	address string
	message string

	certified bool
}

// capacity is what has been found out about the size of tables.
type capacity struct {
	full  map[uint8]uint32 // sizes that the switch has shown by refusing more
	short []fabric.Short   // tables that are too small for default forwarding
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

func switchID(dpid uint64) fabric.SwitchID { return fabric.SwitchID(lldp.SwitchChassis(dpid)) }

// newDevice gives a switch its name: the configured one, what its description says, or its datapath id.
func (l *loop) newDevice(dpid uint64, said string) *device {
	d := &device{
		dpid: dpid, id: switchID(dpid), ports: map[uint32]*port{}, capacity: capacity{full: map[uint8]uint32{}},
		node: rollout.NewNode(),
	}
	d.name = fmt.Sprintf("of-%016x", dpid)
	for _, name := range []string{l.o.Names[dpid], said} {
		if other := l.byName[name]; name != "" && name != "None" && api.CheckName(name) == nil && other == nil {
			d.name = name
			break
		} else if other != nil && l.damp("name "+name) {
			l.event(api.Warning, "SwitchNameTaken", api.KindSwitch, name, fmt.Sprintf("switch %016x is called %s, too; it is shown as %s", dpid, name, d.name), 0)
		}
	}
	l.switches[dpid], l.byName[d.name] = d, d
	l.Fleet.Nodes[d.id] = d.node
	return d
}

// admission is the answer to a switch that has connected: it is in, or there is another one of its datapath id, or no place for it.
type admission struct {
	other *session
	err   error
}

// admit takes a connected switch in. One that is known has its place, also while it is away.
func (l *loop) admit(s *session) admission {
	d := l.switches[s.dpid]
	if d != nil && d.session != nil {
		return admission{other: d.session}
	}
	now := l.o.Now()
	if d == nil {
		if err := l.place(s); err != nil {
			return admission{err: err}
		}
		d = l.newDevice(s.dpid, s.desc.Datapath)
	}
	outage := time.Duration(0)
	if !d.since.IsZero() && !d.remembered {
		outage = now.Sub(d.since)
	}
	d.session, d.since, d.remembered, d.tables, d.address, d.certified = s, now, false, s.sizes, s.address, s.cert != nil
	former := d.product
	d.product, d.message, d.backoff, d.retry, d.audited = product(s.desc), "", 0, time.Time{}, now
	l.adopt(d, s.entries)
	s.entries = nil
	known := d.ports
	d.ports = map[uint32]*port{}
	for _, p := range s.ports {
		l.setPort(d, p, known[uint32(p.Port)], now)
	}
	l.c.mu.Lock()
	l.c.running[d.name] = s
	l.c.mu.Unlock()
	found := ""
	if n := len(d.node.Held); n > 0 {
		found = fmt.Sprintf(", has %d entries of Weir", n)
	}
	if s.oneTree {
		l.oneTree(d, true)
	} else {
		d.single.again(former != d.product, now)
	}
	l.event(api.Info, "SwitchConnected", api.KindSwitch, d.name, fmt.Sprintf("switch %s (datapath %016x, %s) connected from %s%s", d.name, d.dpid, d.product, s.address, found), outage)
	l.dirty()
	return admission{}
}

// place tells whether there is one for a switch that is not known yet.
func (l *loop) place(s *session) error {
	if s.cert != nil {
		if limit := certifiedTimes * l.o.MaxSwitches; len(l.switches) >= limit {
			return fmt.Errorf("%d switches are known, no more are taken", limit)
		}
		return nil
	}
	of, from := 0, host(s.address)
	for _, d := range l.switches {
		if !d.certified && host(d.address) == from {
			of++
		}
	}
	switch {
	case of >= l.o.MaxPerAddress:
		return fmt.Errorf("%d switches without a certificate come from %s, no more are taken from there", of, from)
	case len(l.switches) >= l.o.MaxSwitches:
		return fmt.Errorf("%d switches are known, no more are taken without a certificate", len(l.switches))
	}
	return nil
}

// readsFragments tells whether a switch can show the ports of first fragments alone. Any other shows what it likes.
func readsFragments(product string) bool { return strings.Contains(product, "Open vSwitch") }

func product(d openflow.DescReply) string {
	out := ""
	for _, s := range []string{d.Manufacturer, d.Hardware, d.Software} {
		if s != "" && s != "None" {
			if out != "" {
				out += " "
			}
			out += s
		}
	}
	return cmp.Or(out, "unknown product")
}

// adopt takes over the entries that were found, and leaves them alone until the planner finds them wrong.
func (l *loop) adopt(d *device, entries []openflow.FlowStats) {
	if !d.seen {
		for _, e := range entries {
			d.round = max(d.round, rollout.RoundOf(e.Cookie)+1)
		}
		d.hits = packetsOf(entries) // of an earlier router
	}
	d.seen = true
	d.node.Adopt(entries, l.o.Now())
}

// disconnected keeps everything that is known of the switch: it goes on forwarding.
func (l *loop) disconnected(s *session) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s {
		return
	}
	d.session, d.since, d.primed = nil, l.o.Now(), false
	d.node.Reachable, d.node.Busy = false, false
	l.c.mu.Lock()
	if l.c.running[d.name] == s {
		delete(l.c.running, d.name)
	}
	l.c.mu.Unlock()
	why := s.conn.Err()
	d.message = fmt.Sprintf("lost: %v", why)
	if l.ctx.Err() == nil {
		l.event(api.Error, "SwitchLost", api.KindSwitch, d.name, fmt.Sprintf("switch %s is lost: %v; it goes on with the entries that it has", d.name, why), 0)
	}
	l.dirty()
}

// setPort takes over a port as the switch describes it.
func (l *loop) setPort(d *device, desc openflow.PortDesc, known *port, now time.Time) {
	if desc.Port >= openflow.PortMax || len(d.ports) >= maxPorts {
		return
	}
	n := uint32(desc.Port)
	p := known
	if p == nil {
		p = &port{number: n}
	}
	was := p.up
	p.name, p.mac, p.link = desc.Name, desc.MAC, desc.Up()
	d.ports[n] = p
	if p.link && !was {
		l.countUp(d, p, now)
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
func (l *loop) countUp(d *device, p *port, now time.Time) {
	if now.Sub(p.window) > flapWindow {
		p.window, p.ups = now, 0
	}
	if p.ups++; p.ups > flapUps && !now.Before(p.quiet) {
		p.quiet = now.Add(flapQuiet)
		l.event(api.Warning, "PortFlapping", api.KindSwitch, d.name, fmt.Sprintf("port %d of %s came up %d times within %v: it is left out for %v", p.number, d.name,
			p.ups, flapWindow, flapQuiet), 0)
	}
}

func (l *loop) portStatus(s *session, m *openflow.PortStatus) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s || m.Desc.Port >= openflow.PortMax {
		return
	}
	now := l.o.Now()
	n := uint32(m.Desc.Port)
	known := d.ports[n]
	was := known != nil && known.up
	if m.Reason == openflow.PortDelete {
		delete(d.ports, n)
	} else {
		l.setPort(d, m.Desc, known, now)
	}
	p := d.ports[n]
	if is := p != nil && p.up; is != was {
		l.log.Info("port", "switch", d.name, "port", n, "name", m.Desc.Name, "up", is)
		if l.changed.IsZero() {
			l.changed = now
		}
		if is {
			l.probe(d, p, now)
		}
		l.until, l.since = now, now // at once
		l.dirtyNow(now)
	}
	l.status = true
}

// portsRead takes over all ports of a switch that changes them faster than each change is followed.
func (l *loop) portsRead(s *session, ports []openflow.PortDesc) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s {
		return
	}
	if l.damp("ports " + d.name) {
		l.event(api.Warning, "PortFlapping", api.KindSwitch, d.name, fmt.Sprintf("switch %s tells of more than %d changes of its ports a second: they are read once a second", d.name, portRate), 0)
	}
	now, known := l.o.Now(), d.ports
	d.ports = map[uint32]*port{}
	for _, p := range ports {
		l.setPort(d, p, known[uint32(p.Port)], now)
	}
	l.dirty()
}

// dirtyNow has the rules computed without waiting for more.
func (l *loop) dirtyNow(now time.Time) {
	l.dirty()
	l.until = now
}

// tick sends link discovery frames, and finds what has become silent.
func (l *loop) tick() {
	now := l.o.Now()
	if gap := now.Sub(l.lastTick); gap > lateTick { // we were not running: nobody could be heard
		for _, d := range l.switches {
			for _, p := range d.ports {
				if !p.heard.IsZero() && !p.silent {
					p.heard = p.heard.Add(gap)
				}
			}
		}
	}
	l.lastTick = now
	missed := l.patience(now)
	for _, d := range l.switches {
		switch {
		case d.session == nil && now.Sub(d.since) > forgetAfter && (l.intent == nil || l.complete):
			l.forgetDevice(d)
			continue
		case d.session == nil:
			continue
		}
		l.tickPorts(d, missed, now)
		l.audit(d, now)
		l.countDropped(d, now)
	}
	l.tickStations(now)
	l.tickContests(now)
}

// patience is how long a neighbour may be silent. When most of a network's ports fall silent at once, while their links are up, frames on
// their way to and from us are late, not links lost: then it is longer.
func (l *loop) patience(now time.Time) time.Duration {
	heard, silent := 0, 0
	for _, d := range l.switches {
		for _, p := range d.ports {
			if _, host := rollout.HostName(p.from.Switch); p.up && !host && !p.heard.IsZero() && d.session != nil {
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

func (l *loop) tickPorts(d *device, missed time.Duration, now time.Time) {
	var out []openflow.Message
	for _, p := range d.ports {
		if p.link && !p.up && !now.Before(p.quiet) {
			p.up, p.probed, p.next, p.first, p.ups = true, 0, now, now, 0
			l.dirty()
		}
		if !p.up {
			continue
		}
		if !now.Before(p.next) {
			if m := l.frame(d, p, now); m != nil {
				out = append(out, m)
			}
		}
		if !p.heard.IsZero() && now.Sub(p.heard) > missed && !l.mayBeSilent(p.from, now) {
			l.silence(d, p, now)
		}
		if !p.edge && p.heard.IsZero() && !p.looped && !p.first.IsZero() && now.Sub(p.first) >= edgeAfter && now.Sub(p.told) > silentFor {
			p.edge = true
			l.dirty()
		}
	}
	for len(out) > 0 {
		n := min(len(out), 64)
		d.session.out(out[:n:n])
		out = out[n:]
	}
}

// silence of a neighbour at a port that is up: frames on their way to us may be late, or the link may be cut where neither end sees it. It
// stays as the last way until it is certain.
func (l *loop) silence(d *device, p *port, now time.Time) {
	if !p.silent && !p.looped {
		l.log.Info("a neighbour is silent", "switch", d.name, "port", p.number, "peer", p.from)
		p.silent = true
		l.dirty()
	}
	if p.looped || now.Sub(p.heard) > silentFor {
		p.heard, p.from, p.looped, p.silent = time.Time{}, fabric.At{}, false, false
		p.first, p.edge = now, false
		l.dirty()
	}
}

// mayBeSilent: who can not say anything is not missed. A lost switch cannot be made to send; a host goes on forwarding without its agent.
func (l *loop) mayBeSilent(from fabric.At, now time.Time) bool {
	id, name, err := lldp.ParseChassis(string(from.Switch))
	switch {
	case err != nil:
		return false
	case name != "":
		_, known := l.intent.hosts[name]
		return known || !l.complete
	}
	d := l.switches[id]
	return d != nil && d.session == nil
}

// frame is a port's next link discovery frame.
func (l *loop) frame(d *device, p *port, now time.Time) *openflow.PacketOut {
	p.probed++
	p.next = now.Add(probeEvery - time.Duration(p.number%16)*5*time.Millisecond)
	if p.probed == 1 {
		p.next = now.Add(probeSoon)
	}
	b, err := lldp.Encode(lldp.Frame{
		Source: p.mac, Chassis: string(d.id), Port: strconv.FormatUint(uint64(p.number), 10), TTL: lldpTTL, Sequence: l.sequence.Next(now),
	}, l.o.LLDPKey)
	if err != nil {
		l.log.Error("link discovery", "error", err)
		return nil
	}
	return &openflow.PacketOut{Actions: []openflow.Action{openflow.Output{Port: openflow.Port(p.number)}}, Data: b}
}

// probe sends one now.
func (l *loop) probe(d *device, p *port, now time.Time) {
	if d.session == nil || !p.up {
		return
	}
	if m := l.frame(d, p, now); m != nil {
		d.session.out([]openflow.Message{m})
	}
}

// prime: link discovery frames reach us from now on.
func (l *loop) prime(d *device, now time.Time) {
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

// packetIn is a frame that a switch sends us.
func (l *loop) packetIn(s *session, m *openflow.PacketIn) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s {
		return
	}
	p := d.ports[uint32(m.InPort())]
	if p == nil || !p.up || len(m.Data) < ethernetSize {
		return
	}
	if lldp.Is(m.Data) {
		l.heard(d, p, m.Data)
		return
	}
	l.station(d, p, m.Data)
}

// heard takes a link discovery frame. What is not signed, old, or not possible is no news of a link.
func (l *loop) heard(d *device, p *port, frame []byte) {
	now := l.o.Now()
	f, err := l.verify(frame, now)
	if errors.Is(err, lldp.ErrForeign) {
		return // a station that speaks LLDP itself
	}
	var from fabric.At
	if err == nil {
		from, err = l.sender(f, now)
	}
	if err == nil {
		err = l.window.Accept(f, now)
	}
	if errors.Is(err, ErrNoKey) && string(p.from.Switch) == f.Chassis { // revoked: the host is at no port any more
		l.unplug(p.from, nil)
		l.dirtyNow(now)
	}
	if err != nil {
		if l.damp(fmt.Sprintf("lldp %s %d", d.name, p.number)) {
			l.event(api.Warning, "LinkForged", api.KindSwitch, d.name, fmt.Sprintf("a link discovery frame that came in at port %d of %s is ignored: %v", p.number, d.name, err), 0)
		}
		return
	}
	if from.Switch == d.id {
		if !p.looped {
			p.looped, p.edge = true, false
			l.event(api.Warning, "PortLooped", api.KindSwitch, d.name, fmt.Sprintf("port %d of %s hears port %d of the same switch: it is left out", p.number, d.name, from.Port.Number), 0)
			l.dirty()
		}
		p.from, p.heard = from, now
		return
	}
	if q := l.portAt(from); q != nil {
		if q.told = now; q.edge {
			q.edge = false
			l.dirtyNow(now)
		}
	}
	if p.from != from || p.heard.IsZero() {
		l.unplug(from, p)
		if !p.heard.IsZero() && l.damp(fmt.Sprintf("two at %s %d", d.name, p.number)) {
			l.log.Warn("a port hears another neighbour", "switch", d.name, "port", p.number, "before", p.from, "now", from)
		}
		p.from, p.edge, p.looped = from, false, false
		l.dirtyNow(now)
		l.answer(from, fabric.At{Switch: d.id, Port: fabric.Port{Number: flow.Port(p.number)}}, now)
	}
	if p.silent {
		p.silent = false
		l.dirty()
	}
	p.heard = now
	if age := now.Sub(time.Unix(0, int64(f.Sequence))); age >= 0 {
		p.latency = age
	}
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

// verify checks a link discovery frame by the key of whom it names: this router's own for a switch, a host's for the host.
func (l *loop) verify(frame []byte, now time.Time) (lldp.Frame, error) {
	f, err := lldp.Decode(frame)
	if err != nil {
		return f, err
	}
	_, host, err := lldp.ParseChassis(f.Chassis)
	if err != nil || host == "" {
		return lldp.Verify(frame, l.o.LLDPKey)
	}
	if _, known := l.intent.hosts[host]; !known && l.complete {
		return lldp.Frame{}, fmt.Errorf("host %q is not known", host)
	}
	for _, life := range []time.Duration{hostKeyFor, hostKeyAgain} {
		k := l.keyOf(host, life, now)
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
func (l *loop) keyOf(host string, life time.Duration, now time.Time) hostKey {
	k, asked := l.hostKeys[host]
	if asked && now.Sub(k.at).Abs() < life {
		return k
	}
	if l.o.HostKey == nil {
		return hostKey{err: ErrNoKey}
	}
	for name := range l.hostKeys {
		if _, known := l.intent.hosts[name]; !known && l.complete {
			delete(l.hostKeys, name)
		}
	}
	key, err := l.o.HostKey(host)
	if err != nil && !errors.Is(err, ErrNoKey) && k.key != nil { // the store does not answer: the last key holds
		key, err = k.key, nil
	}
	k = hostKey{key, err, now}
	if asked || len(l.hostKeys) < maxHostKeys {
		l.hostKeys[host] = k
	}
	return k
}

// unplug: a host's uplink is at one port only, the one where it was heard last.
func (l *loop) unplug(from fabric.At, here *port) {
	if _, host := rollout.HostName(from.Switch); !host {
		return
	}
	for _, d := range l.switches {
		for _, p := range d.ports {
			if p != here && p.from == from {
				p.heard, p.from, p.silent, p.first = time.Time{}, fabric.At{}, false, l.o.Now()
			}
		}
	}
}

// sender is where a verified frame was sent.
func (l *loop) sender(f lldp.Frame, now time.Time) (fabric.At, error) {
	id, name, err := lldp.ParseChassis(f.Chassis)
	if err != nil {
		return fabric.At{}, err
	}
	at := fabric.At{Switch: fabric.SwitchID(f.Chassis)}
	if name != "" {
		if _, known := l.intent.hosts[name]; !known && l.complete {
			return fabric.At{}, fmt.Errorf("host %q is not known", name)
		}
		at.Port.Name = "uplink/" + f.Port
		return at, nil
	}
	n, err := strconv.ParseUint(f.Port, 10, 32)
	if err != nil {
		return fabric.At{}, fmt.Errorf("port %q of %s is no number", f.Port, f.Chassis)
	}
	if age := now.Sub(time.Unix(0, int64(f.Sequence))); age > maxFrameAge || age < -maxFrameAge {
		return fabric.At{}, fmt.Errorf("%w: it is %v old", lldp.ErrReplay, age.Round(time.Millisecond))
	}
	if d := l.switches[id]; d == nil || d.ports[uint32(n)] == nil {
		return fabric.At{}, fmt.Errorf("there is no port %d of %s", n, f.Chassis)
	}
	at.Port.Number = flow.Port(n)
	return at, nil
}

// answer sends a frame the other way at once: a link needs both directions.
func (l *loop) answer(from, to fabric.At, now time.Time) {
	if p := l.portAt(from); p != nil && (p.heard.IsZero() || p.from != to) {
		l.probe(l.deviceOf(from.Switch), p, now)
	}
}

func (l *loop) forgetDevice(d *device) {
	delete(l.switches, d.dpid)
	delete(l.byName, d.name)
	delete(l.Fleet.Nodes, d.id)
	l.stations.leave(d.id)
	l.reports.gone(d.name)
	l.event(api.Warning, "SwitchForgotten", api.KindSwitch, d.name, fmt.Sprintf("switch %s has not come back for %v: no way leads across it any more", d.name, forgetAfter), 0)
	l.dirty()
}

// sorted devices make the same input of the same network.
func (l *loop) devices() []*device {
	return slices.SortedFunc(maps.Values(l.switches), func(a, b *device) int { return cmp.Compare(a.dpid, b.dpid) })
}

func (d *device) sortedPorts() []*port {
	return slices.SortedFunc(maps.Values(d.ports), func(a, b *port) int { return cmp.Compare(a.number, b.number) })
}
