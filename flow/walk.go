package flow

import (
	"fmt"
	"slices"
	"strings"
)

// walk follows one injected frame.
type walk struct {
	s *Switch
	Result
	branches int
	err      error
}

// trail is one branch's past, for telling loops: a list from the newest visit back.
type trail struct {
	branch int
	last   *visit
}

type visit struct {
	event Event
	port  Port
	prev  *visit
}

// flight is a frame under way. in is the endpoint where it entered, out the one by which it is about to leave.
type flight struct {
	trail
	frame   []byte
	at      Port // where it is
	in, out Port
	tag     uint16 // the fabric tag on it
}

func (w *walk) note(t trail, e Event, p Port, frame []byte, r *ruleState, why string) {
	step := Step{Event: e, Port: p, Branch: t.branch, Why: why, Frame: frame}
	if q := w.s.ports[p]; q != nil {
		step.Name = q.name
	}
	if r != nil {
		step.Cookie = r.Cookie
	}
	w.Trail = append(w.Trail, step)
	if len(w.Trail) >= maxSteps && w.err == nil {
		w.err = fmt.Errorf("%w: more than %d steps", ErrLoop, maxSteps)
	}
}

// visit notes a place that a branch may come by only once.
func (w *walk) visit(t *trail, e Event, p Port) bool {
	for v := t.last; v != nil; v = v.prev {
		if v.event == e && v.port == p && w.err == nil {
			w.err = fmt.Errorf("%w: %s", ErrLoop, w.way(t.last, e, p))
		}
	}
	t.last = &visit{e, p, t.last}
	return w.err == nil
}

func (w *walk) way(v *visit, e Event, p Port) string {
	names := []string{string(e) + " " + w.s.ports[p].name}
	for ; v != nil; v = v.prev {
		names = append(names, string(v.event)+" "+w.s.ports[v.port].name)
	}
	slices.Reverse(names)
	return strings.Join(names, ", ")
}

func (w *walk) fork(t trail) trail {
	w.branches++
	t.branch = w.branches
	return t
}

func (w *walk) drop(t trail, p Port, frame []byte, r *ruleState, why string) {
	w.Drops++
	if q := w.s.ports[p]; q != nil {
		q.Dropped.add(frame)
	}
	w.note(t, Dropped, p, frame, r, why)
}

// apply carries out a rule on a frame that is at f.at.
func (w *walk) apply(f flight, k Key, r *ruleState) {
	if w.err != nil {
		return
	}
	r.hits.add(f.frame)
	if r.Learn {
		w.s.learn(r.Stage, f, k)
	}
	if r.Action.Pop && f.tag != 0 {
		f.frame, f.tag, k.Tag = PopTag(f.frame), 0, 0
	}
	for _, c := range r.Action.Clones {
		copied := flight{trail: w.fork(f.trail), frame: slices.Clone(f.frame), at: f.at, in: f.in}
		if c.Push != 0 {
			copied.frame, copied.tag = PushTag(copied.frame, c.Push), c.Push
		}
		w.note(copied.trail, Copied, c.Port, copied.frame, r, "")
		w.output(copied, c.Port, r)
	}
	st := station{k.DstMAC, k.VLAN}
	to := r.Action.Port
	switch r.Action.Op {
	case Normal:
		if r.Stage == Egress {
			w.deliver(f, f.out, r)
		} else if w.s.ports[f.at].function != nil {
			w.drop(f.trail, f.at, f.frame, r, "a function's port is no port of ordinary switching")
		} else {
			w.bridge(f, k, r)
		}
	case Drop:
		w.drop(f.trail, f.at, f.frame, r, "by rule")
	case Output:
		if r.Action.Push != 0 {
			f.frame, f.tag = PushTag(f.frame, r.Action.Push), r.Action.Push
		}
		if to == 0 {
			if to = w.s.exits[Egress][st]; to == 0 {
				w.drop(f.trail, f.at, f.frame, r, "no exit known for "+k.DstMAC.String())
				return
			}
		}
		w.output(f, to, r)
	case Resume:
		if st.mac = k.SrcMAC; to == 0 {
			if to = w.s.exits[Ingress][st]; to == 0 {
				w.drop(f.trail, f.at, f.frame, r, "no entry known for "+k.SrcMAC.String())
				return
			}
		}
		w.resume(f, k, to, r)
	}
}

