package stats

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

const simulations = 2000

// machine is a simulated one: what is measured is the truth times a drift that all trials of a block share, times noise.
type machine struct {
	rng   *rand.Rand
	level float64 // log of the drift, a random walk
	noise func(*rand.Rand) float64
}

func (m *machine) block() { m.level += m.rng.NormFloat64() * 0.1 }

func (m *machine) trial(truth float64) float64 {
	return truth * math.Exp(m.level+m.noise(m.rng))
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

// noises are logarithms of what a trial is off by.
var noises = map[string]func(*rand.Rand) float64{
	"normal":    func(r *rand.Rand) float64 { return 0.05 * r.NormFloat64() },
	"lognormal": func(r *rand.Rand) float64 { return -math.Exp(r.NormFloat64() - 3) },
	"bimodal": func(r *rand.Rand) float64 {
		if r.Float64() < 0.35 {
			return 0.02*r.NormFloat64() - 0.25
		}
		return 0.02 * r.NormFloat64()
	},
	"stalls": func(r *rand.Rand) float64 {
		if r.Float64() < 0.15 {
			return 0.01*r.NormFloat64() - 0.4*r.ExpFloat64()
		}
		return 0.01 * r.NormFloat64()
	},
}

// experiment is one interleaved run.
type experiment struct {
	Comparison
	noise []float64 // sorted log-ratios of the variant
}

// compareOnly is Compare without the smallest detectable differences, which take long.
func compareOnly(base, again []float64, variants map[string][]float64) Comparison {
	return compare(base, again, variants, 1.0001, 1, rand.New(rand.NewPCG(1, 1)))
}

// experiments have the given true ratio on a machine that drifts.
func experiments(truth float64, blocks int, noise func(*rand.Rand) float64) []experiment {
	return simulate(func(seed uint64) experiment {
		m := machine{rng: rand.New(rand.NewPCG(seed, 77)), noise: noise}
		var base, again, variant []float64
		for range blocks {
			m.block()
			base, again, variant = append(base, m.trial(1)), append(again, m.trial(1)), append(variant, m.trial(truth))
		}
		_, l := estimate(variant, base, 1.0001)
		return experiment{compareOnly(base, again, map[string][]float64{"variant": variant}), l}
	})
}

// TestTruthIsFound: whatever the noise looks like, and with as few blocks as studies have, 95 % intervals hold the truth in 95 % of the runs, one run of twenty
// tells a thing from itself, and a peer that is slower by 5 or 20 % is found as often as the runs themselves foretell.
func TestTruthIsFound(t *testing.T) {
	variant := func(c experiment) Ratio { return c.Variants["variant"] }
	for name, noise := range noises {
		for _, blocks := range []int{6, 8, 12, 20} {
			same := experiments(1, blocks, noise)
			alarms := share(same, func(c experiment) bool { return c.Duplicate.Claimed() })
			covered := share(same, func(c experiment) bool { return variant(c).Interval.Contains(1) })
			t.Logf("%s noise, %d blocks: covered %.1f %%, A/A alarms %.1f %%", name, blocks, 100*covered, 100*alarms)
			if covered < 0.93 || covered > 0.97 || alarms < 0.03 || alarms > 0.07 {
				t.Errorf("%s noise, %d blocks: covered %.3f, want 0.93 to 0.97; alarms %.3f, want 0.03 to 0.07", name, blocks, covered, alarms)
			}
			for _, slower := range []float64{0.05, 0.2} {
				effect := 1 / (1 - slower)
				runs := experiments(effect, blocks, noise)
				found := share(runs, func(c experiment) bool { return variant(c).Verdict == Higher })
				foretold := 0.0
				for _, run := range same {
					reach := reaches(run.noise, Alpha, 200, rand.New(rand.NewPCG(1, 1)))
					n, _ := slices.BinarySearch(reach, math.Log(effect))
					foretold += float64(n) / float64(len(reach)) / float64(len(same))
				}
				t.Logf("  slower by %.0f %%: found in %.0f %% of the runs, foretold %.0f %%", 100*slower, 100*found, 100*foretold)
				if math.Abs(found-foretold) > 0.12 {
					t.Errorf("%s noise, %d blocks, slower by %v: found in %.2f of the runs, foretold in %.2f", name, blocks, slower, found, foretold)
				}
			}
		}
	}
}

func TestManyVariantsAreCorrected(t *testing.T) {
	got := share(simulate(func(seed uint64) bool {
		m := machine{rng: rand.New(rand.NewPCG(seed, 78)), noise: noises["stalls"]}
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
		for _, r := range compareOnly(base, again, variants).Variants {
			if r.Claimed() {
				return true
			}
		}
		return false
	}), yes)
	t.Logf("any false claim about %d equal variants: %.1f %% of runs", 4, 100*got)
	if got > 0.065 { // 0.05 and what 2000 runs may be off by
		t.Errorf("family-wise error %.3f: want 0.05", got)
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
		m := machine{rng: rand.New(rand.NewPCG(seed, 79)), noise: noises["stalls"]}
		series := make([][]float64, 3)
		for v := range series { // all trials of one variant, then all of the next
			for b := range blocks {
				series[v] = append(series[v], slower(&m, v*blocks+b, 3*blocks))
			}
		}
		// Without blocks there is nothing to pair: each value against the other variant's of the same rank in time, as people do.
		l, _ := logRatios(series[1], series[0])
		slices.Sort(l)
		return medianP(l) < Alpha
	}), yes)
	interleaved := share(simulate(func(seed uint64) bool {
		m := machine{rng: rand.New(rand.NewPCG(seed, 80)), noise: noises["stalls"]}
		series := make([][]float64, 3)
		step := 0
		for range blocks {
			for _, v := range m.rng.Perm(3) {
				series[v] = append(series[v], slower(&m, step, 3*blocks))
				step++
			}
		}
		c := compareOnly(series[0], series[1], map[string][]float64{"variant": series[2]})
		return c.Variants["variant"].Claimed()
	}), yes)
	t.Logf("two equal variants on a drifting machine are called different: sequential %.1f %%, interleaved %.1f %%", 100*sequential, 100*interleaved)
	if sequential < 0.5 {
		t.Errorf("the drift does not fool the sequential design (%.3f): the test shows nothing", sequential)
	}
	if interleaved > 0.065 {
		t.Errorf("the drift fools ours: %.3f", interleaved)
	}
}
