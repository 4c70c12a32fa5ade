package report

import (
	"fmt"
	"math"
	"strings"

	"weir.dev/weir/lab/stats"
)

// moment is one trial on the time line.
type moment struct {
	minutes float64
	value   float64 // first metric by the median of its variant; NaN for what is void
	steal   float64 // percent; NaN if not known
	void    bool
	part    string
	key     string
}

// maxMoments bounds the points that are drawn; of more, neighbours are joined and the worst is shown.
const maxMoments = 600

func (r Report) moments() (out []moment) {
	first := map[string]string{}
	for _, p := range r.Results.Study.Parts {
		first[p.Name] = p.Metrics[0].Name
	}
	values := map[string][]float64{}
	variant := func(part string, v []string) string { return part + "/" + strings.Join(v, ",") }
	for _, t := range r.trials {
		if v, ok := t.Values[first[t.Trial.Part]]; ok && t.Void == "" && t.Skipped == "" {
			k := variant(t.Trial.Part, t.Trial.Variant)
			values[k] = append(values[k], v)
		}
	}
	for _, t := range r.trials {
		if t.Skipped != "" {
			continue
		}
		m := moment{minutes: t.Begun.Sub(r.Results.Started).Minutes(), value: math.NaN(), steal: math.NaN(), void: t.Void != "", part: t.Trial.Part, key: t.Trial.Key()}
		if s, ok := t.Covariates["steal"]; ok {
			m.steal = s * 100
		}
		if v, ok := t.Values[first[t.Trial.Part]]; ok && !m.void {
			if mid := stats.Median(values[variant(t.Trial.Part, t.Trial.Variant)]); mid > 0 && v > 0 {
				m.value = v / mid
			}
		}
		out = append(out, m)
	}
	return out
}

// fewer moments, for the drawing only.
func fewer(all []moment) []moment {
	if len(all) <= maxMoments {
		return all
	}
	by := (len(all) + maxMoments - 1) / maxMoments
	var some []moment
	for i := 0; i < len(all); i += by {
		worst := all[i]
		for _, m := range all[i:min(i+by, len(all))] {
			if m.void && !worst.void || m.void == worst.void && m.steal > worst.steal {
				worst = m
			}
		}
		some = append(some, worst)
	}
	return some
}

// timeline of all trials: each result beside the median of its variant, so that drift shows, and the time that the hypervisor took away.
func (r Report) timeline() (figure, bool) {
	points := r.moments()
	f := figure{
		ID: "timeline", Title: "Trials in the order in which they ran",
		About: "Above, each trial's result relative to the median of its variant: what drifts, drifts for all variants of a block alike. Below, steal, the share of CPU time that the hypervisor gave to others. Crosses are void trials.",
		Table: table{Head: []string{"part", "trials", "void", "median steal", "greatest steal", "results within 10 % of their median"}},
	}
	if len(points) == 0 {
		return f, false
	}
	for _, p := range r.Results.Parts {
		n, void, near, told, steal := 0, 0, 0, 0, []float64{}
		for _, m := range points {
			if m.part != p.Part.Name {
				continue
			}
			n++
			if m.void {
				void++
			}
			if !math.IsNaN(m.steal) {
				steal = append(steal, m.steal/100)
			}
			if !math.IsNaN(m.value) {
				told++
				if m.value >= 0.9 && m.value <= 1.1 {
					near++
				}
			}
		}
		if n == 0 {
			continue
		}
		mid, most, within := none, none, none
		if len(steal) > 0 {
			mid, most = share(stats.Median(steal)), share(stats.Quantile(steal, 1))
		}
		if told > 0 {
			within = share(float64(near) / float64(told))
		}
		f.Table.Rows = append(f.Table.Rows, []string{p.Part.Name, fmt.Sprint(n), fmt.Sprint(void), mid, most, within})
	}
	shown := fewer(points)
	if len(shown) < len(points) {
		f.About += fmt.Sprintf(" Drawn: of every %d trials in a row a void one, or that with the most steal; the table counts all.", (len(points)+maxMoments-1)/maxMoments)
	}
	f.draw = func(width float64) *canvas { return timeline(width, shown) }
	return f, true
}

func timeline(width float64, points []moment) *canvas {
	c := &canvas{w: width}
	// Choose three scales: minutes, results, steal.
	var minutes, values, steals []float64
	for _, m := range points {
		minutes = append(minutes, m.minutes)
		if !math.IsNaN(m.value) {
			values = append(values, m.value)
		}
		if !math.IsNaN(m.steal) {
			steals = append(steals, m.steal)
		}
	}
	values, steals = append(values, 0.8, 1.25), append(steals, 0, 5)
	const left, top, upper, gap, lower = 44.0, 40.0, 150.0, 44.0, 90.0
	x := newScale(minutes, false, left, width-10)
	y := newScale(values, true, top+upper, top)
	z := newScale(steals, false, top+upper+gap+lower, top+upper+gap)
	c.h = z.from + 40
	// Draw a stripe for each run of trials of one part.
	part, from := points[0].part, points[0].minutes
	odd := false
	section := func(to float64) {
		if odd {
			c.rect("stripe", x.at(from), top, x.at(to), z.from)
		}
		if w := x.at(to) - x.at(from); w > 24 {
			c.text("muted", "start", x.at(from)+2, top-6, fitted(part, w-4))
		}
		odd = !odd
	}
	for _, m := range points {
		if m.part != part {
			section(m.minutes)
			part, from = m.part, m.minutes
		}
	}
	section(x.high)
	// Draw titles, grid and ticks.
	c.text("strong", "start", 0, 14, "result by the median of its variant")
	c.text("strong", "start", 0, z.to-10, "steal, % of CPU time")
	for _, t := range y.ticks(5) {
		c.line("grid", left, y.at(t), width-6, y.at(t))
		c.text("muted", "end", left-6, y.at(t)+4, tick(t)+"×")
	}
	c.line("one", left, y.at(1), width-6, y.at(1))
	for _, t := range z.ticks(4) {
		c.line("grid", left, z.at(t), width-6, z.at(t))
		c.text("muted", "end", left-6, z.at(t)+4, tick(t))
	}
	for _, t := range x.ticks(int((width - left) / 60)) {
		c.text("muted", "middle", x.at(t), z.from+16, tick(t))
	}
	c.text("muted", "middle", (left+width)/2, z.from+34, "minutes since the start")
	// Draw the trials.
	for _, m := range points {
		if !math.IsNaN(m.value) {
			c.rect("dot", x.at(m.minutes)-1.2, y.at(m.value)-1.2, x.at(m.minutes)+1.2, y.at(m.value)+1.2)
		}
		if math.IsNaN(m.steal) {
			continue
		}
		if m.void {
			c.marker("void", 6, x.at(m.minutes), z.at(m.steal), true, m.key)
		} else {
			c.thick("s1", x.at(m.minutes), z.from, x.at(m.minutes), z.at(m.steal), 1.5, "")
		}
	}
	return c
}
