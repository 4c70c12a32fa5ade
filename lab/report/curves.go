package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// curve is one line of a plot.
type curve struct {
	label     string
	colour    int
	x, y      []float64
	low, high []float64 // nil: without intervals
	fit       *[2]float64
	step      bool
	points    bool // without a line
}

// alongFigures draw a metric against each factor whose levels are numbers, one figure for each combination of the others.
func alongFigures(p lab.PartResult, metric int, id string) (out []figure) {
	m := p.Part.Metrics[metric]
	for _, along := range p.Part.Factors {
		if along.Name != mainFactor(p.Part) {
			continue
		}
		// Make a curve for each level that is compared, bundled by the levels of all other factors.
		type bundle struct {
			at     string
			curves []curve
		}
		var bundles []*bundle
		for _, g := range p.Groups {
			at := map[string]string{}
			for k, v := range g.Levels {
				if k != along.Name {
					at[k] = v
				}
			}
			name := levelsText(at)
			i := slices.IndexFunc(bundles, func(b *bundle) bool { return b.at == name })
			if i < 0 {
				i = len(bundles)
				bundles = append(bundles, &bundle{at: name})
			}
			x, _ := strconv.ParseFloat(g.Levels[along.Name], 64)
			for _, v := range g.Metrics[metric].Values {
				if v.Duplicate || v.Median == nil || v.Open != stats.Closed { // a bound is in the table, with its sign
					continue
				}
				b := bundles[i]
				k := slices.IndexFunc(b.curves, func(c curve) bool { return c.label == v.Level })
				if k < 0 {
					k = len(b.curves)
					b.curves = append(b.curves, curve{label: v.Level, colour: colourOf(p.Part, v.Level)})
				}
				c := &b.curves[k]
				low, high := *v.Median, *v.Median
				if v.Interval != nil {
					low = v.Interval.Low
					if finite(v.Interval.High) {
						high = v.Interval.High
					}
				}
				c.x, c.y, c.low, c.high = append(c.x, x), append(c.y, *v.Median), append(c.low, low), append(c.high, high)
			}
		}
		// Make a figure of each bundle.
		for _, b := range bundles {
			if !slices.ContainsFunc(b.curves, func(c curve) bool { return len(c.x) > 1 }) { // a point is no curve: see absolute
				continue
			}
			f := figure{
				ID: id + "-by-" + slug(along.Name), Part: p.Part.Name, Title: fmt.Sprintf("%s by %s", m.Name, along.Name),
				About: fmt.Sprintf("Medians over the blocks with their 95 %% intervals; %s is better.", m.Better), Table: valuesTable(p, metric),
			}
			if b.at != "" {
				f.ID, f.Title = f.ID+"-"+slug(b.at), f.Title+" at "+b.at
			}
			var xs, ys []float64
			for _, c := range b.curves {
				xs, ys = append(xs, c.x...), append(append(append(ys, c.y...), c.low...), c.high...)
			}
			f.plot(b.curves, along.Name, m.Name+", "+unitText(m.Unit), spansDecade(xs), spansDecade(ys))
			out = append(out, f)
		}
	}
	return out
}

