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
		first := len(out)
		for i, m := range p.Part.Metrics {
			id := p.Part.Name + "-" + slug(m.Name)
			if f, ok := forest(p, i, id+"-ratios"); ok {
				out = append(out, f)
			}
			if f, ok := barFigure(p, i, id+"-bars"); ok {
				out = append(out, f)
				continue
			}
			if drawings, ok := processorFigures(p, i, id); ok {
				out = append(out, drawings...)
				continue
			}
			along := alongFigures(p, i, id)
			out = append(out, along...)
			if len(along) == 0 {
				if f, ok := absolute(p, i, id+"-values"); ok {
					out = append(out, f)
				}
			}
		}
		if f, ok := tableOfLosses(p); ok {
			out = append(out, f)
		}
		out = append(out, twinFigures(p)...)
		out = append(out, lawFigures(r.Laws, p)...)
		out = append(out, limitFigures(r.Limits, p)...)
		if f, ok := cdf(r.Distributions, p); ok {
			out = append(out, f)
		}
		if f, ok := r.scatter(p); ok {
			out = append(out, f)
		}
		if text := p.EmulatedText(); text != "" {
			for i := range out[first:] {
				f := &out[first+i]
				f.About = strings.TrimSpace(f.About + " " + text)
			}
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
	weak           bool    // not claimed
	margin         float64 // of equivalence, a ratio above 1
	missing        bool
	missingBecause string
}

// forest of the ratios of a metric.
func forest(p lab.PartResult, metric int, id string) (figure, bool) {
	m := p.Part.Metrics[metric]
	f := figure{
		ID: id, Part: p.Part.Name, Title: fmt.Sprintf("%s relative to %s", m.Name, p.Part.Baseline),
		About: fmt.Sprintf("Ratio of the medians of each block with its 95 %% interval; %s is better. The band is the margin of equivalence. Hollow: no difference is claimed.", m.Better),
		Table: table{Head: []string{"at", p.Part.Compare, "ratio", "95 % interval", "p (Holm)", "blocks", "margin", "detectable", "verdict"}},
	}
	var rows []row
	for _, g := range p.Groups {
		r := g.Metrics[metric]
		if allSkipped(r) {
			continue
		}
		if g.Name != "" {
			rows = append(rows, row{heading: spaced(g.Name)})
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
			s := string(sense(m, ratio))
			if v.Duplicate && ratio.Claimed() {
				s = "differs from itself"
			}
			x := row{label: label, colour: colourOf(p.Part, v.Level), value: ratio.Ratio, low: ratio.Interval.Low, high: ratio.Interval.High,
				text: lab.OpenSign(ratio.Open) + times(ratio.Ratio), verdict: s, weak: !ratio.Claimed(), margin: ratio.Margin}
			cells := []string{spaced(g.Name), label, lab.OpenSign(ratio.Open) + times(ratio.Ratio), span(times, ratio.Interval), pText(ratio.P), strconv.Itoa(ratio.Blocks),
				offText(ratio.Margin), times(ratio.Detectable), s}
			if !ratio.Decided() {
				x.missing, x.missingBecause = true, fmt.Sprintf("too few blocks (%d)", ratio.Blocks)
				if ratio.Verdict == stats.NoRatio {
					x.missingBecause = fmt.Sprintf("no ratio: 0 or a bound in %d of %d", ratio.Zeros+ratio.Bounds, ratio.Blocks)
				}
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
	low, high := say(i.Low), say(i.High)
	if i.Low == 0 {
		low = "0"
	}
	if math.IsInf(i.High, 1) {
		high = "∞"
	}
	return low + " to " + high
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
				x.missing, x.value, x.low, x.high, x.text = false, *v.Median, *v.Median, *v.Median, lab.OpenSign(v.Open)+number(*v.Median)
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
			if v.Median != nil {
				median = lab.OpenSign(v.Open) + median + found(v)
			}
			t.Rows = append(t.Rows, []string{spaced(g.Name), label, median, interval, cv, strconv.Itoa(v.N)})
		}
	}
	return t
}

// dots draws rows of points with intervals. A reference other than 0 is a line, with the margin of equivalence around it.
func dots(width float64, rows []row, reference float64, axis string, ratio bool) *canvas {
	// Collect the values that the axis must show, and the widths of the labels.
	small := width < 500
	var values []float64
	longest, text := 0.0, 0.0
	for _, r := range rows {
		longest = max(longest, textWidth(r.label)+16)
		if r.heading == "" && !r.missing {
			values = append(values, r.low, r.value)
			if finite(r.high) { // an end that nobody knows is drawn at the border
				values = append(values, r.high)
			}
			text = max(text, textWidth(r.text))
		}
	}
	if reference != 0 {
		values = append(values, reference)
		for _, r := range rows {
			if r.margin > 0 {
				values = append(values, r.margin, 1/r.margin)
			}
		}
	}
	left, right := min(longest, 240)+10, text+12
	if ratio && !small {
		right += textWidth("inconclusive") + 10
	}
	if small {
		left = min(longest, 118) + 6
	}
	// Choose the height.
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
	// Draw the axis with its ticks.
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
	// Draw the band of equivalence behind everything else.
	y := top
	var band []mark
	for _, r := range rows {
		height := rowHeight
		if r.heading != "" {
			height = headHeight
		}
		if reference != 0 && r.margin > 0 && r.heading == "" {
			band = append(band, mark{kind: kindRect, class: "band", x: x.at(1 / r.margin), y: y, x2: x.at(r.margin), y2: y + height})
		}
		y += height
	}
	c.marks = append(band, c.marks...)
	// Draw the line of the reference.
	if reference != 0 {
		c.line("one", x.at(reference), top, x.at(reference), bottom)
	}
	// Draw the rows: label, interval, point, text, verdict.
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
