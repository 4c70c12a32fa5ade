package lab

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Pooled is several runs of one study, each with chains of its own, as one: what differs from run to run is in its intervals.
type Pooled struct {
	Study       string           `json:"study"`
	Title       string           `json:"title"`
	Mode        study.Mode       `json:"mode"`
	Runs        []PooledRun      `json:"runs"`
	Differences []string         `json:"differences"` // of the runs from the first: versions, machines
	Distrusted  []Distrust       `json:"distrusted"`  // parts of runs that were left out
	Comparisons []PooledVariants `json:"comparisons"`
}

// PooledRun is one of the runs.
type PooledRun struct {
	Dir     string    `json:"dir"`
	Seed    uint64    `json:"seed"`
	Started time.Time `json:"started"`
	Version string    `json:"version"`
	Left    int       `json:"left,omitempty"` // trials that are not made
}

// PooledVariants is one metric of one group over all runs.
type PooledVariants struct {
	Part     string       `json:"part"`
	Group    string       `json:"group,omitempty"`
	Metric   study.Metric `json:"metric"`
	Baseline string       `json:"baseline"`
	stats.PooledComparison
	levels []string // in the study's order
}

// ErrPool says that runs cannot be pooled.
var ErrPool = errors.New("cannot pool")

// PoolDirs puts the runs of several directories together; one that holds repeated runs stands for those that are complete.
func PoolDirs(dirs ...string) (Pooled, error) {
	var runs []Results
	var names []string
	for _, dir := range dirs {
		each := []string{dir}
		if Repeated(dir) {
			r, err := ReportRepeated(dir)
			if err != nil {
				return Pooled{}, err
			}
			each = nil
			for _, run := range r.Runs {
				each = append(each, filepath.Join(dir, run.Dir))
			}
		}
		for _, name := range each {
			r, err := Report(name)
			if err != nil {
				return Pooled{}, err
			}
			runs, names = append(runs, r), append(names, name)
		}
	}
	return Pool(names, runs)
}

// Pool puts runs of one study together. They have to measure the same; on another machine or by another version they may have, which is told.
func Pool(names []string, runs []Results) (Pooled, error) {
	p := Pooled{Runs: []PooledRun{}, Differences: []string{}, Distrusted: []Distrust{}, Comparisons: []PooledVariants{}}
	if len(runs) < stats.MinRuns {
		return p, fmt.Errorf("%w: %d runs: want at least %d", ErrPool, len(runs), stats.MinRuns)
	}
	first := runs[0]
	p.Study, p.Title, p.Mode = first.Study.Name, first.Study.Title, first.Mode
	for i, r := range runs {
		for j := range i {
			if runs[j].Seed == r.Seed && runs[j].Started.Equal(r.Started) {
				return p, fmt.Errorf("%w: %s and %s are the same run", ErrPool, names[j], names[i])
			}
		}
		if what := unlike(first, r); what != "" {
			return p, fmt.Errorf("%w: %s and %s do not measure the same: %s", ErrPool, names[0], names[i], what)
		}
		p.Runs = append(p.Runs, PooledRun{names[i], r.Seed, r.Started, r.Version, r.Left})
		for _, d := range r.Distrusted {
			p.Distrusted = append(p.Distrusted, Distrust{d.Part, names[i] + ": " + d.Reason})
		}
		if i > 0 {
			for _, d := range Differences(first, r) {
				p.Differences = append(p.Differences, names[i]+": "+d)
			}
		}
	}
	p.Comparisons = poolComparisons(runs)
	return p, nil
}

// unlike tells what two runs of a study measure that is not the same; empty: they do. Each may have levels that the other has not.
func unlike(a, b Results) string {
	if a.Study.Name != b.Study.Name {
		return fmt.Sprintf("study %s, study %s", a.Study.Name, b.Study.Name)
	}
	for _, p := range a.Study.Parts {
		i := slices.IndexFunc(b.Study.Parts, func(q study.Part) bool { return q.Name == p.Name })
		if i < 0 {
			continue
		}
		q := b.Study.Parts[i]
		for _, x := range []struct{ what, a, b string }{
			{"experiment", p.Experiment, q.Experiment}, {"compared factor", p.Compare, q.Compare}, {"baseline", p.Baseline, q.Baseline},
			{"settings", fmt.Sprint(p.Settings), fmt.Sprint(q.Settings)}, {"length of a trial", p.Plan(a.Mode).Duration, q.Plan(b.Mode).Duration},
			{"length of verifying trials", p.Plan(a.Mode).Verify, q.Plan(b.Mode).Verify},
			{"metrics", fmt.Sprint(p.Metrics), fmt.Sprint(q.Metrics)},
		} {
			if x.a != x.b {
				return fmt.Sprintf("part %s, %s: %s, %s", p.Name, x.what, x.a, x.b)
			}
		}
	}
	return ""
}

