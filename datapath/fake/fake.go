// Package fake is a host's switch in memory, for tests of what drives switches: package flow's reference switch behind the contract of package datapath. It
// needs no kernel and no rights. Frames enter by Send; functions forward as wires, unless told otherwise.
//
// It passes datapath/suite where its links are plugged into real ones, but for five cases that need a kernel; its test lists them.
package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/portkind"
)

// Options of a switch. The zero value will do.
type Options struct {
	Abilities datapath.Abilities                      // default: ports of kind veth, the forwarder wire
	Rules     int                                     // it holds; 0: any number
	HasLink   func(name string) bool                  // whether the host has a link; nil: it has all
	Forward   func(f datapath.Function) flow.Function // what a function does, and its MACs; nil: a wire, as long as it does not hang
}

// Switch is a switch; see New.
type Switch struct {
	o Options

	mu        sync.Mutex
	ref       *flow.Switch
	next      flow.Port
	endpoints map[string]*endpoint
	functions map[string]*function
	rules     []flow.Rule
	version   uint32
	hung      map[string]bool
	fail      map[string]error
	closed    bool
	before    map[flow.Port]flow.PortCounters // of ports that were made anew in the reference switch
}

var _ datapath.Switch = (*Switch)(nil)

type endpoint struct {
	datapath.Endpoint
	port flow.Port
}

type function struct {
	datapath.Function
	ports datapath.Ports
	state datapath.State
	pid   int
}

// New makes a switch without ports.
func New(o Options) *Switch {
	if o.Abilities.Ports == nil {
		o.Abilities = datapath.Abilities{Ports: []portkind.Kind{portkind.Veth}, Forwarders: []string{datapath.Wire}}
	}
	return &Switch{o: o, ref: flow.New(), endpoints: map[string]*endpoint{}, functions: map[string]*function{}, hung: map[string]bool{}, fail: map[string]error{},
		before: map[flow.Port]flow.PortCounters{}}
}

// Fail lets every call of a method ("Commit", "AddEndpoint" ...) return err, until err is nil.
func (s *Switch) Fail(method string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[method] = err
}

// Hang lets a function swallow frames, those of probes included, or no more.
func (s *Switch) Hang(function string, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung[function] = hangs
}

// Ended is what a driver does when it notices that a function's process has ended.
func (s *Switch) Ended(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.functions {
		if pid > 0 && f.pid == pid {
			s.set(f, datapath.Down, 0)
		}
	}
}

// Rules are those in force.
func (s *Switch) Rules() []flow.Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.rules)
}

// Version counts the commits that changed something.
func (s *Switch) Version() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Has tells whether an object, "endpoint/alice" or "function/fw", has ports.
func (s *Switch) Has(object string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name, _ := strings.Cut(object, "/")
	return kind == "endpoint" && s.endpoints[name] != nil || kind == "function" && s.functions[name] != nil
}

// Functions are the switch's, in no order.
func (s *Switch) Functions() (out []datapath.Function) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.functions {
		out = append(out, f.Function)
	}
	return out
}

// Send lets a frame enter at a port, "endpoint/alice" or "function/fw/out", and follows it to its ends. A port that is held or not there drops it.
func (s *Switch) Send(port string, frame []byte) (flow.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name, _ := strings.Cut(port, "/")
	if kind == "endpoint" {
		if e := s.endpoints[name]; e != nil && !e.Held {
			return s.ref.Inject(e.port, frame)
		}
		return flow.Result{Drops: 1}, nil
	}
	name, side, _ := strings.Cut(name, "/")
	if f := s.functions[name]; f != nil {
		for at := range flow.Sides {
			if p := *f.ports.At(at); p != 0 && at.String() == side {
				return s.ref.Inject(p, frame)
			}
		}
	}
	return flow.Result{Drops: 1}, nil
}

// enter begins a call; the caller holds s.mu.
func (s *Switch) enter(ctx context.Context, method string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return errors.New("the switch is closed")
	}
	return s.fail[method]
}

