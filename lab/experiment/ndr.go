package experiment

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/lab/search"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic/xdp"
)

// Goals of the search: NDR loses nothing, PDR at most this share (RFC 2544 knows only the first; FD.io CSIT measures both).
const (
	GoalNDR = "NDR"
	GoalPDR = "PDR"
	PDRLoss = 0.005
)

// What the search asks of a load. A trial of it is a step of ours.
const (
	exceedRatio   = 0.5  // less than half of the time may lose more: disturbances of the machine do not move the result
	SearchWidth   = 0.02 // relative
	trialsOfSum   = 5    // full-length trials that settle a load
	firstTrials   = 4    // times shorter than a full one, to get near
	leastFrames   = 200  // of the shortest trial, else it cannot tell a loss of 0.5 %
	mostSteps     = 200  // of one search
	ceilingTrials = 2    // full-length trials that the measurement of the ceiling takes
)

// Rules for steps, fixed beforehand; neither looks at what was lost.
const (
	MostStalled  = 0.2   // of the frames may be due near stalls (traffic.Before, traffic.After); with more a step is made again
	stalledSteps = 20    // of a search that are made again in a row
	LeastOffered = 0.995 // of the other frames are to be sent; with less the load was not offered, and is not the path's
)

// Length of a verification trial: if a study does not say it, so many times the length of its trials.
const (
	verifyTimes  = 40
	longestCheck = time.Minute
	shortCheck   = 5 // times shorter are the trials before
)

// Headroom: a generator whose ceiling is not so many times the result may be what limits it.
const Headroom = 1.3

// NDR as studies write it.
const NDR = "ndr"

// Names of steps. Those of delays have their share of PDR in percent behind them, see StepDelay.
const (
	StepCeiling = "ceiling"
	StepSearch  = "search"
	StepNDR     = "verify " + GoalNDR
	StepPDR     = "verify " + GoalPDR
	StepTryNDR  = "try " + GoalNDR // shorter, before a load's trials that verify
	StepTryPDR  = "try " + GoalPDR
	stepDelay   = "delay at "
)

// Values of a step.
const (
	ValueLoss    = "loss"    // share of the frames that were sent and not due near a stall; see Frames.Values
	ValueSent    = "sent"    // frames a second
	ValueArrived = "arrived" // frames a second
	ValueLost    = "lost"    // frames, apart from those near stalls
	ValueLostIn  = "lost-in-stalls"
	ValueOffered = "offered" // share of the frames that were not due near a stall; only where the sender has a CPU of its own
	ValueStalled = "stalled" // share of the frames that were due near a stall
	ValueAway    = "away"    // share of the time in which a CPU was stalled
	ValueTypical = "typical" // us: the median
	valueWorst   = "worst"   // us: p99.9, where enough frames are beyond it
)

// DelayShares of PDR at which delays are measured, in percent. RFC 8219: typical is the median, worst is p99.9. The first is as good as idle.
func DelayShares() []int { return []int{1, 10, 50, 90} }

// Frames that the delays are taken of, and how long that may take at most.
const (
	delayFrames  = 200
	longestDelay = time.Second
)

// DelayName is the metric of the typical or the worst delay at a share of PDR in percent: "typical-50". The share of 1 % is called 0: idle.
func DelayName(kind string, share int) string {
	if share == 1 {
		share = 0
	}
	return fmt.Sprintf("%s-%d", kind, share)
}

// ndrCourse is a trial of the experiment ndr: the generator's ceiling, the search, verifications of what it found, delays. It is pure.
type ndrCourse struct {
	length, verify time.Duration // of a full trial of the search, and of a trial that verifies
	sent, ceiling  float64       // frames a second: what the generator sends at most, and what then arrives without anything in between
	search         *search.Search
	stalled        int     // steps in a row that are made again
	denied         float64 // the least load that the generator could not send; 0: none
	failed         string
	ndr, pdr       *search.Verification // behind the search
	delays         []Next               // behind the verifications, those made are taken away; nil: not yet
	values         map[string]float64
}

