package study

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestStepsAreKept: what a trial has made so far is there again after a crash, each step once, and its record closes it.
func TestStepsAreKept(t *testing.T) {
	s := mustLoad(t, good)
	dir := t.TempDir()
	j, err := Create(dir, Header{Study: s, Mode: Quick})
	if err != nil {
		t.Fatal(err)
	}
	a, b := j.Left()[0], j.Left()[1]
	step := func(of Trial, n int) Step {
		return Step{Of: of, N: n, What: "search", Load: 1.0 / 3 * float64(n+1), Length: time.Millisecond, Begun: time.Unix(int64(n), 0).UTC(), Values: map[string]float64{"loss": 0.1 * float64(n)}}
	}
	var want []Step
	for i := range 3 {
		want = append(want, step(a, i))
		for _, of := range []Trial{a, b} {
			if err := j.AddStep(step(of, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, bad := range map[string]Step{"again": step(a, 2), "with a gap": step(a, 4)} {
		if err := j.AddStep(bad); !errors.Is(err, ErrJournal) {
			t.Errorf("a step %s: %v", name, err)
		}
	}
	if err := j.Add(Record{Trial: b}); err != nil {
		t.Fatal(err)
	}
	if err := j.AddStep(step(b, 3)); !errors.Is(err, ErrJournal) {
		t.Errorf("a step behind the end: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, journalName)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(`{"step":{"of":{"part":`) // a crash
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for i := range want {
		want[i].Line = 2*i + 1 // steps of the other trial are between them
	}
	if diff := cmp.Diff(want, j.StepsOf(a)); diff != "" {
		t.Error(diff)
	}
	if len(j.Records) != 1 || len(j.StepsOf(b)) != 3 || len(j.Left()) == 0 || j.Left()[0].Key() != a.Key() {
		t.Errorf("%d records, %d steps of the trial that is over", len(j.Records), len(j.StepsOf(b)))
	}
	if err := j.AddStep(step(a, 3)); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	for name, bad := range map[string]string{
		"a step twice":     string(text) + lines[1],
		"a step left out":  strings.Replace(string(text), lines[3], "", 1),
		"of another study": strings.Replace(string(text), lines[1], strings.Replace(lines[1], a.Part, "other", 1), 1),
	} {
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, journalName), []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(other); !errors.Is(err, ErrJournal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