// Abilities are Options.Abilities.
func (s *Switch) Abilities() datapath.Abilities { return s.o.Abilities }

// AddEndpoint makes a link a port.
func (s *Switch) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "AddEndpoint"); err != nil {
		return 0, err
	}
	if err := s.addEndpoint(&e); err != nil {
		return 0, fmt.Errorf("add endpoint %s: %w", e.Name, err)
	}
	return s.endpoints[e.Name].port, nil
}

func (s *Switch) addEndpoint(e *datapath.Endpoint) error {
	if err := e.Check(); err != nil {
		return err
	}
	if err := s.free(e.Link, "endpoint/"+e.Name); err != nil {
		return err
	}
	old := s.endpoints[e.Name]
	if old != nil {
		e.Held = e.Held && old.Held // what passes frames is not held up
		if old.Equal(*e) {
			return nil
		}
	}
	// The same link is the same port.
	now := &endpoint{Endpoint: *e}
	switch {
	case old != nil && old.Link == e.Link:
		now.port = old.port
		if !old.Held && old.Fabric == e.Fabric && old.Isolated == e.Isolated { // its counters stay
			s.endpoints[e.Name] = now
			return s.ref.Guard(now.port, e.Guard)
		}
	default:
		now.port = s.number()
	}
	// The reference switch has ports that are in use only.
	if old != nil {
		s.renew(old.port)
	}
	s.endpoints[e.Name] = now
	if e.Held {
		return nil
	}
	if e.Fabric {
		return s.ref.AddFabric(now.port, e.Name, e.Isolated)
	}
	if err := s.ref.AddEndpoint(now.port, e.Name); err != nil {
		return err
	}
	if (e.Peer != flow.MAC{}) {
		s.ref.Know(e.Peer, now.port)
	}
	return s.ref.Guard(now.port, e.Guard)
}

// renew takes ports out of the reference switch that come back. Their counters go on.
func (s *Switch) renew(ports ...flow.Port) {
	for _, p := range ports {
		s.before[p] = s.counters(p)
	}
	s.ref.Remove(ports...)
}

func (s *Switch) counters(p flow.Port) flow.PortCounters {
	c, b := s.ref.Counters(p), s.before[p]
	for _, x := range []struct{ to, from *flow.Counter }{{&c.Rx, &b.Rx}, {&c.Tx, &b.Tx}, {&c.Dropped, &b.Dropped}} {
		x.to.Packets, x.to.Bytes = x.to.Packets+x.from.Packets, x.to.Bytes+x.from.Bytes
	}
	for why := range c.Refused {
		c.Refused[why] += b.Refused[why]
	}
	return c
}

func (s *Switch) number() flow.Port {
	s.next++
	return s.next
}

// free tells why a link cannot be a port of an object: it is not there, or another's.
func (s *Switch) free(link, object string) error {
	if s.o.HasLink != nil && !s.o.HasLink(link) {
		return fmt.Errorf("interface %s: %w", link, datapath.ErrNotFound)
	}
	for _, e := range s.endpoints {
		if e.Link == link && "endpoint/"+e.Name != object {
			return fmt.Errorf("interface %s is already the port endpoint/%s", link, e.Name)
		}
	}
	for _, f := range s.functions {
		for side, l := range f.links() {
			if l == link && "function/"+f.Name != object {
				return fmt.Errorf("interface %s is already the port %s", link, flow.Side(side).Of(f.Name))
			}
		}
	}
	return nil
}

func (f *function) links() []string { return []string{f.In, f.Out, f.Tap} }

// CheckEndpoint tells why AddEndpoint would refuse a link.
func (s *Switch) CheckEndpoint(ctx context.Context, e datapath.Endpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "CheckEndpoint"); err != nil {
		return err
	}
	if s.o.HasLink != nil && !s.o.HasLink(e.Link) {
		return fmt.Errorf("interface %s: %w", e.Link, datapath.ErrNotFound)
	}
	return nil
}

