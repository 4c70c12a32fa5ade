package stats

import "math"

// studentTail is the probability that Student's t with df degrees of freedom is further from 0 than t, on either side.
func studentTail(t, df float64) float64 {
	if math.IsInf(t, 0) {
		return 0
	}
	return incompleteBeta(df/2, 0.5, df/(df+t*t))
}

// studentQuantile is the t beyond which, on both sides together, Student's distribution has the given share.
func studentQuantile(share, df float64) float64 {
	low, high := 0.0, 1.0
	for studentTail(high, df) > share && high < math.MaxFloat64/2 {
		high *= 2
	}
	for range 100 {
		if mid := (low + high) / 2; studentTail(mid, df) > share {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// incompleteBeta is the regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (Abramowitz and Stegun 26.5.8).
func incompleteBeta(a, b, x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2): // it converges fast below
		return 1 - incompleteBeta(b, a, 1-x)
	}
	lgamma := func(v float64) float64 { l, _ := math.Lgamma(v); return l }
	front := math.Exp(lgamma(a+b)-lgamma(a)-lgamma(b)+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny, most = 1e-300, 500
	f, c, d := 1.0, 1.0, 0.0
	for i := range most {
		m := float64(i / 2)
		var term float64
		switch {
		case i == 0:
			term = 1
		case i%2 == 0:
			term = m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		default:
			term = -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		}
		if d = 1 + term*d; math.Abs(d) < tiny {
			d = tiny
		}
		if c = 1 + term/c; math.Abs(c) < tiny {
			c = tiny
		}
		d = 1 / d
		f *= c * d
		if math.Abs(c*d-1) < 1e-15 {
			break
		}
	}
	return front * (f - 1)
}
