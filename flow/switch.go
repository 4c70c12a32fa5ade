package flow

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Emitted is a frame that a function sends out of one of its sides.
type Emitted struct {
	Side  Side
	Frame []byte
}

// Function is a function's place in the reference switch.
type Function struct {
	Name         string
	In, Out, Tap Port // In and Out, or Tap alone
	Down, Bypass bool // what SetState and on_fail say
	// InMAC and OutMAC are the addresses of the function's own interfaces. Frames from them are its own words and are dropped, unless Speaks.
	InMAC, OutMAC, TapMAC MAC
	Speaks                bool
	// Model is what the function does with a frame that reaches it; nil is a wire (a tap swallows).
	Model func(at Side, frame []byte) []Emitted
}

// Switch is the reference switch: rules carried out in memory exactly as every driver must do it. Frames of fewer
// than 14 bytes are dropped. Ordinary switching is a learning bridge without VLANs, ageing and hairpin, which keeps
// 01:80:c2:00:00:01 to 0f to itself. A frame with a fabric tag meets rules only: at a port into the fabric one that no rule selects is
// dropped, and a frame whose outermost tag only looks like one, being the user's, does not leave by such a port without another. The zero value is not usable; see New. Not safe for several goroutines.
type Switch struct {
	ports     map[Port]*port
	functions map[string]*Function
	rules     map[uint64]*ruleState
	tables    [2]*table // by Stage
	fdb       map[MAC]Port
	exits     [2]map[station]Port // learned by rules: [Ingress] where a source entered, [Egress] where a destination left
	order     []Port              // endpoints, for flooding in a fixed order
}

type station struct {
	mac  MAC
	vlan uint16
}

type port struct {
	name     string
	function *Function // nil: an endpoint
	side     Side
	fabric   bool
	isolated bool
	guard    Guard
	PortCounters
}

// PortCounters: Rx entered the switch here, Tx left it here, Dropped by a rule, a function that is down, a missing rule or exit, a guard.
// Refused are the packets that a guard dropped, by reason.
type PortCounters struct {
	Rx, Tx, Dropped Counter
	Refused         [Refusals]uint64
}

// New makes a switch without ports and rules.
func New() *Switch {
	s := &Switch{ports: map[Port]*port{}, functions: map[string]*Function{}, fdb: map[MAC]Port{}}
	for i := range s.exits {
		s.exits[i] = map[station]Port{}
		s.tables[i] = newTable(nil)
	}
	return s
}

// AddEndpoint adds a port of ordinary switching.
func (s *Switch) AddEndpoint(p Port, name string) error {
	return s.addEndpoint(p, &port{name: "endpoint/" + name})
}

// AddFabric adds a port of ordinary switching that leads to other switches: frames there may carry a fabric tag. Between two isolated
// ones there is no ordinary switching.
func (s *Switch) AddFabric(p Port, name string, isolated bool) error {
	return s.addEndpoint(p, &port{name: "endpoint/" + name, fabric: true, isolated: isolated})
}

func (s *Switch) addEndpoint(p Port, q *port) error {
	if err := s.addPort(p, q); err != nil {
		return err
	}
	s.order = append(s.order, p)
	slices.Sort(s.order)
	return nil
}

// Know tells ordinary switching where a station is before it has spoken, as a switch can that made the station's link.
func (s *Switch) Know(m MAC, p Port) { s.fdb[m] = p }

// Guard sets the port security of an endpoint that is no port into the fabric.
func (s *Switch) Guard(p Port, g Guard) error {
	q := s.ports[p]
	if q == nil || q.function != nil || q.fabric {
		return fmt.Errorf("guard: port %d is no endpoint's", p)
	}
	if err := g.Validate(); err != nil {
		return fmt.Errorf("guard of %s: %w", q.name, err)
	}
	q.guard = g
	return nil
}

// stolen: the source MAC is one that the guard of another port names, and this port has no such list of its own.
func (s *Switch) stolen(p *port, mac MAC) bool {
	if p.guard.On && len(p.guard.MACs) > 0 {
		return false // checked by the guard
	}
	for _, q := range s.ports {
		if q != p && q.guard.On && slices.Contains(q.guard.MACs, mac) {
			return true
		}
	}
	return false
}

// refusal of a frame that enters at an endpoint. Ports into the fabric take part in steering with others' addresses; see walk.bridge.
func (s *Switch) refusal(p *port, frame []byte, k Key) Refusal {
	switch {
	case p.fabric:
		return Accepted
	case s.stolen(p, k.SrcMAC):
		return RefusedMAC
	}
	return p.guard.Check(frame)
}

// AddFunction adds a function's ports.
func (s *Switch) AddFunction(f Function) error {
	if s.functions[f.Name] != nil {
		return fmt.Errorf("function %s: exists", f.Name)
	}
	if (f.Tap != 0) == (f.In != 0) || (f.In != 0) != (f.Out != 0) {
		return fmt.Errorf("function %s: want the ports in and out, or tap alone", f.Name)
	}
	g := &f
	for side, p := range []Port{f.In, f.Out, f.Tap} {
		if p == 0 {
			continue
		}
		if err := s.addPort(p, &port{name: Side(side).Of(f.Name), function: g, side: Side(side)}); err != nil {
			return err
		}
	}
	s.functions[f.Name] = g
	return nil
}

