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

type sw struct {
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
	s *sw
	p openflow.Port
}

func newSwitch(c Config) *Switch {
	if c.Tables == 0 {
		c.Tables = 4
	}
	if c.Versions == 0 {
		c.Versions = 1 << openflow.Version13
	}
	s := &Switch{sw{c: c, ports: map[openflow.Port]*port{}, controllers: map[*controller]struct{}{}}}
	s.clear()
	for _, n := range c.Ports {
		s.ports[n] = s.newPort(n)
	}
	return s
}

// clear forgets what controllers have installed. Called with mu held, or before the switch is used.
func (s *sw) clear() {
	s.tables = make([]*table, s.c.Tables)
	for i := range s.tables {
		s.tables[i] = &table{}
	}
	s.learned = map[openflow.MAC]openflow.Port{}
}

func (s *sw) newPort(n openflow.Port) *port {
	id := s.c.DatapathID
	return &port{desc: openflow.PortDesc{Port: n, Name: fmt.Sprintf("p%d", n), State: openflow.PortLive, SpeedKbps: 10e6, MaxKbps: 10e6,
		MAC: openflow.MAC{0x02, byte(id >> 16), byte(id >> 8), byte(id), byte(n >> 8), byte(n)}}, stats: openflow.PortStats{Port: n}}
}

func (s *sw) portOrder() []openflow.Port {
	if s.order == nil {
		s.order = slices.Sorted(maps.Keys(s.ports))
	}
	return s.order
}

func (s *sw) addPort(n openflow.Port) {
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

func (s *sw) setLink(n openflow.Port, up bool) {
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

func (s *sw) attach(n openflow.Port, f func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.ports[n]; p != nil {
		p.out = f
	}
}

func cable(a *Switch, ap openflow.Port, b *Switch, bp openflow.Port) (cut func()) {
	join := func(s *sw, p openflow.Port, to *plug) {
		s.mu.Lock()
		if s.ports[p] != nil {
			s.ports[p].peer = to
		}
		s.mu.Unlock()
		s.setLink(p, to != nil)
	}
	join(&a.sw, ap, &plug{&b.sw, bp})
	join(&b.sw, bp, &plug{&a.sw, ap})
	var once sync.Once
	return func() {
		once.Do(func() {
			join(&a.sw, ap, nil)
			join(&b.sw, bp, nil)
		})
	}
}

// arrival is a frame at a port.
type arrival struct {
	s    *sw
	port openflow.Port
	data []byte
	hops int
}

func (s *sw) receive(n openflow.Port, frame []byte) {
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
func (s *sw) step(a arrival) []arrival {
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
func (s *sw) finish(r *run, hops int) (next []arrival) {
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

func (s *sw) flows() (fs []openflow.FlowStats) {
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
func (s *sw) save() (undo func()) {
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
