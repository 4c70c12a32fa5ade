package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Fit is a line through the medians of several series, by Theil and Sen.
type Fit struct {
	Line
	Interval *Interval // 95 %, of B, by bootstrap over blocks; nil: fewer than MinBlocks blocks
	R2       float64   // how much of the medians' spread the line explains, 0 to 1
	Y        []float64 // the medians
}

// FitLine through the medians of series at the places x: index b of every series is block b, NaN where there is no value. Each series has a value. ok is false
// if no two x differ. The same seed gives the same fit.
func FitLine(x []float64, series [][]float64, seed uint64) (f Fit, ok bool) {
	through := func(blocks []float64) (l Line, medians []float64) {
		var xs []float64
		for i, s := range series {
			var of []float64
			for _, b := range blocks {
				if v := s[int(b)]; !math.IsNaN(v) {
					of = append(of, v)
				}
			}
			if len(of) > 0 {
				xs, medians = append(xs, x[i]), append(medians, medianOf(of))
			}
		}
		return TheilSen(xs, medians), medians
	}
	every := made(series)
	f.Line, f.Y = through(every)
	if math.IsNaN(f.A) || math.IsNaN(f.B) {
		return f, false
	}
	f.R2 = f.explained(x, f.Y)
	if len(every) < MinBlocks {
		return f, true
	}
	slope := func(blocks []float64) float64 {
		l, _ := through(blocks)
		return l.B
	}
	if i := BCa(every, slope, 1-Alpha, Resamples, rand.New(rand.NewPCG(seed, 0xf17))); finite(i.Low) && finite(i.High) {
		f.Interval = &i
	}
	return f, true
}

// made are the blocks in which some of the series have a value. A run that is not over has fewer than planned.
func made(series [][]float64) (blocks []float64) {
	for b := range series[0] {
		if slices.ContainsFunc(series, func(s []float64) bool { return !math.IsNaN(s[b]) }) {
			blocks = append(blocks, float64(b))
		}
	}
	return blocks
}

// explained is how much of the spread of y the line explains, at least 0.
func (l Line) explained(x, y []float64) float64 {
	m := Mean(y)
	var rest, spread float64
	for i := range x {
		d := y[i] - l.A - l.B*x[i]
		rest += d * d
		spread += (y[i] - m) * (y[i] - m)
	}
	if spread == 0 {
		return 0
	}
	return max(0, 1-rest/spread)
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