// poolComparisons of all parts, groups and metrics, in the order in which they come first.
func poolComparisons(runs []Results) []PooledVariants {
	type place struct{ part, group, metric string }
	of := map[place][]stats.Comparison{}
	out := []PooledVariants{}
	for _, r := range runs {
		for _, p := range r.Parts {
			for _, g := range p.Groups {
				for _, m := range g.Metrics {
					at := place{p.Part.Name, g.Name, m.Metric.Name}
					i := slices.IndexFunc(out, func(v PooledVariants) bool { return place{v.Part, v.Group, v.Metric.Name} == at })
					if i < 0 {
						i = len(out)
						out = append(out, PooledVariants{Part: at.part, Group: at.group, Metric: m.Metric, Baseline: p.Part.Baseline})
					}
					for _, v := range m.Values {
						if !v.Duplicate && v.Level != p.Part.Baseline && !slices.Contains(out[i].levels, v.Level) {
							out[i].levels = append(out[i].levels, v.Level)
						}
					}
					of[at] = append(of[at], m.Comparison)
				}
			}
		}
	}
	for i, v := range out {
		out[i].PooledComparison = stats.Pool(of[place{v.Part, v.Group, v.Metric.Name}])
	}
	return out
}

// Text writes a table for a terminal. Comparisons of which no run has a ratio are left out.
func (p Pooled) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s (%s): %d runs\n", p.Title, p.Mode, len(p.Runs))
	for _, r := range p.Runs {
		if r.Left > 0 {
			fmt.Fprintf(t, "%s is not complete: %d trials are left\n", r.Dir, r.Left)
		}
	}
	for _, d := range p.Distrusted {
		fmt.Fprintf(t, "DO NOT TRUST %s\n", d)
	}
	for _, d := range p.Differences {
		fmt.Fprintf(t, "they differ in %s\n", d)
	}
	poolTable(t, p.Comparisons)
	return t.Flush()
}

func poolTable(w io.Writer, all []PooledVariants) {
	fmt.Fprintln(w, "part\tmetric\tlevel\truns\tratio\t95 %\tbetween runs\tof the variance\tverdict\teach run")
	for _, v := range all {
		where := strings.TrimSpace(v.Part + " " + v.Group)
		row := func(level string, x stats.Pooled) {
			switch {
			case len(x.Runs) == 0 && x.Verdict != stats.NoRatio: // skipped in all
				return
			case !x.Decided():
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t-\t\t\t\t%s\t%s\n", where, v.Metric.Name, level, len(x.Runs), x.Verdict, ratiosText(x.Runs))
				return
			}
			verdict := string(x.Verdict)
			if x.Verdict == stats.Equivalent {
				verdict += fmt.Sprintf(" within %.0f %%", (x.Margin-1)*100)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.3f\t%.3f to %.3f\t%.1f %%\t%.0f %%\t%s\t%s\n", where, v.Metric.Name, level, len(x.Runs), x.Ratio, x.Interval.Low, x.Interval.High,
				(x.Between-1)*100, x.Share*100, verdict, ratiosText(x.Runs))
		}
		row(again(v.Baseline), v.Duplicate)
		for _, level := range v.levels {
			row(level, v.Variants[level])
		}
	}
}

// ratiosText lists the ratio of each run; of many the least and the greatest.
func ratiosText(runs []float64) string {
	const fit = 8
	if len(runs) > fit {
		return fmt.Sprintf("%.3f to %.3f", slices.Min(runs), slices.Max(runs))
	}
	var out []string
	for _, r := range runs {
		out = append(out, fmt.Sprintf("%.3f", r))
	}
	return strings.Join(out, " ")
}
