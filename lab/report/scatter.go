package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic/tools"
)

// mostPoints of one level are drawn, those of its first trials.
const mostPoints = 300

// scatter of what clients sent again against what they got, a point a client of each valid trial, for parts that ask about both. Only the last group
// has one.
func (r Report) scatter(p lab.PartResult) (figure, bool) {
	m := p.Part
	asks := slices.ContainsFunc(m.Metrics, func(x study.Metric) bool { return x.Name == experiment.MetricResent })
	if m.Experiment != experiment.TCPPairs || !asks || len(p.Groups) == 0 {
		return figure{}, false
	}
	f := figure{
		ID: m.Name + "-resent", Part: m.Name, Title: "Segments sent again against rate, by client",
		About: fmt.Sprintf("One point for each client of a valid trial, at most %d for each %s.", mostPoints, m.Compare),
		Table: table{Head: []string{m.Compare, "clients", "segments sent again", "share that the faster half has"}},
	}
	compared, _ := m.Factor(m.Compare)
	at := p.Groups[len(p.Groups)-1]
	if at.Name != "" {
		f.Title += " at " + spaced(at.Name)
	}
	var curves []curve
	for _, level := range compared.Levels {
		c := curve{label: level, colour: colourOf(m, level), points: true}
		for _, t := range r.trials {
			if t.Trial.Part != m.Name || t.Void != "" || t.Trial.Duplicate || m.Level(t.Trial.Variant, m.Compare) != level || m.Group(t.Trial.Variant) != at.Name {
				continue
			}
			var raw tools.PairResult
			if json.Unmarshal(t.Raw, &raw) != nil { // skipped
				continue
			}
			for _, pair := range raw.Pairs {
				if pair.Window > 0 && len(c.x) < mostPoints {
					c.x, c.y = append(c.x, pair.BitsPerSec()/1e9), append(c.y, float64(pair.Retransmits))
				}
			}
		}
		resent, least := 0.0, 2 // a cloud of one client is none
		for _, v := range c.y {
			resent += v
		}
		if len(c.x) < least {
			continue
		}
		share := none
		if v, ok := experiment.FasterHalf(c.x, c.y); ok {
			share = number(v)
		}
		f.Table.Rows = append(f.Table.Rows, []string{level, strconv.Itoa(len(c.x)), number(resent), share})
		curves = append(curves, c)
	}
	if len(curves) == 0 {
		return f, false
	}
	f.plot(curves, "rate of a client, Gb/s", "segments sent again", false, false)
	return f, true
}
