// Package model is a network in memory: OpenFlow switches that carry out fabric.Entry, hosts' switches (the reference switch of package
// flow) that carry out api.HostRule, cables between them, functions and stations. What it does with a frame is what real switches with
// the same rules have to do.
package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/placement"
	"weir.dev/weir/router"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
)

// ErrLoop says that a frame went on for more steps than any sound way has.
var ErrLoop = errors.New("loop")

// ErrTie says that two entries of one priority take a frame and do different things with it: which one does is not defined.
var ErrTie = errors.New("two entries of one priority take a frame")

const maxSteps = 4000

// Network is wired once for a topology, its endpoints and functions; rules come and go. Not safe for several goroutines.
type Network struct {
	in       fabric.Input
	cables   map[fabric.At]fabric.At
	stations map[fabric.At]string // edge ports
	entries  map[fabric.SwitchID][]*fabric.Entry
	hosts    map[fabric.SwitchID]*host
	// Tie chooses one of two entries of one priority that both take a frame; without, that is an error.
	Tie func(a, b *fabric.Entry) *fabric.Entry
}

type host struct {
	sw    *flow.Switch
	ports map[string]flow.Port
	names map[flow.Port]string
}

// Delivery is a frame that reached a station.
type Delivery struct {
	Endpoint string
	Frame    []byte
}

// Meeting is a frame that reached a function's port: "function/fw/in".
type Meeting struct {
	Port  string
	Frame []byte
}

// Result is what became of one frame.
type Result struct {
	Deliveries []Delivery
	Meetings   []Meeting
	Punted     int // copies to the controller
	Trail      []string
}

// New wires a network. Functions in rewrites change frames; others are wires, or taps that swallow.
func New(in fabric.Input, rewrites map[string]oracle.Rewrite) (*Network, error) {
	n := &Network{in: in, cables: map[fabric.At]fabric.At{}, stations: map[fabric.At]string{}, hosts: map[fabric.SwitchID]*host{}}
	for _, l := range in.Links {
		n.cables[l.A], n.cables[l.B] = l.B, l.A
	}
	for id, s := range in.Switches {
		if s.Host {
			if err := n.addHost(id, s, rewrites); err != nil {
				return nil, err
			}
		}
	}
	for name, e := range in.Endpoints {
		if !in.Switches[e.At.Switch].Host {
			n.stations[e.At] = name
		}
	}
	return n, nil
}