func (s *Switch) learn(stage Stage, f flight, k Key) {
	if stage == Ingress {
		s.exits[Ingress][station{k.SrcMAC, k.VLAN}] = f.in
	} else if !k.DstMAC.Multicast() {
		s.exits[Egress][station{k.DstMAC, k.VLAN}] = f.out
	}
}

func (w *walk) output(f flight, to Port, r *ruleState) {
	p := w.s.ports[to]
	switch {
	case w.err != nil:
	case p == nil:
		w.drop(f.trail, f.at, f.frame, r, fmt.Sprintf("no port %d", to))
	case p.function == nil:
		w.deliver(f, to, r)
	default:
		w.into(f, to, p, r)
	}
}

func (w *walk) deliver(f flight, to Port, r *ruleState) {
	p := w.s.ports[to]
	if f.tag != 0 && !p.fabric {
		w.drop(f.trail, to, f.frame, r, "a fabric tag stays in the fabric")
		return
	}
	if f.tag == 0 && p.fabric && FabricTag(f.frame) != 0 {
		w.drop(f.trail, to, f.frame, r, "the user's own tag is one of the fabric's")
		return
	}
	p.Tx.add(f.frame)
	w.note(f.trail, Delivered, to, f.frame, r, "")
	w.Deliveries = append(w.Deliveries, Delivery{to, f.frame})
}

// into hands a frame to a function.
func (w *walk) into(f flight, to Port, p *port, r *ruleState) {
	fn := p.function
	if f.tag != 0 {
		w.drop(f.trail, to, f.frame, r, "a fabric tag stays in the fabric")
		return
	}
	if fn.Down {
		if !fn.Bypass || p.side == Tap {
			w.drop(f.trail, to, f.frame, r, "function "+fn.Name+" is down")
			return
		}
		if w.visit(&f.trail, Bypassed, to) {
			w.note(f.trail, Bypassed, to, f.frame, r, "")
			w.leave(f.trail, fn.opposite(p.side), f.frame)
		}
		return
	}
	if !w.visit(&f.trail, Steered, to) {
		return
	}
	p.Tx.add(f.frame)
	w.note(f.trail, Steered, to, f.frame, r, "")
	if p.side == Tap {
		w.Taps = append(w.Taps, Delivery{to, f.frame})
	}
	for i, e := range fn.run(p.side, f.frame) {
		t := f.trail
		if i > 0 {
			t = w.fork(t)
		}
		out := fn.port(e.Side)
		if out == 0 {
			w.err = fmt.Errorf("model of function %s: it has no side %s", fn.Name, e.Side)
			return
		}
		w.emerge(t, out, e.Frame)
	}
}

func (f *Function) run(at Side, frame []byte) []Emitted {
	if f.Model != nil {
		return f.Model(at, slices.Clone(frame))
	}
	if at == Tap {
		return nil
	}
	return []Emitted{{opposite(at), frame}}
}

func opposite(s Side) Side {
	switch s {
	case In:
		return Out
	case Out:
		return In
	}
	return Tap
}

func (f *Function) ownWords(src MAC) bool {
	return !f.Speaks && src != MAC{} && (src == f.InMAC || src == f.OutMAC || src == f.TapMAC)
}

func (f *Function) opposite(s Side) Port { return f.port(opposite(s)) }

func (f *Function) port(s Side) Port { return [...]Port{f.In, f.Out, f.Tap}[s] }

