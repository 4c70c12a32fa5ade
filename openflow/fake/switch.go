package fake

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"weir.dev/weir/openflow"
)

const ok openflow.ErrorCode = 0xffffffff // no error: 0 is a code

// Bounds of one frame's way through cabled switches.
const (
	maxHops   = 64
	maxFrames = 16384
)

// Switch is one switch. It keeps its entries when controllers come and go.
type Switch struct {
	c     Config
	loops atomic.Uint64

	mu          sync.Mutex
	ports       map[openflow.Port]*port
	order       []openflow.Port // sorted; nil: ports have changed
	tables      []*table
	learned     map[openflow.MAC]openflow.Port
	controllers map[*controller]struct{}
	generation  uint64
	hasGen      bool
}

type port struct {
	desc  openflow.PortDesc
	stats openflow.PortStats
	out   func([]byte)
	peer  *plug
}

// plug is the other end of a cable.
type plug struct {
	s *Switch
	p openflow.Port
}

// New makes a switch with its ports up.
func New(c Config) *Switch {
	if c.Tables == 0 {
		c.Tables = 4
	}
	if c.Versions == 0 {
		c.Versions = 1 << openflow.Version13
	}
	s := &Switch{c: c, ports: map[openflow.Port]*port{}, controllers: map[*controller]struct{}{}}
	s.clear()
	for _, n := range c.Ports {
		s.ports[n] = s.newPort(n)
	}
	return s
}

// clear forgets what controllers have installed. Called with mu held, or before the switch is used.
func (s *Switch) clear() {
	s.tables = make([]*table, s.c.Tables)
	for i := range s.tables {
		s.tables[i] = &table{}
	}
	s.learned = map[openflow.MAC]openflow.Port{}
}

func (s *Switch) newPort(n openflow.Port) *port {
	id := s.c.DatapathID
	return &port{desc: openflow.PortDesc{Port: n, Name: fmt.Sprintf("p%d", n), State: openflow.PortLive, SpeedKbps: 10e6, MaxKbps: 10e6,
		MAC: openflow.MAC{0x02, byte(id >> 16), byte(id >> 8), byte(id), byte(n >> 8), byte(n)}}, stats: openflow.PortStats{Port: n}}
}

func (s *Switch) portOrder() []openflow.Port {
	if s.order == nil {
		s.order = slices.Sorted(maps.Keys(s.ports))
	}
	return s.order
}

// AddPort adds a port and tells the controllers.
func (s *Switch) AddPort(n openflow.Port) {
	s.mu.Lock()
	if s.ports[n] != nil {
		s.mu.Unlock()
		return
	}
	p := s.newPort(n)
	s.ports[n], s.order = p, nil
	desc := p.desc
	s.mu.Unlock()
	s.tell(&openflow.PortStatus{Reason: openflow.PortAdd, Desc: desc})
}

// SetLink takes a port's link up or down and tells the controllers. A cable's other end does not see it: see Cable.
func (s *Switch) SetLink(n openflow.Port, up bool) {
	s.mu.Lock()
	p := s.ports[n]
	if p == nil {
		s.mu.Unlock()
		return
	}
	before := p.desc.State
	p.desc.State = openflow.PortLinkDown
	if up {
		p.desc.State = openflow.PortLive
	}
	desc := p.desc
	s.mu.Unlock()
	if desc.State != before {
		s.tell(&openflow.PortStatus{Reason: openflow.PortModify, Desc: desc})
	}
}

// Attach calls f with each frame that leaves through the port (its own copy), in place of a cable; nil detaches.
func (s *Switch) Attach(n openflow.Port, f func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.ports[n]; p != nil {
		p.out = f
	}
}

// Cable joins two ports: what leaves one arrives at the other, both links are up. The returned function cuts the cable: both links go
// down, as when a cable is pulled; called again it does nothing.
func Cable(a *Switch, ap openflow.Port, b *Switch, bp openflow.Port) (cut func()) {
	join := func(s *Switch, p openflow.Port, to *plug) {
		s.mu.Lock()
		if s.ports[p] != nil {
			s.ports[p].peer = to
		}
		s.mu.Unlock()
		s.SetLink(p, to != nil)
	}
	join(a, ap, &plug{b, bp})
	join(b, bp, &plug{a, ap})
	var once sync.Once
	return func() {
		once.Do(func() {
			join(a, ap, nil)
			join(b, bp, nil)
		})
	}
}

// Loops counts frames that were dropped after 64 hops.
func (s *Switch) Loops() uint64 { return s.loops.Load() }

// arrival is a frame at a port.
type arrival struct {
	s    *Switch
	port openflow.Port
	data []byte
	hops int
}

// Receive lets a frame arrive at a port, as if from a station there. It returns when the frame has gone through this switch and all
// those that it reaches by cables (at most 64 hops; more is a loop: see Loops).
func (s *Switch) Receive(n openflow.Port, frame []byte) {
	travel([]arrival{{s, n, frame, 0}})
}

// travel carries frames along cables until none is left.
func travel(queue []arrival) {
	for i := 0; i < len(queue); i++ {
		a := queue[i]
		queue[i].data = nil
		if a.hops >= maxHops || i >= maxFrames {
			a.s.loops.Add(1)
			if i >= maxFrames {
				return
			}
			continue
		}
		queue = append(queue, a.s.step(a)...)
	}
}

// step takes a frame through one switch.
func (s *Switch) step(a arrival) []arrival {
	s.mu.Lock()
	p := s.ports[a.port]
	if p == nil || !p.desc.Up() {
		s.mu.Unlock()
		return nil
	}
	p.stats.RxPackets++
	p.stats.RxBytes += uint64(len(a.data))
	r := run{s: s}
	r.pipeline(&packet{in: a.port, data: append([]byte(nil), a.data...)}, 0)
	return s.finish(&r, a.hops)
}

// finish lets go of mu and sends what a run has made: to stations and controllers now, to cabled switches as arrivals.
func (s *Switch) finish(r *run, hops int) (next []arrival) {
	type delivery struct {
		f    func([]byte)
		data []byte
	}
	var stations []delivery
	for _, e := range r.out {
		p := s.ports[e.port]
		switch {
		case p == nil:
		case p.out != nil:
			stations = append(stations, delivery{p.out, e.data})
		case p.peer != nil:
			next = append(next, arrival{p.peer.s, p.peer.p, e.data, hops + 1})
		}
	}
	s.mu.Unlock()
	for _, d := range stations {
		d.f(d.data)
	}
	s.tell(r.told...)
	return next
}

// Flows is a copy of all entries: by table, descending priority, then match.
func (s *Switch) Flows() (fs []openflow.FlowStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tables {
		for _, e := range t.entries {
			fs = append(fs, e.stats())
		}
	}
	return fs
}

// save copies what a bundle changes; undo puts it back.
func (s *Switch) save() (undo func()) {
	before := make([]table, len(s.tables))
	for i, t := range s.tables {
		before[i].entries = slices.Clone(t.entries)
	}
	return func() {
		for i, t := range s.tables {
			t.entries = before[i].entries
		}
	}
}
