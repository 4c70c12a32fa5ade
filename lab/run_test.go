package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// fake is an experiment whose values are known.
type fake struct {
	value   func(l experiment.Levels, trial int) (experiment.Measurement, error)
	skip    func(l experiment.Levels) string
	setups  []string
	open    int // arrangements
	trials  int
	measure func() // called in every trial
	setup   func(l experiment.Levels) error
}

func (f *fake) Name() string               { return "fake" }
func (f *fake) About() string              { return "figures that are known" }
func (f *fake) Metrics() map[string]string { return map[string]string{"rate": "Gb/s"} }
func (f *fake) Check(_ context.Context, _ *experiment.Bench, l experiment.Levels) string {
	if f.skip == nil {
		return ""
	}
	return f.skip(l)
}
func (f *fake) Setup(_ context.Context, _ *experiment.Bench, l experiment.Levels) (experiment.Arrangement, error) {
	f.setups = append(f.setups, l["platform"]+" "+l["wires"])
	if f.setup != nil {
		if err := f.setup(l); err != nil {
			return nil, err
		}
	}
	f.open++
	return &fakeArrangement{f, l}, nil
}

type fakeArrangement struct {
	f *fake
	l experiment.Levels
}

func (a *fakeArrangement) Measure(context.Context, time.Duration) (experiment.Measurement, error) {
	a.f.trials++
	if a.f.measure != nil {
		a.f.measure()
	}
	return a.f.value(a.l, a.f.trials)
}
func (a *fakeArrangement) Close() error { a.f.open--; return nil }

func known(l experiment.Levels, trial int) (experiment.Measurement, error) {
	v := map[string]float64{"ours": 4, "theirs": 2, "third": 2}[l["platform"]]
	noise := rand.New(rand.NewPCG(uint64(trial), 1)).Float64() * 0.01
	return experiment.Measurement{Values: map[string]float64{"rate": v * (1 + noise)}}, nil
}

const fakeStudy = `name: fake
title: Figures that are known
parts:
  - name: one
    question: Which is faster?
    experiment: fake
    metrics: [{name: rate, unit: Gb/s, better: higher}]
    factors:
      - {name: platform, levels: [ours, theirs, third]}
      - {name: wires, levels: ["1", "2", "4"]}
    compare: platform
    baseline: theirs
    quick: {blocks: 8, leave: [{platform: third, wires: "4"}]}
    full: {blocks: 8}
    claims:
      - {id: twice, text: twice as fast, source: made up, metric: rate, at: {platform: ours}, against: {platform: theirs}, value: 2}
      - {id: slow, text: slower, source: made up, metric: rate, at: {platform: ours}, against: {platform: theirs}, value: 0.5}
      - {id: most, text: at most 3, source: made up, metric: rate, at: {platform: ours}, at_most: 3}
      - {id: far, text: other hardware, source: made up, metric: rate, at: {platform: theirs}, value: 100}
      - {id: left, text: left out, source: made up, metric: rate, at: {platform: third, wires: "4"}, value: 2}
`

