package experiment

import (
	"context"
	"encoding/json"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
)

func kind(t *testing.T, name string) platform.Kind {
	t.Helper()
	k, ok := platform.Find(name)
	if !ok {
		t.Fatalf("no platform %s", name)
	}
	return k
}

// Levels that contradict each other are told with the one that would be right; what goes together has the label that stands in the report.
func TestRigOfLevels(t *testing.T) {
	for _, c := range []struct {
		platform, mode, representation string
		want, why                      string
	}{
		{"bridges", "cost", "own", "skb", ""},
		{"bridges", "loss", "skb", "skb", ""},
		{"bridges", "cost", "frame", "", "want skb"},
		{"ebpf", "loss", "frame", "", "want skb"},
		{"xdp", "cost", "own", "frame", ""},
		{"xdp", "loss", "frame", "frame", ""},
		{"xdp", "cost", "skb", "", "want frame"},
		{"veth", "cost", "own", "frame", ""},
		{"ovs", "cost", "own", "", "want loss"},
		{"ovs", "loss", "own", "skb", ""},
		{"docker", "cost", "own", "", "but through sockets"},
		{"clickos", "loss", "own", "", "but through sockets"},
	} {
		r, why := rigOf(Levels{factorMode: c.mode, factorRepresentation: c.representation}, kind(t, c.platform))
		if c.why != "" {
			if !strings.Contains(why, c.why) || !strings.Contains(why, c.platform) {
				t.Errorf("%+v: %q", c, why)
			}
			continue
		}
		if why != "" || r.representation != c.want {
			t.Errorf("%+v: %+v, %q", c, r, why)
		}
		if loss := strings.Contains(r.label(), "loss-limited"); loss != (c.mode == modeLoss) || r.kind() == "" {
			t.Errorf("%+v: %s, %s", c, r.kind(), r.label())
		}
	}
	if r, why := rigOf(Levels{}, kind(t, "bridges")); why != "" || r.mode != modeCost || r.representation != asSkb {
		t.Errorf("without levels: %+v, %q", r, why)
	}
}

func TestLoadOfLevels(t *testing.T) {
	for _, c := range []struct {
		levels Levels
		sizes  []int
		flows  int
		wrong  string
	}{
		{Levels{}, []int{64}, 1, ""},
		{Levels{factorSize: "60"}, []int{64}, 1, ""},
		{Levels{factorSize: "700"}, []int{704}, 1, ""},
		{Levels{factorSize: "1514", factorVLAN: "7"}, []int{1518}, 1, ""},
		{Levels{factorSize: "1518"}, []int{1518}, 1, ""},
		{Levels{factorSize: "imix", factorFlows: "100"}, traffic.IMIX(), 100, ""},
		{Levels{factorSize: "64", factorFlows: "4096"}, []int{64}, 4096, ""},
		{Levels{factorSize: "imix", factorFlows: "4096"}, nil, 0, "at most 4096 of both"},
		{Levels{factorSize: "64", factorIP: "6"}, nil, 0, "want 80 to 1518"},
		{Levels{factorSize: "100", factorIP: "6", factorVLAN: "7"}, []int{104}, 1, ""},
	} {
		x, err := loadOf(c.levels)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%v: %v", c.levels, err)
			}
			continue
		}
		if err != nil || !slices.Equal(x.sizes, c.sizes) || x.flows != c.flows {
			t.Errorf("%v: %+v, %v", c.levels, x, err)
		}
	}
	x, err := loadOf(Levels{factorSize: imix, factorIP: "6"})
	if err != nil || slices.Min(x.sizes) != 80 || len(x.sizes) != 12 {
		t.Errorf("IMIX of IPv6: %+v, %v", x, err)
	}
	for _, f := range append(loadFactors(), rigFactors()...) {
		if err := f.Check(f.Default); err != nil {
			t.Errorf("factor %s: its own default: %v", f.Name, err)
		}
		if err := f.Check("nonsense"); err == nil {
			t.Errorf("factor %s takes nonsense", f.Name)
		}
	}
}

func TestLoadsOfAGenerator(t *testing.T) {
	for level, want := range map[string]loadLevel{"1000": {rate: 1000}, "80%": {share: 0.8}, "100%": {share: 1}, "1e5": {rate: 1e5}} {
		if got, err := parseLoadLevel(level); err != nil || got != want {
			t.Errorf("%s: %+v, %v", level, got, err)
		}
	}
	for _, level := range []string{"", "0", "-1", "101%", "NaN", "most", "1e12"} {
		if _, err := parseLoadLevel(level); err == nil {
			t.Errorf("%q: accepted", level)
		}
	}
	if r, err := offered(mostLoad); err != nil || r != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := offered("50%"); err == nil {
		t.Error("a share of nothing known: accepted")
	}
}

