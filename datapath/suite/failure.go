package suite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// testDown: what happens to frames whose next function is down.
func testDown(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	r.Station("carol")
	function := func(name string, f datapath.OnFail) hop {
		return hop{fn: r.Inline(datapath.Function{Name: name, OnFail: f})}
	}
	// Two chains: in one all functions are bypassed, around a tap; in the other one drops in the middle.
	bypassed, dropping := []hop{}, []hop{}
	for i := range 3 {
		bypassed = append(bypassed, function(fmt.Sprintf("b%d", i), datapath.FailBypass))
	}
	mon := hop{fn: r.Tap("mon"), tap: true}
	bypassed = append(bypassed[:2:2], mon, bypassed[2])
	dropping = append(dropping, bypassed[0], function("d", datapath.FailDrop), bypassed[1])
	w := newTwins(t, r)
	for _, c := range []struct {
		name  string
		chain []hop
		down  []string
	}{
		{"none", bypassed, nil},
		{"first, bypass", bypassed, []string{"b0"}},
		{"last, bypass", bypassed, []string{"b2"}},
		{"two in a row, bypass", bypassed, []string{"b0", "b1"}},
		{"all, bypass", bypassed, []string{"b0", "b1", "b2"}},
		{"the tap", bypassed, []string{"mon"}},
		{"all and the tap", bypassed, []string{"b0", "b1", "b2", "mon"}},
		{"drop in the middle", dropping, []string{"d"}},
		{"drop behind a bypass", dropping, []string{"b0", "d"}},
	} {
		for _, mode := range modes {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				w.t = t
				for _, name := range c.down {
					w.state(name, datapath.Down)
				}
				p := policy{mode: mode, from: alice, to: bob, chain: c.chain, match: flow.Match{EtherType: 0x1234}, cookie: 1}
				w.commit(p.rules()...)
				w.exchange(alice, bob)
				// Up again, they are passed again.
				for _, name := range c.down {
					w.state(name, datapath.Up)
				}
				w.exchange(alice, bob)
				w.check()
			})
		}
	}
}

// exchange sends selected frames (EtherType 0x1234) both ways.
func (w *twins) exchange(a, b *Station) {
	w.t.Helper()
	for range 2 {
		for _, d := range [][2]*Station{{a, b}, {b, a}} {
			m := w.next()
			w.send("from "+d[0].Name, d[0], m, l2(d[1].MAC, d[0].MAC, nil, 0x1234, append(make([]byte, 46), m...)))
		}
	}
}

// testDead: a long chain of dead functions is bypassed.
func testDead(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	var chain []hop
	for i := range 100 {
		fn := r.Links(datapath.Function{Name: fmt.Sprintf("f%d", i), OnFail: datapath.FailBypass}, false)
		r.Plug(fn) // Down: nobody says otherwise
		chain = append(chain, hop{fn: fn})
	}
	w := newTwins(t, r)
	for _, mode := range modes {
		w.commit(policy{mode: mode, from: alice, to: bob, chain: chain, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules()...)
		w.exchange(alice, bob)
		w.check()
	}
}

// testProcess: the data plane notices a process's end by itself.
func testProcess(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	fn := r.Links(datapath.Function{Name: "f", Forwarder: "wire", OnFail: datapath.FailBypass}, false)
	r.Plug(fn)
	w := newTwins(t, r)
	w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules()...)
	state := func() datapath.State { return r.port("function/f/in").State }
	start := func() *exec.Cmd {
		c := exec.Command("sleep", "1000")
		must(t, c.Start())
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		return c
	}
	end := func(c *exec.Cmd) {
		must(t, c.Process.Kill())
		_ = c.Wait()
	}
	up := func(pid int) {
		t.Helper()
		must(t, r.Switch.SetState(Context(t), "f", datapath.Up, pid))
	}

	first := start()
	up(first.Process.Pid)
	if state() != datapath.Up {
		t.Fatal("not up")
	}
	w.state("f", datapath.Up) // without a process: its end means nothing any more
	end(first)
	if state() != datapath.Up {
		t.Error("down by the end of a process that it is no longer tied to")
	}
	second, third := start(), start()
	up(second.Process.Pid)
	up(third.Process.Pid)
	end(second)
	if state() != datapath.Up {
		t.Error("down by the end of its former process")
	}
	unattended := r.can(Unattended)
	r.Close() // nobody is there
	end(third)
	must(t, w.ref.SetDown("f", true))
	if unattended {
		w.exchange(alice, bob)
	}
	r.Reopen()
	if state() != datapath.Down {
		t.Error("up although its process ended")
	}
	w.exchange(alice, bob)
	w.check()
	fourth := start()
	up(fourth.Process.Pid)
	end(fourth)
	Until(t, "down at the end of its process", func() bool { return state() == datapath.Down })
	up(third.Process.Pid) // no longer there
	if state() != datapath.Down {
		t.Error("up with a process that had ended before")
	}
}

