package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/study"
)

// Runner makes the trials of a journal that are left, in the order of its schedule.
type Runner struct {
	Experiments map[string]experiment.Experiment
	Journal     *study.Journal
	Bench       *experiment.Bench // what variants are set up on
	Twin        *experiment.Bench // what the duplicate of the baseline is set up on
	Progress    Progress
	Rules       VoidRules
	Memory      func() (free float64) // share of the machine's memory that is free; nil: as the kernel says
	QuietWait   time.Duration         // how long all trials may wait for quiet moments, taken together. A trial waits for quietEach at most
}

// QuietWait is the usual Runner.QuietWait, and MostQuietWait the longest one that makes sense.
const (
	QuietWait     = time.Minute
	MostQuietWait = time.Hour
)

// Progress is told how a run goes. Methods are called from one goroutine.
type Progress interface {
	Begin(planned, done int)
	Part(p study.Part, trials int)                  // trials that are left of it
	Block(p study.Part, n, of int)                  // the n-th block of the part begins: everything is set up anew, which takes a while
	Setup(part study.Part, v study.Variant)         // takes a while
	Trial(t study.Trial)                            // begins
	Done(part study.Part, r study.Record, left int) // it is on the disk
	End()
}

// lowMemory is the share of free memory under which arrangements that wait are taken down.
const lowMemory = 0.15

// maxTrial bounds a trial beside its length.
const maxTrial = 5 * time.Minute

// state of a run.
type state struct {
	*Runner
	sampler *machine.Sampler
	ready   map[string]experiment.Arrangement // by variant; of one block
	broken  map[string]error                  // set-ups that failed, whose trial is yet to come
	checked map[string]string                 // reason to skip, by variant
	failed  map[string]int                    // trials in a row, by variant
	cleared int                               // times that the benches were
	waited  time.Duration                     // for quiet moments
	begun   time.Time
	again   time.Duration // spent on trials that were made again
}

func newState(r *Runner) *state {
	return &state{
		Runner: r, sampler: machine.NewSampler(), begun: time.Now(),
		ready: map[string]experiment.Arrangement{}, broken: map[string]error{}, checked: map[string]string{}, failed: map[string]int{},
	}
}

// Run makes all trials that are left, block by block: for each block everything is set up anew. When ctx ends it stops behind the trial that it is
// in, which is not counted: what is there is a valid partial result. Everything that was set up is taken down.
func (r *Runner) Run(ctx context.Context) (err error) {
	s := newState(r)
	left := r.Journal.Left()
	r.Progress.Begin(len(left)+len(r.Journal.Records), len(r.Journal.Records))
	defer r.Progress.End()
	defer func() { err = errors.Join(err, s.end()) }()
	perPart := map[string]int{}
	for _, t := range left {
		perPart[t.Part]++
	}
	n := len(left)
	var last study.Trial // of the block that goes on
	made := map[string]bool{}
	done := func(p study.Part) func(study.Record) error {
		return func(record study.Record) error {
			if err := r.Journal.Add(record); err != nil {
				return err
			}
			n--
			made[record.Trial.Key()] = true
			r.Progress.Done(p, record, n)
			return nil
		}
	}
	for i, t := range left {
		if made[t.Key()] { // with others, in turns
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		p, err := r.part(t.Part)
		if err != nil {
			return err
		}
		x, ok := r.Experiments[p.Experiment]
		if !ok {
			return fmt.Errorf("part %s: this program has no experiment %q", p.Name, p.Experiment)
		}
		if t.Part != last.Part {
			r.Progress.Part(p, perPart[t.Part])
		}
		if t.Part != last.Part || t.Block != last.Block {
			if err := s.begin(ctx, p, x, block(left[i:])); err != nil {
				return err
			}
		}
		last = t
		if err := s.advance(ctx, p, x, t, left[i:], done(p)); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
	}
	return nil
}

// advance makes a trial, with those that take turns with it.
func (s *state) advance(ctx context.Context, p study.Part, x experiment.Experiment, t study.Trial, left []study.Trial, done func(study.Record) error) error {
	if y, ok := x.(experiment.Stepped); ok {
		return s.turns(ctx, p, y, together(p, t, left), done)
	}
	record, err := s.trial(ctx, p, x, t)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Key(), err)
	}
	return done(record)
}

