package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// figure is a drawing for any width, the same as a table, and, where pointing at it helps, as an interactive chart.
type figure struct {
	ID, Title, About string
	Part             string
	Table            table
	Chart            *chart // nil: the drawing is enough
	draw             func(width float64) *canvas
}

// table is text.
type table struct {
	Head []string
	Rows [][]string
}

// chart is what the page's script draws with uPlot.
type chart struct {
	X      string        `json:"x"` // labels of the axes
	Y      string        `json:"y"`
	XLog   bool          `json:"xlog,omitempty"`
	YLog   bool          `json:"ylog,omitempty"`
	Data   [][]*float64  `json:"data"` // x, then each series
	Series []chartSeries `json:"series"`
}

type chartSeries struct {
	Label  string     `json:"label"`
	Colour int        `json:"colour"`
	Dash   bool       `json:"dash,omitempty"`
	Points bool       `json:"points,omitempty"` // points without a line
	Low    []*float64 `json:"low,omitempty"`    // intervals
	High   []*float64 `json:"high,omitempty"`
}

// colours of series: that many are told apart, by shape besides.
const colours = 8

func series(i int) string { return "s" + strconv.Itoa(i%colours) }

// figures of the report in its order.
func (r Report) figures() (out []figure) {
	for _, p := range r.Results.Parts {
		for i, m := range p.Part.Metrics {
			id := p.Part.Name + "-" + slug(m.Name)
			if f, ok := forest(p, i, id+"-ratios"); ok {
				out = append(out, f)
			}
			along := alongFigures(p, i, id)
			out = append(out, along...)
			if len(along) == 0 {
				if f, ok := absolute(p, i, id+"-values"); ok {
					out = append(out, f)
				}
			}
		}
		out = append(out, lawFigures(r.Laws, p)...)
		out = append(out, limitFigures(r.Limits, p)...)
		if f, ok := cdf(r.Distributions, p); ok {
			out = append(out, f)
		}
	}
	if f, ok := r.timeline(); ok {
		out = append(out, f)
	}
	return out
}

func slug(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		if c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return '-'
	}, s)
}

// colourOf a level of the compared factor is the same in all figures of the part.
func colourOf(p study.Part, level string) int {
	f, _ := p.Factor(p.Compare)
	return max(0, slices.Index(f.Levels, level))
}

// row of a figure of dots with intervals.
type row struct {
	heading        string // of the rows that follow; everything else is empty
	label          string
	colour         int
	value          float64
	low, high      float64
	text           string // of the value
	verdict        string
	weak           bool // not claimed
	floor          float64
	missing        bool
	missingBecause string
}

// forest of the ratios of a metric.
func forest(p lab.PartResult, metric int, id string) (figure, bool) {
	m := p.Part.Metrics[metric]
	f := figure{
		ID: id, Part: p.Part.Name, Title: fmt.Sprintf("%s relative to %s", m.Name, p.Part.Baseline),
		About: fmt.Sprintf("Ratio of the medians of each block with its 95 %% interval; %s is better. The band is twice the noise floor: what lies in it is not claimed. Hollow: not claimed.", m.Better),
		Table: table{Head: []string{"at", p.Part.Compare, "ratio", "95 % interval", "p (Holm)", "blocks", "noise floor", "detectable", "verdict"}},
	}
	var rows []row
	for _, g := range p.Groups {
		r := g.Metrics[metric]
		if allSkipped(r) {
			continue
		}
		if g.Name != "" {
			rows = append(rows, row{heading: spaced(g.Name), floor: r.Comparison.Floor})
		}
		for _, v := range r.Values {
			ratio := r.Comparison.Variants[v.Level]
			label := v.Level
			switch {
			case v.Duplicate:
				ratio, label = r.Comparison.Duplicate, p.Part.Baseline+" (A/A)"
			case v.Level == p.Part.Baseline:
				continue
			}
			if v.Skipped != "" && v.N == 0 {
				continue
			}
			s := string(sense(m, ratio, r.Comparison.Floor))
			if v.Duplicate && ratio.Verdict != stats.TooFew && ratio.Verdict != stats.Indistinguishable {
				s = "differs from itself"
			}
			x := row{label: label, colour: colourOf(p.Part, v.Level), value: ratio.Ratio, low: ratio.Interval.Low, high: ratio.Interval.High,
				text: times(ratio.Ratio), verdict: s, weak: ratio.Verdict == stats.Indistinguishable, floor: r.Comparison.Floor}
			cells := []string{spaced(g.Name), label, times(ratio.Ratio), span(times, ratio.Interval), pText(ratio.P), strconv.Itoa(ratio.Blocks),
				floorText(r.Comparison.Floor), times(ratio.Detectable), s}
			if ratio.Verdict == stats.TooFew {
				x.missing, x.missingBecause = true, fmt.Sprintf("too few blocks (%d)", ratio.Blocks)
				cells[2], cells[3], cells[4], cells[7] = none, none, none, none
			}
			rows = append(rows, x)
			f.Table.Rows = append(f.Table.Rows, cells)
		}
	}
	if !slices.ContainsFunc(rows, func(r row) bool { return r.heading == "" && !r.missing }) {
		return f, false
	}
	f.draw = func(width float64) *canvas { return dots(width, rows, 1, "ratio to "+p.Part.Baseline, true) }
	return f, true
}