// testProbe: a probe goes through a function, and nowhere else.
func testProbe(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	wire, own, tap := r.Wire("wire"), r.Inline(datapath.Function{Name: "own"}), r.Tap("tap")
	r.Commit(policy{mode: "exhaustive", from: alice, to: bob, chain: []hop{{fn: wire}, {fn: own}, {fn: tap, tap: true}}, cookie: 1}.rules()...)
	for _, fn := range []*Function{wire, own} {
		for range 3 {
			p, err := r.Switch.Probe(Context(t), fn.Name)
			must(t, err)
			if p.RTT <= 0 {
				t.Errorf("round trip of %s: %s", fn.Name, p.RTT)
			}
		}
	}
	r.Inline(datapath.Function{Name: "other"})
	all := []string{"wire", "own", "other", "tap", "nobody"}
	passed := func(want ...string) {
		t.Helper()
		for range 5 { // what came out of one round is no answer to the next
			begin := time.Now()
			short, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			got, err := r.Switch.ProbeAll(short, all)
			cancel()
			must(t, err)
			if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
				t.Fatalf("probes came out of %q, want %q", names, want)
			}
			for name, p := range got {
				if p.RTT <= 0 || p.RTT > time.Since(begin) {
					t.Errorf("round trip of %s: %s of %s", name, p.RTT, time.Since(begin))
				}
			}
		}
	}
	passed("other", "own", "wire")
	own.pump.stop() // it hangs
	passed("other", "wire")
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Switch.Probe(short, "own"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a function that passes nothing on was probed: %v", err)
	}
	ctx := Context(t)
	for _, name := range []string{"tap", "nobody"} {
		if _, err := r.Switch.Probe(ctx, name); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("probe %s: %v, want ErrNotFound", name, err)
		}
	}
	for _, st := range []*Station{alice, bob} {
		if n := st.Count(); n > 0 {
			t.Errorf("%s got %d frames", st.Name, n)
		}
	}
	if n := tap.Sockets["tap"].Count(); n > 0 {
		t.Errorf("the tap got %d frames", n)
	}
}

