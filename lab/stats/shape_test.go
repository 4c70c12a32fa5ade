package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestShapesAreAsNumpyFitsThem(t *testing.T) {
	for _, s := range readGolden(t).Shapes {
		f, ok := FitShape(s.Law, s.X, s.Series)
		if !ok || f.Law != s.Law || f.Blocks != len(s.Series[0]) || len(f.Errors) != len(s.Errors) || len(f.Behind) != len(s.Behind) || len(s.Behind) != len(Laws())-1 {
			t.Fatalf("%s at %v: %+v", s.Law, s.X, f)
		}
		same := func(what string, got Interval, low, high float64) {
			near(t, fmt.Sprintf("%s: %s, low", s.Law, what), got.Low, low, 1e-9*math.Abs(low))
			near(t, fmt.Sprintf("%s: %s, high", s.Law, what), got.High, high, 1e-9*math.Abs(high))
		}
		for law, want := range s.Errors {
			near(t, fmt.Sprintf("%s: error of %s", s.Law, law), f.Errors[law], want, 1e-9)
		}
		near(t, s.Law+": noise", f.Noise, s.Noise, 1e-9)
		same("misfit", f.Misfit, s.Misfit[0], s.Misfit[1])
		for law, want := range s.Behind {
			same("how far behind is "+law, f.Behind[law], want[0], want[1])
		}
		for what, pair := range map[string]struct {
			v    float64
			i    Interval
			want [3]float64
		}{"exponent": {f.Exponent, f.ExponentInterval, s.Exponent}, "slope": {f.Slope, f.SlopeInterval, s.Slope}, "gain": {f.Gain, f.GainInterval, s.Gain}} {
			near(t, s.Law+": "+what, pair.v, pair.want[0], 1e-9)
			same(what, pair.i, pair.want[1], pair.want[2])
		}
	}
}