func span(say func(float64) string, i stats.Interval) string {
	return say(i.Low) + " to " + say(i.High)
}

// absolute values of a metric, one row a variant.
func absolute(p lab.PartResult, metric int, id string) (figure, bool) {
	m := p.Part.Metrics[metric]
	f := figure{
		ID: id, Part: p.Part.Name, Title: fmt.Sprintf("%s in %s", m.Name, unitText(m.Unit)),
		About: fmt.Sprintf("Medians over the blocks with their 95 %% intervals; %s is better.", m.Better),
		Table: valuesTable(p, metric),
	}
	var rows []row
	any := false
	for _, g := range p.Groups {
		if allSkipped(g.Metrics[metric]) {
			continue
		}
		if g.Name != "" {
			rows = append(rows, row{heading: spaced(g.Name)})
		}
		for _, v := range g.Metrics[metric].Values {
			if v.Duplicate || v.Skipped != "" && v.N == 0 {
				continue
			}
			x := row{label: v.Level, colour: colourOf(p.Part, v.Level), missing: true, missingBecause: "no valid trial"}
			if v.Median != nil {
				any = true
				x.missing, x.value, x.low, x.high, x.text = false, *v.Median, *v.Median, *v.Median, number(*v.Median)
				if v.Interval != nil {
					x.low, x.high = v.Interval.Low, v.Interval.High
				}
			}
			rows = append(rows, x)
		}
	}
	f.draw = func(width float64) *canvas { return dots(width, rows, 0, m.Name+", "+unitText(m.Unit), false) }
	return f, any
}

func valuesTable(p lab.PartResult, metric int) table {
	m := p.Part.Metrics[metric]
	t := table{Head: []string{"at", p.Part.Compare, "median, " + unitText(m.Unit), "95 % interval", "variation", "blocks"}}
	for _, g := range p.Groups {
		for _, v := range g.Metrics[metric].Values {
			if v.Skipped != "" && v.N == 0 {
				continue
			}
			label, interval, cv := v.Level, none, none
			if v.Duplicate {
				label += " (A/A)"
			}
			if v.Interval != nil {
				interval = span(number, *v.Interval)
			}
			if v.CV != nil {
				cv = share(*v.CV)
			}
			median := optional(v.Median)
			t.Rows = append(t.Rows, []string{spaced(g.Name), label, median, interval, cv, strconv.Itoa(v.N)})
		}
	}
	return t
}

