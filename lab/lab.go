package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Options of a run.
type Options struct {
	Study     study.Study // checked
	Selection study.Selection
	Mode      study.Mode
	Seed      uint64
	Dir       string
	Version   string
	Images    []string        // layouts with the image "wire"
	API       platform.API    // of a Weir that runs, for platform hosts
	Former    platform.Former // another version of Weir, for platform former
	Progress  Progress
	QuietWait time.Duration // how long all trials may wait for quiet moments, taken together; see Runner
}

// Run begins a run in a directory without one and makes its trials. What there is is always reported: with an error, a partial result.
func Run(ctx context.Context, o Options) (Results, error) {
	s, err := o.Study.Select(o.Selection)
	if err != nil {
		return Results{}, err
	}
	s = s.For(o.Mode)
	b, err := o.benches(ctx)
	if err != nil {
		return Results{}, err
	}
	j, err := study.Create(o.Dir, study.Header{
		Study: s, Mode: o.Mode, Seed: o.Seed, Started: time.Now().UTC(), Version: o.Version, Environment: Environment(),
	})
	if err != nil {
		return Results{}, errors.Join(err, b.close())
	}
	return o.finish(ctx, j, b)
}

// Resume goes on with a run that ended early. The study, its mode and its seed are the run's.
func Resume(ctx context.Context, o Options) (Results, error) {
	j, err := study.Open(o.Dir)
	if err != nil {
		return Results{}, err
	}
	b, err := o.benches(ctx)
	if err != nil {
		return Results{}, errors.Join(err, j.Close())
	}
	if len(j.Left()) > 0 {
		if err := j.GoOn(study.Resumption{At: time.Now().UTC(), Version: o.Version, Environment: Environment()}); err != nil {
			return Results{}, errors.Join(err, b.close(), j.Close())
		}
	}
	return o.finish(ctx, j, b)
}

// benches of a run: of all variants, and of the duplicate.
type benches [2]*experiment.Bench

func (o Options) benches(ctx context.Context) (b benches, err error) {
	for i := range b {
		if b[i], err = experiment.NewBench(ctx, o.Images); err != nil {
			return b, errors.Join(err, b.close())
		}
		b[i].API, b[i].Former = o.API, o.Former
	}
	return b, nil
}

func (b benches) close() error { return errors.Join(b[0].Close(), b[1].Close()) }

// finish a run that has begun.
func (o Options) finish(ctx context.Context, j *study.Journal, b benches) (Results, error) {
	r := &Runner{Experiments: experiment.All(), Journal: j, Bench: b[0], Twin: b[1], Progress: o.Progress, Rules: Rules(), QuietWait: o.QuietWait}
	err := r.Run(ctx)
	err = errors.Join(err, b.close())
	results := Summarise(j)
	return results, errors.Join(err, j.Close(), Save(o.Dir, results))
}

// Report computes the results of a run that is over, or goes on elsewhere.
func Report(dir string) (Results, error) {
	j, err := study.Read(dir)
	if err != nil {
		return Results{}, err
	}
	return Summarise(j), nil
}

// Beside sets two runs side by side: the medians that both have and that are no bounds, and what each run says of the level and its own baseline.
func Beside(a, b Results) []api.LabPair {
	type place struct{ part, group, level, metric string }
	type side struct {
		v      Value
		metric study.Metric
		api.LabSide
	}
	walk := func(r Results, f func(place, side)) {
		for _, p := range r.Parts {
			for _, g := range p.Groups {
				for _, m := range g.Metrics {
					for _, v := range m.Values {
						if !v.Duplicate && v.Median != nil && v.Open == stats.Closed {
							f(place{p.Part.Name, g.Name, v.Level, m.Metric.Name}, side{v, m.Metric, sideOf(v, m.Comparison, p.Part.Baseline)})
						}
					}
				}
			}
		}
	}
	have := map[place]side{}
	walk(a, func(at place, s side) { have[at] = s })
	out := []api.LabPair{}
	walk(b, func(at place, now side) {
		old, ok := have[at]
		if !ok || old.Median == 0 || old.metric.Unit != now.metric.Unit {
			return
		}
		pair := api.LabPair{
			Part: at.part, Group: at.group, Level: at.level, Metric: at.metric, Unit: now.metric.Unit, Better: now.metric.Better,
			A: old.LabSide, B: now.LabSide, Ratio: now.Median / old.Median, TooFew: old.v.Interval == nil || now.v.Interval == nil,
		}
		if !pair.TooFew {
			x, y := *old.v.Interval, *now.v.Interval
			pair.Apart = x.High < y.Low || y.High < x.Low
			if x.High > 0 {
				pair.Range = rangeText(stats.Interval{Low: y.Low / x.High, High: y.High / x.Low})
			}
		}
		out = append(out, pair)
	})
	return out
}

