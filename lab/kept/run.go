package kept

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/report"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// run is one that is kept, with what follows from its raw data.
type run struct {
	row      Row
	journal  *study.Journal // of a run of the lab
	report   report.Report
	repeated *lab.Repeats
	bench    map[string]benchResult // of the former harness
}

// benchResult is one of the former harness: medians, and the ratio of neighbouring runs, above 1 where Weir is better.
type benchResult struct {
	Name      string    `json:"name"`
	Unit      string    `json:"unit"`
	Weir      float64   `json:"weir"`
	Peer      float64   `json:"peer"`
	PeerIs    string    `json:"peer_is"`
	Ratio     float64   `json:"ratio"`
	Quartiles []float64 `json:"ratio_quartiles"`
	Runs      []float64 `json:"weir_runs"`
	Target    string    `json:"target"`
}

func readRun(dir string, row Row) (*run, error) {
	r := &run{row: row}
	path := filepath.Join(dir, row.Run)
	if row.Bench() {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var of struct {
			Results []benchResult `json:"results"`
		}
		if err := json.Unmarshal(text, &of); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r.bench = map[string]benchResult{}
		for _, b := range of.Results {
			r.bench[b.Name] = b
		}
		return r, nil
	}
	if lab.Repeated(path) {
		repeated, err := lab.ReportRepeated(path)
		r.repeated = &repeated
		return r, err
	}
	j, err := study.Read(path)
	if err != nil {
		return nil, err
	}
	r.journal, r.report = j, report.Of(j)
	return r, nil
}

// part of a run with its result.
func (r *run) part(name string) (lab.PartResult, error) {
	for _, d := range r.report.Results.Distrusted {
		if d.Part == name {
			return lab.PartResult{}, fmt.Errorf("run %s: nothing is claimed of part %s: %s", r.row.Run, name, d.Reason)
		}
	}
	for _, p := range r.report.Results.Parts {
		if p.Part.Name == name {
			return p, nil
		}
	}
	return lab.PartResult{}, fmt.Errorf("run %s has no part %q", r.row.Run, name)
}

// variant with these levels: a level of each factor that has several.
func variant(p study.Part, levels map[string]string) (study.Variant, error) {
	var v study.Variant
	for _, f := range p.Factors {
		level, given := levels[f.Name]
		if !given && len(f.Levels) == 1 {
			level = f.Levels[0]
		}
		if !slices.Contains(f.Levels, level) {
			return nil, fmt.Errorf("part %s: %s=%q: want one of %s", p.Name, f.Name, level, strings.Join(f.Levels, ", "))
		}
		v = append(v, level)
	}
	for name := range levels {
		if _, ok := p.Factor(name); !ok {
			return nil, fmt.Errorf("part %s has no factor %q", p.Name, name)
		}
	}
	return v, nil
}

// valueOf a metric of a variant; metric is the part's.
func valueOf(p lab.PartResult, metric string, v study.Variant) (value lab.Value, result lab.MetricResult, err error) {
	group, level := p.Part.Group(v), p.Part.Level(v, p.Part.Compare)
	for _, g := range p.Groups {
		for _, m := range g.Metrics {
			if g.Name != group || m.Metric.Name != metric {
				continue
			}
			for _, value := range m.Values {
				if value.Level == level && !value.Duplicate {
					return value, m, nil
				}
			}
		}
	}
	return value, result, fmt.Errorf("part %s has no %s of %s", p.Part.Name, metric, strings.Join(v, ", "))
}

// floats are the values that were measured, and lower bounds; NaN elsewhere.
func floats(v lab.Value) []float64 {
	out := make([]float64, len(v.Blocks))
	for i, r := range v.Ranges() {
		out[i] = r.Low
		if r.Low == 0 && !r.Point() {
			out[i] = math.NaN()
		}
	}
	return out
}

// lostAt is the most that was lost in the steps which verified a load, in frames a second. Former versions had one such step, at the load below what
// they called the result: then it is the last step that counts.
func lostAt(steps []study.Step, l Loss, load float64) (most float64, ok bool) {
	last := math.NaN()
	for _, step := range steps {
		v, has := step.Values[l.Value]
		if step.What != l.Step || step.Void != "" || !has {
			continue
		}
		last = v
		if math.Abs(step.Load-load) <= 1e-6*load {
			most, ok = max(most, v), true
		}
	}
	if !ok {
		return last, !math.IsNaN(last)
	}
	return most, true
}

