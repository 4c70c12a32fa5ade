package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "xdp: these tests make network namespaces and load BPF programs: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bench is a namespace with two links: frames enter at in0, and out0 leads to sink0.
type bench struct{ space string }

func newBench(t testing.TB) bench {
	t.Helper()
	b := bench{filepath.Join(t.TempDir(), "ns")}
	if err := netns.Create(b.space, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Delete(b.space); err != nil {
			t.Error(err)
		}
	})
	for _, pair := range [][2]string{{"in0", "in1"}, {"out0", "sink0"}} {
		o := netns.VethOptions{HostName: pair[0], PeerName: pair[1], Alias: "weir:test:" + pair[0], Quiet: true}
		if _, err := netns.Veth(b.space, b.space, o); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b bench) at(name string) Place { return Place{Space: b.space, Link: name} }

// index of a link.
func (b bench) index(t testing.TB, name string) (index int) {
	t.Helper()
	err := netns.Do(b.space, func() error {
		ifi, err := net.InterfaceByName(name)
		if err == nil {
			index = ifi.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func newGenerator(t testing.TB, o Options) *Generator {
	t.Helper()
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func flow(i int) traffic.Flow {
	return traffic.Flow{
		SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}, DstMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddr("10.9.0.1"), Dst: netip.MustParseAddr("10.9.0.2"), SrcPort: uint16(1000 + i), DstPort: 9,
	}
}

func six(i int) traffic.Flow {
	f := flow(i)
	f.Src, f.Dst = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	return f
}

func tagged(f traffic.Flow) traffic.Flow { f.VLAN = 42; return f }

// run does one whole run and checks its books. On a machine that is busy with other things the generator may not get to run in the time of a
// run: that one shows nothing, and another is made.
func run(t testing.TB, g *Generator, s traffic.Spec) traffic.Count {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		c := runThrough(t, g, s, func() bool { return true })
		if c.Sent > 0 {
			return c
		}
		if time.Now().After(end) {
			t.Fatalf("nothing was sent in any run of a minute: %+v", s)
		}
	}
}

// runThrough something that may be slower than any time that a sink waits: passed tells whether it is done with what was sent.
func runThrough(t testing.TB, g *Generator, s traffic.Spec, passed func() bool) traffic.Count {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.Duration+30*time.Second)
	defer cancel()
	err := g.Arm(ctx, s)
	if err == nil {
		err = g.Start(ctx, time.Now().Add(10*time.Millisecond))
	}
	for err == nil && !passed() {
		select {
		case <-ctx.Done():
			t.Fatal("what was sent is still on its way")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err == nil {
		err = g.Drain(ctx, 50*time.Millisecond, 5*time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	return c
}

func TestEveryKindOfFrameArrivesWhole(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: -1})
	many := make([]traffic.Flow, 20)
	for i := range many {
		many[i] = flow(i)
	}
	for name, s := range map[string]traffic.Spec{
		"64 bytes":       {Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}},
		"1518 bytes":     {Flows: []traffic.Flow{flow(0)}, Sizes: []int{1518}},
		"odd size":       {Flows: []traffic.Flow{flow(0)}, Sizes: []int{777}},
		"IMIX, 20 flows": {Flows: many, Sizes: traffic.IMIX()},
		"IPv6":           {Flows: []traffic.Flow{six(0)}, Sizes: []int{82, 1518}},
		"VLAN":           {Flows: []traffic.Flow{tagged(flow(0)), flow(1)}, Sizes: []int{64, 100}},
		"IPv6 in VLAN":   {Flows: []traffic.Flow{tagged(six(0))}, Sizes: []int{90}},
	} {
		s.Rate, s.Duration, s.Strict = 20_000, 100*time.Millisecond, true
		c := run(t, g, s)
		if c.Intended != 2000 || c.Unique != c.Sent || c.Sent == 0 || c.Corrupted+c.Duplicated+c.Reordered+c.Foreign != 0 || c.Latency.Count != c.Unique {
			c.Latency.Buckets = nil
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestChecksumsAreRight(t *testing.T) {
	b := newBench(t)
	withGRO(t, b, "in1")
	g := newGenerator(t, Options{In: b.at("in0"), Frames: true, Sink: b.at("out0"), CPU: -1})
	got := sniff(t, b, "in1", 200)
	for sent := uint64(0); sent < 50; { // of each kind some
		sent += run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0), six(1)}, Sizes: []int{90, 301}, Rate: 10_000, Duration: 20 * time.Millisecond}).Sent
	}
	frames := got()
	if len(frames) < 50 {
		t.Fatalf("%d frames seen", len(frames))
	}
	for _, f := range frames {
		at, pseudo := 34, sum(f[26:34])
		if f[12] == 0x86 {
			at, pseudo = 54, sum(f[22:54])
		} else if fold(sum(f[14:34])) != 0xffff {
			t.Fatalf("IP checksum of % x", f[:34])
		}
		length := uint32(f[at+4])<<8 | uint32(f[at+5])
		if fold(pseudo+17+length+sum(f[at:at+int(length)])) != 0xffff {
			t.Fatalf("UDP checksum of % x", f)
		}
	}
}

// The label of a result says which CPU did the work of the path: it has to be true.
func TestChainHasItsOwnCPU(t *testing.T) {
	b := newBench(t)
	if runtime.NumCPU() < 2 {
		t.Fatal("this test needs two CPUs")
	}
	for name, o := range map[string]Options{
		"skb":   {In: b.at("in0"), Sink: b.at("in0")},
		"frame": {In: b.at("out0"), Frames: true, Sink: b.at("sink0"), SinkFrames: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, apart := range []bool{false, true} {
				o.CPU, o.Apart, o.Chain = 0, apart, 1
				g := newGenerator(t, o)
				c := run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0), flow(1)}, Sizes: []int{64}, Rate: 20_000, Duration: 200 * time.Millisecond})
				want := uint64(1)
				if apart {
					want = 2
				}
				if c.Unique == 0 || c.CPUs != want {
					t.Errorf("apart %v: %d of %d frames arrived, on CPUs %b: want %b", apart, c.Unique, c.Sent, c.CPUs, want)
				}
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if _, err := New(Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0, Apart: true, Chain: 0}); err == nil {
		t.Error("one CPU for both: accepted")
	}
}