func (s *Switch) addPort(number Port, p *port) error {
	if number == 0 {
		return fmt.Errorf("%s: port 0 means any", p.name)
	}
	if old := s.ports[number]; old != nil {
		return fmt.Errorf("%s: port %d is %s", p.name, number, old.name)
	}
	s.ports[number] = p
	return nil
}

// Remove takes ports away, with the functions that they are of, and forgets what was learned there. Rules that name them stay.
func (s *Switch) Remove(ports ...Port) {
	for _, p := range ports {
		q := s.ports[p]
		if q == nil {
			continue
		}
		if q.function != nil {
			delete(s.functions, q.function.Name)
		}
		delete(s.ports, p)
		s.order = slices.DeleteFunc(s.order, func(o Port) bool { return o == p })
		maps.DeleteFunc(s.fdb, func(_ MAC, at Port) bool { return at == p })
		for _, exits := range s.exits {
			maps.DeleteFunc(exits, func(_ station, at Port) bool { return at == p })
		}
	}
}

// SetDown changes a function's liveness.
func (s *Switch) SetDown(function string, down bool) error {
	f := s.functions[function]
	if f == nil {
		return fmt.Errorf("function %s: unknown", function)
	}
	f.Down = down
	return nil
}

// Hits are the frames that a rule applied to.
func (s *Switch) Hits(cookie uint64) Counter {
	if r := s.rules[cookie]; r != nil {
		return r.hits
	}
	return Counter{}
}

// Counters of a port.
func (s *Switch) Counters(p Port) PortCounters {
	if q := s.ports[p]; q != nil {
		return q.PortCounters
	}
	return PortCounters{}
}

// Event is what happens to a frame at one step.
type Event string

const (
	Entered   Event = "entered"   // the switch, at an endpoint
	Steered   Event = "steered"   // into a function
	Bypassed  Event = "bypassed"  // a function that is down
	Emerged   Event = "emerged"   // from a function
	Copied    Event = "copied"    // to a port
	Resumed   Event = "resumed"   // ordinary switching as from this port
	Delivered Event = "delivered" // out of an endpoint
	Dropped   Event = "dropped"
)

// Step of a frame's way. Copies made by taps and flooding are branches of their own.
type Step struct {
	Event  Event
	Port   Port
	Name   string // the port's: "endpoint/alice", "function/fw/in"
	Cookie uint64 // of the rule that caused it, 0 none
	Branch int    // 0 is the frame that was injected
	Why    string // of a drop
	Frame  []byte
}

func (s Step) String() string {
	text := string(s.Event) + " " + s.Name
	if s.Why != "" {
		text += " (" + s.Why + ")"
	}
	return text
}

// Delivery is a frame that left by an endpoint.
type Delivery struct {
	Port  Port
	Frame []byte
}

// Result tells what became of one frame. Taps are deliveries to tap functions, in order.
type Result struct {
	Deliveries []Delivery
	Taps       []Delivery
	Trail      []Step
	Drops      int
}

// Path lists the ports at which functions received the frame and its copies, then those where it left: "function/fw/in", "endpoint/bob".
func (r Result) Path() []string {
	var path []string
	for _, s := range r.Trail {
		if s.Event == Steered || s.Event == Delivered {
			path = append(path, s.Name)
		}
	}
	return path
}

// ErrLoop says that a frame came by the same place twice.
var ErrLoop = errors.New("loop")

// maxSteps bounds the work for one frame, its copies included.
const maxSteps = 1 << 16

// Inject lets a frame arrive at an endpoint, or come out of a function of its own accord, and follows it to its ends.
// A loop ends it with ErrLoop; the result then holds the trail so far.
func (s *Switch) Inject(at Port, frame []byte) (Result, error) {
	p := s.ports[at]
	if p == nil {
		return Result{}, fmt.Errorf("inject: no port %d", at)
	}
	w := &walk{s: s}
	if p.function != nil {
		w.emerge(trail{}, at, slices.Clone(frame))
		return w.Result, w.err
	}
	p.Rx.add(frame)
	w.note(trail{}, Entered, at, frame, nil, "")
	decode := Decode
	if p.fabric {
		decode = DecodeFabric
	}
	k, ok := decode(frame)
	if !ok {
		w.drop(trail{}, at, frame, nil, "too short for Ethernet")
		return w.Result, w.err
	}
	if r := s.refusal(p, frame, k); r != Accepted {
		w.refuse(trail{}, at, frame, r)
		return w.Result, w.err
	}
	f := flight{trail: trail{}, frame: slices.Clone(frame), at: at, in: at, tag: k.Tag}
	if r := s.tables[Ingress].find(k, at, 0, false); r != nil {
		w.apply(f, k, r)
	} else if k.Tag != 0 {
		w.drop(f.trail, at, frame, nil, fmt.Sprintf("no rule knows fabric tag %d", k.Tag))
	} else {
		w.bridge(f, k, nil)
	}
	return w.Result, w.err
}