func (r *Runner) part(name string) (study.Part, error) {
	for _, p := range r.Journal.Header.Study.Parts {
		if p.Name == name {
			return p, nil
		}
	}
	return study.Part{}, fmt.Errorf("the study has no part %q", name)
}

// block is the trials of the first one's block.
func block(left []study.Trial) []study.Trial {
	n := slices.IndexFunc(left, func(t study.Trial) bool { return t.Part != left[0].Part || t.Block != left[0].Block })
	if n < 0 {
		n = len(left)
	}
	return left[:n]
}

// begin a block: everything that the last one stood on goes, and what the trials of this one stand on is made before the first of them, so that no
// trial follows its own set-up more closely than the others do. Where memory is short the rest is set up when its turn comes.
func (s *state) begin(ctx context.Context, p study.Part, x experiment.Experiment, trials []study.Trial) (err error) {
	s.Progress.Block(p, trials[0].Block+1, p.Plan(s.Journal.Header.Mode).Blocks)
	back, err := s.Bench.Hurry()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back()) }()
	if err := s.clear(); err != nil {
		return err
	}
	for _, t := range trials {
		levels := levelsOf(p, t.Variant)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.short() {
			return nil
		}
		if s.skip(ctx, p, x, t, levels) != "" {
			continue
		}
		if _, err := s.arrange(ctx, p, x, t, levels); err != nil && !s.absent(p, t, err) {
			s.broken[key(t.Variant, t.Duplicate)] = err
		}
	}
	return nil
}

// clear takes all arrangements down, and then what they stand on, both benches at a time.
func (s *state) clear() error {
	var errs []error
	for k, a := range s.ready {
		errs = append(errs, a.Close())
		delete(s.ready, k)
	}
	clear(s.broken)
	s.cleared++
	var twin error
	var all sync.WaitGroup
	all.Go(func() { twin = s.Twin.Clear() })
	errs = append(errs, s.Bench.Clear())
	all.Wait()
	return errors.Join(append(errs, twin)...)
}

// end of the run: nothing stays.
func (s *state) end() error {
	back, err := s.Bench.Hurry()
	if err != nil {
		return errors.Join(err, s.clear())
	}
	return errors.Join(s.clear(), back())
}

// bench of a trial: the duplicate of the baseline has one of its own, so that it is made as often as the baseline, and shares nothing with it. So have
// levels that are the baseline under another name.
func (s *state) bench(p study.Part, t study.Trial) *experiment.Bench {
	if t.Duplicate || p.Compare == experiment.FactorLabel && p.Level(t.Variant, p.Compare) != p.Baseline {
		return s.Twin
	}
	return s.Bench
}

// setup names what a trial is measured on: the bench, and how many times this run has set up on it.
func (s *state) setup(p study.Part, t study.Trial) string {
	if b := s.bench(p, t); b != nil {
		return fmt.Sprintf("%s/%d", b.Name, s.cleared)
	}
	return ""
}