// plot sets the drawing and the chart of curves.
func (f *figure) plot(curves []curve, xLabel, yLabel string, xLog, yLog bool) {
	f.draw = func(width float64) *canvas { return plot(width, curves, xLabel, yLabel, xLog, yLog) }
	var xs []float64
	for _, c := range curves {
		xs = append(xs, c.x...)
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	ch := &chart{X: xLabel, Y: yLabel, XLog: xLog, YLog: yLog, Data: [][]*float64{pointers(xs)}}
	for _, c := range curves {
		s := chartSeries{Label: c.label, Colour: c.colour % colours, Dash: c.colour%2 == 1, Points: c.fit != nil || c.points}
		y, low, high := make([]*float64, len(xs)), make([]*float64, len(xs)), make([]*float64, len(xs))
		for i := range c.x {
			k, _ := slices.BinarySearch(xs, c.x[i])
			y[k] = &c.y[i]
			if c.low != nil {
				low[k], high[k] = &c.low[i], &c.high[i]
			}
		}
		if c.low != nil {
			s.Low, s.High = low, high
		}
		ch.Data, ch.Series = append(ch.Data, y), append(ch.Series, s)
		if c.fit != nil {
			line := make([]*float64, len(xs))
			for i, x := range xs {
				v := c.fit[0] + c.fit[1]*x
				line[i] = &v
			}
			ch.Data, ch.Series = append(ch.Data, line), append(ch.Series, chartSeries{Label: c.label + ", line", Colour: c.colour % colours, Dash: c.colour%2 == 1})
		}
	}
	f.Chart = ch
}

func pointers(x []float64) []*float64 {
	out := make([]*float64, len(x))
	for i := range x {
		out[i] = &x[i]
	}
	return out
}

// legend above a plot; gives the height that it took.
func (c *canvas) legend(curves []curve) float64 {
	x, y := 8.0, 12.0
	for _, s := range curves {
		w := 34 + textWidth(s.label)
		if x > 8 && x+w > c.w {
			x, y = 8, y+20
		}
		c.path(series(s.colour), s.colour%2 == 1, [][2]float64{{x, y}, {x + 22, y}})
		c.marker(series(s.colour), s.colour, x+11, y, true, "")
		c.text("text", "start", x+27, y+4, s.label)
		x += w + 8
	}
	return y + 14
}

func plot(width float64, curves []curve, xLabel, yLabel string, xLog, yLog bool) *canvas {
	c := &canvas{w: width}
	// Draw the legend; it decides the height.
	top := c.legend(curves) + 16
	height := 260.0
	if width >= 500 {
		height = 320
	}
	bottom := top + height
	c.h = bottom + 42
	// Choose the scales.
	var xs, ys []float64
	for _, s := range curves {
		xs = append(xs, s.x...)
		ys = append(append(append(ys, s.y...), s.low...), s.high...)
		if s.fit != nil {
			xs = append(xs, 0)
			ys = append(ys, s.fit[0])
		}
	}
	y := newScale(ys, yLog, bottom, top)
	yTicks := y.ticks(7)
	left := 0.0
	for _, t := range yTicks {
		left = max(left, textWidth(tick(t)))
	}
	left += 12
	x := newScale(xs, xLog, left, width-12)
	// Draw grid, ticks and axes.
	c.text("muted", "start", 0, top-8, yLabel)
	for _, t := range yTicks {
		c.line("grid", left, y.at(t), width-6, y.at(t))
		c.text("muted", "end", left-6, y.at(t)+4, tick(t))
	}
	for _, t := range xTicks(x, xs, xLog) {
		c.line("grid", x.at(t), top, x.at(t), bottom)
		c.text("muted", "middle", x.at(t), bottom+16, tick(t))
	}
	c.line("axis", left, bottom, width-6, bottom)
	c.text("muted", "middle", (left+width)/2, bottom+36, xLabel)
	// Draw each curve: its line or fit, then points with intervals.
	for _, s := range curves {
		class := series(s.colour)
		if s.fit != nil {
			first, last := x.low, x.high
			c.path(class, s.colour%2 == 1, [][2]float64{{x.at(first), y.at(s.fit[0] + s.fit[1]*first)}, {x.at(last), y.at(s.fit[0] + s.fit[1]*last)}})
		} else if !s.points {
			var points [][2]float64
			for i := range s.x {
				points = append(points, [2]float64{x.at(s.x[i]), y.at(s.y[i])})
			}
			c.path(class, s.colour%2 == 1, points)
		}
		if s.step {
			continue
		}
		for i := range s.x {
			hint := fmt.Sprintf("%s at %s: %s", s.label, tick(s.x[i]), number(s.y[i]))
			if s.low != nil {
				hint += fmt.Sprintf(" (%s to %s)", number(s.low[i]), number(s.high[i]))
				c.thick(class, x.at(s.x[i]), y.at(s.low[i]), x.at(s.x[i]), y.at(s.high[i]), 2, "")
			}
			c.marker(class, s.colour, x.at(s.x[i]), y.at(s.y[i]), true, hint)
		}
	}
	return c
}

// xTicks are the measured values themselves, where few enough fit; otherwise round ones.
func xTicks(s scale, xs []float64, log bool) []float64 {
	own := slices.Clone(xs)
	slices.Sort(own)
	own = slices.Compact(own)
	if len(own) > 14 {
		return s.ticks(int(math.Abs(s.to-s.from) / 60))
	}
	var t []float64
	last := math.Inf(-1)
	for _, v := range own {
		if at := s.at(v); at-last >= textWidth(tick(v))+8 {
			t, last = append(t, v), at
		}
	}
	return t
}

// lawFigures draw the chain laws of a part, one for each metric and combination of the other factors.
func lawFigures(all []Law, p lab.PartResult) (out []figure) {
	var keys []string
	by := map[string][]Law{}
	for _, l := range all {
		if l.Part == p.Part.Name && l.Along == mainFactor(p.Part) {
			k := l.Metric + "/" + l.Along + "/" + levelsText(l.At)
			if by[k] == nil {
				keys = append(keys, k)
			}
			by[k] = append(by[k], l)
		}
	}
	for _, k := range keys {
		first := by[k][0]
		f := figure{
			ID: slug(first.Part + "-law-" + first.Metric + "-" + first.Along), Part: first.Part, Title: fmt.Sprintf("Law: %s = a + b × %s", first.Metric, first.Along),
			About: "Theil-Sen line through the medians: a is what none costs, b what each further one adds.",
			Table: table{Head: []string{"at", p.Part.Compare, "a, " + unitText(first.Unit), "b, " + unitText(first.Unit) + " per " + study.One(first.Along), "95 % interval of b", "R²"}},
		}
		if at := levelsText(first.At); at != "" {
			f.ID, f.Title = f.ID+"-"+slug(at), f.Title+" at "+at
		}
		var curves []curve
		for _, l := range by[k] {
			interval := none
			if l.Interval != nil {
				interval = span(number, *l.Interval)
			}
			f.Table.Rows = append(f.Table.Rows, []string{levelsText(l.At), l.Level, number(l.A), number(l.B), interval, fmt.Sprintf("%.3f", l.R2)})
			curves = append(curves, curve{label: l.Level, colour: colourOf(p.Part, l.Level), x: l.X, y: l.Y, fit: &[2]float64{l.A, l.B}})
			if l.Extrapolated != "" {
				f.About += fmt.Sprintf(" %s: %s; these are no measurements.", l.Level, l.Extrapolated)
			}
		}
		f.plot(curves, first.Along, first.Metric+", "+unitText(first.Unit), false, false)
		out = append(out, f)
	}
	return out
}

// cdf of the samples of a part. Many variants: those of the baseline and its rivals at the least and the greatest number of samples would hide each
// other, so that at most as many curves as there are colours are drawn; the table has all.
func cdf(all []Distribution, p lab.PartResult) (figure, bool) {
	f := figure{
		ID: p.Part.Name + "-cdf", Part: p.Part.Name, Table: table{Head: []string{"variant", "samples", "least", "p50", "p90", "p99", "p99.9", "greatest"}},
		About: "Share of the samples of all valid trials that did not exceed a value. A percentile is told only where 10 samples or more lie beyond it.",
	}
	var curves []curve
	var xs []float64
	for _, d := range all {
		if d.Part != p.Part.Name {
			continue
		}
		f.Title = fmt.Sprintf("Distribution of %s", d.Metric.Name)
		f.Table.Rows = append(f.Table.Rows, []string{d.Name, strconv.Itoa(d.N), number(d.Min), optional(d.P50), optional(d.P90), optional(d.P99), optional(d.P999), number(d.Max)})
		if len(curves) < colours {
			curves = append(curves, curve{label: d.Name, colour: len(curves), x: d.X, y: d.Q, step: true})
			xs = append(xs, d.X...)
		}
	}
	if len(curves) == 0 {
		return f, false
	}
	if len(f.Table.Rows) > len(curves) {
		f.About += fmt.Sprintf(" Drawn: the first %d of %d variants.", len(curves), len(f.Table.Rows))
	}
	m := p.Part.Metrics[0]
	f.plot(curves, m.Name+", "+unitText(m.Unit), "share of samples", spansDecade(xs), false)
	return f, true
}