// sideOf is a level in one run.
func sideOf(v Value, c stats.Comparison, baseline string) api.LabSide {
	s := api.LabSide{Median: *v.Median, Verdict: "baseline"}
	if v.Interval != nil {
		s.Interval = rangeText(*v.Interval)
	}
	if v.Level == baseline {
		return s
	}
	r := c.Variants[v.Level]
	s.Verdict = string(r.Verdict)
	if r.Decided() && r.Open == stats.Closed {
		s.Ratio, s.RatioIn = r.Ratio, rangeText(r.Interval)
	}
	return s
}

// rangeText is an interval as JSON can have it: infinity is no upper end.
func rangeText(i stats.Interval) *api.LabRange {
	r := api.LabRange{Low: i.Low}
	if !math.IsInf(i.High, 0) && !math.IsNaN(i.High) {
		r.High = &i.High
	}
	return &r
}

// Differences between two runs that are set side by side: what else may be in their ratios.
func Differences(a, b Results) (out []string) {
	differ := func(what, x, y string) { out = append(out, differing(what, x, y)...) }
	differ("study", a.Study.Name, b.Study.Name)
	differ("mode", string(a.Mode), string(b.Mode))
	out = append(out, machines(study.Resumption{Version: a.Version, Environment: a.Environment}, study.Resumption{Version: b.Version, Environment: b.Environment})...)
	for _, r := range []Results{a, b} {
		for _, text := range r.ResumedText() {
			out = append(out, "one of them "+text)
		}
	}
	for _, p := range a.Study.Parts {
		i := slices.IndexFunc(b.Study.Parts, func(q study.Part) bool { return q.Name == p.Name })
		if i < 0 {
			continue
		}
		q := b.Study.Parts[i]
		differ("part "+p.Name+", experiment", p.Experiment, q.Experiment)
		differ("part "+p.Name+", length of a trial", p.Plan(a.Mode).Duration, q.Plan(b.Mode).Duration)
		differ("part "+p.Name+", length of a trial that verifies", p.Plan(a.Mode).Verify, q.Plan(b.Mode).Verify)
		for _, name := range slices.Sorted(maps.Keys(both(p.Settings, q.Settings))) {
			differ("part "+p.Name+", "+name, p.Settings[name], q.Settings[name])
		}
	}
	return out
}

func differing(what, x, y string) []string {
	if x == y {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s and %s", what, cmp.Or(x, "none"), cmp.Or(y, "none"))}
}

// machines tells what differs between two versions on two machines.
func machines(a, b study.Resumption) []string {
	out := differing("version", a.Version, b.Version)
	for _, name := range slices.Sorted(maps.Keys(both(a.Environment, b.Environment))) {
		out = append(out, differing(name, a.Environment[name], b.Environment[name])...)
	}
	return out
}

// ResumedText says of each resumption what was other before and behind it.
func (r Results) ResumedText() (out []string) {
	last := study.Resumption{Version: r.Version, Environment: r.Environment}
	for _, next := range r.Resumed {
		out = append(out, fmt.Sprintf("went on at %s not as it was (before and behind it): %s", next.At.UTC().Format("2006-01-02 15:04:05 UTC"), strings.Join(machines(last, next), "; ")))
		last = next
	}
	return out
}

func both(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}
