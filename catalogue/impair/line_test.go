package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func parsed(t testing.TB, text string) *config {
	t.Helper()
	cfg, err := parseConfig([]byte(text))
	must(t, err)
	return &cfg
}

// numbered is a frame of no known type that says which it is.
func numbered(n uint32, size int) nf.Frame {
	b := make([]byte, max(size, 18))
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x12, 0x34})
	binary.BigEndian.PutUint32(b[14:], n)
	return nf.NewFrame(b)
}

func numberOf(f nf.Frame) uint32 { return binary.BigEndian.Uint32(f.Data[14:]) }

// arrival of a frame, as it came out.
type arrival struct {
	number uint32
	at     time.Duration
}

// through sends frames at a steady pace through one direction, on a clock of its own.
func through(t testing.TB, text string, n, size int, pace time.Duration) (all []arrival, l *line) {
	t.Helper()
	m, begin := newImpairer(parsed(t, text)), time.Unix(1e9, 0)
	now := begin
	get := func(_ nf.Dir, f nf.Frame) { all = append(all, arrival{numberOf(f), now.Sub(begin)}) }
	until := func(end time.Time) {
		for {
			next := m.due(now, get)
			if next.IsZero() || next.After(end) {
				break
			}
			now = next
		}
		now = end
	}
	for i := range n {
		until(begin.Add(time.Duration(i) * pace))
		if f := numbered(uint32(i), size); m.handle(nf.Up, f, now) == nf.Pass {
			get(nf.Up, f)
		}
	}
	until(now.Add(time.Minute))
	return all, m.lines[nf.Up]
}

func numbers(all []arrival) (out []uint32) {
	for _, a := range all {
		out = append(out, a.number)
	}
	return out
}

func TestSharesAreAsConfigured(t *testing.T) {
	const n = 100_000
	near := func(what string, got uint64, want float64) {
		t.Helper()
		if math.Abs(float64(got)/n-want) > 0.005 {
			t.Errorf("%s: %d of %d: want a share of %g", what, got, n, want)
		}
	}
	all, l := through(t, `{"up": {"loss": "10%", "duplicate": "5%", "reorder": "2%", "hold": "5ms"}}`, n, 60, time.Millisecond)
	near("lost", l.count.lost, 0.1)
	near("doubled", l.count.doubled, 0.9*0.05)
	near("held", l.count.held, 0.9*0.02)
	if uint64(len(all)) != n-l.count.lost+l.count.doubled {
		t.Errorf("%d came out: want %d", len(all), n-l.count.lost+l.count.doubled)
	}
	all, l = through(t, `{"up": {"loss": "10%", "loss_burst": 5}}`, n, 60, time.Millisecond)
	near("lost in bursts", l.count.lost, 0.1)
	bursts, before := 0, int64(-1)
	for _, a := range all {
		if int64(a.number) > before+1 {
			bursts++
		}
		before = int64(a.number)
	}
	if mean := float64(l.count.lost) / float64(bursts); mean < 4.5 || mean > 5.5 {
		t.Errorf("%.2f lost in a row in the mean: want 5", mean)
	}
	if all, _ = through(t, `{"up": {"loss": "100%"}}`, 1000, 60, time.Millisecond); len(all) > 0 {
		t.Errorf("%d passed a loss of 100%%", len(all))
	}
}

func TestTheSameSeedTheSameFates(t *testing.T) {
	const text = `{"up": {"loss": "10%%", "duplicate": "5%%", "reorder": "5%%", "delay": "20ms", "jitter": "10ms"}, "seed": %d}`
	first, _ := through(t, fmt.Sprintf(text, 7), 5000, 60, time.Millisecond)
	again, _ := through(t, fmt.Sprintf(text, 7), 5000, 1400, time.Millisecond)
	other, _ := through(t, fmt.Sprintf(text, 8), 5000, 60, time.Millisecond)
	if !slices.Equal(first, again) || slices.Equal(numbers(first), numbers(other)) {
		t.Error("fates do not follow from the seed")
	}
}