// emerge takes a frame that a function sent.
func (w *walk) emerge(t trail, at Port, frame []byte) {
	if w.err != nil {
		return
	}
	p := w.s.ports[at]
	p.Rx.add(frame)
	w.note(t, Emerged, at, frame, nil, "")
	k, ok := Decode(frame)
	switch {
	case !ok:
		w.drop(t, at, frame, nil, "too short for Ethernet")
	case p.function.ownWords(k.SrcMAC):
		w.drop(t, at, frame, nil, "the function's own words")
	default:
		w.leave(t, at, frame)
	}
}

// leave goes on from a function's port by the rule that names it.
func (w *walk) leave(t trail, at Port, frame []byte) {
	k, ok := Decode(frame)
	if !ok {
		w.drop(t, at, frame, nil, "too short for Ethernet")
		return
	}
	f := flight{trail: t, frame: frame, at: at, in: at}
	if r := w.s.tables[Ingress].find(k, at, 0, true); r != nil {
		w.apply(f, k, r)
		return
	}
	w.drop(t, at, frame, nil, "no rule for this function's port")
}

func (w *walk) resume(f flight, k Key, at Port, r *ruleState) {
	p := w.s.ports[at]
	if p == nil || p.function != nil {
		w.drop(f.trail, f.at, f.frame, r, fmt.Sprintf("port %d is no endpoint to resume at", at))
		return
	}
	if !w.visit(&f.trail, Resumed, at) {
		return
	}
	w.note(f.trail, Resumed, at, f.frame, r, "")
	f.at, f.in = at, at
	w.bridge(f, k, r)
}

// refuse drops a frame that the port's security does not let in.
func (w *walk) refuse(t trail, p Port, frame []byte, r Refusal) {
	w.s.ports[p].Refused[r]++
	w.drop(t, p, frame, nil, r.Why())
}

// bridge is ordinary switching of a frame from f.in. One from the fabric does not move a local station's address.
func (w *walk) bridge(f flight, k Key, r *ruleState) {
	if w.err != nil {
		return
	}
	if p := w.s.ports[f.in]; p.fabric && w.s.stolen(p, k.SrcMAC) {
		w.refuse(f.trail, f.in, f.frame, RefusedMAC)
		return
	}
	if !k.SrcMAC.Multicast() {
		w.s.fdb[k.SrcMAC] = f.in
	}
	if linkLocalGroup(k.DstMAC) {
		w.drop(f.trail, f.at, f.frame, r, "the bridge keeps link-local groups to itself")
		return
	}
	if to, known := w.s.fdb[k.DstMAC]; known {
		if w.s.ports[to].isolated && w.s.ports[f.in].isolated {
			w.drop(f.trail, f.at, f.frame, r, "no ordinary switching between isolated ports")
			return
		}
		if to == f.in {
			w.drop(f.trail, f.at, f.frame, r, "the destination is behind the port where it came from")
			return
		}
		w.egress(f, k, to)
		return
	}
	first := true
	for _, to := range w.s.order {
		if to == f.in || w.s.ports[to].isolated && w.s.ports[f.in].isolated {
			continue
		}
		g := f
		g.frame = slices.Clone(f.frame)
		if !first {
			g.trail = w.fork(f.trail)
		}
		first = false
		w.egress(g, k, to)
	}
}

// egress is the bridge about to send a frame out of an endpoint.
func (w *walk) egress(f flight, k Key, to Port) {
	f.out, f.at = to, to
	if r := w.s.tables[Egress].find(k, f.in, to, false); r != nil {
		w.apply(f, k, r)
		return
	}
	w.deliver(f, to, nil)
}

// linkLocalGroup: what a bridge never forwards (IEEE 802.1D), except 01:80:c2:00:00:00, which Linux forwards when it runs no spanning tree.
func linkLocalGroup(m MAC) bool {
	return m[5] != 0 && m.and(MAC{255, 255, 255, 255, 255, 0xf0}) == MAC{0x01, 0x80, 0xc2}
}
