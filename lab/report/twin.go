package report

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// bar is a rate of frames with the throughput that it is.
type bar struct {
	label      string
	colour     int
	rate, bits float64
}

// barGroup are the bars at one place of the axis.
type barGroup struct {
	label string
	bars  []bar
}

const bitRate = "Gb/s"

// factorSize is the factor that tells bars of a group apart, where a part has it.
const factorSize = "size"

// twinFigures draw frames a second as bars on the left axis and the throughput as points on the right one, as papers on switches do: where a part has both. They
// are drawn along the main factor, the bars of a group being sizes of frames; along the sizes they are what is compared.
func twinFigures(p lab.PartResult) (out []figure) {
	rate := slices.IndexFunc(p.Part.Metrics, func(m study.Metric) bool { return packets(m.Unit) > 0 })
	bits := slices.IndexFunc(p.Part.Metrics, func(m study.Metric) bool { return m.Unit == bitRate })
	along, ok := p.Part.Factor(mainFactor(p.Part))
	if rate < 0 || bits < 0 || !ok {
		return nil
	}
	inner, ok := p.Part.Factor(factorSize)
	if !ok || along.Name == factorSize {
		inner, _ = p.Part.Factor(p.Part.Compare)
	}
	groups := map[string]map[string][]bar{} // by figure and level of along
	var names []string
	for _, g := range p.Groups {
		for i, v := range g.Metrics[rate].Values {
			b := g.Metrics[bits].Values[i]
			if v.Duplicate || v.Median == nil || b.Median == nil {
				continue
			}
			at := maps.Clone(g.Levels)
			at[p.Part.Compare] = v.Level
			x, in := at[along.Name], at[inner.Name]
			delete(at, along.Name)
			delete(at, inner.Name)
			name := levelsText(at)
			if groups[name] == nil {
				groups[name] = map[string][]bar{}
				names = append(names, name)
			}
			groups[name][x] = append(groups[name][x], bar{in, slices.Index(inner.Levels, in), *v.Median, *b.Median})
		}
	}
	for _, name := range names {
		out = append(out, twin(p.Part, rate, bits, along, name, groups[name]))
	}
	return out
}

func twin(p study.Part, rate, bits int, along study.Factor, name string, at map[string][]bar) figure {
	unit := unitText(p.Metrics[rate].Unit)
	f := figure{
		ID: slug(p.Name + "-twin-by-" + along.Name), Part: p.Name, Title: fmt.Sprintf("%s and %s by %s", p.Metrics[rate].Name, p.Metrics[bits].Name, along.Name),
		About: fmt.Sprintf("Bars, left axis: %s. Points, right axis: %s. Medians over the blocks.", unit, bitRate),
		Table: table{Head: []string{"at", along.Name, "of", unit, bitRate}},
	}
	if name != "" {
		f.ID, f.Title = f.ID+"-"+slug(name), f.Title+" at "+name
	}
	var groups []barGroup
	for _, level := range along.Levels {
		bars := at[level]
		if len(bars) == 0 {
			continue
		}
		slices.SortFunc(bars, func(a, b bar) int { return a.colour - b.colour })
		groups = append(groups, barGroup{level, bars})
		for _, b := range bars {
			f.Table.Rows = append(f.Table.Rows, []string{name, level, b.label, number(b.rate), number(b.bits)})
		}
	}
	f.draw = func(width float64) *canvas { return twinPlot(width, groups, along.Name, unit) }
	return f
}

// twinPlot draws groups of bars with a point for each. Both axes begin at 0.
func twinPlot(width float64, groups []barGroup, xLabel, unit string) *canvas {
	c := &canvas{w: width}
	// Draw the legend; it decides the height.
	var keys []curve
	most, rates, bits := 1, []float64{0}, []float64{0}
	for _, g := range groups {
		most = max(most, len(g.bars))
		for _, b := range g.bars {
			rates, bits = append(rates, b.rate), append(bits, b.bits)
			if !slices.ContainsFunc(keys, func(k curve) bool { return k.label == b.label }) {
				keys = append(keys, curve{label: b.label, colour: b.colour})
			}
		}
	}
	top := c.legend(keys) + 16
	bottom := top + 260
	c.h = bottom + 42
	// Choose both scales, and draw their ticks.
	left, right := newScale(rates, false, bottom, top), newScale(bits, false, bottom, top)
	leftTicks, rightTicks := left.ticks(6), right.ticks(6)
	from, to := 0.0, 0.0
	for _, t := range leftTicks {
		from = max(from, textWidth(tick(t))+12)
	}
	for _, t := range rightTicks {
		to = max(to, textWidth(tick(t))+12)
	}
	for _, t := range leftTicks {
		c.line("grid", from, left.at(t), width-to, left.at(t))
		c.text("muted", "end", from-6, left.at(t)+4, tick(t))
	}
	for _, t := range rightTicks {
		c.text("muted", "start", width-to+6, right.at(t)+4, tick(t))
	}
	c.text("muted", "start", 0, top-8, unit+" (bars)")
	c.text("muted", "end", width, top-8, bitRate+" (points)")
	c.line("axis", from, bottom, width-to, bottom)
	c.text("muted", "middle", (from+width-to)/2, bottom+36, xLabel)
	// Draw the groups side by side.
	room := (width - to - from) / float64(max(1, len(groups)))
	thick := min(22, room*0.8/float64(most))
	for i, g := range groups {
		middle := from + room*(float64(i)+0.5)
		c.text("muted", "middle", middle, bottom+16, fitted(g.label, room))
		for k, b := range g.bars {
			x := middle + thick*(float64(k)-float64(len(g.bars)-1)/2)
			hint := fmt.Sprintf("%s, %s %s: %s %s, %s %s", b.label, xLabel, g.label, number(b.rate), unit, number(b.bits), bitRate)
			c.thick(series(b.colour), x, bottom, x, left.at(b.rate), thick-2, hint)
			c.marker(series(b.colour), b.colour, x, right.at(b.bits), false, hint)
		}
	}
	return c
}
