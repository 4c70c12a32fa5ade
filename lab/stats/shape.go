package stats

import (
	"math"
	"slices"
)

// Laws of y along x that FitShape sets against each other. Polynomials are fitted by least squares of (predicted - y) / y, the exponential and the power by
// those of the logarithms, since the noise of rates and times is a share of them.
const (
	LawConstant    = "constant"    // y = a
	LawLinear      = "linear"      // y = a + b x
	LawQuadratic   = "quadratic"   // y = a + b x + c x^2
	LawExponential = "exponential" // y = a exp(b x)
	LawPower       = "power"       // y = a x^b: what saturates, where b < 1
)

// Laws are all of them, the one with the fewest parameters first.
func Laws() []string { return []string{LawConstant, LawLinear, LawExponential, LawPower, LawQuadratic} }

// farthest is how far off a law's prediction counts at most, as a logarithm: a polynomial may be at or below 0 at a level.
const farthest = 1

// ShapeFit says how well a law predicts blocks that it has not seen, beside its rivals and beside the levels themselves. All errors are shares of y (logarithms),
// where the speed of a block, which all its levels share, is free. Differences of errors are those of their squares, as roots with the sign of the difference.
// All intervals are those of the median over blocks at 1-Alpha.
type ShapeFit struct {
	Law    string              `json:"law"`
	Blocks int                 `json:"blocks"` // in which every level has a value
	Errors map[string]float64  `json:"errors"` // of every law
	Noise  float64             `json:"noise"`  // error of the levels' medians, without what the medians themselves are off by
	Misfit Interval            `json:"misfit"` // the law's error beyond the noise
	Behind map[string]Interval `json:"behind"` // each rival's error beyond the law's: above 0 the rival is worse, below 0 better
	// Exponent of the power law, through each block. 1 is the line through the origin. No interval where an x is not above 0.
	Exponent         float64  `json:"exponent,omitempty"`
	ExponentInterval Interval `json:"exponent_interval,omitzero"`
	Slope            float64  `json:"slope"` // by Theil and Sen in each block
	SlopeInterval    Interval `json:"slope_interval"`
	Gain             float64  `json:"gain"` // by the block's slope from the least to the greatest x, as a share of its median
	GainInterval     Interval `json:"gain_interval"`
}

