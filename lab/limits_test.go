package lab

import (
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

const limitStudy = `name: limits
title: Limits that are known
parts:
  - name: limits
    question: Are they found?
    experiment: ndr
    metrics: [{name: ndr, unit: Mpps, better: higher}, {name: pdr, unit: Mpps, better: higher}, {name: typical-50, unit: us, better: lower}]
    factors:
      - {name: limit, levels: ["40000", "100000"]}
    compare: limit
    baseline: "40000"
    quick: {blocks: %d, duration: 50ms}
    full: {blocks: 6, duration: 50ms}
`

const limitTrial = 50 * time.Millisecond

// limitJournal is a run of so many blocks, each of three searches: of both limits, and of the first again.
func limitJournal(t testing.TB, dir string, blocks int) *study.Journal {
	t.Helper()
	f, err := study.Parse("limits.yaml", fmt.Appendf(nil, limitStudy, blocks), []string{"ndr"})
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