// newNDRCourse with trials of a length; verify is that of trials that verify, 0: by verifyTimes.
func newNDRCourse(length, verify time.Duration) (*ndrCourse, error) {
	if length <= 0 {
		return nil, fmt.Errorf("a search needs the length of its trials: duration: 200ms")
	}
	if verify == 0 {
		verify = min(verifyTimes*length, longestCheck)
	}
	if verify < length || verify > longestCheck {
		return nil, fmt.Errorf("verify: %s: want at least the length of the search's trials (%s) and at most %s", verify, length, longestCheck)
	}
	return &ndrCourse{length: length, verify: verify, values: map[string]float64{}}, nil
}

func (c *ndrCourse) Next() (Next, bool) {
	switch {
	case c.failed != "":
		return Next{}, false
	case c.search == nil:
		return Next{What: StepCeiling, Length: ceilingTrials * c.length}, true
	}
	if t, ok := c.search.Next(); ok {
		return Next{What: StepSearch, Load: t.Load, Length: t.Duration}, true
	}
	if c.ndr == nil {
		c.ndr = c.verification(GoalNDR)
	}
	if load, short, ok := c.ndr.Next(); ok {
		return c.check(GoalNDR, load, short), true
	}
	if c.pdr == nil {
		c.pdr = c.verification(GoalPDR)
		c.pdr.Known(c.ndr.Result().Load)
	}
	if load, short, ok := c.pdr.Next(); ok {
		return c.check(GoalPDR, load, short), true
	}
	if c.delays == nil {
		c.delays = c.shares(c.pdr.Result().Load)
	}
	if len(c.delays) == 0 {
		return Next{}, false
	}
	return c.delays[0], true
}

// check is a trial that verifies a load, or the short one before.
func (c *ndrCourse) check(goal string, load float64, short bool) Next {
	what, length := "verify "+goal, c.verify
	if short {
		what, length = "try "+goal, c.verify/shortCheck
	}
	return Next{What: what, Load: load, Length: min(length, time.Duration(xdp.MaxFrames/load*float64(time.Second)))}
}

func (c *ndrCourse) Tell(values map[string]float64) {
	n, ok := c.Next()
	if !ok {
		return
	}
	kind := kindOf(values)
	if kind == search.NotOffered && (c.denied == 0 || n.Load < c.denied) {
		c.denied = n.Load
	}
	switch n.What {
	case StepCeiling:
		c.begin(values)
	case StepSearch:
		c.searched(n, kind, values)
	case StepNDR, StepTryNDR:
		c.ndr.Add(kind, values[ValueLoss])
	case StepPDR, StepTryPDR:
		c.pdr.Add(kind, values[ValueLoss])
	default:
		for _, name := range []string{ValueTypical, valueWorst} {
			if v, ok := values[name]; ok {
				c.values[DelayName(name, n.delayed())] = v
			}
		}
		c.delays = c.delays[1:]
	}
}

// kindOf a step by its rules.
func kindOf(values map[string]float64) search.Kind {
	offered, told := values[ValueOffered]
	switch {
	case values[ValueStalled] > MostStalled:
		return search.Stalled
	case told && offered < LeastOffered:
		return search.NotOffered
	}
	return search.Counts
}

// searched tells the search of a step. A load that the generator cannot send is too high, whatever the path does with it.
func (c *ndrCourse) searched(n Next, kind search.Kind, values map[string]float64) {
	if kind == search.Stalled {
		if c.stalled++; c.stalled == stalledSteps {
			c.failed = fmt.Sprintf("the machine stalls: in %d steps in a row more than %.0f %% of the frames were due near stalls of the CPUs", c.stalled, MostStalled*100)
		}
		return
	}
	c.stalled = 0
	loss := values[ValueLoss]
	if kind == search.NotOffered {
		loss = max(loss, 1-values[ValueOffered])
	}
	c.search.Add(search.Outcome{Trial: search.Trial{Load: n.Load, Duration: n.Length}, Loss: loss})
}

