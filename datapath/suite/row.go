package suite

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
)

// said is what a function has said of one direction of a flow, and what it was to be told of that.
type said struct {
	given   bool
	verdict datapath.Verdict
	missed  uint64
}

// row is a chain of functions that all settle flows, and a model of what they have said.
type row struct {
	*settling
	fns   []*Function
	flows []datapath.Flow
	short bool        // the last function is out of the chain
	model [][][2]said // by function, flow, direction
	log   []string
}

// testSettledInARow: whatever functions in a row say of flows, frames enter those that have not settled them, at once, and each is told of all frames that it has
// missed. A switch may pass several functions by together: it must not show.
func testSettledInARow(t *testing.T, open Factory) {
	r := NewRig(t, open)
	s, is := r.Switch.(datapath.Settler)
	if !is || !r.Switch.Abilities().Settles {
		t.Log("on this switch functions settle no flows")
		return
	}
	w := &row{settling: &settling{Rig: r, t: t, s: s, alice: r.Station("alice"), bob: r.Station("bob")}}
	for i := range 5 {
		w.fns = append(w.fns, r.Inline(datapath.Function{Name: fmt.Sprint("f", i), Settles: true}))
	}
	for i := range 2 {
		w.flows = append(w.flows, datapath.Flow{Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN,
			Src: netip.AddrPortFrom(echo.Src.Addr(), uint16(4000+i)), Dst: echo.Dst})
	}
	w.model = make([][][2]said, len(w.fns))
	for i := range w.model {
		w.model[i] = make([][2]said, len(w.flows))
	}
	w.commit()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for n := 0; n < 300 && !t.Failed(); n++ {
		w.step(rnd)
	}
	w.told()
	if w.short {
		w.short = false
		w.commit()
	}
	w.ends()
	for _, back := range []bool{false, true} {
		w.begins(back)
	}
	if t.Failed() {
		t.Logf("seed %d; the last steps: %q", seed, w.log[max(0, len(w.log)-12):])
	}
}

// ends: when a function's process ends, what a row has settled is not handed on past it, and needs nobody to say so.
func (w *row) ends() {
	flow, third := w.flows[0], w.fns[2]
	process := exec.Command("sleep", "60")
	must(w.t, process.Start())
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	must(w.t, w.Switch.SetState(Context(w.t), third.Name, datapath.Up, process.Process.Pid))
	there := func(m []byte) (*Station, []byte) {
		return w.frame(false, nil, 0x800, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(flow.Src.Port(), flow.Dst.Port(), m)))
	}
	for _, fn := range w.fns {
		must(w.t, w.s.UnsettleFlows(Context(w.t), fn.Name))
	}
	w.fate(there)
	for _, fn := range w.fns {
		w.settle(fn, pass(flow), 1, nil)
	}
	for range 3 {
		if seen, arrived := w.fate(there, w.fns...); slices.Contains(seen, true) || !arrived {
			w.t.Errorf("all have settled the flow: seen by %v, arrived %t", seen, arrived)
		}
	}
	before, m := w.port("function/"+third.Name+"/in").Dropped.Packets, mark(8e6)
	must(w.t, process.Process.Kill())
	_ = process.Wait() // killed
	from, f := there(m)
	from.Send(w.t, f)
	Until(w.t, "a settled frame for a dead function is dropped", func() bool { return w.port("function/"+third.Name+"/in").Dropped.Packets > before })
	if len(w.bob.Frames(m)) > 0 {
		w.t.Error("a settled flow passes a function in a row that is down and drops")
	}
	must(w.t, w.Switch.SetState(Context(w.t), third.Name, datapath.Up, 0))
}

// begins: the first frame of a new connection enters each function that has settled the one before, and so do the frames behind it, in both directions.
func (w *row) begins(back bool) {
	connection := echo
	connection.Protocol = unix.IPPROTO_TCP
	all, none := slices.Repeat([]bool{true}, len(w.fns)), make([]bool, len(w.fns))
	fate := func(what string, flags byte, back bool, want []bool) {
		if seen, arrived := w.fate(func(m []byte) (*Station, []byte) { return w.tcp(back, flags, m) }, w.fns...); !slices.Equal(seen, want) || !arrived {
			w.t.Errorf("%s, back %t: seen by %v, arrived %t; want %v", what, back, seen, arrived, want)
		}
	}
	const syn, ack = 2, 16
	fate("a segment", ack, false, all)
	fate("an answer", ack, true, all)
	time.Sleep(250 * time.Millisecond) // after a SYN no verdict is taken for some time
	for _, fn := range w.fns {
		w.settle(fn, pass(connection), 2, nil)
	}
	for range 3 {
		fate("a segment of a settled connection", ack, false, none)
		fate("an answer in a settled connection", ack, true, none)
	}
	// The last function takes the SYN and keeps it: all before it have settled the former connection, and none of them has met the SYN.
	last, to := w.fns[len(w.fns)-1], "out"
	if back {
		last, to = w.fns[0], "in"
	}
	last.pump.stop()
	send := func(back bool, flags byte, at string) {
		w.n++
		m := mark(w.n)
		from, f := w.tcp(back, flags, m)
		from.Send(w.t, f)
		Until(w.t, fmt.Sprintf("the function that keeps a SYN sees a segment with flags %d", flags), func() bool { return len(last.Sockets[at].Frames(m)) > 0 })
	}
	from := map[string]string{"in": "out", "out": "in"}[to]
	send(!back, syn, to)
	send(back, ack, from)
	last.pump = startPump(last)
	fate("a SYN", syn, back, all)
	fate("its answer", syn|ack, !back, all)
	for range 2 {
		fate("a segment behind the SYN", ack, false, all)
		fate("an answer behind the SYN", ack, true, all)
	}
}