func TestTimes(t *testing.T) {
	all, _ := through(t, `{"up": {"delay": "20ms"}}`, 100, 60, time.Millisecond)
	for i, a := range all {
		if a.number != uint32(i) || a.at != time.Duration(i+20)*time.Millisecond {
			t.Fatalf("frame %d came at %s: want %d ms", a.number, a.at, i+20)
		}
	}
	for _, order := range []bool{true, false} {
		all, _ = through(t, fmt.Sprintf(`{"up": {"delay": "20ms", "jitter": "10ms", "keep_order": %t}}`, order), 10_000, 60, time.Millisecond)
		if slices.IsSorted(numbers(all)) != order {
			t.Errorf("keep_order %t: in order %t", order, !order)
		}
		var sum time.Duration
		for _, a := range all {
			d := a.at - time.Duration(a.number)*time.Millisecond
			if sum += d; d < 10*time.Millisecond || d > 30*time.Millisecond {
				t.Fatalf("a delay of %s: want 10 to 30 ms", d)
			}
		}
		if mean := sum / 10_000; !order && (mean < 19*time.Millisecond || mean > 21*time.Millisecond) {
			t.Errorf("a mean delay of %s: want 20 ms", mean)
		}
	}
	all, l := through(t, `{"up": {"reorder": "10%", "hold": "10ms"}}`, 1000, 60, time.Millisecond)
	late := 0
	for _, a := range all {
		switch a.at - time.Duration(a.number)*time.Millisecond {
		case 0:
		case 10 * time.Millisecond:
			late++
		default:
			t.Fatalf("frame %d came at %s", a.number, a.at)
		}
	}
	if uint64(late) != l.count.held || late < 50 || slices.IsSorted(numbers(all)) {
		t.Errorf("%d of %d held frames were late", late, l.count.held)
	}
}

// 1000 bytes each millisecond are 8 Mbit/s. Half of that passes at 4 Mbit/s, and what waits is bounded.
func TestRate(t *testing.T) {
	all, l := through(t, `{"up": {"rate": "4Mbit", "queue": "400ms"}}`, 10_000, 1000, time.Millisecond)
	if len(all) < 5000 || len(all) > 5300 || uint64(len(all))+l.count.queueFull != 10_000 {
		t.Errorf("%d passed, %d did not: want half, and what the queue holds", len(all), l.count.queueFull)
	}
	for i, a := range all[1:] {
		if wait, gap := a.at-time.Duration(a.number)*time.Millisecond, a.at-all[i].at; wait > 403*time.Millisecond || gap < 2*time.Millisecond {
			t.Fatalf("frame %d waited %s, %s behind the one before: want at most 402 ms, and 2 ms", a.number, wait, gap)
		}
	}
}

func TestBufferIsBounded(t *testing.T) {
	all, l := through(t, `{"up": {"delay": "10s"}, "buffer": "64KB"}`, 1000, 1000, time.Millisecond)
	if want := 64_000 / (1000 + overhead); len(all) != want || l.count.bufferFull != uint64(1000-want) || l.bytes != 0 {
		t.Errorf("%d passed, %d had no room, %d bytes are left: want %d", len(all), l.count.bufferFull, l.bytes, want)
	}
}

func TestSelection(t *testing.T) {
	v4 := func(proto byte, src, dst byte, sport, dport uint16) []byte {
		f := make([]byte, 74)
		copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 60})
		f[23] = proto
		copy(f[26:], []byte{10, 0, 0, src, 10, 0, 0, dst})
		binary.BigEndian.PutUint16(f[34:], sport)
		binary.BigEndian.PutUint16(f[36:], dport)
		if f[46] = 0x50; proto == nf.UDP {
			binary.BigEndian.PutUint16(f[38:], 40)
		}
		return f
	}
	arp := numbered(0, 60).Data
	copy(arp[12:], []byte{8, 6})
	for text, want := range map[string][]bool{ // tcp 1:5000 > 2:80, udp 3:80 > 2:5050, icmp, arp, an unknown type
		`{}`: {true, true, true, true, true}, `{"match": ["all"]}`: {true, true, true, true, true}, `{"match": ["ip"]}`: {true, true, true, false, false},
		`{"match": ["tcp"]}`: {true, false, false, false, false}, `{"match": ["udp/5000-5100", "arp"]}`: {false, true, false, true, false}, `{"match": ["tcp/80"]}`: {true, false, false, false, false},
		`{"match": ["tcp/81", "udp/79"]}`: {false, false, false, false, false}, `{"match": ["icmp"]}`: {false, false, true, false, false}, `{"networks": ["10.0.0.3/32"]}`: {false, true, false, false, false},
		`{"networks": ["10.0.0.2/31"], "match": ["tcp"]}`: {true, false, false, false, false},
	} {
		cfg := parsed(t, text)
		for i, f := range [][]byte{v4(nf.TCP, 1, 2, 5000, 80), v4(nf.UDP, 3, 2, 80, 5050), v4(icmp4, 1, 2, 0, 0), arp, numbered(0, 60).Data} {
			if p := nf.Decode(f); p.Bad != "" || cfg.selects(&p) != want[i] {
				t.Errorf("%s: frame %d: %t (%s): want %t", text, i, !want[i], p.Bad, want[i])
			}
		}
	}
}

