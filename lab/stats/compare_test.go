package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// wavering values around a mean, the same every time; turn makes another series of it.
func wavering(mean float64, blocks, turn int) []float64 {
	out := make([]float64, blocks)
	for i := range out {
		out[i] = mean * (1 + 0.01*math.Sin(float64(7*i+3*turn)))
	}
	return out
}

// TestTooFewBlocksAreSaidToBe: with n blocks the test cannot go below 2/2^n, and Holm multiplies that by the number of variants. What no run like this one could have
// claimed is inconclusive, and no size is told that would have shown.
func TestTooFewBlocksAreSaidToBe(t *testing.T) {
	for _, c := range []struct {
		blocks, variants int
		want             Verdict
	}{{6, 1, Higher}, {6, 2, Inconclusive}, {7, 3, Higher}, {7, 4, Inconclusive}, {8, 6, Higher}, {8, 7, Inconclusive}, {20, 50, Higher}} {
		variants := map[string][]float64{"a": wavering(3, c.blocks, 2)}
		for i := 1; i < c.variants; i++ {
			variants[string(rune('a'+i))] = wavering(1, c.blocks, 3+i)
		}
		got := Compare(wavering(1, c.blocks, 0), wavering(1, c.blocks, 1), variants, Margin, 1)
		if a := got.Variants["a"]; a.Verdict != c.want || (a.Detectable == 0) != (c.want == Inconclusive) {
			t.Errorf("%d blocks, three times as much, one of %d: %+v, want %s", c.blocks, c.variants, a, c.want)
		}
		if b, ok := got.Variants["b"]; ok && b.Verdict != Equivalent {
			t.Errorf("%d blocks, the same, one of %d: %+v", c.blocks, c.variants, b)
		}
	}
}

// TestVerdictsFollowTheMargin: a difference within the margin is equivalent although it is surely there; one that may lie beyond it is inconclusive until the test
// says more.
func TestVerdictsFollowTheMargin(t *testing.T) {
	spread := func(mean, width float64) []float64 {
		out := make([]float64, 8)
		for i := range out {
			out[i] = mean * (1 + width*(float64(i)-3.5)/3.5)
		}
		return out
	}
	base := spread(1, 0)
	for _, c := range []struct {
		x            []float64
		margin       float64
		want         Verdict
		significance bool
	}{
		{spread(1.02, 0.01), 1.05, Equivalent, true},
		{spread(1.02, 0.01), 1.01, Higher, true},
		{spread(0.9, 0.01), 1.05, Lower, true},
		{spread(1.02, 0.2), 1.05, Inconclusive, false},
		{spread(1, 0.02), 1.05, Equivalent, false},
		{spread(1, 0), 1.05, Equivalent, false},
	} {
		r := Compare(base, base, map[string][]float64{"x": c.x}, c.margin, 1).Variants["x"]
		if r.Verdict != c.want || (r.P < Alpha) != c.significance || r.Interval.Contains(1) == c.significance || r.Margin != c.margin {
			t.Errorf("margin %v: %+v, want %s", c.margin, r, c.want)
		}
	}
}

// TestZerosAreValues: a block counts whatever was measured in it. Left out, a path that lets nothing through in three of ten blocks would look as
// it does in the other seven.
func TestZerosAreValues(t *testing.T) {
	zero := func(x []float64, at ...int) []float64 {
		for _, i := range at {
			x[i] = 0
		}
		return x
	}
	const n = 10
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	base, again := wavering(1, n, 0), wavering(1, n, 1)
	c := Compare(base, again, map[string][]float64{
		"sometimes": zero(wavering(2, n, 2), 0, 4, 9), "half": zero(wavering(2, n, 3), 0, 1, 2, 3, 4), "never": zero(wavering(2, n, 4), all...),
	}, Margin, 1)
	if r := c.Variants["sometimes"]; r.Blocks != n || r.Zeros != 3 || r.Verdict == Higher || r.Interval.Low >= 1 {
		t.Errorf("twice as much, but nothing in 3 of %d blocks: %+v", n, r)
	}
	for name, zeros := range map[string]int{"half": 5, "never": n} {
		if r := c.Variants[name]; r != (Ratio{Blocks: n, Zeros: zeros, Verdict: NoRatio}) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// What loses nothing, and what loses nothing either.
	none := make([]float64, n)
	c = Compare(none, none, map[string][]float64{"none": none, "some": wavering(5, n, 1)}, Margin, 1)
	if r := c.Variants["none"]; r.Verdict != Equivalent || r.Ratio != 1 || r.Blocks != n {
		t.Errorf("none and none: %+v", r)
	}
	if r := c.Variants["some"]; r.Verdict != NoRatio || r.Zeros != n {
		t.Errorf("some and none: %+v", r)
	}
	// A baseline that is as often 0 as not has no ratio.
	c = Compare(zero(wavering(1, n, 0), 0, 2, 4, 6, 8), zero(wavering(1, n, 1), 1, 3, 5, 7, 9), map[string][]float64{"x": wavering(9, n, 2)}, Margin, 1)
	if c.Duplicate.Verdict != NoRatio || c.Variants["x"].Verdict != NoRatio {
		t.Errorf("a baseline of zeros: %+v", c)
	}
	// Zeros do not make what is the same different.
	c = Compare(zero(wavering(1, n, 0), 3), again, map[string][]float64{"same": zero(wavering(1, n, 2), 7)}, Margin, 1)
	if r := c.Variants["same"]; r.Verdict != Equivalent || r.Zeros != 2 {
		t.Errorf("the same with a zero on each side: %+v", r)
	}
}

// TestDetectableIsDetected: a variant that differs by what a run says that it would have shown is called different four times in five, beside the
// same baseline and the same number of others.
func TestDetectableIsDetected(t *testing.T) {
	for _, c := range []struct{ blocks, variants int }{{8, 3}, {20, 1}} {
		run := func(seed, others uint64, truth float64) Ratio {
			m := machine{rng: rand.New(rand.NewPCG(seed, 81)), noise: noises["normal"]}
			n := machine{rng: rand.New(rand.NewPCG(others, 82)), noise: noises["normal"]}
			var base, again []float64
			variants := map[string][]float64{}
			for range c.blocks {
				m.block()
				n.level = m.level
				base, again = append(base, m.trial(1)), append(again, m.trial(1))
				for k, name := range []string{"a", "b", "c"}[:c.variants] {
					variants[name] = append(variants[name], n.trial([]float64{truth, 1, 1}[k]))
				}
			}
			return Compare(base, again, variants, 1.0001, seed).Variants["a"]
		}
		const runs = 300
		found := 0
		for seed := range uint64(runs) {
			if run(seed, seed+runs, run(seed, seed, 1).Detectable).Verdict == Higher {
				found++
			}
		}
		got := float64(found) / runs
		t.Logf("%d blocks, %d variants: what would have shown is found in %.0f %%", c.blocks, c.variants, 100*got)
		if got < 0.7 || got > 0.9 {
			t.Errorf("%d blocks, %d variants: what would have shown is found in %.2f of the runs: want 0.8", c.blocks, c.variants, got)
		}
	}
}
