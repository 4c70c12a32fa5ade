package study

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// digest of a schedule: of every trial in its order, with its length. A header that was changed since the run began has another one.
func digest(schedule []Trial) string {
	h := sha256.New()
	for _, t := range schedule {
		fmt.Fprintf(h, "%s %d\n", t.Key(), t.Duration) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// checkHeader: the study, the mode and the seed are those that the run began with. Journals of older versions do not say.
func (j *Journal) checkHeader() error {
	if n := j.Header.Study.size(j.Header.Mode); n > maxTrials {
		return fmt.Errorf("its study has more than %.0f trials: nothing that weir lab run began", float64(maxTrials))
	}
	schedule := j.Header.Study.Schedule(j.Header.Mode, j.Header.Seed)
	if have := j.Header.Schedule; have != "" && have != digest(schedule) {
		return fmt.Errorf("study, mode or seed were changed since the run began: what is left would not fit what was made; put them back, or begin another run")
	}
	j.planned = make(map[string]bool, len(schedule))
	for _, t := range schedule {
		j.planned[t.Key()] = true
	}
	return nil
}

// checkTrial: it is one of this run's.
func (j *Journal) checkTrial(t Trial) error {
	if key := t.Key(); !j.planned[key] {
		return fmt.Errorf("trial %s is not in the schedule of study %s: it belongs to another run", key, j.Header.Study.Name)
	}
	return nil
}