// At full speed, where not each frame reads the clock, the sink's times are still those of the run. Latencies would say how long queues are, and are left out.
func TestAFloodIsTimed(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: -1})
	c := run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Duration: 300 * time.Millisecond})
	if c.Unique < 100_000 || c.Unique != c.Sent || c.Span < 250*time.Millisecond || c.Span > 310*time.Millisecond {
		t.Errorf("%d of %d frames within %s: want 0.3 s", c.Unique, c.Sent, c.Span)
	}
	if l := c.Latency; l.Count+uint64(l.Sum+l.Min+l.Max) != 0 {
		t.Errorf("latencies of a flood: %d, %s in all", l.Count, l.Sum)
	}
}

func TestMaskOfCPU(t *testing.T) {
	for cpu, want := range map[int]string{0: "1", 5: "20", 31: "80000000", 32: "1,00000000", 65: "2,00000000,00000000"} {
		if got := mask(cpu); got != want {
			t.Errorf("CPU %d: %s, want %s", cpu, got, want)
		}
	}
}

// By the sink's own clock the frames come at the rate that was asked for: a few more or less at both ends.
func TestPaceIsSeenAtTheSink(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: -1})
	c := run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: 1000, Duration: 500 * time.Millisecond})
	if c.Span <= 0 || c.Span > c.Took+time.Second {
		t.Fatalf("%d frames in %s, in %s by the sink", c.Unique, c.Took, c.Span)
	}
	if got, want := c.Pace(), float64(c.Unique-1)/c.Span.Seconds(); got != want || (traffic.Count{Unique: 1, Span: 1}).Pace() != 0 {
		t.Errorf("pace %v, want %v", got, want)
	}
}

func TestRateIsKept(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0})
	ceiling := run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Duration: 300 * time.Millisecond}).Rate()
	t.Logf("ceiling %.2f Mpps", ceiling/1e6)
	for _, rate := range []float64{1e3, 1e4, 1e5, 0.5 * ceiling, 0.8 * ceiling} {
		// The rate is the program's affair as long as it has the CPU; what another process takes away shows as skipped, not as a wrong rate.
		c := run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: rate, Duration: 500 * time.Millisecond})
		t.Logf("%9.0f frames/s: %d intended, %d sent, %d late, %d skipped", rate, c.Intended, c.Sent, c.Late, c.Skipped)
		if want := uint64(rate / 2); c.Intended+1 < want || c.Intended > want+1 {
			t.Errorf("%d intended, want %d", c.Intended, want)
		}
		if c.Lost != 0 {
			t.Errorf("%.0f frames/s: %d lost on no way at all", rate, c.Lost)
		}
	}
}

