package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/study"
)

// TestTimelineCountsEveryTrial: of a long run fewer points are drawn, but the table is of all trials.
func TestTimelineCountsEveryTrial(t *testing.T) {
	r := Of(synthetic(t, -1))
	made := slices.DeleteFunc(slices.Clone(r.trials), func(x study.Record) bool { return x.Skipped != "" })
	r.trials = nil
	for len(r.trials) <= 2*maxMoments {
		r.trials = append(r.trials, made...)
	}
	f, ok := r.timeline()
	if !ok {
		t.Fatal("there is no time line")
	}
	for _, row := range f.Table.Rows {
		n, void := 0, 0
		for _, x := range r.trials {
			if x.Trial.Part == row[0] {
				n++
				if x.Void != "" {
					void++
				}
			}
		}
		if row[1] != fmt.Sprint(n) || row[2] != fmt.Sprint(void) {
			t.Errorf("part %s has %d trials, %d of them void: the table says %s and %s", row[0], n, void, row[1], row[2])
		}
	}
	if !strings.Contains(f.About, "Drawn: of every 3 trials in a row") {
		t.Errorf("it is not said that some are not drawn: %s", f.About)
	}
}

// TestAnotherVersionStandsOnTheFirstPage of the report.
func TestAnotherVersionStandsOnTheFirstPage(t *testing.T) {
	j := synthetic(t, 100)
	if err := j.GoOn(study.Resumption{At: time.Unix(0, 0), Version: "v9", Environment: j.Header.Environment}); err != nil {
		t.Fatal(err)
	}
	first := Of(j).minute()
	if !slices.ContainsFunc(first.Blocks, func(b block) bool {
		return b.Note == "bad" && strings.Contains(b.Text, "version: v0.0.0-test and v9. Absolute figures are of both.")
	}) {
		t.Errorf("%+v", first.Blocks)
	}
}