// AddFunction makes a function's links ports.
func (s *Switch) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "AddFunction"); err != nil {
		return datapath.Ports{}, err
	}
	now, err := s.addFunction(f)
	if err != nil {
		return datapath.Ports{}, fmt.Errorf("add function %s: %w", f.Name, err)
	}
	return now.ports, nil
}

func (s *Switch) addFunction(f datapath.Function) (*function, error) {
	if err := s.o.Abilities.Check(f); err != nil {
		return nil, err
	}
	old, now := s.functions[f.Name], &function{Function: f}
	if old != nil && old.Function == f {
		return old, nil
	}
	for _, link := range now.links() {
		if link == "" {
			continue
		}
		if err := s.free(link, "function/"+f.Name); err != nil {
			return nil, err
		}
	}
	// One that is known keeps its numbers, and its state as long as its links are the same.
	if old != nil && (old.Tap == "") == (f.Tap == "") {
		now.ports = old.ports
		if old.Netns == f.Netns && slices.Equal(old.links(), now.links()) {
			now.state, now.pid = old.state, old.pid
		}
	} else {
		for side, link := range now.links() {
			if link != "" {
				*now.ports.At(flow.Side(side)) = s.number()
			}
		}
	}
	if old != nil {
		s.renew(old.ports.In, old.ports.Out, old.ports.Tap)
	}
	// What it does with frames: what the test says, else what a wire does.
	in := flow.Function{}
	if s.o.Forward != nil {
		in = s.o.Forward(f)
	} else {
		in.Model = func(at flow.Side, frame []byte) []flow.Emitted {
			switch { // s.mu is held: frames come by Send
			case at == flow.Tap || s.hung[f.Name]:
				return nil
			case at == flow.In:
				return []flow.Emitted{{Side: flow.Out, Frame: frame}}
			}
			return []flow.Emitted{{Side: flow.In, Frame: frame}}
		}
	}
	in.Name, in.In, in.Out, in.Tap = f.Name, now.ports.In, now.ports.Out, now.ports.Tap
	in.Down, in.Bypass, in.Speaks = now.state == datapath.Down, f.OnFail == datapath.FailBypass, f.Speaks
	if err := s.ref.AddFunction(in); err != nil {
		return nil, err
	}
	s.functions[f.Name] = now
	return now, nil
}

// Remove takes an object's ports away.
func (s *Switch) Remove(ctx context.Context, object string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "Remove"); err != nil {
		return err
	}
	kind, name, _ := strings.Cut(object, "/")
	if e := s.endpoints[name]; e != nil && kind == "endpoint" {
		s.ref.Remove(e.port)
		delete(s.endpoints, name)
	}
	if f := s.functions[name]; f != nil && kind == "function" {
		s.ref.Remove(f.ports.In, f.ports.Out, f.ports.Tap)
		delete(s.functions, name)
	}
	return nil
}

// kind of a port, as rules are checked against it.
func (s *Switch) kind(p flow.Port) datapath.PortKind {
	for _, e := range s.endpoints {
		if e.port == p && e.Fabric {
			return datapath.FabricPort
		} else if e.port == p {
			return datapath.EndpointPort
		}
	}
	for _, f := range s.functions {
		if p != 0 && (f.ports.In == p || f.ports.Out == p || f.ports.Tap == p) {
			return datapath.FunctionPort
		}
	}
	return datapath.NoPort
}

// Commit puts exactly these rules in force.
func (s *Switch) Commit(ctx context.Context, rules []flow.Rule) (datapath.Commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "Commit"); err != nil {
		return datapath.Commit{}, err
	}
	if err := datapath.CheckRules(rules, s.kind); err != nil {
		return datapath.Commit{}, fmt.Errorf("commit: %w", err)
	}
	if err := s.room(rules); err != nil {
		return datapath.Commit{}, fmt.Errorf("commit: %w", err)
	}
	c := datapath.Compare(s.rules, rules)
	if c.Added+c.Changed+c.Removed > 0 {
		if err := s.ref.Commit(rules); err != nil {
			return datapath.Commit{}, fmt.Errorf("commit: %w", err)
		}
		s.version++
	}
	s.rules = slices.Clone(rules)
	c.Version = s.version
	return c, nil
}

