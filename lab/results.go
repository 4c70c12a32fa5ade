package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Results is everything that a report is made from. It is computed from the journal alone, so that the same journal always gives the same
// results. Figures that are not known are null, never NaN.
type Results struct {
	Study       study.Study        `json:"study"` // after the selection
	Mode        study.Mode         `json:"mode"`
	Seed        uint64             `json:"seed"`
	Started     time.Time          `json:"started"`
	Ended       time.Time          `json:"ended,omitzero"` // of the last trial
	Version     string             `json:"version"`
	Environment map[string]string  `json:"environment,omitempty"`
	Resumed     []study.Resumption `json:"resumed,omitempty"` // by another version, or on another machine
	Limits      []string           `json:"limits"`            // what a run on this machine cannot claim
	Distrusted  []Distrust         `json:"distrusted"`        // parts of which nothing is claimed, and why

	Planned  int      `json:"planned"` // trials, by what became of them
	Measured int      `json:"measured"`
	Void     int      `json:"void"`
	Skipped  int      `json:"skipped"`
	Left     int      `json:"left"`  // not made yet: the run was interrupted
	Again    int      `json:"again"` // times that a trial was made again, since the machine had disturbed it
	Rules    []string `json:"rules"`
	// Refused trials are void, too: their values contradict the raw counts in the journal. Each has its key and the reason, mostRefused at most.
	Refused []string `json:"refused,omitempty"`

	Overhead Overhead     `json:"overhead"`
	Parts    []PartResult `json:"parts"`
	Timeline []Point      `json:"timeline"` // every trial in the order in which it was made
}

// Overhead is what the lab itself used while trials ran; what its own generator spent on making traffic is not counted.
type Overhead struct {
	CPU    float64 `json:"cpu"`     // cores, mean over the trials
	MaxCPU float64 `json:"max_cpu"` // cores, of the worst trial
	RSS    float64 `json:"rss_mb"`  // largest resident set, MiB
}

// PartResult answers one question.
type PartResult struct {
	Part   study.Part    `json:"part"`
	Groups []Group       `json:"groups"` // in the order of the levels
	Fits   []Fit         `json:"fits,omitempty"`
	Claims []ClaimResult `json:"claims,omitempty"`
	Skips  []Skip        `json:"skips,omitempty"`
	Voids  []Void        `json:"voids,omitempty"`
	// Setups are the blocks, from 0, whose trials do not all stand on one set-up: the run was cut off in them, or memory was short.
	Setups []int   `json:"setups,omitempty"`
	Bounds []Bound `json:"bounds,omitempty"` // results that the generator may have limited
	// Conditions under which its trials were made, as they were read back.
	Conditions []Condition `json:"conditions,omitempty"`
}

// Group is what is compared with each other: one level of every factor but the compared one.
type Group struct {
	Name    string            `json:"name"` // "wires=9"; empty if there is only the compared factor
	Levels  map[string]string `json:"levels,omitempty"`
	Metrics []MetricResult    `json:"metrics"` // as the part's
}

// MetricResult is one metric of a group.
type MetricResult struct {
	Metric     study.Metric     `json:"metric"`
	Comparison stats.Comparison `json:"comparison"` // variants by level of the compared factor, against the baseline
	Values     []Value          `json:"values"`     // in the order of the levels, the duplicate behind the baseline
}

// Value is the absolute value of one level. Blocks[i] is block i, null where the trial was void, skipped, or is yet to be
// made, and where its value is a bound.
type Value struct {
	Level     string          `json:"level"`
	Duplicate bool            `json:"duplicate,omitempty"`
	N         int             `json:"n"` // valid blocks
	Median    *float64        `json:"median"`
	Open      stats.Open      `json:"open,omitempty"` // the median is a bound: too many blocks have only one
	Interval  *stats.Interval `json:"interval"`       // 95 %, of the median; from stats.MinBlocks on: no interval of fewer values is one of 95 %
	CV        *float64        `json:"cv"`
	Blocks    []*float64      `json:"blocks"`
	// Bounds[i] is of block i where only a range of the value is known, null elsewhere. Without bounds it is not there.
	Bounds   []*stats.Interval `json:"bounds,omitempty"`
	Limited  int               `json:"limited,omitempty"`   // blocks whose value is a lower bound: the generator may be what limits it
	NotFound int               `json:"not_found,omitempty"` // blocks whose value is an upper bound: the path refused that load, and none below was verified
	Skipped  string            `json:"skipped,omitempty"`   // why
}