// StepDelay is the name of the step that measures delays at a share of PDR.
func StepDelay(share int) string { return fmt.Sprintf("%s%d %%", stepDelay, share) }

// delayed is the share of PDR in percent at which a step measures delays; 0: it is another step.
func (n Next) delayed() int {
	for _, share := range DelayShares() {
		if n.What == StepDelay(share) {
			return share
		}
	}
	return 0
}

// most is how many frames a step that verifies a load may not lose any more, beside stalls; 0: not one. It ends when it has lost them: see Frames.over.
func (n Next) most() (frames float64, verifies bool) {
	switch n.What {
	case StepNDR, StepTryNDR:
		return 0, true
	case StepPDR, StepTryPDR:
		return PDRLoss * n.Load * n.Length.Seconds(), true
	}
	return 0, false
}

// goals of the search: NDR, PDR.
func (c *ndrCourse) goals() []search.Goal {
	goal := search.Goal{Exceed: exceedRatio, Trial: c.length, Sum: trialsOfSum * c.length, Width: SearchWidth, First: c.length / firstTrials}
	ndr, pdr := goal, goal
	ndr.Name, pdr.Name, pdr.Loss = GoalNDR, GoalPDR, PDRLoss
	return []search.Goal{ndr, pdr}
}

// least load that the shortest trial can tell something of.
func (c *ndrCourse) least() float64 { return leastFrames / (c.length / firstTrials).Seconds() }

// begin the search below what the generator can send.
func (c *ndrCourse) begin(values map[string]float64) {
	c.sent, c.ceiling = values[ValueSent], values[ValueArrived]
	var err error
	c.search, err = search.New(search.Config{Min: c.least(), Max: c.sent, Goals: c.goals(), Trials: mostSteps})
	if err != nil {
		c.failed = fmt.Sprintf("the generator sends %.0f frames a second: %s", c.sent, err)
	}
}

// found by the search for a goal.
func (c *ndrCourse) found(goal string) search.Result {
	i := slices.IndexFunc(c.search.Results(), func(r search.Result) bool { return r.Goal == goal })
	return c.search.Results()[i] // Next has ended: all goals have a result
}

// verification of what the search has found for a goal.
func (c *ndrCourse) verification(goal string) *search.Verification {
	goals := c.goals()
	i := slices.IndexFunc(goals, func(g search.Goal) bool { return g.Name == goal })
	v := search.Verify(goals[i], c.found(goal).Lower, c.least())
	if c.verify < shortCheck*c.length {
		v.OnlyLong()
	}
	return v
}

// shares of PDR at which delays are measured; none without PDR.
func (c *ndrCourse) shares(pdr float64) []Next {
	out := []Next{}
	if pdr <= 0 {
		return out
	}
	for _, share := range DelayShares() {
		load := pdr * float64(share) / 100
		length := min(max(time.Duration(delayFrames/load*float64(time.Second)), ceilingTrials*c.length), longestDelay)
		out = append(out, Next{What: StepDelay(share), Load: load, Length: length})
	}
	return out
}

// NDRRaw is what the journal keeps of a trial beside its steps.
type NDRRaw struct {
	Results      []search.Result   `json:"results"` // of the search
	Ceiling      float64           `json:"ceiling"` // frames a second
	Limited      bool              `json:"generator_limited"`
	Denied       float64           `json:"not_offered,omitempty"` // the least load, in frames a second, that the generator could not send
	Verification []search.Verified `json:"verification"`          // the results
	Trials       int               `json:"trials"`                // of the search
}

// Offers tells whether a step of that name offers a load whose loss is counted.
func Offers(what string) bool {
	return slices.Contains([]string{StepSearch, StepNDR, StepPDR, StepTryNDR, StepTryPDR}, what)
}