// hog takes a CPU away from all ordinary threads for a while.
func hog(t *testing.T, cpu int, d time.Duration) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		var one unix.CPUSet
		one.Set(cpu)
		err := unix.SchedSetaffinity(0, &one)
		first()
		for end := time.Now().Add(d); err == nil && time.Now().Before(end); {
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What a sender could not send when it was held up leaves a little later, a little faster; all of it, if that was not for long.
func TestLateFramesAreMadeGood(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0})
	for _, c := range []struct {
		held time.Duration
		good func(c traffic.Count) bool
	}{
		{5 * time.Millisecond, func(c traffic.Count) bool { return c.Late >= 300 && c.Skipped == 0 && c.OnTime() < 1 }},
		{3 * catchUp, func(c traffic.Count) bool { return c.Late >= 5000 && c.Skipped >= 3000 && c.Skipped < c.Late }},
	} {
		var got traffic.Count
		for range 20 { // others may hold it up, too
			over := make(chan struct{})
			time.AfterFunc(100*time.Millisecond, func() { defer close(over); hog(t, 0, c.held) })
			got = run(t, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: 100_000, Duration: 600 * time.Millisecond})
			<-over
			if got.Lost != 0 || got.Duplicated != 0 || got.Sent+got.Skipped != got.Intended {
				t.Fatalf("held up for %s: %+v", c.held, got)
			}
			if c.good(got) {
				break
			}
		}
		t.Logf("held up for %s: %d of %d late, %d skipped", c.held, got.Late, got.Intended, got.Skipped)
		if !c.good(got) {
			t.Errorf("held up for %s: %+v", c.held, got)
		}
	}
}

// TestSaboteurIsCaught: a function in user space loses, repeats, swaps and damages frames; each is counted exactly.
func TestSaboteurIsCaught(t *testing.T) {
	b := newBench(t)
	withGRO(t, b, "in1")
	g := newGenerator(t, Options{In: b.at("in0"), Frames: true, Sink: b.at("sink0"), CPU: -1})
	s := startSaboteur(t, b, "in1", "out0")
	spec := traffic.Spec{Flows: []traffic.Flow{flow(0), six(0)}, Sizes: []int{90, 200}, Rate: 5_000, Duration: 800 * time.Millisecond, Strict: true}
	c := runThrough(t, g, spec, func() bool {
		c, err := g.Read()
		if err != nil {
			t.Fatal(err)
		}
		return s.finished.Load() >= c.Sent
	})
	did := s.stop()
	if did.lost == 0 || did.repeated == 0 || did.swapped == 0 || did.damaged == 0 || did.seen != c.Sent {
		t.Fatalf("the saboteur saw %d of %d frames and did too little: %+v", did.seen, c.Sent, did)
	}
	got := deeds{seen: c.Sent, lost: c.Lost - c.Corrupted, repeated: c.Duplicated, swapped: c.Reordered, damaged: c.Corrupted}
	if diff := cmp.Diff(did, got, cmp.AllowUnexported(deeds{})); diff != "" {
		t.Errorf("done (-) and counted (+):\n%s", diff)
	}
}

func TestLatencyIsMeasured(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("sink0"), Batch: 1, CPU: 0})
	d, err := NewDelay(b.at("in0"), "out0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: 2_000, Duration: 500 * time.Millisecond}
	var median [2]time.Duration
	for i, delay := range []time.Duration{0, 100 * time.Microsecond} {
		if err := d.Set(delay); err != nil {
			t.Fatal(err)
		}
		c := run(t, g, spec)
		m, ok := c.Latency.Quantile(0.5)
		if !ok {
			t.Fatalf("no median of %d frames", c.Latency.Count)
		}
		median[i] = m
		if delay > 0 && c.Latency.Min < delay {
			t.Errorf("a frame that was held back for %s is said to have taken %s", delay, c.Latency.Min)
		}
	}
	t.Logf("median without delay %s, with 100 us %s", median[0], median[1])
	// What is left after the hold is the second half of the way: less than the whole way without a hold. What is told is the middle of a bucket,
	// which is 1024 ns wide there.
	if off := median[1] - 100*time.Microsecond; off < -512 || off > median[0]+5*time.Microsecond {
		t.Errorf("with a delay of 100 us the median is %s", median[1])
	}
}

func TestLeavesLinksAsTheyWere(t *testing.T) {
	b := newBench(t)
	before := features(t, b)
	g, err := New(Options{In: b.at("in0"), Sink: b.at("sink0"), CPU: -1})
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(before, features(t, b)) {
		t.Error("GRO was not turned on: the test shows nothing")
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, features(t, b)); diff != "" {
		t.Error(diff)
	}
}

func TestStopsWithItsContext(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: -1})
	ctx, cancel := context.WithCancel(t.Context())
	if err := g.Arm(ctx, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: 1000, Duration: time.Minute}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	begun := time.Now()
	if err := g.Start(ctx, begun); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("took %s to stop", took)
	}
}

