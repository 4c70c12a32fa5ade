package claim

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// truth is how a metric goes along a chain's length, and what a claim of a shape earns by it.
type truth struct {
	name  string
	shape string
	x     []float64
	at    func(x float64) float64
	law   bool    // the shape is true
	least float64 // share of the runs that reproduce it, with at most 5 % of noise and 12 blocks or more; with fewer blocks two thirds of that
	found float64 // share of the runs that contradict it, or call it another shape, with at most 5 % of noise
}

// lengths at which chains are measured.
func lengths() map[string][]float64 {
	return map[string][]float64{"1 to 100, six": {1, 5, 9, 20, 50, 100}, "1 to 100, eight": {1, 2, 5, 9, 10, 20, 50, 100}, "1 to 20, five": {1, 2, 5, 10, 20}, "1 to 6, even": {1, 2, 3, 4, 5, 6}}
}

func truths(x []float64) (out []truth) {
	add := func(shape, name string, law bool, least, found float64, at func(u float64) float64) {
		reach := x[len(x)-1] - x[0]
		out = append(out, truth{name, shape, x, func(v float64) float64 { return at((v - x[0]) / reach) }, law, least, found})
	}
	along := func(shape, name string, law bool, least, found float64, at func(x float64) float64) {
		out = append(out, truth{name, shape, x, at, law, least, found})
	}
	line := func(growth float64) func(float64) float64 {
		return func(u float64) float64 { return 1 + (growth-1)*u }
	}
	exponential := func(growth float64) func(float64) float64 {
		return func(u float64) float64 { return math.Pow(growth, u) }
	}
	add(study.Linear, "line to tenfold", true, 0.9, 0, line(10))
	add(study.Linear, "line to fivefold", true, 0, 0, line(5)) // from 1 to 6 it is almost x^0.9
	add(study.Linear, "line to 2.5-fold", true, 0.3, 0, line(2.5))
	along(study.Linear, "proportional", true, 0.9, 0, func(x float64) float64 { return x })
	add(study.Linear, "slightly curved", false, 0, 0, func(u float64) float64 { return 1 + 9*u + 5*u*u })
	add(study.Linear, "exponential to 1.2-fold", false, 0, 0, exponential(1.2))
	add(study.Linear, "exponential to 2.5-fold", false, 0, 0.35, exponential(2.5))
	add(study.Linear, "exponential to tenfold", false, 0, 0.95, exponential(10))
	add(study.Linear, "step to the double", false, 0, 0.5, func(u float64) float64 { return 1 + math.Round(min(1, 3*u)) })
	add(study.Linear, "line with a step of 0.4", false, 0, 0, func(u float64) float64 { return (1 + 2*u) * (1 + 0.4*math.Round(min(1, 2*u))) })
	along(study.Linear, "square root", false, 0, 0.4, math.Sqrt)
	add(study.Linear, "constant", false, 0, 0, func(float64) float64 { return 1 })
	add(study.Linear, "falling", false, 0, 0.95, func(u float64) float64 { return 1 / (1 + 4*u) })
	add(study.Inverse, "1/(1 + 9u)", true, 0.9, 0, func(u float64) float64 { return 1 / (1 + 9*u) })
	along(study.Inverse, "1/x", true, 0.9, 0, func(x float64) float64 { return 1 / x })
	along(study.Inverse, "0.1 + 1/x", false, 0, 0.9, func(x float64) float64 { return 0.1 + 1/x })
	add(study.Inverse, "exponential to a tenth", false, 0, 0.95, exponential(0.1))
	add(study.Inverse, "exponential to 1/1.2", false, 0, 0, exponential(1/1.2))
	add(study.Inverse, "growing", false, 0, 0.95, line(10))
	add(study.Exponential, "exponential to 30-fold", true, 0.9, 0, exponential(30))
	add(study.Exponential, "exponential to tenfold", true, 0.65, 0, exponential(10))
	add(study.Exponential, "line to tenfold", false, 0, 0.95, line(10))
	add(study.Exponential, "line to 1.2-fold", false, 0, 0, line(1.2))
	add(study.Exponential, "curved", false, 0, 0, func(u float64) float64 { return 1 + u + 4*u*u })
	return out
}

