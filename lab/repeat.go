package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// MaxRepeats of a study.
const MaxRepeats = 1000

const repeatName = "repeat.json"

// Repeats is a study that is run several times, each time set up anew and with another seed, in directories 001, 002 ... of its own.
type Repeats struct {
	Study       study.Study      `json:"study"` // after the selection
	Mode        study.Mode       `json:"mode"`
	Seed        uint64           `json:"seed"` // of the first run; the next has the next one
	Planned     int              `json:"planned"`
	Runs        []Repetition     `json:"runs"`             // that are complete
	Comparisons []SelfTest       `json:"comparisons"`      // of a thing with itself, over all complete runs
	Pooled      []PooledVariants `json:"pooled,omitempty"` // all comparisons, with what differs between the complete runs; from two runs on

	complete []Results
}

// Repetition is one complete run.
type Repetition struct {
	Dir      string `json:"dir"` // below the run's
	Seed     uint64 `json:"seed"`
	Measured int    `json:"measured"`
	Void     int    `json:"void"`
	Skipped  int    `json:"skipped"`
	// Verdict of all comparisons of a thing with itself: "different" if any said so, "too few blocks" if any had too few valid ones to say.
	Verdict string `json:"verdict"`
}

// SelfTest counts what the runs said of two things that are the same: the baseline and its duplicate, or two levels of the factor label.
type SelfTest struct {
	Part      string `json:"part"`
	Group     string `json:"group,omitempty"`
	Metric    string `json:"metric"`
	Level     string `json:"level"`
	Duplicate bool   `json:"duplicate,omitempty"` // the hidden one of the baseline
	Same      int    `json:"same"`                // not told apart by the test
	Different int    `json:"different"`           // told apart by the test, within the margin too: chance makes 5 %
	TooFew    int    `json:"too_few"`
}

// RunRepeated runs a study n times. What is complete stays; ResumeRepeated goes on.
func RunRepeated(ctx context.Context, o Options, n int, begin func(i int, dir string)) (Repeats, error) {
	if n < 1 || n > MaxRepeats {
		return Repeats{}, fmt.Errorf("%d runs: want 1 to %d", n, MaxRepeats)
	}
	s, err := o.Study.Select(o.Selection)
	if err != nil {
		return Repeats{}, err
	}
	for _, name := range []string{repeatName, study.JournalFile, study.JournalKept} {
		if _, err := os.Lstat(filepath.Join(o.Dir, name)); err == nil {
			return Repeats{}, fmt.Errorf("%w: %s has results already: resume them, or choose another directory", study.ErrJournal, o.Dir)
		}
	}
	if os.Geteuid() != 0 {
		return Repeats{}, experiment.ErrNoRoot()
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return Repeats{}, fmt.Errorf("results: %w", err)
	}
	r := Repeats{Study: s, Mode: o.Mode, Seed: o.Seed, Planned: n}
	if err := r.save(o.Dir); err != nil {
		return r, err
	}
	return r, r.run(ctx, o, begin)
}

// Repeated tells whether a directory holds repeated runs.
func Repeated(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, repeatName))
	return err == nil
}

// ResumeRepeated makes the runs that are left.
func ResumeRepeated(ctx context.Context, o Options, begin func(i int, dir string)) (Repeats, error) {
	r, err := ReportRepeated(o.Dir)
	if err != nil {
		return r, err
	}
	return r, r.run(ctx, o, begin)
}

