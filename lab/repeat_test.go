package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// twins is a run's results in which the test of a thing with itself had these p-values; 0: too few blocks.
func twins(duplicate, label float64) Results {
	ratio := func(p float64) stats.Ratio {
		if p == 0 {
			return stats.Ratio{Verdict: stats.TooFew}
		}
		return stats.Ratio{Ratio: 1.01, P: p, Verdict: stats.Equivalent} // within the margin, all of them
	}
	p := study.Part{Name: "idle", Compare: experiment.FactorLabel, Baseline: "one"}
	c := stats.Comparison{Duplicate: ratio(duplicate), Variants: map[string]stats.Ratio{"two": ratio(label)}}
	m := MetricResult{Metric: study.Metric{Name: "rtt"}, Comparison: c, Values: []Value{{Level: "one"}, {Level: "one", Duplicate: true}, {Level: "two"}}}
	return Results{Planned: 3, Measured: 3, Parts: []PartResult{{Part: p, Groups: []Group{{Metrics: []MetricResult{m}}}}}}
}

func TestRepeatsAreCounted(t *testing.T) {
	const same, apart = 0.5, 0.04
	r := Repeats{Planned: 6}
	for i, x := range []Results{twins(same, same), twins(same, apart), twins(same, same), twins(0, 0), twins(apart, apart)} {
		r.add(i, x)
	}
	partial := twins(same, same)
	partial.Left = 1
	r.add(5, partial)
	if got, want := r.Headline(), "A/A: 3 of 8 comparisons of a thing with itself say that it differs; chance alone makes about 0 (2 more had too few valid blocks to say)"; got != want {
		t.Errorf("%q: want %q", got, want)
	}
	if len(r.Runs) != 5 || r.Runs[1].Verdict != different || r.Runs[3].Verdict != string(stats.TooFew) || r.Runs[4].Dir != "005" {
		t.Errorf("%+v", r.Runs)
	}
	var got []string
	for _, c := range r.Comparisons {
		got = append(got, fmt.Sprintf("%s %t: %d %d %d", c.Level, c.Duplicate, c.Same, c.Different, c.TooFew))
	}
	if diff := cmp.Diff([]string{"one true: 3 1 1", "two false: 2 2 1"}, got); diff != "" {
		t.Error(diff)
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil || !strings.Contains(b.String(), "5 of 6 runs") || !strings.Contains(b.String(), "3 of 4") || !strings.Contains(b.String(), r.Headline()+"\n") || !strings.Contains(b.String(), "All 5 runs as one") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// Runs that are complete stay; those that are left are made when the whole is resumed, with the seeds that they were to have.
func TestRepeatedRunsGoOn(t *testing.T) {
	dir := t.TempDir()
	f, err := study.Parse("fake.yaml", []byte(fakeStudy), []string{"fake"})
	if err != nil {
		t.Fatal(err)
	}
	whole := Repeats{Study: f.Study, Mode: study.Quick, Seed: 5, Planned: 2}
	if err := whole.save(dir); err != nil {
		t.Fatal(err)
	}
	r := fakeRun(t, &fake{value: known}, filepath.Join(dir, whole.dir(0)))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	back, err := ReportRepeated(dir)
	if err != nil || !Repeated(dir) || len(back.Runs) != 1 || back.Runs[0].Verdict != same || back.Planned != 2 {
		t.Fatalf("%+v, %v", back.Runs, err)
	}
	// The study has an experiment that the program does not: the second run cannot be made, and says so; the first stays.
	begun := []string{}
	back, err = ResumeRepeated(t.Context(), Options{Dir: dir, Progress: Silent{}}, func(_ int, dir string) { begun = append(begun, filepath.Base(dir)) })
	if err == nil || !strings.Contains(err.Error(), `no experiment "fake"`) || len(back.Runs) != 1 || !cmp.Equal(begun, []string{"002"}) {
		t.Errorf("%v, began %v, %d runs", err, begun, len(back.Runs))
	}
	j, err := study.Read(filepath.Join(dir, "002"))
	if err != nil || j.Header.Seed != 6 {
		t.Errorf("the second run has seed %d: want 6; %v", j.Header.Seed, err)
	}
	var saved Repeats
	text, err := os.ReadFile(filepath.Join(dir, repeatName))
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err != nil || len(saved.Runs) != 1 {
		t.Errorf("saved: %+v, %v", saved.Runs, err)
	}
	if _, err := RunRepeated(context.Background(), Options{Study: f.Study, Dir: dir}, 2, nil); err == nil || !strings.Contains(err.Error(), "has results already") {
		t.Errorf("a second time in one directory: %v", err)
	}
}
