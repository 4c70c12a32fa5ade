package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// bounded is the experiment ndr with a limit that is known instead of a path.
type bounded struct {
	experiment.Stepped
	made int                           // steps
	seen map[string]bool               // steps that were void once
	step func() error                  // called in every step
	void func(n experiment.Next) bool  // the first time
	open map[string]experiment.Stepper // arrangements

	stalled func(n experiment.Next) bool // a CPU of the machine
}

func newBounded() *bounded {
	return &bounded{
		Stepped: experiment.All()["ndr"].(experiment.Stepped), seen: map[string]bool{}, open: map[string]experiment.Stepper{}, step: func() error { return nil }, void: func(experiment.Next) bool { return false }, stalled: func(experiment.Next) bool { return false },
	}
}

func (b *bounded) Check(context.Context, *experiment.Bench, experiment.Levels) string { return "" }
func (b *bounded) Setup(_ context.Context, _ *experiment.Bench, l experiment.Levels) (experiment.Arrangement, error) {
	limit, err := strconv.ParseFloat(l["limit"], 64)
	return &boundedPath{b, limit}, err
}

type boundedPath struct {
	b     *bounded
	limit float64
}

func (p *boundedPath) Close() error { return nil }
func (p *boundedPath) Measure(ctx context.Context, length time.Duration) (experiment.Measurement, error) {
	c, err := p.b.Begin(nil, length, 0)
	if err != nil {
		return experiment.Measurement{}, err
	}
	return experiment.InARow(ctx, c, p)
}

// Step has an outcome that follows from the step alone. Some lose more than they should: the machine is noisy.
func (p *boundedPath) Step(_ context.Context, n experiment.Next) (experiment.Measurement, error) {
	p.b.made++
	if err := p.b.step(); err != nil {
		return experiment.Measurement{}, err
	}
	if n.What == experiment.StepCeiling {
		return experiment.Measurement{Values: map[string]float64{experiment.ValueSent: 1e6, experiment.ValueArrived: 8e5}}, nil
	}
	noise := rand.New(rand.NewPCG(math.Float64bits(n.Load), uint64(n.Length))).Float64()
	const sent = 1_000_000
	f := experiment.Frames{Intended: sent, Sent: sent, Unique: uint64(sent * min(1, p.limit/n.Load))}
	if p.b.stalled(n) {
		f.Unique, f.Stalled.Due, f.Stalls = sent/2, sent/2, 1
	}
	f.Lost = sent - f.Unique
	m := experiment.Measurement{Values: f.Values(), Raw: f}
	m.Values[experiment.ValueTypical] = 10 * (1 + noise)
	if k := fmt.Sprint(p.limit, n); p.b.void(n) && !p.b.seen[k] {
		p.b.seen[k] = true
		m.Void = "noise"
	}
	return m, nil
}

// coursesOf a run: of each trial the steps that count, in their order; steps are numbered without a gap.
func coursesOf(t *testing.T, j *study.Journal) map[string][]experiment.Next {
	t.Helper()
	out := map[string][]experiment.Next{}
	for _, r := range j.Records {
		k := r.Trial.Key()
		for i, s := range j.StepsOf(r.Trial) {
			if s.N != i {
				t.Errorf("%s: step %d is number %d", k, i, s.N)
			}
			if s.Void == "" {
				out[k] = append(out[k], experiment.Next{What: s.What, Load: s.Load, Length: s.Length})
			}
		}
	}
	return out
}