// dots draws rows of points with intervals. A reference other than 0 is a line, with the noise floor around it.
func dots(width float64, rows []row, reference float64, axis string, ratio bool) *canvas {
	small := width < 500
	var values []float64
	longest, text := 0.0, 0.0
	for _, r := range rows {
		longest = max(longest, textWidth(r.label)+16)
		if r.heading == "" && !r.missing {
			values = append(values, r.low, r.high, r.value)
			text = max(text, textWidth(r.text))
		}
	}
	if reference != 0 {
		values = append(values, reference)
		for _, r := range rows {
			if r.floor > 0 && r.floor < 1.5 {
				values = append(values, r.floor*r.floor, 1/(r.floor*r.floor))
			}
		}
	}
	left, right := min(longest, 240)+10, text+12
	if ratio && !small {
		right += textWidth("indistinguishable") + 10
	}
	if small {
		left = min(longest, 118) + 6
	}
	const rowHeight, headHeight, top = 22.0, 26.0, 8.0
	c := &canvas{w: width, h: top}
	for _, r := range rows {
		if r.heading != "" {
			c.h += headHeight
		} else {
			c.h += rowHeight
		}
	}
	bottom := c.h + 2
	c.h = bottom + 40
	x := newScale(values, ratio || spansDecade(values), left, width-right)
	ticks := x.ticks(max(2, int((x.to-x.from)/58)))
	if ratio && !slices.Contains(ticks, 1) {
		ticks = append(ticks, 1)
	}
	for _, t := range ticks {
		if ratio && t != 1 && math.Abs(x.at(t)-x.at(1)) < 26 {
			continue
		}
		c.line("grid", x.at(t), top, x.at(t), bottom)
		label := tick(t)
		if ratio {
			label += "×"
		}
		c.text("muted", "middle", x.at(t), bottom+16, label)
	}
	c.text("muted", "middle", min(max((x.from+x.to)/2, textWidth(axis)/2), width-textWidth(axis)/2), bottom+34, axis)
	y := top
	var band []mark
	for _, r := range rows {
		height := rowHeight
		if r.heading != "" {
			height = headHeight
		}
		if reference != 0 && r.floor > 0 && r.heading == "" {
			wideFloor := r.floor * r.floor
			band = append(band, mark{kind: kindRect, class: "band", x: x.at(1 / wideFloor), y: y, x2: x.at(wideFloor), y2: y + height})
		}
		y += height
	}
	c.marks = append(band, c.marks...)
	if reference != 0 {
		c.line("one", x.at(reference), top, x.at(reference), bottom)
	}
	y = top
	for _, r := range rows {
		if r.heading != "" {
			c.text("strong", "start", 0, y+headHeight-8, fitted(r.heading, width))
			y += headHeight
			continue
		}
		middle := y + rowHeight/2
		c.text("text", "start", 10, middle+4, fitted(r.label, left-14))
		y += rowHeight
		if r.missing {
			at := x.from + 4
			if ratio && !small {
				at = x.to + 10
			}
			c.text("muted", "start", at, middle+4, fitted(r.missingBecause, width-at))
			continue
		}
		hint := fmt.Sprintf("%s: %s (%s to %s) %s", r.label, r.text, number(r.low), number(r.high), r.verdict)
		c.thick(series(r.colour), x.at(r.low), middle, x.at(r.high), middle, 2.5, hint)
		c.marker(series(r.colour), r.colour, x.at(r.value), middle, !r.weak, hint)
		c.text("text", "start", x.to+10, middle+4, r.text)
		if ratio && !small {
			c.text("muted", "start", x.to+text+18, middle+4, r.verdict)
		}
	}
	return c
}

// curve is one line of a plot.
type curve struct {
	label     string
	colour    int
	x, y      []float64
	low, high []float64 // nil: without intervals
	fit       *[2]float64
	step      bool
}

// alongFigures draw a metric against each factor whose levels are numbers, one figure for each combination of the others.
func alongFigures(p lab.PartResult, metric int, id string) (out []figure) {
	m := p.Part.Metrics[metric]
	for _, along := range p.Part.Factors {
		if along.Name != mainFactor(p.Part) {
			continue
		}
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
				if v.Duplicate || v.Median == nil {
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
					low, high = v.Interval.Low, v.Interval.High
				}
				c.x, c.y, c.low, c.high = append(c.x, x), append(c.y, *v.Median), append(c.low, low), append(c.high, high)
			}
		}
		for _, b := range bundles {
			if len(b.curves) == 0 {
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
		s := chartSeries{Label: c.label, Colour: c.colour % colours, Dash: c.colour%2 == 1, Points: c.fit != nil}
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
	top := c.legend(curves) + 16
	height := 260.0
	if width >= 500 {
		height = 320
	}
	bottom := top + height
	c.h = bottom + 42
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
	for _, s := range curves {
		class := series(s.colour)
		if s.fit != nil {
			first, last := x.low, x.high
			c.path(class, s.colour%2 == 1, [][2]float64{{x.at(first), y.at(s.fit[0] + s.fit[1]*first)}, {x.at(last), y.at(s.fit[0] + s.fit[1]*last)}})
		} else {
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
			Table: table{Head: []string{"at", p.Part.Compare, "a, " + unitText(first.Unit), "b, " + unitText(first.Unit) + " per " + first.Along, "95 % interval of b", "R²"}},
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