// noises of a trial, as logarithms: as real runs have them.
func noises() map[string]func(*rand.Rand) float64 {
	normal := func(s float64) func(r *rand.Rand) float64 {
		return func(r *rand.Rand) float64 { return s * r.NormFloat64() }
	}
	return map[string]func(r *rand.Rand) float64{
		" 3 %": normal(0.03), " 5 %": normal(0.05), "10 %": normal(0.1),
		"stalls": func(r *rand.Rand) float64 {
			if r.Float64() < 0.1 {
				return 0.03*r.NormFloat64() - 0.3*r.ExpFloat64()
			}
			return 0.03 * r.NormFloat64()
		},
	}
}

// measured is a run: noise of a trial, and a drift of 5 % that all trials of a block share. What a claim of the shape inverse is judged by is 1/y.
func (tr truth) measured(rng *rand.Rand, blocks int, noise func(*rand.Rand) float64) [][]float64 {
	series := make([][]float64, len(tr.x))
	for range blocks {
		drift := 0.05 * rng.NormFloat64()
		for i, x := range tr.x {
			v := tr.at(x) * math.Exp(drift+noise(rng))
			if tr.shape == study.Inverse {
				v = 1 / v
			}
			series[i] = append(series[i], v)
		}
	}
	return series
}

func (tr truth) verdict(t *testing.T, seed uint64, blocks int, noise func(*rand.Rand) float64) Verdict {
	t.Helper()
	f, ok := stats.FitShape(Law(tr.shape), tr.x, tr.measured(rand.New(rand.NewPCG(seed, 4)), blocks, noise))
	if !ok {
		t.Fatalf("%s: no fit", tr.name)
	}
	v, _ := Shape(study.Claim{Shape: tr.shape, Along: "wires"}, f)
	return v
}

// TestShapesAreToldApart by simulation: a false shape is reproduced in at most 5 % of the runs, whatever the noise and however little it bends; a true one is
// contradicted, or called another shape, in at most 5 %, and reproduced where it grows enough to be told from other laws.
func TestShapesAreToldApart(t *testing.T) {
	const runs = 200
	for where, x := range lengths() {
		for _, tr := range truths(x) {
			t.Run(tr.shape+"/"+tr.name+"/"+where, func(t *testing.T) {
				t.Parallel()
				for name, noise := range noises() {
					for _, blocks := range []int{6, 8, 12, 20} {
						n := map[Verdict]int{}
						for seed := range uint64(runs) {
							n[tr.verdict(t, seed, blocks, noise)]++
						}
						reproduced, other := float64(n[Reproduced])/runs, float64(n[SameDirection]+n[Contradicted])/runs
						t.Logf("%-11s %-25s %-15s %-6s %2d blocks: reproduced %3.0f %%, inconclusive %3.0f %%, another shape %3.0f %%, contradicted %3.0f %%", tr.shape, tr.name, where, name, blocks,
							100*reproduced, 100*float64(n[Inconclusive])/runs, 100*float64(n[SameDirection])/runs, 100*float64(n[Contradicted])/runs)
						if tr.least >= 0.9 && blocks == 20 && reproduced < 0.5 {
							t.Errorf("20 blocks, noise %s: reproduced in %.3f", name, reproduced)
						}
						if !tr.law && reproduced > 0.05 {
							t.Errorf("false, and reproduced in %.3f", reproduced)
						}
						if tr.law && other > 0.05 {
							t.Errorf("true, and something else in %.3f", other)
						}
						least := tr.least
						if blocks < 12 {
							least *= 2.0 / 3
						}
						if (name == " 3 %" || name == " 5 %") && (reproduced < least || other < tr.found) {
							t.Errorf("reproduced in %.3f, want %.3f; something else in %.3f, want %.3f", reproduced, least, other, tr.found)
						}
					}
				}
			})
		}
	}
}
