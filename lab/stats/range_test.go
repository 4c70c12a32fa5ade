package stats

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

var inf = math.Inf(1)

// TestBoundsSayNoMoreThanTheValues: whatever is hidden of the values, nothing is said of the bounds that the values themselves would not show. So bounds
// raise neither false alarms nor what is missed by an interval.
func TestBoundsSayNoMoreThanTheValues(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(MinBlocks, 14).Draw(rt, "blocks")
		truth := rapid.SampledFrom([]float64{0.3, 0.9, 1, 1, 1.04, 2}).Draw(rt, "truth")
		draw := func(label string, around float64) (values []float64, ranges []Interval) {
			for range n {
				v := around * math.Exp(0.1*rapid.Float64Range(-1, 1).Draw(rt, label))
				r := Interval{v, v}
				switch rapid.IntRange(0, 5).Draw(rt, label+" is") {
				case 0: // the generator's limit
					r.High = inf
				case 1: // not found below a load that lost
					r = Interval{0, v * rapid.Float64Range(1, 2).Draw(rt, label+" refused")}
				}
				values, ranges = append(values, v), append(ranges, r)
			}
			return values, ranges
		}
		base, baseRanges := draw("baseline", 1)
		// x is looked at; the others are tested beside it, so that it is corrected for them.
		values, ranges := map[string][]float64{}, map[string][]Interval{}
		values["x"], ranges["x"] = draw("variant", truth)
		for i := range rapid.IntRange(0, 2).Draw(rt, "others") {
			name := string(rune('a' + i))
			values[name], ranges[name] = draw(name, truth)
		}
		exact := compareExact(base, base, values, Margin, 1, rand.New(rand.NewPCG(1, 1))).Variants["x"]
		got := compare(baseRanges, baseRanges, ranges, Margin, 1, rand.New(rand.NewPCG(1, 1))).Variants["x"]
		if got.Blocks != n {
			rt.Fatalf("%d of %d blocks count: a bound is no missing value", got.Blocks, n)
		}
		if !got.Decided() {
			return
		}
		const slack = 1e-9
		if got.Interval.Low > exact.Interval.Low*(1+slack) || got.Interval.High < exact.Interval.High*(1-slack) || got.P < exact.P-slack {
			rt.Fatalf("bounds say more than the values: %+v beside %+v", got, exact)
		}
		side := exact.P < Alpha
		switch got.Verdict {
		case Equivalent:
			side = exact.Verdict == Equivalent
		case Higher:
			side = side && exact.Ratio > 1
		case Lower:
			side = side && exact.Ratio < 1
		default:
			side = true
		}
		open := got.Open == Closed || got.Open == AtLeast && got.Ratio <= exact.Ratio*(1+slack) || got.Open == AtMost && got.Ratio >= exact.Ratio*(1-slack)
		if !side || !open {
			rt.Fatalf("%+v, of the values %+v", got, exact)
		}
	})
}

// times is a range n times.
func times(n int, r Interval) (out []Interval) {
	for range n {
		out = append(out, r)
	}
	return out
}

// TestRatiosOfBounds: what each kind of bound allows.
func TestRatiosOfBounds(t *testing.T) {
	one, limited, none := Interval{1, 1}, Interval{3, inf}, Interval{0, 0.1}
	for name, x := range map[string]struct {
		base, variant []Interval
		verdict       Verdict
		ratio         float64
		open          Open
		low, high     float64
	}{
		"limited by the generator: higher, never equivalent": {times(8, one), times(8, limited), Higher, 3, AtLeast, 3, inf},
		"the baseline limited":                               {times(8, limited), times(8, one), Lower, 1. / 3, AtMost, 0, 1. / 3},
		"both limited":                                       {times(8, limited), times(8, limited), NoRatio, 0, Closed, 0, 0},
		"not found":                                          {times(8, one), times(8, none), Lower, 0.1, AtMost, 0, 0.1},
		"the baseline not found":                             {times(8, none), times(8, one), Higher, 10, AtLeast, 10, inf},
		"both not found":                                     {times(8, none), times(8, none), NoRatio, 0, Closed, 0, 0},
		"not found in three of eight":                        {times(8, one), append(times(5, Interval{2, 2}), times(3, none)...), Inconclusive, 2, Closed, 0, 2},
		"limited at what the other has: nothing is shown":    {times(8, limited), times(8, Interval{3, 3}), Inconclusive, 1, AtMost, 0, 1},
		"found in fewer blocks than a verdict needs":         {times(8, one), append(times(5, limited), times(3, Interval{math.NaN(), math.NaN()})...), TooFew, 0, Closed, 0, 0},
	} {
		got := CompareRanges(x.base, x.base, map[string][]Interval{"x": x.variant}, Margin, 1).Variants["x"]
		same := func(a, b float64) bool { return a == b || math.Abs(a-b) < 1e-9 }
		if got.Verdict != x.verdict || !same(got.Ratio, x.ratio) || got.Open != x.open || !same(got.Interval.Low, x.low) || !same(got.Interval.High, x.high) {
			t.Errorf("%s: %+v", name, got)
		}
		text, err := json.Marshal(got)
		var back Ratio
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back.Interval != got.Interval {
			t.Errorf("%s: as JSON %s: %v", name, text, err)
		}
	}
}

// TestBoundsWeakenNoCorrection: a variant of which nothing is known beside an unknown baseline would have been tested with the values themselves.
func TestBoundsWeakenNoCorrection(t *testing.T) {
	limited := times(6, Interval{1, inf})
	alone := CompareRanges(limited, limited, map[string][]Interval{"a": times(6, Interval{0.5, 0.5})}, Margin, 1).Variants["a"]
	beside := CompareRanges(limited, limited, map[string][]Interval{"a": times(6, Interval{0.5, 0.5}), "c": limited}, Margin, 1)
	if a, c := beside.Variants["a"], beside.Variants["c"]; alone.Verdict != Lower || a.Verdict != Inconclusive || a.P != 2*alone.P || c.Verdict != NoRatio {
		t.Errorf("alone %+v, beside another %+v and %+v", alone, a, c)
	}
}

// TestMedianRange: the median of a level by itself.
func TestMedianRange(t *testing.T) {
	for name, x := range map[string]struct {
		values []Interval
		median float64
		open   Open
		ok     bool
	}{
		"measured":                 {Exact([]float64{1, 2, 3}), 2, Closed, true},
		"most are limited":         {[]Interval{{1, 1}, {2, inf}, {3, inf}}, 2, AtLeast, true},
		"one is limited":           {[]Interval{{1, 1}, {2, 2}, {3, inf}}, 2, Closed, true},
		"most are not found":       {[]Interval{{0, 0.5}, {0, 0.7}, {3, 3}}, 0.7, AtMost, true},
		"half and half":            {[]Interval{{0, 0.5}, {2, inf}}, 1, AtLeast, true},
		"nothing is known":         {[]Interval{{0, inf}, {0, inf}}, 0, Closed, false},
		"there is no value":        {Exact([]float64{math.NaN()}), 0, Closed, false},
		"0 is a value like others": {Exact([]float64{0, 0, 1}), 0, Closed, true},
		"so is what is below 0":    {Exact([]float64{-2, -1, 1}), -1, Closed, true},
	} {
		median, open, _, ok := MedianRange(x.values, 1-Alpha)
		if ok != x.ok || ok && (median != x.median || open != x.open) {
			t.Errorf("%s: %v, %q, %v", name, median, open, ok)
		}
	}
}
