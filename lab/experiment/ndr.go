package experiment

import (
	"fmt"
	"time"

	"weir.dev/weir/lab/search"
)

// Goals of the search: NDR loses nothing, PDR at most this share (RFC 2544 knows only the first; FD.io CSIT measures both).
const (
	goalNDR = "NDR"
	goalPDR = "PDR"
	pdrLoss = 0.005
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

// Headroom: a generator whose ceiling is not so many times the result may be what limits it.
const Headroom = 1.3

// NDR as studies write it.
const NDR = "ndr"

// Names of steps. Those of delays have their share of PDR in percent behind them, see StepDelay.
const (
	StepCeiling = "ceiling"
	StepSearch  = "search"
	StepNDR     = "verify " + goalNDR
	StepPDR     = "verify " + goalPDR
	stepDelay   = "delay at "
)

// Values of a step.
const (
	ValueLoss    = "loss"    // share of what was to be sent: what the generator could not send is lost
	ValueSent    = "sent"    // frames a second
	ValueArrived = "arrived" // frames a second
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

// ndrCourse is a trial of the experiment ndr: the generator's ceiling, the search, a verification of what it found, delays. It is pure.
type ndrCourse struct {
	length        time.Duration // of a full trial
	sent, ceiling float64       // frames a second: what the generator sends at most, and what then arrives without anything in between
	search        *search.Search
	failed        string
	found         map[string]search.Result
	then          []Next // behind the search; those made are taken away
	values        map[string]float64
	verified      map[string]float64 // loss
}

func newNDRCourse(length time.Duration) (*ndrCourse, error) {
	if length <= 0 {
		return nil, fmt.Errorf("a search needs the length of its trials: duration: 200ms")
	}
	return &ndrCourse{length: length, values: map[string]float64{}, verified: map[string]float64{}}, nil
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
	if c.found == nil {
		c.settle()
	}
	if len(c.then) == 0 {
		return Next{}, false
	}
	return c.then[0], true
}

func (c *ndrCourse) Tell(values map[string]float64) {
	n, ok := c.Next()
	if !ok {
		return
	}
	switch n.What {
	case StepCeiling:
		c.begin(values)
		return
	case StepSearch:
		c.search.Add(search.Outcome{Trial: search.Trial{Load: n.Load, Duration: n.Length}, Loss: values[ValueLoss]})
		return
	case StepNDR, StepPDR:
		c.verified[n.What] = values[ValueLoss]
	default:
		for _, kind := range []string{ValueTypical, valueWorst} {
			if v, ok := values[kind]; ok {
				c.values[DelayName(kind, n.delayed())] = v
			}
		}
	}
	c.then = c.then[1:]
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

// begin the search below what the generator can send.
func (c *ndrCourse) begin(values map[string]float64) {
	c.sent, c.ceiling = values[ValueSent], values[ValueArrived]
	first := c.length / firstTrials
	goal := search.Goal{Exceed: exceedRatio, Trial: c.length, Sum: trialsOfSum * c.length, Width: SearchWidth, First: first}
	ndr, pdr := goal, goal
	ndr.Name, pdr.Name, pdr.Loss = goalNDR, goalPDR, pdrLoss
	var err error
	c.search, err = search.New(search.Config{Min: leastFrames / first.Seconds(), Max: c.sent, Goals: []search.Goal{ndr, pdr}, Trials: mostSteps})
	if err != nil {
		c.failed = fmt.Sprintf("the generator sends %.0f frames a second: %s", c.sent, err)
	}
}

// settle what is done behind the search.
func (c *ndrCourse) settle() {
	c.found = map[string]search.Result{}
	for _, r := range c.search.Results() {
		c.found[r.Goal] = r
	}
	sum := trialsOfSum * c.length
	if r := c.found[goalNDR]; r.Lower > 0 {
		c.then = append(c.then, Next{What: StepNDR, Load: r.Lower, Length: sum})
	}
	r := c.found[goalPDR]
	if r.Lower <= 0 {
		return
	}
	c.then = append(c.then, Next{What: StepPDR, Load: r.Lower, Length: sum})
	for _, share := range DelayShares() {
		load := r.Lower * float64(share) / 100
		length := min(max(time.Duration(delayFrames/load*float64(time.Second)), ceilingTrials*c.length), longestDelay)
		c.then = append(c.then, Next{What: StepDelay(share), Load: load, Length: length})
	}
}

// ndrRaw is what the journal keeps of a trial beside its steps.
type ndrRaw struct {
	Results  []search.Result    `json:"results"`
	Ceiling  float64            `json:"ceiling"` // frames a second
	Limited  bool               `json:"generator_limited"`
	Verified map[string]float64 `json:"verified"` // loss in the verification trials
	Trials   int                `json:"trials"`   // of the search
}

func (c *ndrCourse) Result() Measurement {
	if c.failed != "" {
		return Measurement{Void: c.failed}
	}
	raw := ndrRaw{Results: c.search.Results(), Ceiling: c.ceiling, Verified: c.verified, Trials: c.search.Trials()}
	m := Measurement{Values: c.values}
	least := leastFrames / (c.length / firstTrials).Seconds()
	for _, r := range raw.Results {
		if r.Lower <= 0 {
			m.Void = fmt.Sprintf("%s: not even %.0f frames a second pass, the least that trials of this length can tell", r.Goal, least)
			continue
		}
		m.Values[map[string]string{goalNDR: MetricNDR, goalPDR: metricPDR}[r.Goal]] = r.Throughput / 1e6
		raw.Limited = raw.Limited || c.ceiling < Headroom*r.Lower
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
	MetricNDR    = "ndr"
	metricPDR    = "pdr"
	ValueCeiling = "ceiling"
	ValueLimited = "limited" // 1: by the generator
)

func ndrMetrics() map[string]string {
	m := map[string]string{MetricNDR: "Mpps", metricPDR: "Mpps", ValueCeiling: "Mpps"}
	for _, share := range DelayShares() {
		m[DelayName(ValueTypical, share)], m[DelayName(valueWorst, share)] = "us", "us"
	}
	return m
}