// testForgedProbes: whatever a station sends, it neither hides that a function is alive nor that it hangs, and its own frames of the probes'
// type are frames as any others.
func testForgedProbes(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob, fn := r.Station("alice"), r.Station("bob"), r.Inline(datapath.Function{Name: "f", OnFail: datapath.FailBypass})
	r.Commit(policy{mode: "exhaustive", from: alice, to: bob, chain: []hop{{fn: fn}}, cookie: 1}.rules()...)
	probe := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		_, err := r.Switch.Probe(ctx, "f")
		return err
	}
	must(t, probe(patience))
	// What no station can see: the function's own view of a probe.
	Until(t, "the function has seen the probe", func() bool { return len(fn.Sockets["in"].Frames([]byte{0x88, 0xb5})) == 1 })
	seen := fn.Sockets["in"].Frames([]byte{0x88, 0xb5})[0]
	former := l2(flow.MAC{0x06, 0x57, 0xff, 'p', 'r', 'o'}, flow.MAC{0x06, 0x57, 0xff, 'p', 'r', 'f'}, nil, 0x88b5, append([]byte("Weir"), make([]byte, 42)...))
	forged := [][]byte{former, l2(bob.MAC, alice.MAC, nil, 0x88b5, seen[14:]), l2(flow.MAC(seen[:6]), alice.MAC, nil, 0x88b5, seen[14:])}
	const rounds = 5000
	flood := func() (done chan struct{}) {
		done = make(chan struct{})
		go func() {
			defer close(done)
			for i := range rounds {
				f := slices.Clone(forged[i%len(forged)])
				binary.BigEndian.PutUint32(f[18:], 1+uint32(i)%4096) // the former frames' slots
				binary.BigEndian.PutUint32(f[22:], uint32(i))
				for _, b := range [][]byte{f, seen} { // a replay after each
					_ = alice.send(b)
					for end := time.Now().Add(patience); i > 64+bob.Count() && time.Now().Before(end); {
						runtime.Gosched()
					}
				}
			}
		}()
		return done
	}
	before := r.ports()
	done := flood()
	probes := 0
	for running := true; running; probes++ {
		if err := probe(patience); err != nil {
			t.Fatalf("probe %d of a function that is alive: %v", probes, err)
		}
		select {
		case <-done:
			running = false
		default:
		}
	}
	Until(t, "all forged frames come to bob", func() bool { return len(bob.Frames([]byte{0x88, 0xb5})) >= rounds })
	if n := bob.Count(); n != rounds { // the replays ended at the function's port, as probes that are late do
		t.Errorf("%d frames came to bob, want the %d that alice made", n, rounds)
	}
	if n := len(bob.Frames(seen)); n > 0 {
		t.Errorf("%d frames with the function's secret came to bob", n)
	}
	Until(t, "each forged frame is counted out of the function, and no probe", func() bool {
		return r.port("function/f/out").Rx.Packets-before["function/f/out"].Rx.Packets == rounds
	})
	fn.pump.stop() // it hangs
	bob.Forget()
	stop := make(chan struct{})
	var replay sync.WaitGroup
	replay.Go(func() { // as if somebody at the other side of the function helped
		for {
			select {
			case <-stop:
				return
			default:
				_ = fn.Sockets["out"].send(seen)
				_ = alice.send(forged[0])
			}
		}
	})
	for range 20 {
		if err := probe(20 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a function that hangs was probed: %v", err)
		}
	}
	close(stop)
	replay.Wait()
}

// testOwnWords: what a function's interfaces say for themselves stays inside, unless its contract says otherwise.
func testOwnWords(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	silent, speaks := r.Wire("silent"), r.Inline(datapath.Function{Name: "speaks", Speaks: true})
	w := newTwins(t, r)
	w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: silent}, {fn: speaks}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules()...)
	say := func(fn *Function, side string, src flow.MAC) []byte {
		m := w.next()
		fn.Sockets[side].Send(t, l2(bob.MAC, src, nil, 0x1234, append(make([]byte, 46), m...)))
		return m
	}
	var words [][]byte
	for _, side := range []string{"in", "out"} {
		for _, of := range []string{"in", "out"} {
			words = append(words, say(silent, side, r.Instance.MAC("function/silent/"+of+"/peer")))
		}
	}
	spoken := say(speaks, "out", r.Instance.MAC("function/speaks/out/peer"))
	passed := say(silent, "out", alice.MAC) // somebody else's
	for _, m := range [][]byte{spoken, passed} {
		Until(t, "what may leave", func() bool { return len(bob.Frames(m)) == 1 })
	}
	for i, m := range words {
		for name, s := range w.places() {
			if len(s.Frames(m)) > 0 {
				t.Errorf("word %d of the function's own came to %s", i, name)
			}
		}
	}
}
