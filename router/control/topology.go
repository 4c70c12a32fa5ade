package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

const (
	forgetAfter = 10 * time.Minute // a switch that does not come back, and the paths across it
	auditEvery  = 10 * time.Second
)

// device is a switch that has been seen, with or without a connection.
type device struct {
	discovery.Switch
	session  *session // nil: lost
	since    time.Time
	node     *rollout.Node
	round    uint8
	seen     bool // entries have been read in this life
	tables   []table
	single   singleTree
	guarded  map[uint32]guarded     // by port: port security in the target
	hits     map[rollout.Key]uint64 // of its entries that drop, at the last look
	counted  time.Time              // when that was
	counting bool
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

func switchID(dpid uint64) fabric.SwitchID { return fabric.SwitchID(lldp.SwitchChassis(dpid)) }

// newDevice gives a switch its name: the configured one, what its description says, or its datapath id.
func (l *loop) newDevice(dpid uint64, said string) *device {
	d := &device{
		Switch: discovery.Switch{DPID: dpid, ID: switchID(dpid), Ports: map[uint32]*discovery.Port{}}, capacity: capacity{full: map[uint8]uint32{}}, node: rollout.NewNode(),
	}
	d.Name = fmt.Sprintf("of-%016x", dpid)
	for _, name := range []string{l.o.Names[dpid], said} {
		if other := l.byName[name]; name != "" && name != "None" && api.CheckName(name) == nil && other == nil {
			d.Name = name
			break
		} else if other != nil && l.damp("name "+name) {
			l.event(api.Warning, "SwitchNameTaken", api.KindSwitch, name, fmt.Sprintf("switch %016x is called %s, too; it is shown as %s", dpid, name, d.Name), 0)
		}
	}
	l.switches[dpid], l.byName[d.Name], l.net.Switches[dpid] = d, d, &d.Switch
	l.Fleet.Nodes[d.ID] = d.node
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
	// What was known of the switch stays: it went on forwarding while it was away.
	outage := time.Duration(0)
	if !d.since.IsZero() && !d.Remembered {
		outage = now.Sub(d.since)
	}
	d.session, d.Connected, d.since, d.Remembered, d.tables, d.address, d.certified = s, true, now, false, s.sizes, s.address, s.cert != nil
	former := d.product
	d.product, d.message, d.backoff, d.retry, d.audited = product(s.desc), "", 0, time.Time{}, now
	l.adopt(d, s.entries)
	s.entries = nil
	// Ports may have come, gone or changed meanwhile.
	known := d.Ports
	d.Ports = map[uint32]*discovery.Port{}
	for _, p := range s.ports {
		l.net.SetPort(&d.Switch, p, known[uint32(p.Port)], now)
	}
	l.c.mu.Lock()
	l.c.running[d.Name] = s
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
	l.event(api.Info, "SwitchConnected", api.KindSwitch, d.Name, fmt.Sprintf("switch %s (datapath %016x, %s) connected from %s%s", d.Name, d.DPID, d.product, s.address, found), outage)
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
	d.session, d.Connected, d.since, d.Primed = nil, false, l.o.Now(), false
	d.node.Reachable, d.node.Busy = false, false
	l.c.mu.Lock()
	if l.c.running[d.Name] == s {
		delete(l.c.running, d.Name)
	}
	l.c.mu.Unlock()
	why := s.conn.Err()
	d.message = fmt.Sprintf("lost: %v", why)
	if l.ctx.Err() == nil {
		l.event(api.Error, "SwitchLost", api.KindSwitch, d.Name, fmt.Sprintf("switch %s is lost: %v; it goes on with the entries that it has", d.Name, why), 0)
	}
	l.dirty()
}

func (l *loop) portStatus(s *session, m *openflow.PortStatus) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s || m.Desc.Port >= openflow.PortMax {
		return
	}
	now := l.o.Now()
	n := uint32(m.Desc.Port)
	known := d.Ports[n]
	was := known != nil && known.Up
	if m.Reason == openflow.PortDelete {
		delete(d.Ports, n)
	} else {
		l.net.SetPort(&d.Switch, m.Desc, known, now)
	}
	p := d.Ports[n]
	if is := p != nil && p.Up; is != was {
		l.log.Info("port", "switch", d.Name, "port", n, "name", m.Desc.Name, "up", is)
		if l.changed.IsZero() {
			l.changed = now
		}
		if is {
			l.net.Probe(&d.Switch, p, now)
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
	if l.damp("ports " + d.Name) {
		l.event(api.Warning, "PortFlapping", api.KindSwitch, d.Name, fmt.Sprintf("switch %s tells of more than %d changes of its ports a second: they are read once a second", d.Name, portRate), 0)
	}
	now, known := l.o.Now(), d.Ports
	d.Ports = map[uint32]*discovery.Port{}
	for _, p := range ports {
		l.net.SetPort(&d.Switch, p, known[uint32(p.Port)], now)
	}
	l.dirty()
}

// dirtyNow has the rules computed without waiting for more.
func (l *loop) dirtyNow(now time.Time) {
	l.dirty()
	l.until = now
}

// tick gives the network the time, and looks after switches.
func (l *loop) tick() {
	now := l.o.Now()
	l.net.Tick(now, l.look)
	for _, d := range l.switches {
		switch {
		case d.session == nil && now.Sub(d.since) > forgetAfter && (l.intent == nil || l.complete):
			l.forgetDevice(d)
		case d.session != nil:
			l.audit(d, now)
			l.countDropped(d, now)
		}
	}
}

// look finds the endpoints whose stations nobody has seen, and the addresses of the others.
func (l *loop) look() (missing []discovery.Missing, named map[flow.MAC]bool) {
	for name, e := range l.intent.endpoints {
		if e.Deleting == nil && !onHost(e) && (len(l.at[name].MACs) == 0 || l.at[name].At == (fabric.At{})) {
			missing = append(missing, l.missing(name, e.Spec))
		}
	}
	named = map[flow.MAC]bool{}
	for _, e := range l.at {
		for _, m := range e.MACs {
			named[m] = true
		}
	}
	return missing, named
}

func (l *loop) missing(name string, e api.EndpointSpec) discovery.Missing {
	m := discovery.Missing{Name: name}
	m.At, m.Fixed = l.seatOf(e)
	for _, p := range prefixes(e) {
		if p.IsSingleIP() {
			m.IPs = append(m.IPs, p.Addr())
		}
	}
	return m
}

// packetIn is a frame that a switch sends us.
func (l *loop) packetIn(s *session, m *openflow.PacketIn) {
	d := l.switches[s.dpid]
	if d == nil || d.session != s {
		return
	}
	l.net.FrameIn(&d.Switch, uint32(m.InPort()), m.Data, l.o.Now())
}

func (l *loop) forgetDevice(d *device) {
	delete(l.switches, d.DPID)
	delete(l.byName, d.Name)
	delete(l.Fleet.Nodes, d.ID)
	l.net.Forget(&d.Switch)
	l.reports.gone(d.Name)
	l.event(api.Warning, "SwitchForgotten", api.KindSwitch, d.Name, fmt.Sprintf("switch %s has not come back for %v: no way leads across it any more", d.Name, forgetAfter), 0)
	l.dirty()
}

// sorted devices make the same input of the same network.
func (l *loop) devices() []*device {
	return slices.SortedFunc(maps.Values(l.switches), func(a, b *device) int { return cmp.Compare(a.DPID, b.DPID) })
}

func (l *loop) deviceOf(id fabric.SwitchID) *device {
	dpid, host, err := lldp.ParseChassis(string(id))
	if err != nil || host != "" {
		return nil
	}
	return l.switches[dpid]
}