func (s *Switch) room(rules []flow.Rule) error {
	if s.o.Rules > 0 && len(rules) > s.o.Rules {
		return fmt.Errorf("%w: %d rules, the switch holds %d", datapath.ErrFull, len(rules), s.o.Rules)
	}
	return nil
}

// Fits tells why Commit would refuse rules for want of room.
func (s *Switch) Fits(rules []flow.Rule, _ flow.Topology) error { return s.room(rules) }

// SetState changes a function's liveness. A process's end is told by Ended.
func (s *Switch) SetState(ctx context.Context, name string, state datapath.State, pid int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "SetState"); err != nil {
		return err
	}
	f := s.functions[name]
	if f == nil {
		return fmt.Errorf("function %s: %w", name, datapath.ErrNotFound)
	}
	return s.set(f, state, pid)
}

func (s *Switch) set(f *function, state datapath.State, pid int) error {
	f.state, f.pid = state, pid
	return s.ref.SetDown(f.Name, state == datapath.Down)
}

// Probe comes through a function at once, unless that hangs.
func (s *Switch) Probe(ctx context.Context, name string) (datapath.Probe, error) {
	passed, err := s.probe(ctx, name)
	if err == nil && !passed {
		<-ctx.Done()
		err = ctx.Err()
	}
	if err != nil {
		return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
	}
	return datapath.Probe{RTT: time.Microsecond}, nil
}

func (s *Switch) probe(ctx context.Context, name string) (passed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "Probe"); err != nil {
		return false, err
	}
	f := s.functions[name]
	switch {
	case f == nil:
		return false, datapath.ErrNotFound
	case f.Tap != "":
		return false, fmt.Errorf("a tap hands nothing on")
	}
	return !s.hung[name], nil
}

// ProbeAll probes many functions at once.
func (s *Switch) ProbeAll(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	passed := map[string]datapath.Probe{}
	for _, name := range names {
		if ok, err := s.probe(ctx, name); err == nil && ok {
			passed[name] = datapath.Probe{RTT: time.Microsecond}
		}
	}
	return passed, nil
}

// Ports reads the ports with their counters.
func (s *Switch) Ports(ctx context.Context) ([]datapath.PortStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter(ctx, "Ports"); err != nil {
		return nil, err
	}
	var out []datapath.PortStatus
	add := func(p flow.Port, name, link string) *datapath.PortStatus {
		c := s.counters(p)
		out = append(out, datapath.PortStatus{Port: p, Name: name, Link: link, Rx: datapath.Counter(c.Rx), Tx: datapath.Counter(c.Tx),
			Dropped: datapath.Counter(c.Dropped), Refused: c.Refused})
		return &out[len(out)-1]
	}
	for _, name := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[name]
		add(e.port, "endpoint/"+name, e.Link)
	}
	for _, name := range slices.Sorted(maps.Keys(s.functions)) {
		f := s.functions[name]
		for side, link := range f.links() {
			if link != "" {
				p := add(*f.ports.At(flow.Side(side)), flow.Side(side).Of(name), link)
				p.Function, p.State = name, f.state
			}
		}
	}
	return out, nil
}

// Status reads ports and rules with their counters.
func (s *Switch) Status(ctx context.Context) ([]datapath.PortStatus, []datapath.RuleStatus, error) {
	ports, err := s.Ports(ctx)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var rules []datapath.RuleStatus
	for _, r := range s.rules {
		rules = append(rules, datapath.RuleStatus{Cookie: r.Cookie, Note: r.Note, Hits: datapath.Counter(s.ref.Hits(r.Cookie))})
	}
	return ports, rules, nil
}

// Close leaves everything forwarding. Calls fail until Open, which stands for another process.
func (s *Switch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Open lets a switch that was closed be driven again.
func (s *Switch) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
}

// Destroy removes all ports and rules.
func (s *Switch) Destroy(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail["Destroy"]; err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	s.ref, s.rules = flow.New(), nil
	clear(s.endpoints)
	clear(s.functions)
	return nil
}