// trial makes one. An error ends the run.
func (s *state) trial(ctx context.Context, p study.Part, x experiment.Experiment, t study.Trial) (study.Record, error) {
	r := study.Record{Trial: t, Begun: time.Now().UTC()}
	levels := levelsOf(p, t.Variant)
	if r.Skipped = s.skip(ctx, p, x, t, levels); r.Skipped != "" {
		return r, ctx.Err()
	}
	a, err := s.arrange(ctx, p, x, t, levels)
	if s.absent(p, t, err) {
		r.Skipped = s.skip(ctx, p, x, t, levels)
		return r, ctx.Err()
	}
	if err != nil {
		return s.fail(ctx, r, "set up", err)
	}
	r.Setup = s.setup(p, t)
	if b, ok := a.(experiment.Batched); ok {
		b.SetBatch(s.batch(p, t))
	}
	s.Progress.Trial(t)
	var last taken
	for {
		last, err = s.measure(ctx, t.Duration, func(ctx context.Context) (experiment.Measurement, error) { return a.Measure(ctx, t.Duration) })
		if err != nil {
			return r, err
		}
		if !s.repeats(last, len(r.Tries)) {
			break
		}
		r.Tries = append(r.Tries, study.Try{Begun: last.begun, Took: last.took, Covariates: last.covariates, Void: last.void})
	}
	r.Begun, r.Took = last.begun, last.took
	if last.failed != nil {
		return s.fail(ctx, r, "measure", last.failed)
	}
	delete(s.failed, p.Name+"/"+key(t.Variant, false))
	r.Covariates = last.covariates
	if err := complete(&r, p, last.m); err != nil {
		return r, err
	}
	r.Void = last.void
	return r, ctx.Err()
}

// A trial that the machine disturbed is made again at once, as long as that has taken no more than a share of the run's time.
const (
	mostTries   = 2 // besides the last
	againAlways = 5 * time.Second
	againShare  = 0.1
)

// AgainText says so in a report.
func AgainText() string {
	return fmt.Sprintf("What the machine disturbed (not what failed, nor books that do not balance) was made again at once, at most %d times, "+
		"for no more than %.0f %% of the run's time (%s always). Only the last try counts.", mostTries, againShare*100, againAlways)
}

// repeats tells whether to make a trial again. What decides is the machine's state, never the result, nor whether the books balance.
func (s *state) repeats(t taken, tries int) bool {
	if t.disturbed == "" || tries >= mostTries || s.again > againAlways+time.Duration(againShare*float64(time.Since(s.begun))) {
		return false
	}
	s.again += t.took
	return true
}

// complete a record with what was measured.
func complete(r *study.Record, p study.Part, m experiment.Measurement) (err error) {
	r.Values, r.Conditions, r.Void = m.Values, m.Conditions, m.Void
	if m.Sampled == "" || m.Sampled == p.Metrics[0].Name {
		r.Samples = m.Samples
	}
	if m.Raw == nil {
		return nil
	}
	if r.Raw, err = json.Marshal(m.Raw); err != nil {
		return fmt.Errorf("raw output: %w", err)
	}
	return nil
}

// taken is a measurement with what the machine did meanwhile.
type taken struct {
	begun      time.Time
	took       time.Duration
	m          experiment.Measurement
	failed     error // nothing was measured
	covariates map[string]float64
	disturbed  string // by the machine: why, by the rules
	void       string // that, or that the books do not balance
}

// measure once, in a quiet moment, and judge by the rules whether it counts. An error ends the run.
func (s *state) measure(ctx context.Context, length time.Duration, f func(context.Context) (experiment.Measurement, error)) (t taken, err error) {
	before, err := s.quiet(ctx)
	if err != nil {
		return t, err
	}
	first, err := machine.Take()
	if err != nil {
		return t, err
	}
	t.begun = time.Now().UTC()
	bounded, cancel := context.WithTimeout(ctx, length+maxTrial)
	t.m, t.failed = f(bounded)
	cancel()
	t.took = time.Since(t.begun)
	if t.failed != nil {
		return t, nil
	}
	last, err := machine.Take()
	if err != nil {
		return t, err
	}
	t.covariates = covariates(first, last, max(before, s.sampler.Check()), t.m)
	t.disturbed = s.Rules.void(t.covariates, t.m.Idle)
	t.void = cmp.Or(t.disturbed, t.m.Void)
	return t, nil
}

