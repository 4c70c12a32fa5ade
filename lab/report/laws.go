package report

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Law is a time as a line over a factor whose levels are numbers, y = a + b x: b is what each further one costs. Where the metric is a rate of
// packets, and the part does not measure a packet's cost itself, the time is that of one packet: of NDR and PDR, too, where the chain has a CPU of
// its own.
type Law struct {
	Part     string            `json:"part"`
	Metric   string            `json:"metric"`
	Unit     string            `json:"unit"` // of a, y and, per one of the factor, of b
	Derived  bool              `json:"derived,omitempty"`
	Level    string            `json:"level"`
	Along    string            `json:"along"`
	At       map[string]string `json:"at,omitempty"`
	A        float64           `json:"a"`
	B        float64           `json:"b"`
	Interval *stats.Interval   `json:"interval"` // of b, 95 %
	R2       float64           `json:"r2"`
	X        []float64         `json:"x"`
	Y        []float64         `json:"y"` // medians
	// Extrapolated says what the line gives where nothing could be measured, and why; empty: everything was.
	Extrapolated string `json:"extrapolated,omitempty"`
}

func laws(r lab.Results) []Law {
	out := []Law{}
	for _, p := range r.Parts {
		for _, f := range p.Fits {
			if !isTime(f.Metric.Unit) {
				continue
			}
			out = append(out, Law{
				Part: p.Part.Name, Metric: f.Metric.Name, Unit: f.Metric.Unit, Level: f.Level, Along: f.Along, At: f.At,
				A: f.A, B: f.B, Interval: f.Interval, R2: f.R2, X: f.X, Y: f.Y, Extrapolated: f.Text(),
			})
		}
		if slices.ContainsFunc(p.Part.Metrics, func(m study.Metric) bool { return m.Name == metricCost }) { // the law is there already
			continue
		}
		rates := 0
		for _, m := range p.Part.Metrics {
			if packets(m.Unit) > 0 {
				rates++
			}
		}
		for i, m := range p.Part.Metrics {
			name := "time of a packet"
			if rates > 1 {
				name += " at " + strings.ToUpper(m.Name)
			}
			if scale := packets(m.Unit); scale > 0 {
				out = append(out, costs(p, i, name, scale, r.Seed)...)
			}
		}
	}
	return out
}

// metricCost is the time of a packet where it is measured.
const metricCost = "cost"

// mainFactor is the factor along which a part is drawn: of those whose levels are numbers, and that are not compared, the one with the most levels.
func mainFactor(p study.Part) string {
	name, most := "", 1
	for _, f := range p.Factors {
		if _, ok := numbers(f.Levels); ok && f.Name != p.Compare && len(f.Levels) > most {
			name, most = f.Name, len(f.Levels)
		}
	}
	return name
}

// isTime tells units of time, also of time for each packet.
func isTime(unit string) bool {
	unit, _, _ = strings.Cut(unit, "/")
	return slices.Contains([]string{"s", "ms", "us", "µs", "ns"}, unit)
}

// packets a second in one of the unit; 0: no rate of packets.
func packets(unit string) float64 {
	return map[string]float64{"pps": 1, "kpps": 1e3, "Mpps": 1e6, "packets/s": 1, "frames/s": 1}[unit]
}

// costs of a packet along every factor whose levels are three numbers or more.
func costs(p lab.PartResult, metric int, name string, scale float64, seed uint64) (out []Law) {
	type line struct {
		law    Law
		series [][]float64
	}
	for _, along := range p.Part.Factors {
		if _, ok := numbers(along.Levels); !ok || along.Name == p.Part.Compare || len(along.Levels) < 3 {
			continue
		}
		lines := map[string]*line{}
		var order []string
		for _, g := range p.Groups {
			x, _ := strconv.ParseFloat(g.Levels[along.Name], 64)
			at := map[string]string{}
			for k, v := range g.Levels {
				if k != along.Name {
					at[k] = v
				}
			}
			for _, v := range g.Metrics[metric].Values {
				if v.Duplicate || v.N == 0 || v.Limited+v.NotFound > 0 { // of bounds there is no line
					continue
				}
				key := v.Level + "/" + levelsText(at)
				l := lines[key]
				if l == nil {
					l = &line{law: Law{Part: p.Part.Name, Metric: name, Unit: "ns", Derived: true, Level: v.Level, Along: along.Name, At: at}}
					lines[key], order = l, append(order, key)
				}
				s, whole := make([]float64, len(v.Blocks)), false
				for i, b := range v.Blocks {
					s[i] = math.NaN()
					if b != nil && *b > 0 {
						s[i], whole = 1e9/(*b*scale), true
					}
				}
				if whole {
					l.law.X, l.series = append(l.law.X, x), append(l.series, s)
				}
			}
		}
		for _, key := range order {
			l := lines[key]
			if len(l.law.X) < 3 {
				continue
			}
			if f, ok := stats.FitLine(l.law.X, l.series, seed); ok {
				l.law.A, l.law.B, l.law.Interval, l.law.R2, l.law.Y = f.A, f.B, f.Interval, f.R2, f.Y
				out = append(out, l.law)
			}
		}
	}
	return out
}