func TestParseConfig(t *testing.T) {
	for text, want := range map[string]string{
		`{"up": {"delay": "11s"}}`: "up: delay 11s: want 0 to 10s", `{"up": {"delay": 5}}`: "want a text", `{"down": {"delay": "1ms", "jitter": "2ms"}}`: "down: jitter 2ms: want at most the delay",
		`{"up": {"loss": "101%"}}`: "at most 100%", `{"up": {"loss": "90%", "loss_burst": 2}}`: "want at most 66.7%", `{"up": {"loss_burst": 0.5}}`: "want 1 to 1000",
		`{"up": {"rate": "1kbit"}}`: "want 8kbit to 20Gbit", `{"up": {"queue": "1ms"}}`: "there is no rate", `{"up": {"hold": "1ms"}}`: "nothing is held back",
		`{"buffer": "1KB"}`: "want 64KB to 128MB", `{"match": ["sctp"]}`: `"sctp": want all`, `{"match": ["icmp/1"]}`: "want all", `{"match": ["tcp/9-8"]}`: "want all", `{"match": ["tcp/0"]}`: "want all",
		`{"match": ["tcp/65536"]}`: "want all", `{"networks": ["10.0.0.1"]}`: "no '/'", `{"x": 1}`: "unknown field", `{} {}`: "more than one", `{"seed": -1}`: "seed",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	if cfg := parsed(t, ``); cfg.Seed != 1 || cfg.Buffer != defaultBuffer || !cfg.Up.idle() || !cfg.Down.idle() {
		t.Errorf("%+v", cfg)
	}
}

// A million random frames: none changes, none comes out that did not go in, and memory is bounded.
func TestAMillionFrames(t *testing.T) {
	frames := 1_000_000
	if testing.Short() {
		frames = 100_000
	}
	m := newImpairer(parsed(t, `{"up": {"delay": "5ms", "jitter": "5ms", "loss": "3%", "duplicate": "3%", "reorder": "3%"}, "down": {"rate": "1Gbit", "delay": "1ms"}, "buffer": "500KB"}`))
	random := rand.New(rand.NewPCG(5, 6))
	kinds := [][]byte{{8, 0, 0x45}, {0x86, 0xdd, 0x60}, {0x81, 0, 0, 42, 8, 0, 0x45}, {8, 6}, {0x88, 0xa8, 0, 1}, {0x12, 0x34}, {}}
	now, out := time.Unix(1e9, 0), 0
	seed := maphash.MakeSeed()
	digest := func(b []byte) uint64 { return maphash.Bytes(seed, b) }
	given := map[uint64]bool{} // digests
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	for i := range frames {
		now = now.Add(10 * time.Microsecond)
		b := make([]byte, 14+random.IntN(200))
		for j := range b {
			b[j] = byte(random.Uint32())
		}
		if i%100 == 0 {
			b = append(b, make([]byte, 60_000)...)
		}
		copy(b[12:], kinds[random.IntN(len(kinds))])
		keep := bytes.Clone(b)
		f := nf.NewFrame(b)
		given[digest(b)] = true
		d := nf.Dir(i % 2)
		if m.handle(d, f, now) == nf.Pass {
			out++
		}
		if !bytes.Equal(f.Data, keep) {
			t.Fatal("it changed a frame")
		}
		m.due(now, func(_ nf.Dir, f nf.Frame) {
			if out++; !given[digest(f.Data)] {
				t.Fatalf("what did not go in came out: % x", f.Data[:min(60, len(f.Data))])
			}
		})
		most = max(most, m.lines[0].bytes, m.lines[1].bytes)
	}
	m.due(now.Add(time.Hour), func(nf.Dir, nf.Frame) {})
	clear(given)
	given = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	u, w := m.lines[nf.Up].count, m.lines[nf.Down].count
	t.Logf("%d frames, %d out; up %+v, down %+v; at most %d bytes waited; %d KB more memory", frames, out, u, w, most, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if most > 500_000 || after.HeapAlloc > before.HeapAlloc+8<<20 {
		t.Errorf("%d bytes waited, %d more memory: want at most 500 KB and 8 MiB", most, after.HeapAlloc-before.HeapAlloc)
	}
	if u.lost == 0 || u.doubled == 0 || u.held == 0 || w.queueFull+w.bufferFull+u.bufferFull == 0 {
		t.Error("an impairment never happened")
	}
}
