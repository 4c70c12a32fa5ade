package lab

import (
	"bytes"
	"os"
	"strconv"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

const limitTrial = 50 * time.Millisecond

// limitJournal is a run of so many blocks, each of three searches: of both limits, and of the first again.
func limitJournal(t testing.TB, dir string, blocks int) *study.Journal {
	t.Helper()
	text, err := os.ReadFile("testdata/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := study.Parse("limits.yaml", bytes.ReplaceAll(text, []byte("BLOCKS"), []byte(strconv.Itoa(blocks))), []string{"ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(dir, study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func limitRunner(x experiment.Experiment, j *study.Journal) *Runner {
	r := runner(nil, j)
	r.Experiments, r.Rules.Offered = map[string]experiment.Experiment{"ndr": x}, 0
	return r
}
