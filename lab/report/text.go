package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"weir.dev/weir/lab/study"
)

func exact(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func writeCSV(rows [][]string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.WriteAll(rows) // a buffer takes everything
	return b.Bytes()
}

func (r Report) part(name string) study.Part {
	for _, p := range r.Results.Study.Parts {
		if p.Name == name {
			return p
		}
	}
	return study.Part{Name: name}
}

// trialsCSV has a row for each trial and metric; trials without values have one row with an empty metric.
func (r Report) trialsCSV() []byte {
	rows := [][]string{{"part", "block", "variant", "duplicate", "begun", "took_ns", "metric", "unit", "value", "steal", "void", "skipped"}}
	for _, t := range r.trials {
		p := r.part(t.Trial.Part)
		units := map[string]string{}
		for _, m := range p.Metrics {
			units[m.Name] = m.Unit
		}
		steal := ""
		if v, ok := t.Covariates["steal"]; ok {
			steal = exact(v)
		}
		row := func(metric, unit, value string) {
			rows = append(rows, []string{p.Name, strconv.Itoa(t.Trial.Block), variantText(p, t.Trial.Variant), strconv.FormatBool(t.Trial.Duplicate),
				t.Begun.UTC().Format(time.RFC3339Nano), strconv.FormatInt(int64(t.Took), 10), metric, unit, value, steal, t.Void, t.Skipped})
		}
		for _, m := range slices.Sorted(maps.Keys(t.Values)) {
			row(m, units[m], exact(t.Values[m]))
		}
		if len(t.Values) == 0 {
			row("", "", "")
		}
	}
	return writeCSV(rows)
}

// summaryCSV has a row for each part, group, metric and level.
func (r Report) summaryCSV() []byte {
	rows := [][]string{{"part", "group", "metric", "unit", "better", "level", "duplicate", "blocks", "median", "low", "high", "cv", "ratio", "ratio_low", "ratio_high", "p",
		"margin", "detectable", "verdict", "skipped", "median_is", "ratio_is", "limited", "not_found"}}
	orNone := func(v *float64) string {
		if v == nil {
			return ""
		}
		return exact(*v)
	}
	for _, p := range r.Results.Parts {
		for _, g := range p.Groups {
			for _, m := range g.Metrics {
				for _, v := range m.Values {
					low, high := "", ""
					if v.Interval != nil {
						low, high = exact(v.Interval.Low), exact(v.Interval.High)
					}
					row := []string{p.Part.Name, g.Name, m.Metric.Name, m.Metric.Unit, m.Metric.Better, v.Level, strconv.FormatBool(v.Duplicate), strconv.Itoa(v.N),
						orNone(v.Median), low, high, orNone(v.CV)}
					c, compared := m.Comparison.Variants[v.Level]
					if v.Duplicate {
						c, compared = m.Comparison.Duplicate, true
					}
					detectable := ""
					if c.Detectable > 0 {
						detectable = exact(c.Detectable)
					}
					switch {
					case !compared:
						row = append(row, "1", "", "", "", "", "", "baseline")
					case c.Ratio == 0:
						row = append(row, "", "", "", "", "", "", string(c.Verdict))
					default:
						row = append(row, exact(c.Ratio), exact(c.Interval.Low), exact(c.Interval.High), exact(c.P), exact(c.Margin), detectable, string(c.Verdict))
					}
					rows = append(rows, append(row, v.Skipped, string(v.Open), string(c.Open), strconv.Itoa(v.Limited), strconv.Itoa(v.NotFound)))
				}
			}
		}
	}
	return writeCSV(rows)
}

// benchstat is the format of Go's benchmarks: one line for each valid trial, so that benchstat compares, for example with -col /platform.
// https://go.dev/design/14313-benchmark-format
func (r Report) benchstat() []byte {
	var b strings.Builder
	x := r.Results
	word := strings.NewReplacer(" ", "_", "\t", "_", "/", "_")
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\npkg: lab\nstudy: %s\nmode: %s\nseed: %d\nversion: %s\n", "linux", runtime.GOARCH, x.Study.Name, x.Mode, x.Seed, x.Version)
	if cpu := x.Environment["cpu"]; cpu != "" {
		fmt.Fprintf(&b, "cpu: %s\n", cpu)
	}
	units := map[string]string{}
	for _, p := range x.Study.Parts {
		for _, m := range p.Metrics {
			units[benchUnit(m)] = m.Better
		}
	}
	for _, u := range slices.Sorted(maps.Keys(units)) {
		fmt.Fprintf(&b, "Unit %s better=%s\n", u, units[u])
	}
	b.WriteByte('\n')
	for _, t := range r.trials {
		if t.Void != "" || t.Skipped != "" || len(t.Values) == 0 {
			continue
		}
		p := r.part(t.Trial.Part)
		name := "Benchmark" + title(word.Replace(p.Name))
		for i, f := range p.Factors {
			name += "/" + word.Replace(f.Name) + "=" + word.Replace(t.Trial.Variant[i])
			if f.Name == p.Compare && t.Trial.Duplicate {
				name += "(again)"
			}
		}
		line := name + " 1"
		for _, m := range p.Metrics {
			if v, ok := t.Values[m.Name]; ok && finite(v) {
				line += " " + exact(v) + " " + benchUnit(m)
			}
		}
		b.WriteString(line + "\n")
	}
	return []byte(b.String())
}

// benchUnit names metric and unit, since benchstat knows only units: "rate:Gb/s".
func benchUnit(m study.Metric) string {
	return strings.NewReplacer(" ", "_", "\t", "_").Replace(m.Name + ":" + m.Unit)
}

func title(s string) string {
	r := []rune(s)
	if len(r) > 0 {
		r[0] = unicode.ToUpper(r[0])
	}
	return string(r)
}