func TestErrorOfARate(t *testing.T) {
	n := traffic.Count{Intended: 1000, Sent: 1000, Unique: 1000, Span: 999 * time.Millisecond}
	if v := paceValues(n, 1000); v["error"] != finest {
		t.Errorf("exact: %v", v)
	}
	n.Span = 990 * time.Millisecond
	if v := paceValues(n, 1000); v["error"] < 0.9 || v["error"] > 0.92 {
		t.Errorf("too fast: %v", v)
	}
	n.Span, n.Sent, n.Skipped = 999*time.Millisecond, 900, 100
	if v := paceValues(n, 1000); v["error"] != 10 || v["skipped"] != 10 {
		t.Errorf("a tenth was skipped: %v", v)
	}
}

func testBench(t *testing.T) *Bench {
	t.Helper()
	b, err := NewBench(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// measure a variant until something was sent: on a machine that is busy with other things a short trial may pass without.
func measure(t *testing.T, x Experiment, b *Bench, l Levels) Measurement {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if why := x.Check(ctx, b, l); why != "" {
		t.Fatalf("%v: %s", l, why)
	}
	a, err := x.Setup(ctx, b, l)
	if err != nil {
		t.Fatalf("%v: %v", l, err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	for {
		m, err := a.Measure(ctx, 100*time.Millisecond)
		switch {
		case err != nil:
			t.Fatalf("%v: %v", l, err)
		case m.Void == "" && len(m.Values) > 0:
			return m
		case !strings.Contains(m.Void, "sent nothing") && !strings.Contains(m.Void, "too few") && !strings.Contains(m.Void, "no ceiling") && !strings.Contains(m.Void, "another CPU") && !strings.Contains(m.Void, "closed loop"):
			t.Fatalf("%v: void: %s", l, m.Void)
		case ctx.Err() != nil:
			t.Fatalf("%v: nothing was sent: %s", l, m.Void)
		}
	}
}

// Each frame that enters a chain is counted behind it or lost, in both modes and representations, whatever is sent; and the work of the chain was
// done where the label says.
func TestPacketsThroughChains(t *testing.T) {
	b := testBench(t)
	for _, l := range []Levels{
		{FactorPlatform: "bridges", factorWires: "1", factorMode: "cost"},
		{FactorPlatform: "bridges", factorWires: "1", factorMode: "loss", factorFlows: "20", factorSize: imix, factorLoad: "5000"},
		{FactorPlatform: "bridges", factorWires: "1", factorMode: "cost", factorIP: "6", factorVLAN: "7", factorSize: "100"},
		{FactorPlatform: "xdp", factorWires: "2", factorMode: "cost"},
		{FactorPlatform: "xdp", factorWires: "2", factorMode: "loss", factorFlows: "20", factorSize: imix, factorLoad: "5000"},
		{FactorPlatform: "xdp", factorWires: "2", factorMode: "cost", factorIP: "6", factorVLAN: "7", factorSize: "1514"},
		{FactorPlatform: "veth", factorMode: "loss"},
	} {
		m := measure(t, ppsExperiment(), b, l)
		n := m.Raw.(SentFrames)
		if err := n.Check(m.Values); err != nil {
			t.Errorf("%v: %v", l, err)
		}
		if m.Values["rate"] <= 0 || m.Values["loss"] < 0 || m.Values["loss"] > 100 {
			t.Errorf("%v: %v", l, m.Values)
		}
		sender, chain, err := twoCPUs()
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(1) << sender
		if l[factorMode] == "loss" {
			want = 1 << chain
		}
		if n.CPUs != want {
			t.Errorf("%v: counted on %d CPUs, %b: want %b (%s)", l, bits.OnesCount64(n.CPUs), n.CPUs, want, m.Conditions[condMode])
		}
	}
}

// TestClosedLoopIsClosed: batches are found that lose nothing through 20 and 100 bridges. Where a batch is too large the trial has no figure, and says why.
func TestClosedLoopIsClosed(t *testing.T) {
	b := testBench(t)
	for _, wires := range []string{"20", "100"} {
		l := Levels{FactorPlatform: "bridges", factorWires: wires, factorMode: modeCost}
		m := measure(t, ppsExperiment(), b, l)
		if m.Values["cost"] <= 0 || m.Values["loss"] != 0 || m.Conditions[condBatch] == "" {
			t.Errorf("%s wires: %v, batch %s", wires, m.Values, m.Conditions[condBatch])
		}
		t.Logf("%s wires: batch %s", wires, m.Conditions[condBatch])
	}
	a, err := ppsExperiment().Setup(t.Context(), b, Levels{FactorPlatform: "bridges", factorWires: "20", factorMode: modeCost})
	if err != nil {
		t.Fatal(err)
	}
	b20 := a.(Batched)
	if n := b20.Takes(); n < 1 || n >= 20 { // 42 crossings a frame, and a round of 300
		t.Errorf("20 bridges take %d frames at a time", n)
	}
	// With the batch of what it is compared with a trial says so, in its counts too.
	b20.SetBatch(2)
	small, err := a.Measure(t.Context(), 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if n := small.Raw.(SentFrames); n.Batch != 2 || BatchOf(small.Conditions) != 2 || n.Lost > 0 || b20.Takes() == 2 {
		t.Errorf("batches of 2: %+v, %v, takes %d", n, small.Conditions[condBatch], b20.Takes())
	}
	b20.SetBatch(256)
	m, err := a.Measure(t.Context(), 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	_, rate := m.Values["rate"]
	_, cost := m.Values["cost"]
	if rate || cost || m.Values["loss"] <= 0 || !strings.HasPrefix(m.Void, "lost ") || !strings.HasSuffix(m.Void, "not a closed loop") {
		t.Errorf("batches of 256 through 20 bridges: %v, %q", m.Values, m.Void)
	}
	// A trial that hides its loss is found by its counts.
	n := m.Raw.(SentFrames)
	forged := map[string]float64{"rate": n.Goodput() / 1e6, "cost": 1e9 / n.Goodput(), "loss": 0}
	if err := n.Check(forged); err == nil || !strings.Contains(err.Error(), "of a closed loop were lost") {
		t.Errorf("a loss that is hidden: %v", err)
	}
}

// The experiments of the study generator give what it asks for.
func TestGeneratorsAreTested(t *testing.T) {
	b := testBench(t)
	for _, name := range []string{genFrame, genSkb, genPacket, genTestpmd} {
		t.Run(name, func(t *testing.T) {
			l := Levels{factorGenerator: name}
			if m := measure(t, ceilingExperiment(), b, l); m.Values["rate"] <= 0 || m.Values["cost"] <= 0 {
				t.Error(m.Values)
			}
			if name == genTestpmd {
				return
			}
			for _, load := range []string{"2000", "10%"} {
				l[factorLoad] = load
				if m := measure(t, paceExperiment(), b, l); m.Values["error"] <= 0 || m.Values["rate"] <= 0 {
					t.Error(m.Values)
				}
			}
		})
	}
	t.Run("testpmd that is not there", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if why := ceilingExperiment().Check(t.Context(), b, Levels{factorGenerator: genTestpmd}); !strings.Contains(why, "apt-get") {
			t.Error(why)
		}
	})
	l := Levels{factorDelay: "200"}
	const half = 1.024 // us, of the histogram's bucket at 200 us: its middle is what is told
	if m := measure(t, latencyExperiment(), b, l); m.Values["excess"] < -half || m.Values["median"] < 200-half {
		t.Errorf("held for 200 us: %v", m.Values)
	}
	for wrong, l := range map[string]Levels{
		"one flow of one size": {factorGenerator: genTestpmd, factorSize: imix},
		"at most 4096":         {factorGenerator: genSkb, factorSize: imix, factorFlows: "4000"},
	} {
		if why := ceilingExperiment().Check(t.Context(), b, l); !strings.Contains(why, wrong) && !strings.Contains(why, "apt-get") {
			t.Errorf("%v: %q", l, why)
		}
	}
}

// A generator that sends hardly more than what arrives may be what limits an overload; a closed loop is none.
func TestUnderfedGeneratorsAreKnown(t *testing.T) {
	for text, want := range map[string][2]bool{
		`{"sent": 1000, "unique": 500, "mode": "loss"}`: {false, true}, `{"sent": 1000, "unique": 900, "mode": "loss"}`: {true, true}, `{"sent": 1000, "unique": 1000, "mode": "loss"}`: {true, true},
		`{"sent": 1000, "unique": 1000, "mode": "cost"}`: {false, false}, `{"sent": 1000, "mode": "loss"}`: {false, false}, `{`: {false, false}, ``: {false, false},
	} {
		if limited, ok := Underfed(json.RawMessage(text)); limited != want[0] || ok != want[1] {
			t.Errorf("%s: %t, %t", text, limited, ok)
		}
	}
}
