package report

import (
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// column is a level's value in a cluster, beside the published one.
type column struct {
	level     string
	colour    int
	value     float64
	low, high float64
	missing   bool
	published []float64
}

// cluster is the bars of a group.
type cluster struct {
	label string
	bars  []column
	line  float64 // what all are compared with; 0: nothing
}

func (c cluster) measured() bool {
	return slices.ContainsFunc(c.bars, func(b column) bool { return !b.missing })
}

// barFigure draws a metric of a part on pairs as the papers do: a cluster for each group, a bar for each level.
func barFigure(p lab.PartResult, metric int, id string) (figure, bool) {
	m := p.Part.Metrics[metric]
	if !experiment.OnPairs(p.Part.Experiment) {
		return figure{}, false
	}
	f := figure{
		ID: id, Part: p.Part.Name, Title: fmt.Sprintf("%s, bars", m.Name), Table: valuesTable(p, metric),
		About: fmt.Sprintf("Medians over the blocks with their 95 %% intervals; %s is better. A hollow mark is what was published, on other hardware.", m.Better),
	}
	var clusters []cluster
	any := false
	for _, g := range p.Groups {
		if c := clusterOf(p, g, metric); c.measured() {
			any, clusters = true, append(clusters, c)
		}
	}
	axis := strings.Join(slices.DeleteFunc(factorNames(p.Part), func(name string) bool { return name == p.Part.Compare }), ", ")
	f.draw = func(width float64) *canvas { return bars(width, clusters, m.Name+", "+unitText(m.Unit), axis, false) }
	return f, any
}

// clusterOf a group: a bar for each level.
func clusterOf(p lab.PartResult, g lab.Group, metric int) cluster {
	c := cluster{label: strings.Join(groupLevels(p.Part, g), " ")}
	for _, v := range g.Metrics[metric].Values {
		if v.Duplicate {
			continue
		}
		b := column{level: v.Level, colour: colourOf(p.Part, v.Level), missing: v.Median == nil, published: published(p.Part, g, v.Level, p.Part.Metrics[metric].Name)}
		if v.Median != nil {
			b.value, b.low, b.high = *v.Median, *v.Median, *v.Median
			if v.Interval != nil && finite(v.Interval.High) {
				b.low, b.high = v.Interval.Low, v.Interval.High
			}
		}
		c.bars = append(c.bars, b)
	}
	return c
}

func factorNames(p study.Part) (names []string) {
	for _, f := range p.Factors {
		names = append(names, f.Name)
	}
	return names
}

// groupLevels are a group's levels, in the order of the factors.
func groupLevels(p study.Part, g lab.Group) (out []string) {
	for _, f := range p.Factors {
		if f.Name != p.Compare {
			out = append(out, g.Levels[f.Name])
		}
	}
	return out
}

// published figures of a metric at a level of a group, in the metric's unit.
func published(p study.Part, g lab.Group, level, metric string) (out []float64) {
	for _, c := range p.Claims {
		if c.Metric != metric || !c.IsAbsolute() || c.Value == 0 {
			continue
		}
		system := c.At[p.Compare]
		if len(c.Systems) > 0 {
			system = c.Systems[0]
		}
		fits := system == level
		for name, want := range g.Levels {
			if at, ok := c.At[name]; ok && at != want {
				fits = false
			}
		}
		if fits {
			out = append(out, c.Value)
		}
	}
	return out
}

// bars draws clusters on an axis that begins at 0. On a logarithmic axis bars are from low to high, and the value is marked.
func bars(width float64, clusters []cluster, yLabel, xLabel string, log bool) *canvas {
	c := &canvas{w: width}
	values := []float64{0} // a logarithmic axis does without it
	var levels []curve
	for _, k := range clusters {
		values = append(values, k.line)
		for _, b := range k.bars {
			if !b.missing {
				values = append(values, b.low)
			}
			if !b.missing || len(b.published) > 0 {
				values = append(append(values, b.high), b.published...)
				if !slices.ContainsFunc(levels, func(l curve) bool { return l.label == b.level }) {
					levels = append(levels, curve{label: b.level, colour: b.colour})
				}
			}
		}
	}
	top := c.legend(levels) + 16
	bottom := top + 260
	c.h = bottom + 42
	y := newScale(values, log, bottom, top)
	left := 0.0
	for _, t := range y.ticks(7) {
		left = max(left, textWidth(tick(t)))
	}
	left += 12
	c.text("muted", "start", 0, top-8, yLabel)
	for _, t := range y.ticks(7) {
		c.line("grid", left, y.at(t), width-6, y.at(t))
		c.text("muted", "end", left-6, y.at(t)+4, tick(t))
	}
	each := (width - 6 - left) / float64(max(len(clusters), 1))
	for i, k := range clusters {
		c.cluster(k, levels, left+each*float64(i), each, y, bottom)
	}
	c.line("axis", left, bottom, width-6, bottom)
	c.text("muted", "middle", (left+width)/2, bottom+36, xLabel)
	return c
}

// cluster draws the bars of a group from x on.
func (c *canvas) cluster(k cluster, levels []curve, x, wide float64, y scale, bottom float64) {
	const share = 0.8 // of the width: the rest separates clusters
	each := wide * share / float64(len(levels))
	thick := min(each*0.85, 40)
	for _, b := range k.bars {
		i := slices.IndexFunc(levels, func(l curve) bool { return l.label == b.level })
		if i < 0 {
			continue
		}
		at := x + wide*(1-share)/2 + each*(float64(i)+0.5)
		if !b.missing {
			hint := fmt.Sprintf("%s at %s: %s (%s to %s)", b.level, k.label, number(b.value), number(b.low), number(b.high))
			if y.log {
				c.thick(series(b.colour), at, y.at(b.low), at, y.at(b.high), thick, hint)
				c.line("one", at-thick/2, y.at(b.value), at+thick/2, y.at(b.value))
			} else {
				c.thick(series(b.colour), at, bottom, at, y.at(b.value), thick, hint)
				c.line("one", at, y.at(b.low), at, y.at(b.high))
			}
		}
		for _, v := range b.published {
			c.marker(series(b.colour), b.colour, at, y.at(v), false, fmt.Sprintf("%s at %s: %s were published", b.level, k.label, number(v)))
		}
	}
	if k.line > 0 {
		c.line("one", x+wide*(1-share)/4, y.at(k.line), x+wide*(1-(1-share)/4), y.at(k.line))
	}
	c.text("muted", "middle", x+wide/2, bottom+16, fitted(k.label, wide))
}