func (w *row) commit() {
	chain := policy{mode: "exhaustive", from: w.alice, to: w.bob, cookie: 1}
	for _, fn := range w.inChain() {
		chain.chain = append(chain.chain, hop{fn: fn})
	}
	w.Commit(chain.rules()...)
}

func (w *row) inChain() []*Function {
	if w.short {
		return w.fns[:len(w.fns)-1]
	}
	return w.fns
}

// step does one of the things that may happen.
func (w *row) step(rnd *rand.Rand) {
	at, flow := rnd.IntN(len(w.inChain())), rnd.IntN(len(w.flows))
	fn := w.fns[at]
	note := func(what string) { w.log = append(w.log, fmt.Sprintf("%s, function %d, flow %d", what, at, flow)) }
	switch p := rnd.IntN(100); {
	case p < 45:
		note("settle in order")
		for i := range w.inChain() { // what most functions do soon
			w.say(i, flow, datapath.Pass)
		}
	case p < 65:
		note("pass")
		w.say(at, flow, datapath.Pass)
	case p < 72:
		note("drop")
		w.say(at, flow, datapath.Discard)
	case p < 80:
		note("judge")
		w.say(at, flow, datapath.Judge)
	case p < 86:
		note("take all back")
		must(w.t, w.s.UnsettleFlows(Context(w.t), fn.Name))
		w.forget(at)
	case p < 92:
		note("down and up")
		must(w.t, w.Switch.SetState(Context(w.t), fn.Name, datapath.Down, 0))
		must(w.t, w.Switch.SetState(Context(w.t), fn.Name, datapath.Up, 0))
		w.forget(at)
	case p < 94:
		note("another chain")
		w.short = !w.short
		w.commit()
		for i := range w.fns { // other rules lead to them, or the same ones by another name
			w.forget(i)
		}
	case p < 97:
		note("a while")
		time.Sleep(300 * time.Millisecond)
	default:
		note("told")
		w.told()
	}
	for range 1 + rnd.IntN(4) {
		w.send(flow, rnd.IntN(2))
	}
}

func (w *row) forget(at int) {
	for i := range w.flows {
		w.model[at][i] = [2]said{}
	}
}

// say a verdict of a flow, as a function.
func (w *row) say(at, flow int, v datapath.Verdict) {
	entries := 0
	for d := range 2 {
		m := &w.model[at][flow][d]
		if !m.given {
			continue
		}
		entries++
		if m.verdict == datapath.Judge {
			m.missed = 0
		}
		m.verdict = v
	}
	var want error
	if entries == 0 {
		want = datapath.ErrNotGiven
	}
	w.settle(w.fns[at], datapath.Settlement{Verdict: v, Flow: w.flows[flow]}, entries, want)
}

// send a frame of a flow in a direction: 1 back.
func (w *row) send(flow, d int) {
	order := w.inChain()
	seen, arrived := w.fate(func(m []byte) (*Station, []byte) {
		f := w.flows[flow]
		if d == 1 {
			return w.frame(true, nil, 0x800, ipv4(2, 1, unix.IPPROTO_UDP, 64, 0, udp(f.Dst.Port(), f.Src.Port(), m)))
		}
		return w.frame(false, nil, 0x800, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(f.Src.Port(), f.Dst.Port(), m)))
	}, order...)
	want, arrives := make([]bool, len(order)), true
	for n := range order {
		i := n
		if d == 1 {
			i = len(order) - 1 - n
		}
		m := &w.model[i][flow][d]
		if m.verdict != datapath.Judge {
			m.missed++
		} else {
			m.given, want[i] = true, true
		}
		if m.verdict == datapath.Discard {
			arrives = false
			break
		}
	}
	w.log = append(w.log, fmt.Sprintf("frame of flow %d, direction %d", flow, d))
	if !slices.Equal(seen, want) || arrived != arrives {
		w.t.Errorf("a frame of flow %d, direction %d: seen by %v, arrived %t; want %v, %t; model %+v", flow, d, seen, arrived, want, arrives, w.model)
	}
}

// told compares what each function is told of its flows.
func (w *row) told() {
	for i, fn := range w.inChain() {
		var want []string
		for f, flow := range w.flows {
			for d, m := range w.model[i][f] {
				at, src, dst := "in", flow.Src, flow.Dst
				if d == 1 {
					at, src, dst = "out", dst, src
				}
				if m.verdict != datapath.Judge {
					want = append(want, fmt.Sprintf("%d at %s: 17 %s %s vlan 65535 reply false: %d", m.verdict, at, src, dst, m.missed))
				}
			}
		}
		w.listed(fn, want...)
	}
}