// Waiting for a quiet moment before a trial: how long at most, and how often to look.
const (
	quietEach = 5 * time.Second
	quietLook = 200 * time.Millisecond
)

// quiet waits until the canary runs undisturbed, and gives its last factor. What the trial before left running ends meanwhile.
func (s *state) quiet(ctx context.Context) (float64, error) {
	begin := time.Now()
	end := begin.Add(min(quietEach, s.QuietWait-s.waited))
	defer func() { s.waited += time.Since(begin) }()
	for {
		factor := s.sampler.Check()
		if factor <= s.Rules.Canary || time.Now().After(end) {
			return factor, nil
		}
		select {
		case <-ctx.Done():
			return factor, ctx.Err()
		case <-time.After(quietLook):
		}
	}
}

// mostFailures of a variant in a row; then its other trials are skipped.
const mostFailures = 3

// fail makes a trial that could not be made a void one, which says why: the other trials go on. Not when the run is to end.
func (s *state) fail(ctx context.Context, r study.Record, what string, err error) (study.Record, error) {
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	k := key(r.Trial.Variant, r.Trial.Duplicate)
	if a, ok := s.ready[k]; ok { // it may be broken: the next trial makes it anew
		delete(s.ready, k)
		err = errors.Join(err, a.Close())
	}
	r.Void = "failed: " + what + ": " + err.Error()
	v := r.Trial.Part + "/" + key(r.Trial.Variant, false)
	if s.failed[v]++; s.failed[v] == mostFailures {
		s.checked[v] = fmt.Sprintf("failed %d times in a row, last: %s: %s", mostFailures, what, err)
	}
	return r, nil
}

// skip tells why a variant is not measured, the same for all its trials.
func (s *state) skip(ctx context.Context, p study.Part, x experiment.Experiment, t study.Trial, levels experiment.Levels) string {
	k := p.Name + "/" + key(t.Variant, false)
	reason, ok := s.checked[k]
	if !ok {
		mode := s.Journal.Header.Mode
		if p.Leaves(p.Plan(mode), t.Variant) {
			reason = fmt.Sprintf("left to another mode: takes too long for --%s", mode)
		} else {
			reason = x.Check(ctx, s.Bench, levels)
		}
		s.checked[k] = reason
	}
	return reason
}

// absent tells whether a set-up has found that this machine has no such variant: its trials are skipped from now on.
func (s *state) absent(p study.Part, t study.Trial, err error) bool {
	if !errors.Is(err, experiment.ErrNotHere) {
		return false
	}
	s.checked[p.Name+"/"+key(t.Variant, false)] = err.Error()
	return true
}

// arrange gives the variant as it was set up in this block, or sets it up.
func (s *state) arrange(ctx context.Context, p study.Part, x experiment.Experiment, t study.Trial, levels experiment.Levels) (experiment.Arrangement, error) {
	k := key(t.Variant, t.Duplicate)
	if a, ok := s.ready[k]; ok {
		return a, nil
	}
	if err, ok := s.broken[k]; ok { // told once
		delete(s.broken, k)
		return nil, err
	}
	if len(s.ready) > 0 && s.short() { // what waits is set up again when it is needed
		if err := s.clear(); err != nil {
			return nil, err
		}
	}
	s.Progress.Setup(p, t.Variant)
	a, err := x.Setup(ctx, s.bench(p, t), levels)
	if err != nil {
		return nil, err
	}
	s.ready[k] = a
	return a, nil
}

// short of memory.
func (s *state) short() bool {
	free := s.Memory
	if free == nil {
		free = machine.FreeMemory
	}
	return free() < lowMemory
}

// ResultsFile is the file of a run's directory that has its results.
const ResultsFile = "results.json"

// Save writes the results of a run beside its journal, all or nothing.
func Save(dir string, r Results) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return instance.WriteShared(filepath.Join(dir, ResultsFile), append(b, '\n'))
}
