package study

import (
	"encoding/json"
	"fmt"
	"time"
)

// Step is a piece of a trial that is made of many, such as a search. It is on the disk before the next one begins; behind the last one comes the
// trial's Record. A step that does not count has Void, which says why.
type Step struct {
	Of         Trial              `json:"of"`
	N          int                `json:"n"` // 0, 1, 2 ... within its trial
	What       string             `json:"what"`
	Load       float64            `json:"load,omitempty"` // frames a second; 0: as fast as it goes
	Length     time.Duration      `json:"length_ns,omitempty"`
	Begun      time.Time          `json:"begun"`
	Took       time.Duration      `json:"took_ns"`
	Values     map[string]float64 `json:"values,omitempty"`
	Covariates map[string]float64 `json:"covariates,omitempty"`
	Void       string             `json:"void,omitempty"`
	Setup      string             `json:"setup,omitempty"` // see Record.Setup
	Raw        json.RawMessage    `json:"raw,omitempty"`
	Line       int                `json:"-"` // in the journal, among all steps: the order in which they were made, whatever the clock said
}

// stepLine is how a step stands in the journal.
type stepLine struct {
	Step *Step `json:"step"`
}

// StepsOf a trial, in their order.
func (j *Journal) StepsOf(t Trial) []Step { return j.steps[t.Key()] }

// AddStep writes a step of a trial that is not over, and returns when it is on the disk.
func (j *Journal) AddStep(s Step) error {
	if err := j.checkStep(s); err != nil {
		return err
	}
	if err := j.append(stepLine{&s}); err != nil {
		return err
	}
	j.keepStep(s)
	return nil
}

// keepStep of the journal's next line.
func (j *Journal) keepStep(s Step) {
	j.lines++
	s.Line = j.lines
	j.steps[s.Of.Key()] = append(j.steps[s.Of.Key()], s)
}

// checkStep: every step once, none left out, none behind the end of its trial.
func (j *Journal) checkStep(s Step) error {
	key := s.Of.Key()
	switch n := len(j.steps[key]); {
	case n == maxSteps:
		return fmt.Errorf("%w: more than %d steps of trial %s", ErrJournal, maxSteps, key)
	case j.done[key]:
		return fmt.Errorf("%w: step %d of trial %s comes behind its end", ErrJournal, s.N, key)
	case s.N < n:
		return fmt.Errorf("%w: step %d of trial %s is there already", ErrJournal, s.N, key)
	case s.N > n:
		return fmt.Errorf("%w: step %d of trial %s comes behind %d steps", ErrJournal, s.N, key, n)
	}
	return nil
}