// Fit is a metric as a line over a factor whose levels are numbers: Y = A + B x by Theil and Sen through the medians, B's interval by bootstrap
// over blocks. With the metric "cost" of a chain's packets, B is the cost of a hop and A that of no hop at all.
type Fit struct {
	Metric   study.Metric      `json:"metric"`
	Level    string            `json:"level"` // of the compared factor
	Along    string            `json:"along"`
	At       map[string]string `json:"at,omitempty"` // the other factors
	A        float64           `json:"a"`
	B        float64           `json:"b"`
	Interval *stats.Interval   `json:"interval"` // of B
	R2       float64           `json:"r2"`       // of the medians
	X        []float64         `json:"x"`
	Y        []float64         `json:"y"` // medians
	// Extrapolated are points of the line, not measurements, at levels whose trials were all void, or whose values are only bounds.
	Extrapolated []Extrapolated `json:"extrapolated,omitempty"`
}

// Extrapolated is a metric by the line of a Fit where it could not be measured, and why not.
type Extrapolated struct {
	X   float64 `json:"x"`
	Y   float64 `json:"y"`
	Why string  `json:"why"` // of one of the trials
}

// Text says that figures are the line's: "by the line, measured to 20 wires only: 93.1 at 50, 187 at 100".
func (f Fit) Text() string {
	if len(f.Extrapolated) == 0 {
		return ""
	}
	var at []string
	for _, e := range f.Extrapolated {
		at = append(at, fmt.Sprintf("%s at %g (%s)", Figure(e.Y), e.X, e.Why))
	}
	return fmt.Sprintf("by the line, measured to %g only: %s", slices.Max(f.X), strings.Join(at, ", "))
}

// Skip is a variant that could not be measured.
type Skip struct {
	Variant study.Variant `json:"variant"`
	Reason  string        `json:"reason"`
}

// Void counts trials that do not count, by reason without its figures.
type Void struct {
	Variant study.Variant `json:"variant"`
	Reason  string        `json:"reason"`
	Block   int           `json:"block"`
}

// Point is one trial on the time line.
type Point struct {
	Key        string             `json:"key"`
	Part       string             `json:"part"`
	Begun      time.Time          `json:"begun"`
	Took       time.Duration      `json:"took_ns"`
	Covariates map[string]float64 `json:"covariates,omitempty"`
	Void       string             `json:"void,omitempty"`
}

// Summarise computes the results of a run, complete or not.
func Summarise(j *study.Journal) Results {
	h := j.Header
	r := Results{
		Study: h.Study, Mode: h.Mode, Seed: h.Seed, Started: h.Started, Version: h.Version, Environment: h.Environment, Resumed: j.Resumed,
		Limits: limits(h.Environment, h.Study), Rules: Rules().Text(), Left: len(j.Left()), Timeline: []Point{}, Parts: []PartResult{}, Distrusted: []Distrust{},
	}
	if setUpOnce(j.Records) {
		r.Limits = append(r.Limits, onceText)
	}
	r.Planned = len(j.Records) + r.Left
	byPart := map[string][]study.Record{}
	unlike := unlikeBatches(h.Study, j.Records)
	for _, x := range j.Records {
		if p, ok := partOf(h.Study, x.Trial.Part); ok && x.Void == "" && x.Skipped == "" {
			if x.Void = cmp.Or(refused(h, p, x, j.StepsOf(x.Trial)), unlike[groupKey(p, x.Trial)]); x.Void != "" && len(r.Refused) < mostRefused {
				r.Refused = append(r.Refused, x.Trial.Key()+": "+x.Void)
			}
		}
		byPart[x.Trial.Part] = append(byPart[x.Trial.Part], x)
		r.Again += len(x.Tries)
		switch {
		case x.Skipped != "":
			r.Skipped++
			continue
		case x.Void != "":
			r.Void++
		default:
			r.Measured++
		}
		if end := x.Begun.Add(x.Took); end.After(r.Ended) {
			r.Ended = end
		}
		r.Timeline = append(r.Timeline, Point{x.Trial.Key(), x.Trial.Part, x.Begun, x.Took, x.Covariates, x.Void})
	}
	r.Overhead = overhead(r.Timeline)
	schedule := h.Study.Schedule(h.Mode, h.Seed)
	for _, p := range h.Study.Parts {
		part := summarisePart(p, p.Plan(h.Mode).Blocks, byPart[p.Name], h.Seed)
		if why := misordered(p, schedule, byPart[p.Name], j); why != "" {
			r.Distrusted = append(r.Distrusted, Distrust{p.Name, why})
			part.disown(why)
		}
		unfair, told := part.judgeFairness(byPart[p.Name])
		r.Distrusted, r.Limits = append(r.Distrusted, unfair...), append(r.Limits, told...)
		r.Parts = append(r.Parts, part)
	}
	return r
}

func partOf(s study.Study, name string) (study.Part, bool) {
	i := slices.IndexFunc(s.Parts, func(p study.Part) bool { return p.Name == name })
	if i < 0 {
		return study.Part{}, false
	}
	return s.Parts[i], true
}

