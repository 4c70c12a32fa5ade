package stats

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

const simulations = 1000

// machine is a simulated one: what is measured is the truth times a drift that all trials of a block nearly share, times noise with
// outliers upwards (somebody else's load).
type machine struct {
	rng   *rand.Rand
	level float64 // log of the drift, a random walk
}

func (m *machine) block() { m.level += m.rng.NormFloat64() * 0.1 }

func (m *machine) trial(truth float64) float64 {
	noise := m.rng.NormFloat64() * 0.04
	if m.rng.Float64() < 0.1 {
		noise -= m.rng.ExpFloat64() * 0.15
	}
	return truth * math.Exp(m.level+noise)
}

// simulate runs many experiments side by side, each with a seed of its own.
func simulate[T any](one func(seed uint64) T) []T {
	out := make([]T, simulations)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for i := next.Add(1); i <= simulations; i = next.Add(1) {
				out[i-1] = one(uint64(i))
			}
		})
	}
	wg.Wait()
	return out
}

// share of the runs for which holds is true.
func share[T any](runs []T, holds func(T) bool) float64 {
	n := 0
	for _, r := range runs {
		if holds(r) {
			n++
		}
	}
	return float64(n) / float64(len(runs))
}

func yes(b bool) bool { return b }

// experiments are interleaved runs of 25 blocks with the given true ratio.
func experiments(truth float64) []Comparison {
	return simulate(func(seed uint64) Comparison {
		m := machine{rng: rand.New(rand.NewPCG(seed, 77))}
		var base, again, variant []float64
		for range 25 {
			m.block()
			base, again, variant = append(base, m.trial(1)), append(again, m.trial(1)), append(variant, m.trial(truth))
		}
		return Compare(base, again, map[string][]float64{"variant": variant}, seed)
	})
}

func TestTruthIsFound(t *testing.T) {
	const effect = 1.25
	variant := func(c Comparison) Ratio { return c.Variants["variant"] }
	same, different := experiments(1), experiments(effect)
	for truth, runs := range map[float64][]Comparison{1: same, effect: different} {
		got := share(runs, func(c Comparison) bool { return variant(c).Interval.Contains(truth) })
		t.Logf("true ratio %v: the 95 %% interval holds it in %.1f %% of %d runs", truth, 100*got, len(runs))
		if got < 0.93 || got > 0.97 {
			t.Errorf("coverage %.3f: want 0.93 to 0.97", got)
		}
	}
	falsely := share(same, func(c Comparison) bool { return variant(c).Verdict != Indistinguishable })
	duplicate := share(same, func(c Comparison) bool { return c.Duplicate.Verdict != Indistinguishable })
	found := share(different, func(c Comparison) bool { return variant(c).Verdict == Higher })
	would := share(same, func(c Comparison) bool { return variant(c).Detectable < effect })
	t.Logf("false positives: %.1f %% of variants, %.1f %% of duplicates; a ratio of %v is found in %.1f %%, and %.1f %% say that they would find it",
		100*falsely, 100*duplicate, effect, 100*found, 100*would)
	if falsely > 0.05 || duplicate > 0.05 {
		t.Errorf("false positives %.3f and %.3f: want at most 0.05", falsely, duplicate)
	}
	if found < 0.9 || math.Abs(found-would) > 0.1 {
		t.Errorf("found in %.3f, foretold in %.3f: want at least 0.9 and both alike", found, would)
	}
}

func TestManyVariantsAreCorrected(t *testing.T) {
	got := share(simulate(func(seed uint64) bool {
		m := machine{rng: rand.New(rand.NewPCG(seed, 78))}
		const kinds = 4
		var base, again []float64
		variants := map[string][]float64{}
		for range 20 {
			m.block()
			base, again = append(base, m.trial(1)), append(again, m.trial(1))
			for k := range kinds {
				name := string(rune('a' + k))
				variants[name] = append(variants[name], m.trial(1))
			}
		}
		for _, r := range Compare(base, again, variants, seed).Variants {
			if r.Verdict != Indistinguishable {
				return true
			}
		}
		return false
	}), yes)
	t.Logf("any false claim about %d equal variants: %.1f %% of runs", 4, 100*got)
	if got > 0.05 {
		t.Errorf("family-wise error %.3f: want at most 0.05", got)
	}
}

// TestDriftFoolsOnlyTheSequentialDesign: a machine that gets slower by a third while it is measured, two equal variants.
func TestDriftFoolsOnlyTheSequentialDesign(t *testing.T) {
	const blocks = 25
	slower := func(m *machine, step, of int) float64 {
		m.level = -0.3 * float64(step) / float64(of)
		return m.trial(1)
	}
	sequential := share(simulate(func(seed uint64) bool {
		m := machine{rng: rand.New(rand.NewPCG(seed, 79))}
		series := make([][]float64, 3)
		for v := range series { // all trials of one variant, then all of the next
			for b := range blocks {
				series[v] = append(series[v], slower(&m, v*blocks+b, 3*blocks))
			}
		}
		// Without blocks there is nothing to pair: each value against the other variant's of the same rank in time, as people do.
		l, _ := logRatios(series[1], series[0])
		return SignFlip(l, Resamples, m.rng) < Alpha
	}), yes)
	interleaved := share(simulate(func(seed uint64) bool {
		m := machine{rng: rand.New(rand.NewPCG(seed, 80))}
		series := make([][]float64, 3)
		step := 0
		for range blocks {
			for _, v := range m.rng.Perm(3) {
				series[v] = append(series[v], slower(&m, step, 3*blocks))
				step++
			}
		}
		c := Compare(series[0], series[1], map[string][]float64{"variant": series[2]}, seed)
		return c.Variants["variant"].Verdict != Indistinguishable
	}), yes)
	t.Logf("two equal variants on a drifting machine are called different: sequential %.1f %%, interleaved %.1f %%", 100*sequential, 100*interleaved)
	if sequential < 0.5 {
		t.Errorf("the drift does not fool the sequential design (%.3f): the test shows nothing", sequential)
	}
	if interleaved > 0.05 {
		t.Errorf("the drift fools ours: %.3f", interleaved)
	}
}