func (n *Network) addHost(id fabric.SwitchID, s fabric.Switch, rewrites map[string]oracle.Rewrite) error {
	h := &host{sw: flow.New(), ports: map[string]flow.Port{}, names: map[flow.Port]string{}}
	n.hosts[id] = h
	for _, p := range s.Ports {
		if err := h.sw.AddFabric(h.number(p.Name), p.Name, strings.HasPrefix(p.Name, "tunnel/")); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.in.Endpoints)) {
		if n.in.Endpoints[name].At.Switch == id {
			if err := h.sw.AddEndpoint(h.number("endpoint/"+name), name); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.in.Functions)) {
		if f := n.in.Functions[name]; f.Host == id {
			if err := n.AddFunction(id, name, f.Tap, rewrites[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// AddFunction puts one at a host; it may be at another, too, while it moves.
func (n *Network) AddFunction(id fabric.SwitchID, name string, tap bool, rewrite oracle.Rewrite) error {
	h := n.hosts[id]
	g := flow.Function{Name: name}
	if tap {
		g.Tap = h.number(flow.Tap.Of(name))
	} else {
		g.In, g.Out = h.number(flow.In.Of(name)), h.number(flow.Out.Of(name))
	}
	if rewrite != nil {
		g.Model = func(at flow.Side, frame []byte) []flow.Emitted {
			other := map[flow.Side]flow.Side{flow.In: flow.Out, flow.Out: flow.In}[at]
			return []flow.Emitted{{Side: other, Frame: rewrite(at.Of(name), frame)}}
		}
	}
	return h.sw.AddFunction(g)
}

// number gives a port the next one.
func (h *host) number(name string) flow.Port {
	p := flow.Port(len(h.ports) + 1)
	h.ports[name], h.names[p] = p, name
	return p
}

// Routed is an input with those policies only that no host steers by itself: what the router's compiler is given.
func Routed(in fabric.Input) fabric.Input {
	at := func(id fabric.SwitchID) string {
		if in.Switches[id].Host {
			return string(id)
		}
		return ""
	}
	p := placement.Places{Alone: len(in.Switches) == 1, Endpoints: map[string]string{}, Functions: map[string]string{}, Chains: in.Chains}
	for name, e := range in.Endpoints {
		p.Endpoints[name] = at(e.At.Switch)
	}
	for name, f := range in.Functions {
		p.Functions[name] = at(f.Host)
	}
	all := in.Policies
	in.Policies = make(map[string]api.PolicySpec, len(all))
	for name, o := range placement.Owners(p, all) {
		if o.Host == "" {
			in.Policies[name] = all[name]
		}
	}
	return in
}

// Install puts an output in force, and on each host the policies that are local to it.
func (n *Network) Install(in fabric.Input, out fabric.Output) error {
	if err := distinct(out); err != nil {
		return err
	}
	n.entries = out.Entries
	for id, h := range n.hosts {
		rules, err := h.resolve(out.Hosts[id])
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		local := router.Compile(n.localTo(id, in, out.Paths.Names()))
		rules = append(rules, local.Rules...)
		if err := h.sw.Commit(rules); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

// localTo is what a host's agent compiles by itself.
func (n *Network) localTo(id fabric.SwitchID, in fabric.Input, crossing []string) router.Input {
	h := n.hosts[id]
	l := router.Input{Endpoints: map[string]flow.Port{}, Functions: map[string]router.Function{}, Chains: in.Chains, Policies: map[string]api.PolicySpec{}}
	for name, e := range in.Endpoints {
		if e.At.Switch == id {
			l.Endpoints[name] = h.ports["endpoint/"+name]
		}
	}
	for name, f := range in.Functions {
		if f.Host == id && !f.Ready {
			l.Functions[name] = router.Function{OnFail: f.OnFail}
		} else if f.Host == id {
			l.Functions[name] = router.Function{In: h.ports[flow.In.Of(name)], Out: h.ports[flow.Out.Of(name)], Tap: h.ports[flow.Tap.Of(name)], OnFail: f.OnFail}
		}
	}
	for name, p := range in.Policies {
		if slices.Contains(crossing, name) {
			continue
		}
		_, a := l.Endpoints[p.From]
		_, b := l.Endpoints[p.To]
		if a || b || len(in.Switches) == 1 {
			l.Policies[name] = p
		}
	}
	return l
}

// entryKey is what makes two entries of a switch one: the second replaces the first (OpenFlow 1.3.5, 6.4).
type entryKey struct {
	table    uint8
	priority uint16
	match    flow.Match
	tagged   bool
}

// distinct tells of entries that a switch could not hold at once.
func distinct(out fabric.Output) error {
	for id, entries := range out.Entries {
		have := make(map[entryKey]string, len(entries))
		for _, e := range entries {
			k := entryKey{e.Table, e.Priority, e.Match, e.Tagged}
			if other, twice := have[k]; twice {
				return fmt.Errorf("%s: two entries of table %d, priority %d and one match %+v: %q and %q", id, e.Table, e.Priority, e.Match, other, e.Note)
			}
			have[k] = e.Note
		}
	}
	return nil
}

// Send lets an endpoint's station send a frame, and follows it and its copies to their ends.
func (n *Network) Send(from string, frame []byte) (Result, error) {
	w := &walk{n: n}
	at := n.in.Endpoints[from].At
	if n.in.Switches[at.Switch].Host {
		at.Port.Name = "endpoint/" + from
	}
	w.queue = append(w.queue, arrival{at, slices.Clone(frame)})
	for steps := 0; len(w.queue) > 0; steps++ {
		if steps > maxSteps {
			return w.Result, fmt.Errorf("%w: more than %d steps", ErrLoop, maxSteps)
		}
		next := w.queue[0]
		w.queue = w.queue[1:]
		if err := w.arrive(next); err != nil {
			return w.Result, err
		}
	}
	return w.Result, nil
}

type arrival struct {
	at    fabric.At
	frame []byte
}

type walk struct {
	n     *Network
	queue []arrival
	Result
}

func (w *walk) note(format string, args ...any) {
	w.Trail = append(w.Trail, fmt.Sprintf(format, args...))
}

// leave sends a frame out of a port, to what is behind it.
func (w *walk) leave(at fabric.At, frame []byte) error {
	if other, cabled := w.n.cables[at]; cabled {
		w.queue = append(w.queue, arrival{other, frame})
		return nil
	}
	if flow.FabricTag(frame) != 0 {
		return fmt.Errorf("a fabric tag leaves the fabric at %v", at)
	}
	if name, ok := w.n.stations[at]; ok {
		w.note("delivered to %s", name)
		w.Deliveries = append(w.Deliveries, Delivery{name, frame})
	}
	return nil
}

func (w *walk) arrive(a arrival) error {
	if h := w.n.hosts[a.at.Switch]; h != nil {
		return w.host(h, a)
	}
	return w.table(a.at, a.frame, 0)
}

func (w *walk) host(h *host, a arrival) error {
	port, ok := h.ports[a.at.Port.Name]
	if !ok {
		return fmt.Errorf("%s has no port %q", a.at.Switch, a.at.Port.Name)
	}
	r, err := h.sw.Inject(port, a.frame)
	for _, s := range r.Trail {
		w.note("%s: %s tag %d", a.at.Switch, s, flow.FabricTag(s.Frame))
		if s.Event == flow.Steered {
			w.Meetings = append(w.Meetings, Meeting{s.Name, s.Frame})
			if flow.FabricTag(s.Frame) != 0 {
				return fmt.Errorf("a fabric tag reaches %s", s.Name)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", a.at.Switch, err)
	}
	for _, d := range r.Deliveries {
		name := h.names[d.Port]
		if e, ok := strings.CutPrefix(name, "endpoint/"); ok {
			w.Deliveries = append(w.Deliveries, Delivery{e, d.Frame})
			continue
		}
		if err := w.leave(fabric.At{Switch: a.at.Switch, Port: fabric.Port{Name: name}}, d.Frame); err != nil {
			return err
		}
	}
	return nil
}

// table carries out one table of an OpenFlow switch (OpenFlow 1.3.5, 5).
func (w *walk) table(at fabric.At, frame []byte, table uint8) error {
	k, ok := flow.DecodeFabric(frame)
	if !ok {
		return nil
	}
	stopShort(&k, frame)
	var best *fabric.Entry
	for _, e := range w.n.entries[at.Switch] {
		if e.Table != table || best != nil && e.Priority < best.Priority || !matches(e, k, at.Port.Number) {
			continue
		}
		if best != nil && best.Priority == e.Priority && !same(best, e) {
			if w.n.Tie == nil {
				return fmt.Errorf("%s: %w: %q and %q", at.Switch, ErrTie, best.Note, e.Note)
			}
			e = w.n.Tie(best, e)
		}
		best = e
	}
	if best == nil {
		w.note("%v table %d: no entry", at, table)
		return nil
	}
	w.note("%v table %d: %s (%v)", at, table, best.Note, best.Outs)
	for _, o := range best.Outs {
		out := slices.Clone(frame)
		if o.Pop {
			if k.Tag == 0 {
				return fmt.Errorf("%s: %q pops a tag that is not there", at.Switch, best.Note)
			}
			out = flow.PopTag(out)
		}
		if o.Push != 0 {
			if flow.FabricTag(out) != 0 {
				return fmt.Errorf("%s: %q puts a second fabric tag on", at.Switch, best.Note)
			}
			out = flow.PushTag(out, o.Push)
		}
		to := at
		switch o.Port {
		case fabric.ToController:
			w.Punted++
			continue
		case fabric.BackOut:
		case at.Port.Number:
			continue // a switch never does that by itself
		default:
			to.Port = fabric.Port{Number: o.Port}
		}
		if err := w.leave(to, out); err != nil {
			return err
		}
	}
	if best.Goto != 0 {
		return w.table(at, frame, best.Goto)
	}
	return nil
}

// stopShort leaves out what Open vSwitch does not read: behind a second tag, and the protocol of an IPv6 fragment other than the first.
func stopShort(k *flow.Key, frame []byte) {
	isTag := func(at int) bool {
		t := uint16(0)
		if len(frame) >= at+2 {
			t = binary.BigEndian.Uint16(frame[at:])
		}
		return t == flow.EtherTypeVLAN || t == flow.EtherTypeQinQ
	}
	ip := 14
	if isTag(12) {
		ip = 18
	}
	switch {
	case isTag(12) && isTag(16):
		*k = flow.Key{SrcMAC: k.SrcMAC, DstMAC: k.DstMAC, Tag: k.Tag, VLAN: k.VLAN, EtherType: binary.BigEndian.Uint16(frame[16:]), Unread: flow.UnreadNetwork}
	case k.HasIP && k.EtherType == flow.EtherTypeIPv6 && len(frame) >= ip+44 && frame[ip+6] == 44 && binary.BigEndian.Uint16(frame[ip+42:])>>3 != 0:
		k.Proto, k.Unread = 0, flow.UnreadUpper
	}
}

func same(a, b *fabric.Entry) bool { return slices.Equal(a.Outs, b.Outs) && a.Goto == b.Goto }

func matches(e *fabric.Entry, k flow.Key, in flow.Port) bool {
	m := e.Match
	switch {
	case e.Tagged && k.Tag == 0:
		return false
	case m.Tag == 0:
		k.Tag = 0 // whatever tag
	}
	return m.Matches(k, in, 0)
}

// resolve gives rules the host's port numbers.
func (h *host) resolve(rules []*api.HostRule) ([]flow.Rule, error) {
	var out []flow.Rule
	for _, r := range rules {
		x, err := h.rule(r)
		if err != nil {
			return nil, fmt.Errorf("rule %s (%s): %w", r.Cookie, r.Note, err)
		}
		out = append(out, x)
	}
	return out, nil
}

func (h *host) rule(r *api.HostRule) (flow.Rule, error) {
	var errs []error
	port := func(name string) flow.Port {
		if name == "" {
			return 0
		}
		p, ok := h.ports[name]
		if !ok {
			errs = append(errs, fmt.Errorf("no port %q", name))
		}
		return p
	}
	cookie, err := strconv.ParseUint(r.Cookie, 16, 64)
	errs = append(errs, err)
	x := flow.Rule{Cookie: cookie, Priority: r.Priority, Note: r.Note}
	if strings.HasPrefix(r.Stage, flow.Egress.String()) {
		x.Stage = flow.Egress
	}
	x.Match, err = ParseMatch(r.Match)
	errs = append(errs, err)
	x.Match.InPort, x.Match.OutPort = port(r.Match.InPort), port(r.Match.OutPort)
	for _, c := range r.Action.Clones {
		x.Action.Clones = append(x.Action.Clones, flow.Clone{Port: port(c.Port), Push: c.Push})
	}
	op := slices.Index([]string{"normal", "drop", "output", "resume"}, r.Action.Op)
	if op < 0 {
		errs = append(errs, fmt.Errorf("operation %q", r.Action.Op))
	}
	x.Action.Op, x.Action.Port, x.Action.Pop, x.Action.Push = flow.Op(max(op, 0)), port(r.Action.Port), r.Action.Pop, r.Action.Push
	return x, errors.Join(errs...)
}
