package experiment

import (
	"context"
	"time"
)

// Stepped is an experiment whose trials are made of many steps, such as searches. What is compared with each other takes turns: a step of each
// variant, the next step of each, in another random order each time, so that what drifts in the machine meets all alike within a trial too. Every
// step is in the journal before the next one begins: a run that was killed goes on in the middle of its searches.
//
// Its arrangements are Steppers.
type Stepped interface {
	Experiment
	// Begin a trial with steps of a length; verify is that of the steps that verify its result, 0: as the experiment has it.
	Begin(l Levels, length, verify time.Duration) (Course, error)
}

// Course of a trial. It is pure: told the same steps, it takes the same way.
type Course interface {
	// Next step; ok is false when the trial is over.
	Next() (n Next, ok bool)
	// Tell what came of the step that was next.
	Tell(values map[string]float64)
	// Result when it is over.
	Result() Measurement
}

// Next is a step to make.
type Next struct {
	What   string
	Load   float64 // frames a second; 0: as fast as it goes
	Length time.Duration
}

// Stepper is an arrangement that makes steps. A measurement's Values, Raw, Void, Offered and Sending are those of the step.
type Stepper interface {
	Arrangement
	Step(ctx context.Context, n Next) (Measurement, error)
}

// InARow makes all steps of a trial at once: what Measure is for a Stepper.
func InARow(ctx context.Context, c Course, s Stepper) (Measurement, error) {
	var sending time.Duration
	for n, ok := c.Next(); ok; n, ok = c.Next() {
		m, err := s.Step(ctx, n)
		if err != nil {
			return m, err
		}
		sending += m.Sending
		if m.Void != "" {
			return m, nil
		}
		c.Tell(m.Values)
	}
	m := c.Result()
	m.Sending = sending
	return m, nil
}
