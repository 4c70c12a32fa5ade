package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// TestPoolSameAsScipy: testdata/pool.py computes the same from its own formulas.
func TestPoolSameAsScipy(t *testing.T) {
	var g struct {
		Cases []struct {
			Y, V                        []float64
			Mean, SE, Between, Share, P float64
			Interval, Within            [2]float64
		}
		Tails     []struct{ T, DF, P float64 }
		Quantiles []struct{ Share, DF, T float64 }
	}
	text, err := os.ReadFile("testdata/pool.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil || len(g.Cases) == 0 || len(g.Tails) == 0 || len(g.Quantiles) == 0 {
		t.Fatal(err)
	}
	for i, c := range g.Cases {
		e := randomEffects(c.Y, c.V)
		of := func(what string) string { return fmt.Sprintf("case %d: %s", i, what) }
		near(t, of("mean"), e.mean, c.Mean, 1e-9)
		near(t, of("standard error"), e.se, c.SE, 1e-9)
		near(t, of("variance between"), e.between, c.Between, 1e-9)
		near(t, of("share"), e.share, c.Share, 1e-7)
		near(t, of("p"), e.p(), c.P, 1e-8)
		for level, want := range map[float64][2]float64{0.95: c.Interval, 0.9: c.Within} {
			got := e.interval(level)
			near(t, of("low"), got.Low, want[0], 1e-8)
			near(t, of("high"), got.High, want[1], 1e-8)
		}
	}
	near(t, "tau² of the BCG trials as published", randomEffects(g.Cases[0].Y, g.Cases[0].V).between, 0.318, 0.001)
	for _, c := range g.Tails {
		near(t, fmt.Sprintf("tail of t = %v, %v degrees", c.T, c.DF), studentTail(c.T, c.DF), c.P, 1e-12)
	}
	for _, c := range g.Quantiles {
		near(t, fmt.Sprintf("t of %v, %v degrees", c.Share, c.DF), studentQuantile(c.Share, c.DF)/c.T, 1, 1e-9)
	}
}

// runOf a study of a thing that is as many times as much: in each block noise, in the whole run a spread between runs.
func runOf(rng *rand.Rand, blocks int, truth, between float64, noise func(*rand.Rand) float64) Comparison {
	m := machine{rng: rng, noise: noise}
	truth *= math.Exp(between * rng.NormFloat64())
	var base, again, x []float64
	for range blocks {
		m.block()
		base, again, x = append(base, m.trial(1)), append(again, m.trial(1)), append(x, m.trial(truth))
	}
	return compareOnly(base, again, map[string][]float64{"x": x})
}

// medianSpread is the standard deviation of the median log-ratio of a run.
func medianSpread(blocks int, noise func(*rand.Rand) float64) float64 {
	rng := rand.New(rand.NewPCG(84, 84))
	sum := 0.0
	for range simulations {
		l := make([]float64, blocks)
		for i := range l {
			l[i] = noise(rng) - noise(rng)
		}
		sum += math.Pow(medianOf(l), 2)
	}
	return math.Sqrt(sum / simulations)
}

// TestPooledTruthIsFound: with runs that differ among each other as much as a single run may be off, the pooled interval of few runs holds the truth as
// often as it says, and each run's own does not.
func TestPooledTruthIsFound(t *testing.T) {
	const blocks = 8
	for name, noise := range noises {
		between := medianSpread(blocks, noise)
		for _, k := range []int{3, 5, 8} {
			type outcome struct {
				Pooled
				one bool // the first run's interval holds the truth
			}
			all := simulate(func(seed uint64) outcome {
				rng := rand.New(rand.NewPCG(seed, 85))
				var runs []Comparison
				for range k {
					runs = append(runs, runOf(rng, blocks, 1, between, noise))
				}
				return outcome{Pool(runs).Variants["x"], runs[0].Variants["x"].Interval.Contains(1)}
			})
			covered := share(all, func(x outcome) bool { return x.Interval.Contains(1) })
			one := share(all, func(x outcome) bool { return x.one })
			t.Logf("%s noise, %d runs of %d blocks: covered %.1f %%, by one run's interval %.1f %%", name, k, blocks, 100*covered, 100*one)
			if covered < 0.93 || covered > 0.97 || one > 0.93 {
				t.Errorf("%s noise, %d runs: covered %.3f, want 0.93 to 0.97; by one run's interval %.3f, want less", name, k, covered, one)
			}
		}
	}
}

