package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/search"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic"
)

// Limit is what the steps of a variant's searches say, all valid trials together.
type Limit struct {
	Part     string    `json:"part"`
	Group    string    `json:"group"`
	Level    string    `json:"level"`  // of the compared factor
	Trials   int       `json:"trials"` // searches
	Steps    int       `json:"steps"`  // of them, those that count
	Void     int       `json:"void_steps"`
	Ceiling  float64   `json:"ceiling_mpps"`
	Limited  int       `json:"generator_limited"` // searches whose result is a lower bound
	Verified []Loss    `json:"verified"`          // of a trial that verifies, at whatever load
	Results  []Checked `json:"results,omitempty"` // of NDR and PDR; none in runs that did not verify them
	Losses   []Loss    `json:"losses"`            // against load
	Delays   []DelayAt `json:"delays"`            // at shares of PDR
}

// Loss at a load: median and quartiles over N steps. Share of what was to be sent.
type Loss struct {
	Of     string  `json:"of,omitempty"` // what was verified
	Load   float64 `json:"load_pps"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	N      int     `json:"n"`
}

// Checked is what the verification of a variant's searches for a goal came to, all together.
type Checked struct {
	Goal         string   `json:"goal"`
	Found        int      `json:"found"`          // searches with a result
	Not          int      `json:"not_found"`      // without
	Load         float64  `json:"load_pps"`       // median of the results; 0: there is none
	Trials       int      `json:"trials"`         // at the results
	Sent         uint64   `json:"sent"`           // frames in those trials
	Lost         uint64   `json:"lost"`           // of them, apart from stalls
	LostIn       uint64   `json:"lost_in_stalls"` //
	Away         float64  `json:"stalled"`        // share of the trials' time, median
	Lowered      int      `json:"refused"`        // trials at other loads that lost too much, or were not offered
	Repeated     int      `json:"stalled_trials"` // trials that were made again, since CPUs stalled for too long
	Why          []string `json:"why,omitempty"`  // there is none
	loads, aways []float64
	tried        []point // all trials that verify and count
}

// point of a curve.
type point struct{ x, y float64 }

// DelayAt a share of PDR in percent, 1 is as good as idle. Percentiles in us of all frames; null where fewer than 10 frames are beyond them.
type DelayAt struct {
	Share  int      `json:"share"`
	Load   float64  `json:"load_pps"` // median
	Frames uint64   `json:"frames"`
	P50    *float64 `json:"p50_us"` // typical (RFC 8219)
	P90    *float64 `json:"p90_us"`
	P99    *float64 `json:"p99_us"`
	P999   *float64 `json:"p99_9_us"` // worst (RFC 8219)
	Max    float64  `json:"max_us"`
}

// loadBins per decade of load, in which losses are put together.
const loadBins = 20

func limits(j *study.Journal) []Limit {
	out := []Limit{}
	for _, p := range j.Header.Study.Parts {
		if p.Experiment != experiment.NDR {
			continue
		}
		for _, v := range p.Variants() {
			l := Limit{Part: p.Name, Group: p.Group(v), Level: p.Level(v, p.Compare), Verified: []Loss{}, Losses: []Loss{}, Delays: []DelayAt{}}
			var steps []study.Step
			var ceilings []float64
			for _, r := range j.Records {
				if r.Trial.Part != p.Name || r.Trial.Duplicate || r.Skipped != "" || !slices.Equal(r.Trial.Variant, v) {
					continue
				}
				l.check(r, j.StepsOf(r.Trial))
				if r.Void != "" {
					continue
				}
				l.Trials++
				l.Limited += int(r.Values[experiment.ValueLimited])
				ceilings = append(ceilings, r.Values[experiment.ValueCeiling])
				for _, s := range j.StepsOf(r.Trial) {
					if s.Void != "" {
						l.Void++
						continue
					}
					steps = append(steps, s)
				}
			}
			if l.Trials == 0 && len(l.Results) == 0 {
				continue
			}
			l.summarise()
			if l.Trials == 0 {
				out = append(out, l)
				continue
			}
			l.Ceiling, l.Steps = stats.Median(ceilings), len(steps)
			l.losses(steps)
			for _, share := range experiment.DelayShares() {
				l.delay(share, steps)
			}
			out = append(out, l)
		}
	}
	return out
}

// check adds what a search's verification came to. Void ones count if they ended without a result.
func (l *Limit) check(r study.Record, steps []study.Step) {
	var raw experiment.NDRRaw
	if len(r.Raw) == 0 || json.Unmarshal(r.Raw, &raw) != nil {
		return
	}
	for _, v := range raw.Verification {
		i := slices.IndexFunc(l.Results, func(c Checked) bool { return c.Goal == v.Goal })
		if i < 0 {
			i = len(l.Results)
			l.Results = append(l.Results, Checked{Goal: v.Goal})
		}
		c := &l.Results[i]
		if v.Load <= 0 {
			c.Not++
			if !slices.Contains(c.Why, v.Why) {
				c.Why = append(c.Why, v.Why)
			}
		} else if r.Void == "" {
			c.Found++
			c.loads = append(c.loads, v.Load)
		}
		c.add(v, r.Void == "", steps)
	}
}

// add the trials of a verification.
func (c *Checked) add(v search.Verified, counts bool, steps []study.Step) {
	name := map[string]string{experiment.GoalNDR: experiment.StepNDR, experiment.GoalPDR: experiment.StepPDR}[v.Goal]
	short := map[string]string{experiment.GoalNDR: experiment.StepTryNDR, experiment.GoalPDR: experiment.StepTryPDR}[v.Goal]
	for _, s := range steps {
		if s.What == name && s.Void == "" && experiment.CountsAs(s.Values) {
			c.tried = append(c.tried, point{s.Load / 1e6, s.Values[experiment.ValueLoss] * 100})
		}
		switch {
		case s.What != name && s.What != short || s.Void != "" || s.Load == v.Load:
		case s.Values[experiment.ValueStalled] > experiment.MostStalled:
			c.Repeated++
		case !experiment.CountsAs(s.Values) || s.Values[experiment.ValueLoss] > 0 && s.Load >= v.Upper:
			c.Lowered++
		}
	}
	if !counts || v.Load <= 0 {
		return
	}
	for _, s := range lab.VerifiedBy(v, steps) {
		var f experiment.Frames
		if json.Unmarshal(s.Raw, &f) != nil {
			continue
		}
		c.Trials++
		c.Sent += f.Sent
		c.Lost += uint64(f.Values()[experiment.ValueLost])
		c.LostIn += f.Stalled.Lost
		c.aways = append(c.aways, s.Values[experiment.ValueAway])
	}
}

// summarise the verifications of all searches.
func (l *Limit) summarise() {
	for i := range l.Results {
		c := &l.Results[i]
		if len(c.loads) > 0 {
			c.Load = stats.Median(c.loads)
		}
		if len(c.aways) > 0 {
			c.Away = stats.Median(c.aways)
		}
	}
}

// losses of the steps of searches, by load, and of the verifications.
func (l *Limit) losses(steps []study.Step) {
	type bin struct{ loads, losses []float64 }
	loss := func(of string, b *bin) Loss {
		return Loss{Of: of, Load: stats.Median(b.loads), Median: stats.Median(b.losses), Low: stats.Quantile(b.losses, 0.25), High: stats.Quantile(b.losses, 0.75), N: len(b.loads)}
	}
	bins, verified := map[int]*bin{}, map[string]*bin{}
	var order []int
	for _, s := range steps {
		var b *bin
		switch s.What {
		case experiment.StepSearch:
			at := int(math.Floor(math.Log10(s.Load) * loadBins))
			if b = bins[at]; b == nil {
				b = &bin{}
				bins[at], order = b, append(order, at)
			}
		case experiment.StepNDR, experiment.StepPDR:
			if b = verified[s.What]; b == nil {
				b = &bin{}
				verified[s.What] = b
			}
		default:
			continue
		}
		b.loads, b.losses = append(b.loads, s.Load), append(b.losses, s.Values[experiment.ValueLoss])
	}
	slices.Sort(order)
	for _, at := range order {
		l.Losses = append(l.Losses, loss("", bins[at]))
	}
	for _, of := range []string{experiment.StepNDR, experiment.StepPDR} {
		if b := verified[of]; b != nil {
			l.Verified = append(l.Verified, loss(of, b))
		}
	}
}

// delay at a share of PDR: the histograms of all trials together.
func (l *Limit) delay(share int, steps []study.Step) {
	d := DelayAt{Share: share}
	var all traffic.Latency
	var loads []float64
	for _, s := range steps {
		var h experiment.Delays
		if s.What != experiment.StepDelay(share) || json.Unmarshal(s.Raw, &h) != nil {
			continue
		}
		loads = append(loads, s.Load)
		all.Max = max(all.Max, h.Max)
		for _, b := range h.Buckets {
			if b[0] >= traffic.MaxBuckets {
				continue
			}
			if n := int(b[0]) + 1; n > len(all.Buckets) {
				all.Buckets = append(all.Buckets, make([]uint64, n-len(all.Buckets))...)
			}
			all.Buckets[b[0]] += b[1]
			all.Count += b[1]
		}
	}
	if all.Count == 0 {
		return
	}
	d.Load, d.Frames, d.Max = stats.Median(loads), all.Count, float64(all.Max)/1e3
	for q, to := range map[float64]**float64{0.5: &d.P50, 0.9: &d.P90, 0.99: &d.P99, 0.999: &d.P999} {
		if v, ok := all.Quantile(q); ok {
			us := float64(v) / 1e3
			*to = &us
		}
	}
	l.Delays = append(l.Delays, d)
}

// limitFigures are, for each group of a part: loss against load, and delays at shares of PDR.
func limitFigures(all []Limit, p lab.PartResult) (out []figure) {
	for _, g := range p.Groups {
		var of []Limit
		for _, l := range all {
			if l.Part == p.Part.Name && l.Group == g.Name {
				of = append(of, l)
			}
		}
		if len(of) == 0 {
			continue
		}
		at := ""
		if g.Name != "" {
			at = " at " + spaced(g.Name)
		}
		f := lossFigure(p.Part, of)
		f.ID, f.Title, f.Part = slug(p.Part.Name+"-loss"+at), f.Title+at, p.Part.Name
		out = append(out, f)
		if f, ok := checkedTable(p.Part, of); ok {
			f.ID, f.Title, f.Part = slug(p.Part.Name+"-verified"+at), f.Title+at, p.Part.Name
			out = append(out, f)
		}
		if f, ok := delayFigure(p.Part, of); ok {
			f.ID, f.Title, f.Part = slug(p.Part.Name+"-delays"+at), f.Title+at, p.Part.Name
			out = append(out, f)
		}
	}
	return out
}

func lossFigure(p study.Part, of []Limit) figure {
	f := figure{
		Title: "Loss against load",
		About: "Every trial of the searches: the median loss of those at about the same load, with quartiles. What was due near stalls of the CPUs is left out. " +
			"A result is a lower bound if the generator's ceiling is less than 1.3 times as much.",
		Table: table{Head: []string{p.Compare, "searches", "steps", "void steps", "ceiling, Mpps", "limited by the generator", "loss when NDR was verified", "loss when PDR was verified"}},
	}
	var curves []curve
	var loads []float64
	for _, l := range of {
		c := curve{label: l.Level, colour: colourOf(p, l.Level)}
		for _, x := range l.Losses {
			c.x, c.y = append(c.x, x.Load/1e6), append(c.y, x.Median*100)
			c.low, c.high = append(c.low, x.Low*100), append(c.high, x.High*100)
		}
		loads = append(loads, c.x...)
		curves = append(curves, c)
		verified := map[string]string{experiment.StepNDR: none, experiment.StepPDR: none}
		for _, v := range l.Verified {
			verified[v.Of] = fmt.Sprintf("%s %%\n%s to %s", number(v.Median*100), number(v.Low*100), number(v.High*100))
		}
		f.Table.Rows = append(f.Table.Rows, []string{
			l.Level, strconv.Itoa(l.Trials), strconv.Itoa(l.Steps), strconv.Itoa(l.Void), number(l.Ceiling), fmt.Sprintf("%d of %d", l.Limited, l.Trials), verified[experiment.StepNDR], verified[experiment.StepPDR],
		})
	}
	f.plot(curves, "load, Mpps", "loss, %", spansDecade(loads), false)
	return f
}

// checkedTable has the trials that verified the results.
func checkedTable(p study.Part, of []Limit) (figure, bool) {
	f := figure{
		Title: "Verification of NDR and PDR",
		About: fmt.Sprintf("Long trials at the results, all searches together: at NDR none of them lost a frame, at PDR each lost less than %g %%. Frames that were due near a stall "+
			"of the sender's or the path's CPU are counted apart; stalls are measured without regard to loss. A trial with more than %.0f %% of its frames near stalls was made again.",
			experiment.PDRLoss*100, experiment.MostStalled*100),
		Table: table{Head: []string{p.Compare, "goal", "result, Mpps", "found", "trials at results", "frames sent", "lost", "lost near stalls", "time stalled", "trials refused", "trials made again"}},
	}
	var curves []curve
	for _, l := range of {
		tried := curve{label: l.Level, colour: colourOf(p, l.Level)}
		var points []point
		for _, c := range l.Results {
			points = append(points, c.tried...)
			load := none
			if c.Found > 0 {
				load = number(c.Load / 1e6)
			}
			if len(c.Why) > 0 {
				load += "\n" + strings.Join(c.Why, "; ")
			}
			f.Table.Rows = append(f.Table.Rows, []string{
				l.Level, c.Goal, load, fmt.Sprintf("%d of %d", c.Found, c.Found+c.Not), strconv.Itoa(c.Trials), strconv.FormatUint(c.Sent, 10), strconv.FormatUint(c.Lost, 10),
				strconv.FormatUint(c.LostIn, 10), fmt.Sprintf("%.1f %%", c.Away*100), strconv.Itoa(c.Lowered), strconv.Itoa(c.Repeated),
			})
		}
		slices.SortFunc(points, func(a, b point) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.y, b.y)) })
		for _, at := range points {
			tried.x, tried.y = append(tried.x, at.x), append(tried.y, at.y)
		}
		if len(points) > 0 {
			curves = append(curves, tried)
		}
	}
	f.plot(curves, "load, Mpps", "loss of a long trial, %", false, false)
	return f, len(curves) > 0
}

// sharesText are the shares of PDR at which delays are measured: "1 % (as good as idle), 10, 50 and 90 %".
func sharesText() string {
	var all []string
	for _, share := range experiment.DelayShares() {
		all = append(all, strconv.Itoa(share))
	}
	last := len(all) - 1
	all[0] += " % (as good as idle)"
	return strings.Join(all[:last], ", ") + " and " + all[last] + " %"
}

func delayFigure(p study.Part, of []Limit) (figure, bool) {
	f := figure{
		Title: "Delay at shares of PDR",
		About: "One-way delays of all frames of all trials, at " + sharesText() + " of each one's own PDR. RFC 8219: the typical delay is p50, the worst p99.9. " +
			"A percentile is told only where 10 frames or more lie beyond it.",
		Table: table{Head: []string{p.Compare, "share of PDR", "load, Mpps", "frames", "p50, µs", "p90, µs", "p99, µs", "p99.9, µs", "greatest, µs"}},
	}
	var curves []curve
	var values []float64
	for _, l := range of {
		typical := curve{label: l.Level + " p50", colour: 2 * colourOf(p, l.Level)}
		worst := curve{label: l.Level + " p99.9", colour: 2*colourOf(p, l.Level) + 1}
		for _, d := range l.Delays {
			f.Table.Rows = append(f.Table.Rows, []string{
				l.Level, fmt.Sprintf("%d %%", d.Share), number(d.Load / 1e6), strconv.FormatUint(d.Frames, 10), optional(d.P50), optional(d.P90), optional(d.P99), optional(d.P999), number(d.Max),
			})
			for c, v := range map[*curve]*float64{&typical: d.P50, &worst: d.P999} {
				if v != nil {
					c.x, c.y = append(c.x, float64(d.Share)), append(c.y, *v)
					values = append(values, *v)
				}
			}
		}
		for _, c := range []curve{typical, worst} {
			if len(c.x) > 0 {
				curves = append(curves, c)
			}
		}
	}
	f.plot(curves, "share of PDR, %", "delay, µs", false, spansDecade(values))
	return f, len(curves) > 0
}