func overhead(points []Point) (o Overhead) {
	var cpu []float64
	for _, p := range points {
		if v, ok := p.Covariates[covOwnCPU]; ok {
			cpu = append(cpu, v)
			o.MaxCPU = max(o.MaxCPU, v)
		}
		o.RSS = max(o.RSS, p.Covariates[covOwnRSS])
	}
	if len(cpu) > 0 {
		o.CPU = stats.Mean(cpu)
	}
	return o
}

// cells are the records of a part by variant.
type cells map[string]*cell

type cell struct {
	records []*study.Record // by block, nil where there is none
	skipped string
}

func key(v study.Variant, duplicate bool) string {
	k := strings.Join(v, ",")
	if duplicate {
		k += "'"
	}
	return k
}

// series is a metric by block, NaN where there is no valid trial, or its value is only a bound.
func (c *cell) series(p study.Part, metric string, blocks int) []float64 {
	out := c.all(metric, blocks)
	for i, r := range c.ranges(p, metric, blocks) {
		if !r.Point() {
			out[i] = math.NaN()
		}
	}
	return out
}

// all values of a metric by block, NaN where there is no valid trial.
func (c *cell) all(metric string, blocks int) []float64 {
	out := make([]float64, blocks)
	for i := range out {
		out[i] = math.NaN()
		if !c.counts(i) {
			continue
		}
		if v, ok := c.records[i].Values[metric]; ok && !math.IsInf(v, 0) {
			out[i] = v
		}
	}
	return out
}

// ranges of a metric by block: the values, or what bounds them.
func (c *cell) ranges(p study.Part, metric string, blocks int) []stats.Interval {
	out := stats.Exact(c.all(metric, blocks))
	for i := range out {
		if c.counts(i) {
			out[i] = rangeOf(p, c.records[i], metric, out[i])
		}
	}
	return out
}

// counts tells whether a block has a valid trial.
func (c *cell) counts(block int) bool {
	return c != nil && c.records[block] != nil && c.records[block].Void == "" && c.records[block].Skipped == ""
}

// bounds is in how many blocks only a bound of a metric is known.
func (c *cell) bounds(p study.Part, metric string, blocks int) (n int) {
	for _, r := range c.ranges(p, metric, blocks) {
		if !math.IsNaN(r.Low) && !r.Point() {
			n++
		}
	}
	return n
}

// whyVoid is why the last void trial of a cell is void; empty: none is.
func (c *cell) whyVoid() (why string) {
	if c == nil {
		return ""
	}
	for _, r := range c.records {
		if r != nil && r.Void != "" {
			why = r.Void
		}
	}
	return why
}

func summarisePart(p study.Part, blocks int, records []study.Record, seed uint64) PartResult {
	out := PartResult{Part: p, Conditions: conditionsOf(p, records), Bounds: bounds(p, records), Setups: severalSetups(records)}
	all := cells{}
	seen := map[string]bool{}
	for i := range records {
		x := &records[i]
		k := key(x.Trial.Variant, x.Trial.Duplicate)
		c := all[k]
		if c == nil {
			c = &cell{records: make([]*study.Record, blocks)}
			all[k] = c
		}
		if x.Trial.Block < blocks {
			c.records[x.Trial.Block] = x
		}
		if x.Skipped != "" {
			c.skipped = x.Skipped
			if !seen[k] && !x.Trial.Duplicate {
				seen[k] = true
				out.Skips = append(out.Skips, Skip{x.Trial.Variant, x.Skipped})
			}
		} else if x.Void != "" {
			out.Voids = append(out.Voids, Void{x.Trial.Variant, x.Void, x.Trial.Block})
		}
	}
	compared, _ := p.Factor(p.Compare)
	var names []string
	groups := map[string]study.Variant{} // one of its variants
	for _, v := range p.Variants() {
		name := p.Group(v)
		if _, ok := groups[name]; !ok {
			names, groups[name] = append(names, name), v
		}
	}
	for _, name := range names {
		out.Groups = append(out.Groups, summariseGroup(p, compared, name, groups[name], all, blocks, seed))
	}
	out.Fits = fits(p, compared, all, blocks, seed)
	out.Claims = judgeClaims(p, all, blocks, out.Conditions)
	return out
}