// TestBetweenIsFound: the spread between runs, where there is one and where there is none; and the verdicts that follow.
func TestBetweenIsFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(86, 86))
	of := func(truth, between, margin float64) Pooled {
		var runs []Comparison
		for range 200 {
			c := runOf(rng, 12, truth, between, noises["normal"])
			v := c.Variants["x"]
			v.Margin = margin
			c.Variants["x"] = v
			runs = append(runs, c)
		}
		return Pool(runs).Variants["x"]
	}
	if p := of(1.2, 0.05, 1.05); math.Abs(math.Log(p.Between)-0.05) > 0.01 || p.Share < 0.6 || p.Share > 0.95 || p.Verdict != Higher || !p.Interval.Contains(1.2) || len(p.Runs) != 200 {
		t.Errorf("5 %% between runs: %+v", p)
	}
	if p := of(1, 0, 1.05); p.Between > 1.015 || p.Share > 0.3 || p.Verdict != Equivalent {
		t.Errorf("nothing between runs: %+v", p)
	}
	if p := of(0.8, 0, 1.05); p.Verdict != Lower {
		t.Errorf("lower: %+v", p)
	}
}

func TestPoolOfLittle(t *testing.T) {
	ratio := func(r float64, verdict Verdict) Comparison {
		x := Ratio{Blocks: 8, Ratio: r, Interval: Interval{r * 0.98, r * 1.02}, P: 0.5, Margin: 1.05, Verdict: verdict}
		return Comparison{Duplicate: x, Variants: map[string]Ratio{"x": x}}
	}
	few, none, unclaimed := ratio(0, TooFew), ratio(0, NoRatio), ratio(3, NotClaimed)
	// Not found in three of eight blocks: the median is a point, and its interval begins at 0.
	of := Ratio{Blocks: 8, Bounds: 3, Ratio: 2, Interval: Interval{0, 2}, P: 1, Margin: 1.05, Verdict: Inconclusive}
	bounded := Comparison{Duplicate: of, Variants: map[string]Ratio{"x": of}}
	for _, c := range []struct {
		runs []Comparison
		want Verdict
		n    int
	}{
		{nil, "", 0},
		{[]Comparison{ratio(2, Higher)}, TooFewRuns, 1},
		{[]Comparison{ratio(2, Higher), few, unclaimed}, TooFewRuns, 1},
		{[]Comparison{ratio(2, Higher), ratio(2, Higher), few}, Higher, 2},
		{[]Comparison{ratio(2, Higher), ratio(2, Higher), none}, NoRatio, 0}, // left out for what was measured, it would look as in the others
		{[]Comparison{ratio(2, Higher), ratio(2, Higher), bounded}, NoRatio, 0},
		{[]Comparison{ratio(1.5, Higher), ratio(0.7, Lower)}, Inconclusive, 2},
		{[]Comparison{ratio(1, Equivalent), ratio(1, Equivalent), ratio(1, Equivalent)}, Equivalent, 3},
	} {
		p := Pool(c.runs)
		if x := p.Variants["x"]; x.Verdict != c.want || len(x.Runs) != c.n || c.runs != nil && p.Duplicate.Verdict != c.want {
			t.Errorf("%+v: want %s of %d", x, c.want, c.n)
		}
		if _, err := json.Marshal(p); err != nil {
			t.Error(err)
		}
	}
	// Several variants are corrected as in one run.
	two := func(p float64) PooledComparison {
		var runs []Comparison
		for i := range 3 {
			c := ratio(1.1+0.04*float64(i), Higher)
			if p > 0 {
				c.Variants["y"] = c.Variants["x"]
			}
			runs = append(runs, c)
		}
		return Pool(runs)
	}
	if one, both := two(0).Variants["x"].P, two(1).Variants["x"].P; math.Abs(both-2*one) > 1e-12 {
		t.Errorf("p %v alone, %v of two", one, both)
	}
}
