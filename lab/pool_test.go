package lab

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// runsOf the fake study, in which "ours" is so many times as fast as it would be, each in a directory of its own.
func runsOf(t *testing.T, scales ...float64) (dirs []string) {
	t.Helper()
	for i, scale := range scales {
		dir := filepath.Join(t.TempDir(), fmt.Sprint(i))
		f, err := study.Parse("fake.yaml", []byte(fakeStudy), []string{"fake"})
		if err != nil {
			t.Fatal(err)
		}
		j, err := study.Create(dir, study.Header{Study: f.Study, Mode: study.Quick, Seed: uint64(i), Started: time.Unix(int64(i), 0).UTC(), Version: fmt.Sprint(i / 2)})
		if err != nil {
			t.Fatal(err)
		}
		err = runner(&fake{value: func(l experiment.Levels, n int) (experiment.Measurement, error) {
			m, err := known(l, n)
			if l["platform"] == "ours" {
				m.Values["rate"] *= scale
			}
			return m, err
		}}, j).Run(t.Context())
		if err := errors.Join(err, j.Close()); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// Runs that each are sure of another ratio are so no more together; what they agree in is.
func TestRunsArePooled(t *testing.T) {
	dirs := runsOf(t, 0.95, 1, 1.05)
	p, err := PoolDirs(dirs...)
	if err != nil || len(p.Runs) != 3 || p.Runs[2].Seed != 2 || len(p.Comparisons) != 3 || len(p.Distrusted) != 0 {
		t.Fatalf("%v: %+v", err, p)
	}
	if d := strings.Join(p.Differences, "; "); d != dirs[2]+": version: 0 and 1" {
		t.Errorf("differences: %s", d)
	}
	c := p.Comparisons[0]
	ours, third := c.Variants["ours"], c.Variants["third"]
	if c.Group != "wires=1" || c.Metric.Name != "rate" || c.Baseline != "theirs" || ours.Verdict != stats.Higher || !ours.Interval.Contains(2) || ours.Interval.High-ours.Interval.Low < 0.3 {
		t.Errorf("%+v", c)
	}
	if ours.Between < 1.04 || ours.Between > 1.06 || ours.Share < 0.9 || third.Verdict != stats.Equivalent || third.Interval.High > 1.02 || third.Between > 1.01 {
		t.Errorf("ours %+v\nthird %+v", ours, third)
	}
	if third := p.Comparisons[2].Variants["third"]; third.Verdict != stats.TooFewRuns || c.Duplicate.Verdict != stats.Equivalent {
		t.Errorf("left out in all: %+v; duplicate %+v", third, c.Duplicate)
	}
	var text strings.Builder
	if err := p.Text(&text); err != nil || !strings.Contains(text.String(), "theirs again") || !strings.Contains(text.String(), "they differ in "+dirs[2]) || strings.Contains(text.String(), "too few") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// What cannot be pooled is refused with the reason: a single run, a run with itself, runs that measure something else.
func TestWhatCannotBePooled(t *testing.T) {
	dirs := runsOf(t, 1, 1)
	for want, these := range map[string][]string{"1 runs: want at least 2": dirs[:1], "are the same run": {dirs[0], dirs[1], dirs[0]}} {
		if _, err := PoolDirs(these...); !errors.Is(err, ErrPool) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	one, err := Report(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Results){
		"study fake, study other":                      func(r *Results) { r.Study.Name = "other" },
		"part one, baseline: theirs, ours":             func(r *Results) { r.Study.Parts[0].Baseline = "ours" },
		"part one, length of a trial: , 1s":            func(r *Results) { r.Study.Parts[0].Quick.Duration = "1s" },
		"part one, settings: map[], map[congestion:x]": func(r *Results) { r.Study.Parts[0].Settings = map[string]string{"congestion": "x"} },
		"part one, experiment: fake, tcp":              func(r *Results) { r.Study.Parts[0].Experiment = "tcp" },
	} {
		other, err := Report(dirs[1])
		if err != nil {
			t.Fatal(err)
		}
		change(&other)
		if _, err := Pool(dirs, []Results{one, other}); !errors.Is(err, ErrPool) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	// Of a part that is not to be trusted the other runs count.
	other, err := Report(dirs[1])
	if err != nil {
		t.Fatal(err)
	}
	other.Distrusted = []Distrust{{"one", "its order"}}
	other.Parts[0].disown("its order")
	p, err := Pool(dirs, []Results{one, other})
	if err != nil || len(p.Distrusted) != 1 || p.Comparisons[0].Variants["ours"].Verdict != stats.TooFewRuns {
		t.Errorf("%v: %+v", err, p)
	}
}