func TestRefusesWhatCannotBeSent(t *testing.T) {
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: -1})
	good := traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: 1000, Duration: time.Second}
	for name, change := range map[string]func(*traffic.Spec){
		"no flow":              func(s *traffic.Spec) { s.Flows = nil },
		"too small":            func(s *traffic.Spec) { s.Sizes = []int{63} },
		"too small for IPv6":   func(s *traffic.Spec) { s.Flows = []traffic.Flow{six(0)} },
		"too large":            func(s *traffic.Spec) { s.Sizes = []int{1519} },
		"too many for a run":   func(s *traffic.Spec) { s.Rate, s.Duration = 1e7, time.Minute },
		"no time":              func(s *traffic.Spec) { s.Duration = 0 },
		"two families at once": func(s *traffic.Spec) { s.Flows[0].Dst = six(0).Dst },
		"too many slots":       func(s *traffic.Spec) { s.Sizes = slices.Repeat([]int{64}, 5000) },
	} {
		s := good
		s.Flows = append([]traffic.Flow{}, good.Flows...)
		change(&s)
		if err := g.Arm(t.Context(), s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(Options{In: Place{b.space, "nosuch"}, Sink: b.at("in0")}); err == nil {
		t.Error("a link that does not exist: accepted")
	}
}

// withGRO makes a link take XDP frames from the other end of its pair.
func withGRO(t *testing.T, b bench, name string) {
	t.Helper()
	err := netns.Do(b.space, func() error {
		return ethtool.Change(name, map[string]bool{"rx-gro": true})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// features of the link where frames enter.
func features(t *testing.T, b bench) (f map[string]ethtool.Feature) {
	t.Helper()
	err := netns.Do(b.space, func() (err error) {
		f, err = ethtool.Features("in0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func BenchmarkCeiling(b *testing.B) {
	bn := newBench(b)
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"skb", Options{In: bn.at("in0"), Sink: bn.at("in0"), CPU: 0}},
		{"frame", Options{In: bn.at("out0"), Frames: true, Sink: bn.at("sink0"), SinkFrames: true, CPU: 0}},
	} {
		b.Run(c.name, func(b *testing.B) {
			g := newGenerator(b, c.o)
			for b.Loop() {
				before := cpuTime(b)
				n := run(b, g, traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Duration: time.Second})
				b.ReportMetric(n.Rate()/1e6, "Mpps")
				b.ReportMetric(float64(cpuTime(b)-before)/float64(n.Sent), "cpu-ns/frame")
				b.ReportMetric(float64(n.Lost)/float64(n.Sent), "lost")
			}
		})
	}
}

// cpuTime of this process: what others take away does not count.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// deeds of the saboteur.
type deeds struct{ seen, lost, repeated, swapped, damaged uint64 }

type saboteur struct {
	done     deeds
	finished atomic.Uint64 // frames that it is done with
	held     []byte        // waits for the one that it changes places with
	between  []byte
	end      chan struct{}
	ended    sync.WaitGroup
}

// startSaboteur forwards from one link to the other. Of each 20 frames it loses the 3rd, repeats the 7th, damages the 11th and swaps the 15th
// with the 17th (of the same flow: flows take turns).
func startSaboteur(t *testing.T, b bench, from, to string) *saboteur {
	t.Helper()
	in, out := rawSocket(t, b, from), rawSocket(t, b, to)
	s := &saboteur{end: make(chan struct{})}
	send := func(f []byte) {
		if err := unix.Sendto(out, f, 0, &unix.SockaddrLinklayer{Ifindex: b.index(t, to)}); err != nil {
			t.Error(err)
		}
	}
	s.ended.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := unix.Recvfrom(in, buf, 0)
			if err != nil { // its time out
				select {
				case <-s.end:
					return
				default:
					continue
				}
			}
			f := append([]byte{}, buf[:n]...)
			s.done.seen++
			switch s.done.seen % 20 {
			case 3:
				s.done.lost++
			case 7:
				send(f)
				send(f)
				s.done.repeated++
			case 11:
				f[len(f)-1-int(s.done.seen)%20] ^= 1
				send(f)
				s.done.damaged++
			case 15:
				s.held = f
			case 16:
				s.between = f
			case 17:
				send(f)
				send(s.between)
				send(s.held)
				s.held, s.between = nil, nil
				s.done.swapped++
			default:
				send(f)
			}
			s.finished.Store(s.done.seen)
		}
	})
	return s
}

func (s *saboteur) stop() deeds {
	close(s.end)
	s.ended.Wait()
	for _, f := range [][]byte{s.held, s.between} { // they wait for good
		if f != nil {
			s.done.lost++
		}
	}
	return s.done
}

// rawSocket receives what a link receives, and gives up each 100 ms.
func rawSocket(t *testing.T, b bench, name string) (fd int) {
	t.Helper()
	err := netns.Do(b.space, func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: b.index(t, name)}), // ETH_P_ALL
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// sniff collects up to limit frames that a link receives until the returned function is called.
func sniff(t *testing.T, b bench, name string, limit int) func() [][]byte {
	t.Helper()
	fd := rawSocket(t, b, name)
	return func() (frames [][]byte) {
		buf := make([]byte, 2048)
		for len(frames) < limit {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return frames
			}
			frames = append(frames, append([]byte{}, buf[:n]...))
		}
		return frames
	}
}