func fakeRun(t testing.TB, f *fake, dir string) *Runner {
	t.Helper()
	s, err := study.Parse("fake.yaml", []byte(fakeStudy), []string{"fake"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(dir, study.Header{Study: s.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	return runner(f, j)
}

// runner with rules that a busy test machine does not break.
func runner(f *fake, j *study.Journal) *Runner {
	return &Runner{Experiments: map[string]experiment.Experiment{"fake": f}, Journal: j, Progress: Silent{}, Rules: VoidRules{Steal: 2, Canary: 1e9, Squeeze: 1e9, Offered: 0.995}}
}

// A run whose machine is never quiet waits as long as it may, and then not again.
func TestWaitingForQuietMomentsIsBounded(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		may   time.Duration
		waits bool
	}{{0, false}, {QuietWait, true}} {
		s := newState(&Runner{Rules: VoidRules{Canary: 0}, QuietWait: c.may}) // a canary is never so fast
		if _, err := s.quiet(ended); errors.Is(err, context.Canceled) != c.waits {
			t.Errorf("a run that may wait %s: %v: want that it waits: %t", c.may, err, c.waits)
		}
	}
	s := newState(&Runner{Rules: VoidRules{Canary: 0}, QuietWait: 10 * time.Millisecond})
	if _, err := s.quiet(t.Context()); err != nil || s.waited < s.QuietWait {
		t.Errorf("it waited %s of %s: %v", s.waited, s.QuietWait, err)
	}
	if _, err := s.quiet(ended); err != nil {
		t.Errorf("it has waited as long as it may, and waits: %v", err)
	}
}

// What only a set-up can tell is a reason to skip a variant, from its first trial on. It is asked once.
func TestWhatIsNotHereIsSkipped(t *testing.T) {
	f := &fake{value: known, setup: func(l experiment.Levels) error {
		if l["platform"] == "third" {
			return fmt.Errorf("third: %w: another machine has it", experiment.ErrNotHere)
		}
		return nil
	}}
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, record := range r.Journal.Records {
		third := record.Trial.Variant[0] == "third"
		if third != (record.Skipped != "") || record.Void != "" || third && !strings.Contains(record.Skipped, "another machine has it") && record.Trial.Variant[1] != "4" {
			t.Errorf("%s: skipped %q, void %q", record.Trial.Key(), record.Skipped, record.Void)
		}
	}
	if n := len(slices.DeleteFunc(f.setups, func(s string) bool { return !strings.HasPrefix(s, "third") })); n != 2 {
		t.Errorf("%d set-ups of what is not here: want one for each of two variants", n)
	}
}

func TestRunFindsTheTruth(t *testing.T) {
	f := &fake{value: known}
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.open != 0 {
		t.Errorf("%d arrangements are still open", f.open)
	}
	// 9 variants and 3 duplicates, without the one that is left out: each set up once a block.
	if len(f.setups) != 8*11 || f.trials != 8*11 {
		t.Errorf("%d set up, %d trials", len(f.setups), f.trials)
	}
	got := Summarise(r.Journal)
	if got.Planned != 8*12 || got.Measured != 8*11 || got.Skipped != 8 || got.Left != 0 || got.Void != 0 {
		t.Errorf("%d planned, %d measured, %d skipped, %d left, %d void", got.Planned, got.Measured, got.Skipped, got.Left, got.Void)
	}
	p := got.Parts[0]
	for _, g := range p.Groups {
		c := g.Metrics[0].Comparison
		ours := c.Variants["ours"]
		if ours.Verdict != stats.Higher || !ours.Interval.Contains(2) || c.Duplicate.Claimed() {
			t.Errorf("%s: %+v", g.Name, c)
		}
		if third := c.Variants["third"]; (!third.Decided() || third.Claimed()) && g.Name != "wires=4" || g.Name == "wires=4" && third.Verdict != stats.TooFew {
			t.Errorf("%s: third: %+v", g.Name, third)
		}
		if v := g.Metrics[0].Values; len(v) != 4 || v[1].Level != "theirs" || v[1].Duplicate || !v[2].Duplicate || v[0].N != 8 {
			t.Errorf("%s: %+v", g.Name, v)
		}
	}
	want := map[string]claim.Verdict{"twice": claim.Reproduced, "slow": claim.Contradicted, "most": claim.Contradicted, "far": claim.NotTestable, "left": claim.NotTestable}
	for _, c := range p.Claims {
		if c.Verdict != want[c.Claim.ID] || c.Headline().Why == "" {
			t.Errorf("claim %s: %s (%s), want %s", c.Claim.ID, c.Verdict, c.Headline().Why, want[c.Claim.ID])
		}
	}
	if len(p.Skips) != 1 || !strings.Contains(p.Skips[0].Reason, "takes too long for --quick") {
		t.Errorf("skips: %+v", p.Skips)
	}
	var text strings.Builder
	if err := Text(&text, got); err != nil || !strings.Contains(text.String(), "higher") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestLineIsFound(t *testing.T) {
	f := &fake{value: func(l experiment.Levels, trial int) (experiment.Measurement, error) {
		m, err := known(l, trial)
		m.Values["rate"] *= map[string]float64{"1": 1, "2": 2, "4": 4}[l["wires"]]
		return m, err
	}}
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := Summarise(r.Journal).Parts[0]
	i := slices.IndexFunc(p.Fits, func(f Fit) bool { return f.Level == "ours" })
	if i < 0 || p.Fits[i].B < 3.9 || p.Fits[i].B > 4.1 || p.Fits[i].A > 0.1 || p.Fits[i].R2 < 0.99 || p.Fits[i].Interval == nil || !p.Fits[i].Interval.Contains(p.Fits[i].B) {
		t.Errorf("%+v", p.Fits)
	}
}

// A run that is cut short anywhere and resumed makes exactly the trials of the schedule, in its order.
func TestResumeGoesOnWithTheSchedule(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	f := &fake{value: known}
	f.measure = func() {
		if f.trials == 17 {
			cancel(stop)
		}
	}
	r := fakeRun(t, f, dir)
	schedule := r.Journal.Left()
	if err := r.Run(ctx); !errors.Is(err, stop) {
		t.Fatalf("interrupted: %v", err)
	}
	if f.open != 0 {
		t.Errorf("%d arrangements are still open after the end", f.open)
	}
	partial := Summarise(r.Journal)
	if partial.Left == 0 || partial.Measured != 16 { // the one that was interrupted does not count
		t.Errorf("partial: %d measured, %d left", partial.Measured, partial.Left)
	}
	if err := r.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	j, err := study.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if err := runner(&fake{value: known}, j).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var made []study.Trial
	for _, x := range j.Records {
		made = append(made, x.Trial)
	}
	if diff := cmp.Diff(schedule, made); diff != "" {
		t.Errorf("not the schedule:\n%s", diff)
	}
}

func TestVoidSkipAndFailure(t *testing.T) {
	f := &fake{
		skip: func(l experiment.Levels) string {
			if l["platform"] == "third" {
				return "there is none"
			}
			return ""
		},
		value: func(l experiment.Levels, trial int) (experiment.Measurement, error) {
			m, err := known(l, trial)
			switch {
			case l["wires"] == "1" && l["platform"] == "ours":
				m.Offered = 0.5
			case l["wires"] == "2" && l["platform"] == "ours":
				m.Void = "the books do not balance"
			case l["wires"] == "4" && l["platform"] == "ours":
				return m, errors.New("it broke")
			}
			return m, err
		},
	}
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := Summarise(r.Journal)
	reasons := map[string]int{}
	for _, x := range r.Journal.Records {
		if x.Trial.Variant[0] != "ours" {
			continue
		}
		reasons[x.Void+x.Skipped]++
	}
	want := map[string]int{
		"offered 50.0 % of the load": 8, "the books do not balance": 8,
		"failed: measure: it broke": 3, "failed 3 times in a row, last: measure: it broke": 5, // then it is left alone
	}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Error(diff)
	}
	for _, g := range got.Parts[0].Groups {
		m := g.Metrics[0]
		if m.Comparison.Variants["ours"].Verdict != stats.TooFew || m.Values[0].N != 0 || m.Values[0].Median != nil {
			t.Errorf("%s: void trials count: %+v", g.Name, m)
		}
		if third := m.Values[3]; third.Skipped != "there is none" && g.Name != "wires=4" {
			t.Errorf("%s: %+v", g.Name, third)
		}
	}
	if f.open != 0 {
		t.Errorf("%d arrangements are still open", f.open)
	}
}

// What the machine disturbed is made again, whatever it measured; books that do not balance stay void.
func TestADisturbedTrialIsMadeAgain(t *testing.T) {
	calls := map[string]int{}
	f := &fake{}
	f.value = func(l experiment.Levels, trial int) (experiment.Measurement, error) {
		m, err := known(l, trial)
		k := l["platform"] + l["wires"]
		calls[k]++
		switch {
		case k == "ours1" && calls[k]%2 == 1: // the first try of each
			m.Offered = 0.9
		case k == "ours2":
			m.Offered = 0.9
		case k == "ours4":
			m.Void = "the books do not balance"
		}
		return m, err
	}
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if calls["ours1"] != 2*8 || calls["ours2"] != (mostTries+1)*8 || calls["ours4"] != 8 || calls["third1"] != 8 {
		t.Errorf("calls: %v", calls)
	}
	got := Summarise(r.Journal)
	if got.Void != 2*8 || got.Again != 8+mostTries*8 || got.Left != 0 || got.Measured != 9*8 {
		t.Errorf("%d void, %d again, %d left, %d measured", got.Void, got.Again, got.Left, got.Measured)
	}
	for _, x := range r.Journal.Records {
		for _, try := range x.Tries {
			if try.Void != "offered 90.0 % of the load" || try.Covariates[covOffered] != 0.9 {
				t.Errorf("%s: %+v", x.Trial.Key(), try)
			}
		}
	}
}

// No more than its share of a run is spent on trials that are made again.
func TestTrialsAreNotMadeAgainForEver(t *testing.T) {
	s := &state{begun: time.Now()}
	disturbed := taken{took: 2 * time.Second, disturbed: "steal 50 %", void: "steal 50 %"}
	n := 0
	for s.repeats(disturbed, 0) {
		n++
	}
	if n != 3 || s.repeats(disturbed, 0) || s.repeats(taken{}, 0) {
		t.Errorf("made again %d times, for %s", n, s.again)
	}
	s.begun = s.begun.Add(-time.Minute)
	if !s.repeats(disturbed, mostTries-1) || s.repeats(disturbed, mostTries) {
		t.Error("a longer run has room for more, but a trial has not")
	}
}

func TestLowMemoryTakesDownWhatWaits(t *testing.T) {
	f := &fake{value: known}
	most := 0
	f.measure = func() { most = max(most, f.open) }
	r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
	r.Memory = func() float64 { return 0.01 }
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most != 1 || f.open != 0 || Summarise(r.Journal).Measured != 8*11 {
		t.Errorf("%d at a time, %d open", most, f.open)
	}
}

// The rules look at covariates alone.
func TestRules(t *testing.T) {
	r := Rules()
	for _, c := range []struct {
		name string
		c    map[string]float64
		idle bool
		void bool
	}{
		{"quiet", map[string]float64{covSteal: 0.01, covCanary: 1.1, covSqueeze: 10}, true, false},
		{"steal", map[string]float64{covSteal: 0.2, covCanary: 1}, false, true},
		{"canary", map[string]float64{covCanary: 2.5}, false, true},
		{"squeeze while idle", map[string]float64{covSqueeze: 100}, true, true},
		{"squeeze by the load itself", map[string]float64{covSqueeze: 100}, false, false},
		{"too little offered", map[string]float64{covOffered: 0.99}, false, true},
	} {
		if got := r.void(c.c, c.idle); (got != "") != c.void {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	before, err := machine.Take()
	if err != nil {
		t.Fatal(err)
	}
	for machine.Canary() == 0 {
	}
	after, err := machine.Take()
	if err != nil {
		t.Fatal(err)
	}
	c := covariates(before, after, 1, experiment.Measurement{Offered: 1})
	for _, name := range []string{covCanary, covOwnCPU, covOwnRSS, covSqueeze, covLoad, covOffered} {
		if v, ok := c[name]; !ok || v < 0 {
			t.Errorf("covariate %s: %v", name, c)
		}
	}
	if c[covOwnRSS] < 1 {
		t.Errorf("the lab uses %v MiB", c[covOwnRSS])
	}
}

// On a full disk a run ends with an error; what was written before is whole, and the run goes on when there is room.
func TestFullDisk(t *testing.T) {
	if os.Getenv("LAB_FULL_DISK") != "" {
		fullDisk(t, os.Getenv("LAB_FULL_DISK"))
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("this test mounts a file system: run it as root")
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "LAB_FULL_DISK="+dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} // its mount is seen by nobody else
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFullDisk") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fullDisk(t *testing.T, dir string) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	r := fakeRun(t, &fake{value: func(l experiment.Levels, n int) (experiment.Measurement, error) {
		m, err := known(l, n)
		m.Raw = strings.Repeat("x", 2000)
		return m, err
	}}, run)
	schedule := len(r.Journal.Left())
	if err := r.Run(t.Context()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("want no space left: %v", err)
	}
	results := Summarise(r.Journal)
	if err := Save(run, results); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("results on a full disk: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(run, "results.json*")); len(left) != 1 { // the journal
		t.Errorf("left on the disk: %v", left)
	}
	written := len(r.Journal.Records)
	if written == 0 {
		t.Fatal("nothing was written")
	}
	if err := r.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	j, err := study.Open(run)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if len(j.Records) != written {
		t.Errorf("%d records were written, %d are there", written, len(j.Records))
	}
	if err := runner(&fake{value: known}, j).Run(t.Context()); err != nil || len(j.Records) != schedule {
		t.Errorf("%d of %d: %v", len(j.Records), schedule, err)
	}
}

func TestStudiesOfTheProgram(t *testing.T) {
	if !slices.Contains(Studies(), "wires") {
		t.Fatalf("%v", Studies())
	}
	for _, name := range Studies() {
		s, err := Load(name, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.Name != name {
			t.Errorf("study %s is in file %s", s.Name, name)
		}
		var quick time.Duration
		for _, p := range s.Parts {
			if p.Quick.Blocks < stats.MinBlocks || p.Full.Blocks < stats.MinBlocks {
				t.Errorf("%s: part %s: too few blocks to say anything", name, p.Name)
			}
			d, err := p.Quick.Time()
			if err != nil {
				t.Error(err)
			}
			quick += d
		}
		if quick > mostQuick {
			t.Errorf("%s --quick takes %s: want at most %s", name, quick, mostQuick)
		}
	}
	for name, want := range map[string]string{
		"wire": "did you mean", "nothing": "want one of", "/nowhere/x.yaml": "no such file",
	} {
		if _, err := Load(name, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", name, want, err)
		}
	}
	bad := strings.Replace(strings.Replace(fakeStudy, "experiment: fake", "experiment: tcp", 1), "unit: Gb/s", "unit: Mb/s", 1)
	if _, err := Load("-", strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), "rate (Gb/s)") {
		t.Errorf("a unit that the experiment does not give: %v", err)
	}
}

func TestProgressIsShown(t *testing.T) {
	var lines, live strings.Builder
	for _, p := range []Progress{&Lines{W: &lines}, &Live{W: &live, Columns: 60, Rows: 10}} {
		r := fakeRun(t, &fake{value: known}, filepath.Join(t.TempDir(), "run"))
		r.Progress = p
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(lines.String(), "\n"); got != 2+8+88+1 { // head, part, blocks, trials, one reason to skip
		t.Errorf("%d lines:\n%s", got, lines.String())
	}
	for _, want := range []string{"96/96", "n=8", "and 5 more", "\x1b["} {
		if !strings.Contains(live.String(), want) {
			t.Errorf("no %q on the terminal", want)
		}
	}
	for _, l := range strings.Split(live.String(), "\n") {
		l = strings.NewReplacer("\r", "", "\x1b[J", "").Replace(l)
		if i := strings.IndexByte(l, 'A'); strings.HasPrefix(l, "\x1b[") && i > 0 {
			l = l[i+1:]
		}
		if strings.HasPrefix(l, "  ") && len([]rune(l)) > 60 {
			t.Errorf("wider than the terminal: %q", l)
		}
	}
	if strings.Contains(lines.String(), "\x1b") {
		t.Error("escape sequences in plain lines")
	}
}

func TestBeside(t *testing.T) {
	run := func(scale float64) Results {
		r := fakeRun(t, &fake{value: func(l experiment.Levels, n int) (experiment.Measurement, error) {
			m, err := known(l, n)
			m.Values["rate"] *= scale
			return m, err
		}}, filepath.Join(t.TempDir(), fmt.Sprint(scale)))
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return Summarise(r.Journal)
	}
	a := run(1)
	for _, p := range Beside(a, run(3)) {
		if p.Ratio < 2.9 || p.Ratio > 3.1 || !p.Apart {
			t.Errorf("%+v", p)
		}
	}
	same := Beside(a, a)
	if len(same) != 8 {
		t.Errorf("%d pairs", len(same))
	}
	for _, p := range same {
		if p.Ratio != 1 || p.Apart {
			t.Errorf("%+v", p)
		}
	}
}
