package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// answer puts beside each finding what its question asks for besides a ratio: what each further one costs, and delays below the highest load.
func (r *Report) answer() {
	for i := range r.Findings {
		f := &r.Findings[i]
		for _, p := range r.Results.Parts {
			if p.Part.Name == f.Part {
				f.More = append(f.More, growth(p, *f, r.Laws)...)
			}
		}
		if text := delays(*f, r.Limits); text != "" {
			f.More = append(f.More, text)
		}
	}
}

// growingR2 is from which on a metric counts as growing along a line.
const growingR2 = 0.7

// growth of a finding's metric, or of the time of a packet, along the part's main factor, where it counts as growing.
func growth(p lab.PartResult, f Finding, all []Law) (out []string) {
	at := map[string]string{}
	for _, g := range p.Groups {
		if g.Name == f.Group {
			at = maps.Clone(g.Levels)
		}
	}
	along := mainFactor(p.Part)
	delete(at, along)
	levels := map[string][]string{}
	var metrics []string
	for _, l := range all {
		if l.Part != f.Part || l.Along != along || !maps.Equal(l.At, at) || l.R2 < growingR2 || l.Interval == nil {
			continue
		}
		if l.Metric != f.Metric.Name && l.Metric != metricCost && !l.Derived {
			continue
		}
		if levels[l.Metric] == nil {
			metrics = append(metrics, l.Metric)
		}
		levels[l.Metric] = append(levels[l.Metric], fmt.Sprintf("%s (%s) on %s", quantity(l.B, l.Unit), span(number, *l.Interval), l.Level))
	}
	for _, m := range metrics {
		text := fmt.Sprintf("Each further %s adds %s to %s", study.One(along), strings.Join(levels[m], ", "), m)
		if where := levelsText(at); where != "" {
			text += ", at " + where
		}
		out = append(out, text+".")
	}
	return out
}

// delays at shares of PDR, of the finding's group.
func delays(f Finding, all []Limit) string {
	var levels []string
	for _, l := range all {
		if l.Part != f.Part || l.Group != f.Group {
			continue
		}
		var values []string
		for _, share := range experiment.DelayShares() {
			i := slices.IndexFunc(l.Delays, func(d DelayAt) bool { return d.Share == share })
			if i < 0 || l.Delays[i].P50 == nil {
				values = append(values, none)
				continue
			}
			values = append(values, number(*l.Delays[i].P50))
		}
		levels = append(levels, l.Level+" "+strings.Join(values, ", ")+"\u00a0µs")
	}
	if len(levels) == 0 {
		return ""
	}
	return "Typical delay (p50) at " + sharesText() + " of each one's own PDR: " + strings.Join(levels, "; ") + "."
}