// TestVariantsTakeTurns: no search is ever more than a step ahead of another that goes on, and who comes first changes.
func TestVariantsTakeTurns(t *testing.T) {
	b := newBounded()
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	trials := j.Left()
	made := make([]int, len(trials))
	firsts := map[string]bool{} // in a round
	b.step = func() error {
		most := slices.Max(made)
		least := math.MaxInt
		for i, trial := range trials {
			if n := len(j.StepsOf(trial)); n > made[i] { // the last step was its
				if made[i] = n; n > most {
					firsts[trial.Key()] = true
				}
			}
			if over := slices.ContainsFunc(j.Records, func(r study.Record) bool { return r.Trial.Key() == trial.Key() }); !over {
				least = min(least, made[i])
			}
		}
		if most = slices.Max(made); most > least+1 {
			t.Errorf("one is %d steps ahead: %v", most-least, made)
		}
		return nil
	}
	if err := limitRunner(b, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(firsts) != len(trials) {
		t.Errorf("not everybody is the first now and then: %v", firsts)
	}
	r := Summarise(j)
	if len(r.Distrusted) != 0 {
		t.Errorf("an honest run is suspected: %v", r.Distrusted)
	}
	if r.Measured != 3 || r.Void != 0 || r.Left != 0 {
		t.Errorf("%d measured, %d void, %d left", r.Measured, r.Void, r.Left)
	}
	for _, v := range r.Parts[0].Groups[0].Metrics[0].Values {
		limit, err := strconv.ParseFloat(v.Level, 64)
		if err != nil || v.Median == nil || math.Abs(*v.Median*1e6/limit-1) > experiment.SearchWidth {
			t.Errorf("%+v: %v", v, err)
		}
	}
	for _, x := range j.Records {
		if len(x.Covariates) == 0 || x.Took <= 0 || x.Begun.IsZero() {
			t.Errorf("%s: %+v", x.Trial.Key(), x)
		}
	}
}

// TestCutOffSearchGoesOn: wherever a run is cut off, the steps that are on the disk are not made again, and the searches take the same way as
// without the cut.
func TestCutOffSearchGoesOn(t *testing.T) {
	void := func(n experiment.Next) bool { return n.What != experiment.StepSearch || uint64(n.Load)%4 == 0 }
	whole := newBounded()
	whole.void = void
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	if err := limitRunner(whole, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := coursesOf(t, j)
	if n := len(want["limits/0/100000"]); len(want) != 3 || n < 10 {
		t.Fatalf("%d trials, %d steps of one", len(want), n)
	}
	for _, cut := range []int{1, whole.made / 2, whole.made - 1, whole.made} {
		dir := filepath.Join(t.TempDir(), "run")
		ctx, cancel := context.WithCancel(t.Context())
		b := newBounded()
		b.void = void
		b.step = func() error {
			if b.made == cut {
				cancel()
			}
			return nil
		}
		part := limitJournal(t, dir, 1)
		if err := limitRunner(b, part).Run(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("cut at step %d: %v", cut, err)
		}
		cancel()
		if err := part.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := study.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := limitRunner(b, again).Run(t.Context()); err != nil {
			t.Fatalf("cut at step %d: %v", cut, err)
		}
		if diff := cmp.Diff(want, coursesOf(t, again)); diff != "" {
			t.Errorf("cut at step %d:\n%s", cut, diff)
		}
		// Each step once, and once more the one in which it was cut off; that one's first time may have been its void one.
		if extra := b.made - whole.made; extra < 0 || extra > 1 {
			t.Errorf("cut at step %d: %d steps, without the cut %d", cut, b.made, whole.made)
		}
		if r := Summarise(again); len(r.Distrusted) != 0 {
			t.Errorf("cut at step %d: a run that goes on is suspected: %v", cut, r.Distrusted)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStepsThatDoNotCount: they are made again; too many, or a failure, end the trial and not the run.
func TestStepsThatDoNotCount(t *testing.T) {
	b := newBounded()
	b.void = func(n experiment.Next) bool {
		clear(b.seen) // always
		return n.What == experiment.StepNDR
	}
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	if err := limitRunner(b, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.Records {
		if !strings.Contains(r.Void, "steps do not count, the last: noise") {
			t.Errorf("%s: %q", r.Trial.Key(), r.Void)
		}
	}
	b = newBounded()
	b.step = func() error {
		if b.made == 20 {
			return errors.New("it broke")
		}
		return nil
	}
	j = limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	if err := limitRunner(b, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken := 0
	for _, r := range j.Records {
		if r.Void == "failed: search: it broke" {
			broken++
		} else if r.Void != "" {
			t.Errorf("%s: %s", r.Trial.Key(), r.Void)
		}
	}
	if broken != 1 || len(j.Records) != 3 {
		t.Errorf("%d of %d trials failed", broken, len(j.Records))
	}
}

// TestStepsNearStallsAreMadeAgain: in every other step a CPU stalls, and half of what was to be sent is lost. The result is right, and where every step
// stalls the trial ends and says so.
func TestStepsNearStallsAreMadeAgain(t *testing.T) {
	b := newBounded()
	b.stalled = func(n experiment.Next) bool { return b.made%2 == 0 }
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	left := j.Left()[:1]
	s := newState(limitRunner(b, j))
	if err := s.turns(t.Context(), j.Header.Study.Parts[0], b, left, j.Add); err != nil {
		t.Fatal(err)
	}
	r := j.Records[0]
	limit, err := strconv.ParseFloat(r.Trial.Variant[0], 64)
	if err != nil || r.Void != "" || math.Abs(r.Values[experiment.MetricNDR]*1e6/limit-1) > 2*experiment.SearchWidth {
		t.Errorf("%+v", r)
	}
	b = newBounded()
	b.stalled = func(experiment.Next) bool { return true }
	j = limitJournal(t, filepath.Join(t.TempDir(), "run"), 1)
	defer j.Close()
	if err := limitRunner(b, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.Records {
		if n := len(j.StepsOf(r.Trial)); !strings.Contains(r.Void, "the machine stalls") || n > 30 {
			t.Errorf("%s: %d steps: %q", r.Trial.Key(), n, r.Void)
		}
	}
}

// TestStepsOfAnotherVersionAreRefused: a search that would have gone another way cannot go on.
func TestStepsOfAnotherVersionAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	j := limitJournal(t, dir, 1)
	defer j.Close()
	if err := j.AddStep(study.Step{Of: j.Left()[0], What: experiment.StepSearch, Load: 7, Length: limitTrial}); err != nil {
		t.Fatal(err)
	}
	if err := limitRunner(newBounded(), j).Run(t.Context()); !errors.Is(err, study.ErrJournal) || !strings.Contains(err.Error(), "another version") {
		t.Errorf("%v", err)
	}
}

func TestMeasureMakesAllStepsInARow(t *testing.T) {
	m, err := (&boundedPath{newBounded(), 40_000}).Measure(t.Context(), limitTrial)
	if err != nil || math.Abs(m.Values[experiment.MetricNDR]/0.04-1) > experiment.SearchWidth {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestStepsOutOfTurnAreCaught: a variant whose steps are made first in each round, or a single step that was made too early, takes the part's claims back.
func TestStepsOutOfTurnAreCaught(t *testing.T) {
	j := limitJournal(t, filepath.Join(t.TempDir(), "run"), 6)
	defer j.Close()
	if err := limitRunner(newBounded(), j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		began func(s study.Step) time.Time
		want  string
	}{
		"as it was": {func(s study.Step) time.Time { return s.Begun }, ""},
		"one variant first": {func(s study.Step) time.Time {
			if s.Of.Variant[0] == "100000" && !s.Of.Duplicate {
				return s.Begun.Add(-time.Hour)
			}
			return s.Begun
		}, "was not made when the seed wanted it"},
		"one step too early": {func(s study.Step) time.Time {
			if s.Of.Block == 3 && s.N == 5 && draw(j.Header.Seed, s.Of, 5) == latest(j, s) {
				return earliest(j, s).Add(-time.Nanosecond)
			}
			return s.Begun
		}, "step 5 of trial limits/3/"},
	} {
		forged, err := study.Create(filepath.Join(t.TempDir(), "run"), j.Header)
		if err != nil {
			t.Fatal(err)
		}
		var steps []study.Step
		for _, r := range j.Records {
			steps = append(steps, j.StepsOf(r.Trial)...)
		}
		slices.SortStableFunc(steps, func(a, b study.Step) int { return c.began(a).Compare(c.began(b)) })
		for _, s := range steps {
			if err := forged.AddStep(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range j.Records {
			if err := forged.Add(r); err != nil {
				t.Fatal(err)
			}
		}
		r := Summarise(forged)
		if c.want == "" != (len(r.Distrusted) == 0) || c.want != "" && !strings.Contains(r.Distrusted[0].Reason, c.want) {
			t.Errorf("%s: %+v: want %q", name, r.Distrusted, c.want)
		}
		if err := forged.Close(); err != nil {
			t.Error(err)
		}
	}
}

// earliest beginning in the round of a step.
func earliest(j *study.Journal, s study.Step) (at time.Time) {
	for _, r := range j.Records {
		if steps := j.StepsOf(r.Trial); r.Trial.Block == s.Of.Block && len(steps) > s.N && (at.IsZero() || steps[s.N].Begun.Before(at)) {
			at = steps[s.N].Begun
		}
	}
	return at
}

// latest draw of the round of a step.
func latest(j *study.Journal, s study.Step) (most uint64) {
	for _, r := range j.Records {
		if r.Trial.Block == s.Of.Block && len(j.StepsOf(r.Trial)) > s.N {
			most = max(most, draw(j.Header.Seed, r.Trial, s.N))
		}
	}
	return most
}
