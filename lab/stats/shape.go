package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Laws of y along x that Shape sets against each other. Errors are relative to y throughout: a law is fitted by least squares of (predicted - y) / y (the
// exponential and the power by those of the logarithms), since the noise of rates and times is a share of them.
const (
	LawConstant    = "constant"    // y = a
	LawLinear      = "linear"      // y = a + b x
	LawQuadratic   = "quadratic"   // y = a + b x + c x^2
	LawExponential = "exponential" // y = a exp(b x)
	LawPower       = "power"       // y = a x^b: what saturates, where b < 1
)

// Laws are all of them, the one with the fewest parameters first.
func Laws() []string { return []string{LawConstant, LawLinear, LawExponential, LawPower, LawQuadratic} }

// worstError is what a prediction that is off by more counts as: a parabola or an exponential through few levels can be off by any amount.
const worstError = 1

// ShapeFit says how well a law predicts levels that it has not seen, beside its rivals.
type ShapeFit struct {
	Law    string             `json:"law"`
	Errors map[string]float64 `json:"errors"` // of every law: the mean relative error where each level in turn is left out and predicted
	Rival  string             `json:"rival"`  // the best other law
	Excess float64            `json:"excess"` // error of the law less that of the best rival
	// ExcessInterval and GainInterval are 95 % intervals by bootstrap over blocks (BCa).
	ExcessInterval Interval `json:"excess_interval"`
	Slope          Line     `json:"slope"` // through the medians, by Theil and Sen
	SlopeInterval  Interval `json:"slope_interval"`
	Gain           float64  `json:"gain"` // by the slope from the least to the greatest x, as a share of the median of y
	GainInterval   Interval `json:"gain_interval"`
}

// FitShape sets a law against its rivals. series[i][b] is the value of block b at x[i], above 0, or NaN where there is none; x are different from each other.
// ok is false where a median is not above 0, or where there are fewer than MinBlocks blocks or four levels. resamples are those of the bootstrap.
func FitShape(law string, x []float64, series [][]float64, resamples int, seed uint64) (f ShapeFit, ok bool) {
	blocks := present(series)
	y := make([]float64, len(x))
	mediansOf(series, blocks, y)
	if len(x) < 4 || len(blocks) < MinBlocks || slices.ContainsFunc(y, func(v float64) bool { return !(v > 0) || math.IsInf(v, 0) }) {
		return f, false
	}
	f.Law, f.Errors = law, map[string]float64{}
	for _, l := range Laws() {
		f.Errors[l] = leftOutError(l, x, y)
		if l != law && (f.Rival == "" || f.Errors[l] < f.Errors[f.Rival]) {
			f.Rival = l
		}
	}
	f.Excess = f.Errors[law] - f.Errors[f.Rival]
	f.Slope = TheilSen(x, y)
	reach := slices.Max(x) - slices.Min(x)
	f.Gain = f.Slope.B * reach / Median(y)
	draw := make([]float64, len(x))
	interval := func(of func(y []float64) float64) Interval {
		at := func(blocks []float64) float64 {
			mediansOf(series, blocks, draw)
			for i, v := range draw {
				if math.IsNaN(v) { // none of the drawn blocks has this level
					draw[i] = y[i]
				}
			}
			return of(draw)
		}
		return BCa(blocks, at, 1-Alpha, resamples, rand.New(rand.NewPCG(seed, 0x5a9e)))
	}
	f.ExcessInterval = interval(func(y []float64) float64 {
		best := math.Inf(1)
		for _, l := range Laws() {
			if l != law {
				best = min(best, leftOutError(l, x, y))
			}
		}
		return leftOutError(law, x, y) - best
	})
	f.SlopeInterval = interval(func(y []float64) float64 { return TheilSen(x, y).B })
	f.GainInterval = interval(func(y []float64) float64 { return TheilSen(x, y).B * reach / Median(y) })
	return f, true
}

// present are the blocks in which some of the series have a value.
func present(series [][]float64) (blocks []float64) {
	if len(series) == 0 {
		return nil
	}
	for b := range series[0] {
		if slices.ContainsFunc(series, func(s []float64) bool { return !math.IsNaN(s[b]) }) {
			blocks = append(blocks, float64(b))
		}
	}
	return blocks
}

// mediansOf each series over some blocks, into y; NaN where it has no value in them.
func mediansOf(series [][]float64, blocks, y []float64) {
	of := make([]float64, 0, len(blocks))
	for i, s := range series {
		of = of[:0]
		for _, b := range blocks {
			if v := s[int(b)]; !math.IsNaN(v) {
				of = append(of, v)
			}
		}
		y[i] = math.NaN()
		if len(of) > 0 {
			y[i] = medianOf(of)
		}
	}
}

// leftOutError is the mean relative error with which a law that is fitted to all points but one predicts that one.
func leftOutError(law string, x, y []float64) float64 {
	sum := 0.0
	var px, py [maxShapeLevels]float64
	for i := range x {
		rx, ry := append(append(px[:0], x[:i]...), x[i+1:]...), append(append(py[:0], y[:i]...), y[i+1:]...)
		e := math.Abs(predict(law, rx, ry, x[i])/y[i] - 1)
		if !(e < worstError) {
			e = worstError
		}
		sum += e
	}
	return sum / float64(len(x))
}

// maxShapeLevels that need no memory of their own.
const maxShapeLevels = 32

// predict y at x0 by a law that is fitted to points; NaN where it cannot be.
func predict(law string, x, y []float64, x0 float64) float64 {
	same := func(v float64) float64 { return v }
	switch law {
	case LawConstant:
		return polynomial(x, y, 0, x0)
	case LawLinear:
		return polynomial(x, y, 1, x0)
	case LawQuadratic:
		return polynomial(x, y, 2, x0)
	case LawExponential:
		return math.Exp(throughLogs(x, y, same, x0))
	case LawPower:
		return math.Exp(throughLogs(x, y, math.Log, x0))
	}
	panic("no law " + law)
}

// throughLogs is the line through log y over of(x), by least squares, at x0.
func throughLogs(x, y []float64, of func(float64) float64, x0 float64) float64 {
	n := float64(len(x))
	var mx, my, sxx, sxy float64
	for i := range x {
		mx += of(x[i]) / n
		my += math.Log(y[i]) / n
	}
	for i := range x {
		d := of(x[i]) - mx
		sxx += d * d
		sxy += d * (math.Log(y[i]) - my)
	}
	return my + sxy/sxx*(of(x0)-mx)
}

// polynomial of a degree up to 2 by least squares of the relative errors, at x0. x is scaled to at most 1, so that the equations are well conditioned.
func polynomial(x, y []float64, degree int, x0 float64) float64 {
	scale := math.Abs(x0)
	for _, v := range x {
		scale = max(scale, math.Abs(v))
	}
	if scale == 0 {
		scale = 1
	}
	var a [3][4]float64 // normal equations, the right side last
	for i := range x {
		var row [3]float64
		for k, p := 0, 1/y[i]; k <= degree; k++ {
			row[k] = p
			p *= x[i] / scale
		}
		for k := 0; k <= degree; k++ {
			for m := 0; m <= degree; m++ {
				a[k][m] += row[k] * row[m]
			}
			a[k][3] += row[k]
		}
	}
	c := solve(a, degree+1)
	at := x0 / scale
	return c[0] + at*(c[1]+at*c[2])
}

// solve n equations by elimination with pivots; NaN where they have no one solution.
func solve(a [3][4]float64, n int) (c [3]float64) {
	for k := range n {
		most := k
		for i := k + 1; i < n; i++ {
			if math.Abs(a[i][k]) > math.Abs(a[most][k]) {
				most = i
			}
		}
		a[k], a[most] = a[most], a[k]
		if a[k][k] == 0 {
			return [3]float64{math.NaN(), math.NaN(), math.NaN()}
		}
		for i := k + 1; i < n; i++ {
			f := a[i][k] / a[k][k]
			for m := k; m < 4; m++ {
				a[i][m] -= f * a[k][m]
			}
		}
	}
	for k := n - 1; k >= 0; k-- {
		c[k] = a[k][3]
		for m := k + 1; m < n; m++ {
			c[k] -= a[k][m] * c[m]
		}
		c[k] /= a[k][k]
	}
	return c
}
