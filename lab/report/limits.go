package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
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
	Verified []Loss    `json:"verified"`          // of a trial at the result
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
				if r.Trial.Part != p.Name || r.Trial.Duplicate || r.Void != "" || r.Skipped != "" || !slices.Equal(r.Trial.Variant, v) {
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
			if l.Trials == 0 {
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
		About: "Every trial of the searches: the median loss of those at about the same load, with quartiles. What the generator could not send counts as lost. " +
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