// lost is the median loss of a variant over the blocks in which s has a value, and the median of what was lost near stalls. voids are the trials that do not
// count, of all.
func (r *run) lost(part string, v study.Variant, l Loss, s []float64) (lost, stalled float64, voids, trials int, err error) {
	var all, near []float64
	for _, x := range r.journal.Records {
		t := x.Trial
		if t.Part != part || t.Duplicate || !slices.Equal(t.Variant, v) || t.Block >= len(s) || x.Skipped != "" {
			continue
		}
		if trials++; x.Void != "" {
			voids++
		}
		if math.IsNaN(s[t.Block]) {
			continue
		}
		of := func(name string) (float64, bool) {
			if l.Step != "" {
				return lostAt(r.journal.StepsOf(t), Loss{Step: l.Step, Value: name}, s[t.Block]*1e6)
			}
			value, ok := x.Values[name]
			return value, ok
		}
		if value, ok := of(l.Value); ok {
			all = append(all, value)
		}
		if value, ok := of(l.Stalls); ok {
			near = append(near, value)
		}
	}
	switch {
	case len(all) == 0:
		err = fmt.Errorf("part %s: no trial of %s has %s %s", part, strings.Join(v, ", "), l.Step, l.Value)
	case l.Stalls != "" && len(near) == 0:
		err = fmt.Errorf("part %s: no trial of %s has %s %s", part, strings.Join(v, ", "), l.Step, l.Stalls)
	case l.Stalls != "":
		stalled = stats.Median(near)
	}
	return stats.Median(all) * scale(l.Times), stalled * scale(l.Times), voids, trials, err
}

func scale(times float64) float64 {
	if times == 0 {
		return 1
	}
	return times
}

// conditions of a variant, as they were read back: each value of the name once.
func (r *run) conditions(part string, variants []study.Variant, name string) ([]string, error) {
	seen := map[string]bool{}
	for _, x := range r.journal.Records {
		if x.Trial.Part != part || !slices.ContainsFunc(variants, func(v study.Variant) bool { return slices.Equal(v, x.Trial.Variant) }) {
			continue
		}
		if value := x.Conditions[name]; value != "" {
			seen[value] = true
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("part %s: no trial says its %s", part, name)
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// about is a sentence on the run, with a link to it.
func (r *run) about(link string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s](%s)", r.row.Run, link)
	x := r.report.Results
	switch {
	case r.row.Bench():
		b.WriteString(", of the former harness")
	case r.repeated != nil:
		fmt.Fprintf(&b, ", `weir lab run %s --%s --repeat %d`", r.row.Study, r.row.Mode, r.repeated.Planned)
	default:
		fmt.Fprintf(&b, ", `weir lab run %s --%s`", r.row.Study, r.row.Mode)
	}
	fmt.Fprintf(&b, ", %s: Weir %s; ", r.row.Started.Format(time.DateOnly), orElse(r.row.Version, "(version not recorded)"))
	for _, l := range r.row.Later {
		fmt.Fprintf(&b, "parts %s by %s; ", strings.Join(l.Parts, ", "), l.Version)
	}
	b.WriteString(r.row.Machine.String())
	switch {
	case r.repeated != nil:
		fmt.Fprintf(&b, "; %s", r.repeated.Headline())
	case r.journal != nil:
		t := r.report.Trust
		fmt.Fprintf(&b, "; %d trials measured in %s, %d void, %d made again, %d skipped (not possible on this machine, or only with --full); A/A: the baseline differed from its own copy in %d of %d comparisons, where chance alone makes about %.1f",
			x.Measured, x.Ended.Sub(x.Started).Round(time.Second), x.Void, x.Again, x.Skipped, t.Different, t.Same+t.Different, stats.Alpha*float64(t.Same+t.Different))
	}
	b.WriteString(".")
	return b.String()
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// String is "AMD EPYC, 2 CPUs, Linux 6.18, 24105 MiB".
func (m Machine) String() string {
	text := fmt.Sprintf("%s, %d CPUs, Linux %s", orElse(m.CPU, "CPU model not recorded"), m.CPUs, m.Kernel)
	if m.MemoryMiB > 0 {
		text += fmt.Sprintf(", %d MiB", m.MemoryMiB)
	}
	return text
}