// TestAShapeNeedsEnough levels, complete blocks, and figures above 0.
func TestAShapeNeedsEnough(t *testing.T) {
	x, full := []float64{1, 2, 3, 4, 5}, make([][]float64, 5)
	for i := range full {
		full[i] = []float64{1, 2, 3, 4, 5, 6, 7}
	}
	if _, ok := FitShape(LawLinear, x, full); !ok {
		t.Error("seven blocks of five levels are not enough")
	}
	if _, ok := FitShape(LawLinear, x[:3], full[:3]); ok {
		t.Error("three levels are enough")
	}
	with := func(level, block int, v float64) [][]float64 {
		s := slices.Clone(full)
		s[level] = slices.Clone(s[level])
		s[level][block] = v
		return s
	}
	gap := with(1, 3, math.NaN())
	if f, ok := FitShape(LawLinear, x, gap); !ok || f.Blocks != 6 || len(CompleteBlocks(gap)) != 6 {
		t.Errorf("a block that one level does not have: %+v", f)
	}
	gap[2] = slices.Clone(gap[2])
	gap[2][0] = math.NaN()
	for what, s := range map[string][][]float64{"five complete blocks": gap, "a 0": with(2, 1, 0), "a value below 0": with(2, 1, -1), "infinite": with(0, 0, math.Inf(1))} {
		if f, ok := FitShape(LawLinear, x, s); ok {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if f, ok := FitShape(LawLinear, []float64{0, 1, 2, 3, 4}, full); !ok || len(f.Errors) != len(Laws())-1 || f.ExponentInterval != (Interval{}) {
		t.Errorf("there is no power of 0: %+v", f)
	}
}

// TestDriftIsNoError: blocks of another speed change no error, gain or exponent.
func TestDriftIsNoError(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	x := []float64{1, 2, 5, 10, 20}
	still, drifting := make([][]float64, len(x)), make([][]float64, len(x))
	for range 8 {
		speed := math.Exp(rng.NormFloat64())
		for i := range x {
			v := (3 + x[i]) * math.Exp(0.1*rng.NormFloat64())
			still[i], drifting[i] = append(still[i], v), append(drifting[i], v*speed)
		}
	}
	a, _ := FitShape(LawLinear, x, still)
	b, ok := FitShape(LawLinear, x, drifting)
	for _, l := range Laws() {
		near(t, "error of "+l, b.Errors[l], a.Errors[l], 1e-9)
	}
	near(t, "misfit", b.Misfit.High, a.Misfit.High, 1e-9)
	near(t, "gain", b.Gain, a.Gain, 1e-9)
	near(t, "exponent", b.Exponent, a.Exponent, 1e-9)
	if !ok || math.Abs(a.Slope/b.Slope-1) < 1e-3 {
		t.Errorf("the blocks do not differ: slopes %v and %v", a.Slope, b.Slope)
	}
}

// TestMisfitsAreFound: the interval of what a law is off by is nearly one of 95 %, noise apart: it misses the truth on either side in at most 5 % of the runs. A law
// that is not off has one that ends below 5 %, if the noise is at most as much, or there are blocks enough.
func TestMisfitsAreFound(t *testing.T) {
	const runs = 300
	all, under, over := 0, 0, 0
	for _, x := range [][]float64{{1, 5, 9, 20, 50, 100}, {1, 2, 5, 10, 20}} {
		for off := range 3 {
			for _, misfit := range []float64{0, 0.05, 0.1} {
				levels := bent(x, off, misfit)
				for _, sd := range []float64{0.03, 0.05, 0.1} {
					for _, blocks := range []int{6, 8, 12, 20} {
						below, above, fits := 0, 0, 0
						for seed := range uint64(runs) {
							rng := rand.New(rand.NewPCG(seed, 9))
							series := make([][]float64, len(x))
							for range blocks {
								drift := 0.05 * rng.NormFloat64()
								for i := range x {
									series[i] = append(series[i], math.Exp(levels[i]+drift+sd*rng.NormFloat64()))
								}
							}
							f, ok := FitShape(LawLinear, x, series)
							if !ok {
								t.Fatal("no fit")
							}
							if f.Misfit.High < misfit {
								below++
							}
							if f.Misfit.Low > misfit {
								above++
							}
							if f.Misfit.High <= 0.05 {
								fits++
							}
						}
						at := fmt.Sprintf("%d levels, the %d. off, misfit %2.0f %%, noise %2.0f %%, %2d blocks", len(x), off+2, 100*misfit, 100*sd, blocks)
						t.Logf("%s: interval below it in %4.1f %%, above it in %4.1f %%, within 5 %% in %3.0f %%", at, 100*float64(below)/runs, 100*float64(above)/runs, 100*float64(fits)/runs)
						if misfit > 0 {
							all, under, over = all+runs, under+below, over+above
						}
						if misfit > 0 && max(below, above) > runs*8/100 {
							t.Errorf("%s: below it in %d of %d, above it in %d", at, below, runs, above)
						}
						if misfit == 0 && (sd <= 0.05 || blocks == 20) && fits < runs*9/10 {
							t.Errorf("%s: within 5 %% in %d of %d", at, fits, runs)
						}
					}
				}
			}
		}
	}
	t.Logf("the interval is below the truth in %.1f %%, above it in %.1f %%", 100*float64(under)/float64(all), 100*float64(over)/float64(all))
	if max(under, over) > all/20 {
		t.Errorf("of %d runs the interval is below the truth in %d, above it in %d", all, under, over)
	}
}

// bent is a line whose level after the one given is higher, so that the line that fits best is off by misfit; as logarithms.
func bent(x []float64, after int, misfit float64) []float64 {
	levels := func(by float64) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = math.Log(10 + 2.3*x[i])
		}
		y[after+1] += by
		return y
	}
	low, high := 0.0, 1.0
	for range 60 {
		by := (low + high) / 2
		if y := levels(by); math.Sqrt(meanSquare(y, curve(LawLinear, x, y))) < misfit {
			low = by
		} else {
			high = by
		}
	}
	return levels(high)
}