// CountsAs tells whether the rules for steps let one with these values count: its CPUs did not stall for too long, and its load was offered.
func CountsAs(values map[string]float64) bool { return kindOf(values) == search.Counts }

// MetricOf a goal is the metric that has its result.
func MetricOf(goal string) string {
	return map[string]string{GoalNDR: MetricNDR, GoalPDR: MetricPDR}[goal]
}

// Range of the load that meets a goal, in frames a second; ok is false if the trial says nothing of it.
//   - The load that was verified.
//   - That or more, if the generator may be what limits it: it could not send Headroom times as much.
//   - Less than what was refused, where nothing was verified and the path lost the frames.
//
// If the generator may be the reason for which a load was refused, since it could not send Headroom times as much, or if the machine stalled before
// anything was refused, nothing is known.
func (n NDRRaw) Range(goal string) (r stats.Interval, ok bool) {
	i := slices.IndexFunc(n.Verification, func(v search.Verified) bool { return v.Goal == goal })
	if i < 0 {
		return r, false
	}
	if v := n.Verification[i]; v.Load > 0 {
		r = stats.Interval{Low: v.Load, High: v.Load}
		if n.limits(v.Load) {
			r.High = math.Inf(1)
		}
		return r, true
	}
	refused := n.Verification[i].Upper
	for _, found := range n.Results { // nothing was verified, since already the search found nothing
		if found.Goal == goal && found.Lower <= 0 {
			refused = found.Upper
		}
	}
	return stats.Interval{Low: 0, High: refused}, refused > 0 && !n.limits(refused)
}

// limits tells whether a load is too near to what the generator can send.
func (n NDRRaw) limits(load float64) bool {
	return n.Ceiling < Headroom*load || n.Denied > 0 && n.Denied < Headroom*load
}

func (c *ndrCourse) Result() Measurement {
	if c.failed != "" {
		return Measurement{Void: c.failed}
	}
	raw := NDRRaw{Results: c.search.Results(), Ceiling: c.ceiling, Denied: c.denied, Trials: c.search.Trials()}
	m := Measurement{Values: c.values}
	for _, v := range []search.Verified{c.ndr.Result(), c.pdr.Result()} {
		if c.found(v.Goal).Lower <= 0 {
			v.Why = fmt.Sprintf("not even %.0f frames a second pass, the least that trials of this length can tell", c.least())
		}
		raw.Verification = append(raw.Verification, v)
		raw.Limited = raw.Limited || v.Load > 0 && raw.limits(v.Load)
	}
	var none []string
	for _, v := range raw.Verification {
		// A result of 0 says that there is none because of the path.
		if _, ok := raw.Range(v.Goal); ok {
			m.Values[MetricOf(v.Goal)] = v.Load / 1e6
		} else {
			none = append(none, v.Goal+": "+v.Why)
		}
	}
	if len(none) == len(raw.Verification) {
		m.Void = strings.Join(none, "; ")
	}
	m.Values[ValueCeiling], m.Values[ValueLimited] = c.ceiling/1e6, 0
	if raw.Limited {
		m.Values[ValueLimited] = 1
	}
	m.Raw = raw
	return m
}

// Metrics of the experiment, and ValueLimited.
const (
	MetricNDR    = "ndr" // 0: none was found because of the path, see NDRRaw.Range
	MetricPDR    = "pdr"
	ValueCeiling = "ceiling"
	ValueLimited = "limited" // 1: by the generator
)

func ndrMetrics() map[string]string {
	m := map[string]string{MetricNDR: "Mpps", MetricPDR: "Mpps", ValueCeiling: "Mpps"}
	for _, share := range DelayShares() {
		m[DelayName(ValueTypical, share)], m[DelayName(valueWorst, share)] = "us", "us"
	}
	return m
}
