package study

import (
	"fmt"
	"maps"
	"time"
)

// Resumption says that a run went on by another version or on another machine than it had been on: what was measured before and behind it was not
// measured alike. A run that goes on as it was has none.
type Resumption struct {
	At          time.Time         `json:"at"`
	Version     string            `json:"version"`
	Environment map[string]string `json:"environment,omitempty"`
}

// resumptionLine is how it stands in the journal.
type resumptionLine struct {
	Resumed *Resumption `json:"resumed"`
}

// GoOn writes a resumption down, if anything is other than it was.
func (j *Journal) GoOn(r Resumption) error {
	last := Resumption{Version: j.Header.Version, Environment: j.Header.Environment}
	if n := len(j.Resumed); n > 0 {
		last = j.Resumed[n-1]
	}
	if last.Version == r.Version && maps.Equal(last.Environment, r.Environment) {
		return nil
	}
	if err := j.append(resumptionLine{&r}); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	j.Resumed = append(j.Resumed, r)
	return nil
}

// VersionAt is the version by which the run was made at a time.
func (j *Journal) VersionAt(t time.Time) string {
	version := j.Header.Version
	for _, r := range j.Resumed {
		if !t.Before(r.At) {
			version = r.Version
		}
	}
	return version
}