func summariseGroup(p study.Part, compared study.Factor, name string, any study.Variant, all cells, blocks int, seed uint64) Group {
	g := Group{Name: name, Levels: map[string]string{}}
	place := 0
	for i, f := range p.Factors {
		if f.Name == p.Compare {
			place = i
		} else {
			g.Levels[f.Name] = any[i]
		}
	}
	at := func(level string) study.Variant {
		v := slices.Clone(any)
		v[place] = level
		return v
	}
	for _, m := range p.Metrics {
		mr := MetricResult{Metric: m}
		variants := map[string][]stats.Interval{}
		for _, l := range compared.Levels {
			c := all[key(at(l), false)]
			s := c.ranges(p, m.Name, blocks)
			mr.Values = append(mr.Values, value(l, false, c, s))
			if l == p.Baseline {
				d := all[key(at(l), true)]
				mr.Values = append(mr.Values, value(l, true, d, d.ranges(p, m.Name, blocks)))
			} else {
				variants[l] = s
			}
		}
		base := all[key(at(p.Baseline), false)].ranges(p, m.Name, blocks)
		twin := all[key(at(p.Baseline), true)].ranges(p, m.Name, blocks)
		mr.Comparison = stats.CompareRanges(base, twin, variants, m.Band(), seed)
		g.Metrics = append(g.Metrics, mr)
	}
	return g
}

func value(level string, duplicate bool, c *cell, s []stats.Interval) Value {
	v := Value{Level: level, Duplicate: duplicate, Blocks: make([]*float64, len(s))}
	if c != nil {
		v.Skipped = c.skipped
	}
	bounds := make([]*stats.Interval, len(s))
	var x []float64
	for i, r := range s {
		if math.IsNaN(r.Low) {
			continue
		}
		x = append(x, r.Low)
		switch {
		case r.Point():
			v.Blocks[i] = &s[i].Low
			continue
		case math.IsInf(r.High, 1):
			v.Limited++
		default:
			v.NotFound++
		}
		bounds[i] = &s[i]
	}
	v.N = len(x)
	if v.Limited+v.NotFound > 0 {
		v.Bounds = bounds
	}
	if len(x) == 0 {
		return v
	}
	median, open, interval, ok := stats.MedianRange(s, 1-stats.Alpha)
	if ok {
		v.Median, v.Open = &median, open
		if len(x) >= stats.MinBlocks {
			v.Interval = &interval
		}
	}
	if len(x) > 1 && v.Limited+v.NotFound == 0 {
		if cv := stats.CV(x); !math.IsNaN(cv) && !math.IsInf(cv, 0) {
			v.CV = &cv
		}
	}
	return v
}

func valid(s []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(s), math.IsNaN)
}

// fits every metric along every factor whose levels are three numbers or more.
func fits(p study.Part, compared study.Factor, all cells, blocks int, seed uint64) (out []Fit) {
	for _, along := range p.Factors {
		x, ok := numbers(along.Levels)
		if !ok || along.Name == p.Compare || len(x) < 3 {
			continue
		}
		for _, m := range p.Metrics {
			for _, start := range p.Variants() {
				if p.Level(start, along.Name) != along.Levels[0] {
					continue
				}
				if f, ok := fit(p, m, along, x, start, all, blocks, seed); ok {
					f.Level = p.Level(start, compared.Name)
					out = append(out, f)
				}
			}
		}
	}
	return out
}

func numbers(levels []string) (x []float64, ok bool) {
	for _, l := range levels {
		v, err := strconv.ParseFloat(l, 64)
		if err != nil {
			return nil, false
		}
		x = append(x, v)
	}
	return x, true
}

// fit of one level of the compared factor; false with fewer than three places.
func fit(p study.Part, m study.Metric, along study.Factor, x []float64, start study.Variant, all cells, blocks int, seed uint64) (Fit, bool) {
	f := Fit{Metric: m, Along: along.Name, At: map[string]string{}}
	place := 0
	for i, g := range p.Factors {
		switch g.Name {
		case along.Name:
			place = i
		case p.Compare:
		default:
			f.At[g.Name] = start[i]
		}
	}
	at := func(level string) *cell {
		v := slices.Clone(start)
		v[place] = level
		return all[key(v, false)]
	}
	most := 0 // values of a level: a run that is not over has fewer than planned
	for _, l := range along.Levels {
		most = max(most, len(valid(at(l).series(p, m.Name, blocks))))
	}
	var series [][]float64
	for i, l := range along.Levels {
		s := at(l).series(p, m.Name, blocks)
		n, why := len(valid(s)), at(l).whyVoid()
		if b := at(l).bounds(p, m.Name, blocks); b > 0 { // which blocks have only a bound depends on their values: the others are no fair sample
			n, why = 0, "it is only a bound in "+blocksText(b)
		}
		switch {
		case n > 0 && n >= min(most, stats.MinBlocks): // a level of which next to all trials are void is not measured
			f.X, series = append(f.X, x[i]), append(series, s)
		case why != "":
			f.Extrapolated = append(f.Extrapolated, Extrapolated{X: x[i], Why: why})
		}
	}
	if len(f.X) < 3 {
		return f, false
	}
	line, ok := stats.FitLine(f.X, series, seed)
	f.A, f.B, f.Interval, f.R2, f.Y = line.A, line.B, line.Interval, line.R2, line.Y
	for i, e := range f.Extrapolated {
		f.Extrapolated[i].Y = f.A + f.B*e.X
	}
	return f, ok
}