// ReportRepeated tells what the complete runs of a directory said.
func ReportRepeated(dir string) (Repeats, error) {
	var r Repeats
	text, err := os.ReadFile(filepath.Join(dir, repeatName))
	if err != nil {
		return r, fmt.Errorf("results: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%w: %s: %w", study.ErrJournal, filepath.Join(dir, repeatName), err)
	}
	r.begin()
	for i := range r.Planned {
		one, err := Report(filepath.Join(dir, r.dir(i)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return r, err
		}
		r.add(i, one)
	}
	return r, nil
}

func (r *Repeats) dir(i int) string { return fmt.Sprintf("%03d", i+1) }

// run those that are not complete.
func (r *Repeats) run(ctx context.Context, o Options, begin func(i int, dir string)) error {
	r.begin()
	for i := range r.Planned {
		dir := filepath.Join(o.Dir, r.dir(i))
		one, err := Report(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			begin(i, dir)
			one, err = Run(ctx, Options{Study: r.Study, Mode: r.Mode, Seed: r.Seed + uint64(i), Dir: dir, Version: o.Version, Images: o.Images, API: o.API, Former: o.Former, Progress: o.Progress})
		case err == nil && one.Left > 0:
			begin(i, dir)
			one, err = Resume(ctx, Options{Dir: dir, Version: o.Version, Images: o.Images, API: o.API, Former: o.Former, Progress: o.Progress})
		}
		if one.Planned > 0 {
			r.add(i, one)
		}
		if err := errors.Join(err, r.save(o.Dir)); err != nil {
			return err
		}
	}
	return nil
}

// add a run, if it is complete.
func (r *Repeats) add(i int, one Results) {
	if one.Left > 0 {
		return
	}
	run := Repetition{Dir: r.dir(i), Seed: one.Seed, Measured: one.Measured, Void: one.Void, Skipped: one.Skipped, Verdict: same}
	for _, p := range one.Parts {
		for _, g := range p.Groups {
			for _, m := range g.Metrics {
				at := SelfTest{Part: p.Part.Name, Group: g.Name, Metric: m.Metric.Name}
				twin := at
				twin.Level, twin.Duplicate = p.Part.Baseline, true
				r.count(twin, m.Comparison.Duplicate)
				run.judge(m.Comparison.Duplicate)
				if p.Part.Compare != experiment.FactorLabel {
					continue
				}
				for _, v := range m.Values { // in the order of the levels
					if ratio, ok := m.Comparison.Variants[v.Level]; ok && !v.Duplicate {
						at.Level = v.Level
						r.count(at, ratio)
						run.judge(ratio)
					}
				}
			}
		}
	}
	r.Runs = append(r.Runs, run)
	if r.complete = append(r.complete, one); len(r.complete) >= stats.MinRuns {
		r.Pooled = poolComparisons(r.complete)
	}
}

// begin to count anew.
func (r *Repeats) begin() { r.Runs, r.Comparisons, r.Pooled, r.complete = nil, nil, nil, nil }

// Verdicts on things that are the same: told apart, or not.
const (
	same      = "same"
	different = "different"
)

func (r *Repetition) judge(ratio stats.Ratio) {
	switch {
	case ratio.Apart():
		r.Verdict = different
	case !ratio.Decided() && r.Verdict != different:
		r.Verdict = string(stats.TooFew)
	}
}

func (r *Repeats) count(at SelfTest, ratio stats.Ratio) {
	i := slices.IndexFunc(r.Comparisons, func(o SelfTest) bool {
		return o.Part == at.Part && o.Group == at.Group && o.Metric == at.Metric && o.Level == at.Level && o.Duplicate == at.Duplicate
	})
	if i < 0 {
		i = len(r.Comparisons)
		r.Comparisons = append(r.Comparisons, at)
	}
	c := &r.Comparisons[i]
	switch {
	case !ratio.Decided(), ratio.Bounds > 0: // of bounds no difference can be found
		c.TooFew++
	case ratio.Apart():
		c.Different++
	default:
		c.Same++
	}
}

// save beside the runs, all or nothing.
func (r *Repeats) save(dir string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return instance.WriteShared(filepath.Join(dir, repeatName), append(b, '\n'))
}

// Headline is the figure of an A/A study: how often the complete runs told a thing from itself, beside how often chance does.
func (r *Repeats) Headline() string {
	told, alarms, few := 0, 0, 0
	for _, c := range r.Comparisons {
		told, alarms, few = told+c.Same+c.Different, alarms+c.Different, few+c.TooFew
	}
	text := fmt.Sprintf("A/A: %d of %d comparisons of a thing with itself say that it differs; chance alone makes about %.0f", alarms, told, stats.Alpha*float64(told))
	if few > 0 {
		text += fmt.Sprintf(" (%d more had too few valid blocks to say)", few)
	}
	return text
}

// Text writes what the runs said of things that are the same.
func (r *Repeats) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s (%s, seeds from %d): %d of %d runs\n", r.Study.Title, r.Mode, r.Seed, len(r.Runs), r.Planned)
	fmt.Fprintln(t, "part\tmetric\tthe same\tnot told apart\ttold apart\ttoo few blocks")
	for _, c := range r.Comparisons {
		what := c.Level + " against the baseline"
		if c.Duplicate {
			what = c.Level + " again (hidden duplicate)"
		}
		part := c.Part
		if c.Group != "" {
			part += " " + c.Group
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d of %d\t%d\t%d\n", part, c.Metric, what, c.Same, c.Same+c.Different, c.Different, c.TooFew)
	}
	fmt.Fprintln(t, r.Headline())
	if len(r.Pooled) > 0 {
		fmt.Fprintf(t, "\nAll %d runs as one, with what differs between them:\n", len(r.Runs))
		poolTable(t, r.Pooled)
	}
	return t.Flush()
}