// CompleteBlocks are those in which every series has a value.
func CompleteBlocks(series [][]float64) (blocks []int) {
	if len(series) == 0 {
		return nil
	}
	for b := range series[0] {
		if !slices.ContainsFunc(series, func(s []float64) bool { return math.IsNaN(s[b]) }) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// FitShape sets a law against its rivals. series[i][b] is the value of block b at x[i], NaN where there is none; x are different from each other. Only complete
// blocks count. ok is false where there are fewer than MinBlocks of them, or four levels, or where a value is not above 0.
//
// Each block in turn is left out: every law is fitted to the medians of the others, and its error in the block is the mean square of what it is off by at the
// levels. So laws are compared within a block, with an error that noise in the block makes no smaller for a law with more parameters.
func FitShape(law string, x []float64, series [][]float64) (f ShapeFit, ok bool) {
	y := make([][]float64, 0, len(x)) // by block
	for _, b := range CompleteBlocks(series) {
		block := make([]float64, len(x))
		for i := range x {
			block[i] = series[i][b]
		}
		if slices.ContainsFunc(block, func(v float64) bool { return !(v > 0) || math.IsInf(v, 0) }) {
			return f, false
		}
		y = append(y, block)
	}
	if len(x) < 4 || len(y) < MinBlocks {
		return f, false
	}
	f = ShapeFit{Law: law, Blocks: len(y), Errors: map[string]float64{}, Behind: map[string]Interval{}}
	laws := Laws()
	if slices.Min(x) <= 0 {
		laws = slices.DeleteFunc(laws, func(l string) bool { return l == LawPower })
	}
	errors, noise := blockErrors(laws, x, y)
	f.Noise = math.Sqrt(Median(noise))
	f.Misfit = differences(errors[law], noise)
	for _, l := range laws {
		f.Errors[l] = math.Sqrt(Median(errors[l]))
		if l != law {
			f.Behind[l] = differences(errors[l], errors[law])
		}
	}
	over := func(of func(y []float64) float64) (float64, Interval) {
		each := make([]float64, len(y))
		for b := range y {
			each[b] = of(y[b])
		}
		return Median(each), MedianInterval(each, 1-Alpha)
	}
	if slices.Contains(laws, LawPower) {
		f.Exponent, f.ExponentInterval = over(func(y []float64) float64 { return slopeOf(logs(x), logs(y)) })
	}
	f.Slope, f.SlopeInterval = over(func(y []float64) float64 { return TheilSen(x, y).B })
	reach := slices.Max(x) - slices.Min(x)
	f.Gain, f.GainInterval = over(func(y []float64) float64 { return TheilSen(x, y).B * reach / Median(y) })
	return f, true
}

// blockErrors of each law in each block, and what of them is noise: the error of the others' medians, less what these are off by. The median of m values with
// a variance of 1 has one of about pi/2/m.
func blockErrors(laws []string, x []float64, y [][]float64) (errors map[string][]float64, noise []float64) {
	errors = map[string][]float64{}
	centred := make([][]float64, len(y))
	for b := range y {
		centred[b] = logs(y[b])
		centre(centred[b])
	}
	others, of := make([]float64, len(x)), make([]float64, len(y)-1)
	for b := range y {
		for i := range x {
			of = of[:0]
			for o := range y {
				if o != b {
					of = append(of, centred[o][i])
				}
			}
			others[i] = medianOf(of)
		}
		for _, l := range laws {
			errors[l] = append(errors[l], meanSquare(centred[b], curve(l, x, others)))
		}
		m := float64(len(y) - 1)
		noise = append(noise, meanSquare(centred[b], others)*m/(m+math.Pi/2))
	}
	return errors, noise
}

// differences of squared errors over the blocks: the interval of their median, as roots with its ends' signs.
func differences(a, b []float64) Interval {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	root := func(v float64) float64 { return math.Copysign(math.Sqrt(math.Abs(v)), v) }
	i := MedianInterval(d, 1-Alpha)
	return Interval{root(i.Low), root(i.High)}
}

// meanSquare of the differences of two rows of logarithms, whatever factor is between them.
func meanSquare(a, b []float64) float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	centre(d)
	sum := 0.0
	for _, v := range d {
		sum += v * v
	}
	return sum / float64(len(d))
}

func centre(v []float64) {
	m := Mean(v)
	for i := range v {
		v[i] -= m
	}
}

func logs(v []float64) []float64 {
	l := make([]float64, len(v))
	for i := range v {
		l[i] = math.Log(v[i])
	}
	return l
}

// curve has the logarithms of what a law says at x that is fitted to y, given and returned as logarithms.
func curve(law string, x, y []float64) []float64 {
	switch law {
	case LawConstant:
		return polynomial(x, y, 0)
	case LawLinear:
		return polynomial(x, y, 1)
	case LawQuadratic:
		return polynomial(x, y, 2)
	case LawExponential:
		return line(x, y)
	case LawPower:
		return line(logs(x), y)
	}
	panic("no law " + law)
}

// line through y by least squares, at x.
func line(x, y []float64) []float64 {
	b, mx, my := slopeOf(x, y), Mean(x), Mean(y)
	out := make([]float64, len(x))
	for i := range x {
		out[i] = within(my+b*(x[i]-mx), y[i])
	}
	return out
}

// slopeOf the line through y by least squares.
func slopeOf(x, y []float64) float64 {
	mx, my := Mean(x), Mean(y)
	var xx, xy float64
	for i := range x {
		xx += (x[i] - mx) * (x[i] - mx)
		xy += (x[i] - mx) * (y[i] - my)
	}
	return xy / xx
}

// within farthest of y; what is no number is too low.
func within(v, y float64) float64 {
	if !(v > y-farthest) {
		return y - farthest
	}
	return min(v, y+farthest)
}

// polynomial of a degree up to 2 by least squares of the relative errors. x is scaled to at most 1, so that the equations are well conditioned.
func polynomial(x, y []float64, degree int) []float64 {
	scale := 0.0
	for _, v := range x {
		scale = max(scale, math.Abs(v))
	}
	row := func(i int) (r [3]float64) { // terms at x[i], as shares of y[i]
		for k, p := 0, math.Exp(-y[i]); k <= degree; k++ {
			r[k] = p
			p *= x[i] / scale
		}
		return r
	}
	var a [3][4]float64 // normal equations, the right side last
	for i := range x {
		r := row(i)
		for k := 0; k <= degree; k++ {
			for m := 0; m <= degree; m++ {
				a[k][m] += r[k] * r[m]
			}
			a[k][3] += r[k]
		}
	}
	c := solve(a, degree+1)
	out := make([]float64, len(x))
	for i := range x {
		r := row(i)
		out[i] = within(y[i]+math.Log(c[0]*r[0]+c[1]*r[1]+c[2]*r[2]), y[i])
	}
	return out
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
