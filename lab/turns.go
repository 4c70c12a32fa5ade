package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// mostVoidSteps of a trial; with one more it is void as a whole.
const mostVoidSteps = 150

// turn is a trial of those that take turns.
type turn struct {
	trial      study.Trial
	course     experiment.Course
	levels     experiment.Levels
	verify     time.Duration // of the steps that verify; 0: as the experiment has it
	steps      []study.Step
	voids      int
	last       string            // why the last void one is void
	conditions map[string]string // of its first step
}

// together are the trials of those left that take turns with t: of its block and of what is compared with it.
func together(p study.Part, t study.Trial, left []study.Trial) (out []study.Trial) {
	for _, o := range left {
		if o.Part == t.Part && o.Block == t.Block && p.Group(o.Variant) == p.Group(t.Variant) {
			out = append(out, o)
		}
	}
	return out
}

// turns makes trials step by step; done is told of each that is over.
func (s *state) turns(ctx context.Context, p study.Part, x experiment.Stepped, trials []study.Trial, done func(study.Record) error) error {
	var active []*turn
	for _, t := range trials {
		u := &turn{trial: t, levels: levelsOf(p, t.Variant)}
		u.verify, _ = p.Plan(s.Journal.Header.Mode).VerifyLength() // checked
		if why := s.skip(ctx, p, x, t, u.levels); why != "" {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := done(study.Record{Trial: t, Begun: time.Now().UTC(), Skipped: why}); err != nil {
				return err
			}
			continue
		}
		if err := u.begin(x, s.Journal.StepsOf(t)); err != nil {
			return fmt.Errorf("%s: %w", t.Key(), err)
		}
		active = append(active, u)
	}
	for len(active) > 0 {
		u := nextTurn(s.Journal.Header.Seed, active)
		record, over, err := s.step(ctx, p, x, u)
		if err != nil {
			return fmt.Errorf("%s: %w", u.trial.Key(), err)
		}
		if over {
			if err := done(record); err != nil {
				return err
			}
			active = slices.DeleteFunc(active, func(o *turn) bool { return o == u })
		}
	}
	return nil
}

// begin with the steps that were made before the run was cut off.
func (u *turn) begin(x experiment.Stepped, steps []study.Step) (err error) {
	if u.course, err = x.Begin(u.levels, u.trial.Duration, u.verify); err != nil {
		return err
	}
	for _, st := range steps {
		want, ok := u.course.Next()
		if made := (experiment.Next{What: st.What, Load: st.Load, Length: st.Length}); !ok || made != want {
			return fmt.Errorf("%w: step %d is %+v, where %+v was to come: another version made it", study.ErrJournal, st.N, made, want)
		}
		u.add(st)
	}
	return nil
}

func (u *turn) add(st study.Step) {
	u.steps = append(u.steps, st)
	if st.Void != "" {
		u.voids, u.last = u.voids+1, st.Void
		return
	}
	u.course.Tell(st.Values)
}

// draw is what a trial draws for the order of the steps with the number n: the lowest comes first.
func draw(seed uint64, t study.Trial, n int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", t.Key(), n)
	return rand.New(rand.NewPCG(seed, h.Sum64())).Uint64()
}

// nextTurn is that of fewest steps. Who comes first among equals is drawn anew in every round, by the seed: a resumed run goes on in the same order.
func nextTurn(seed uint64, active []*turn) *turn {
	draw := func(u *turn) uint64 { return draw(seed, u.trial, len(u.steps)) }
	return slices.MinFunc(active, func(a, b *turn) int {
		if d := len(a.steps) - len(b.steps); d != 0 {
			return d
		}
		if draw(a) < draw(b) {
			return -1
		}
		return 1
	})
}

// step makes one step of a trial, or ends the trial if none is left. An error ends the run.
func (s *state) step(ctx context.Context, p study.Part, x experiment.Stepped, u *turn) (r study.Record, over bool, err error) {
	r = u.record()
	next, ok := u.course.Next()
	switch {
	case !ok:
		m := u.course.Result()
		m.Conditions = u.conditions
		return r, true, complete(&r, p, m)
	case u.voids > mostVoidSteps:
		r.Void = fmt.Sprintf("more than %d of %d steps do not count, the last: %s", mostVoidSteps, len(u.steps), u.last)
		return r, true, nil
	}
	a, err := s.arrange(ctx, p, x, u.trial, u.levels)
	if err != nil {
		r, err = s.fail(ctx, r, "set up", err)
		return r, true, err
	}
	stepper, ok := a.(experiment.Stepper)
	if !ok {
		return r, false, fmt.Errorf("experiment %s: %T makes no steps", x.Name(), a)
	}
	s.Progress.Trial(u.trial)
	taken, err := s.measure(ctx, next.Length, func(ctx context.Context) (experiment.Measurement, error) { return stepper.Step(ctx, next) })
	switch {
	case err != nil:
		return r, false, err
	case taken.failed != nil:
		r, err = s.fail(ctx, r, next.What, taken.failed)
		return r, true, err
	}
	delete(s.failed, p.Name+"/"+key(u.trial.Variant, false))
	st := study.Step{ // there are many: no more digits than count
		Of: u.trial, N: len(u.steps), What: next.What, Load: next.Load, Length: next.Length, Begun: taken.begun, Took: taken.took,
		Values: rounded(taken.m.Values, 6), Covariates: rounded(taken.covariates, 3), Void: taken.void, Setup: s.setup(p, u.trial),
	}
	if taken.m.Raw != nil {
		if st.Raw, err = json.Marshal(taken.m.Raw); err != nil {
			return r, false, fmt.Errorf("raw output: %w", err)
		}
	}
	if err := ctx.Err(); err != nil { // it may have been cut short
		return r, false, err
	}
	if err := s.Journal.AddStep(st); err != nil {
		return r, false, err
	}
	u.add(st)
	if u.conditions == nil {
		u.conditions = taken.m.Conditions
	}
	return r, false, nil
}

// record of a trial so far. It took what its steps took; what the others' took in between is not counted.
func (u *turn) record() study.Record {
	r := study.Record{Trial: u.trial, Begun: time.Now().UTC(), Covariates: map[string]float64{}}
	n := map[string]float64{}
	var setups []string
	for i, st := range u.steps {
		if i == 0 {
			r.Begun = st.Begun
		}
		r.Took += st.Took
		if !slices.Contains(setups, st.Setup) {
			setups = append(setups, st.Setup)
		}
		for name, v := range st.Covariates {
			switch n[name]++; name {
			case covCanary, covOwnRSS:
				r.Covariates[name] = max(r.Covariates[name], v)
			default:
				r.Covariates[name] += (v - r.Covariates[name]) / n[name] // the mean
			}
		}
	}
	r.Setup = strings.Join(setups, ",")
	return r
}

// rounded to so many digits.
func rounded(values map[string]float64, digits int) map[string]float64 {
	out := make(map[string]float64, len(values))
	for name, v := range values {
		out[name], _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64) // it is a number
	}
	return out
}
