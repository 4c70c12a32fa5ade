package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of experiments on chains.
const (
	FactorPlatform = "platform"
	FactorNetwork  = "network"
	factorFunction = "function"
	factorWires    = "wires"
	factorParallel = "parallel"

	factorPlacement = "placement"
	factorStations  = "stations"
)

const maxWires = 500

// chains is what tcp, ping and pps have in common: a path of N wires (factor wires; without it the fewest that the platform can have) on a platform
// (factor platform).
type chains struct {
	name, about string
	metrics     map[string]string
	programs    []string
	inject      bool                  // frames are put in at the platform's side
	sockets     bool                  // the ends are TCP sockets
	more        []Factor              // beside platform, wires, and those of sockets or frames; nil: levels are not checked before the run
	check       func(l Levels) string // levels that were checked one by one: why they cannot be here, or not together; nil: they can
	measure     func(ctx context.Context, c *chain, length time.Duration) (Measurement, error)
}

func (x *chains) Name() string               { return x.name }
func (x *chains) About() string              { return x.about }
func (x *chains) Metrics() map[string]string { return x.metrics }

// Factors that it can vary, if it says so.
func (x *chains) Factors() []Factor {
	if x.more == nil {
		return nil
	}
	out := append(platformFactors(), []Factor{
		{Name: factorWires, About: "functions in the chain", Default: "1", Check: between(0, maxWires, "a number of wires")},
		{Name: factorPlacement, Default: platform.PlacedOne, Check: platform.CheckPlacement,
			About: "platform hosts: where the functions are: one (on the first station's host), spread (in turns over all hosts), or hosts' names joined with +, in turns"},
		{Name: factorStations, Default: platform.StationsHere, Check: platform.CheckStations,
			About: "platform hosts: whose endpoints the stations are: here (this machine's host), a host's name, or two joined with +"},
	}...)
	if x.inject {
		out = append(out, loadFactors()[0])
	}
	if x.sockets {
		out = append(out, socketFactors()...)
	}
	return append(out, x.more...)
}

func (x *chains) Check(_ context.Context, b *Bench, l Levels) string {
	k, err := platformOf(l)
	if err != nil {
		return err.Error()
	}
	if err := tools.Installed(x.programs...); err != nil {
		return err.Error()
	}
	o := b.options()
	var why string
	if o.Layout, why = layoutOf(l, k); why != "" {
		return why
	}
	if why := cmp.Or(crowded(l, k, o.Layout), k.Check(o)); why != "" {
		return why
	}
	if x.sockets {
		if why := CongestionHere(l.or(factorCongestion, DefaultCongestion)); why != "" {
			return why
		}
	}
	if x.check != nil {
		if why := x.check(l); why != "" {
			return why
		}
	}
	if x.inject {
		if !k.Skbs {
			return "platform " + k.Name + " does not take socket buffers"
		}
		if _, err := size(l); err != nil {
			return err.Error()
		}
	}
	return ""
}

// chain is a path that is ready.
type chain struct {
	x        *chains
	platform platform.Platform
	layout   platform.Layout
	size     int
	levels   Levels
}

func (x *chains) Setup(ctx context.Context, b *Bench, l Levels) (_ Arrangement, err error) {
	k, err := platformOf(l)
	if err != nil {
		return nil, err
	}
	p, err := b.Platform(ctx, k.Name)
	if err != nil {
		return nil, err
	}
	c := &chain{x: x, platform: p, levels: l}
	c.layout, _ = layoutOf(l, k) // checked
	if c.size, err = size(l); err != nil {
		return nil, err
	}
	defer rest(p, &err)
	path, err := c.platform.Path(ctx, c.layout)
	if err != nil {
		return nil, err
	}
	return c, path.Try(ctx)
}

func (c *chain) Measure(ctx context.Context, length time.Duration) (m Measurement, err error) {
	defer rest(c.platform, &err)
	return c.x.measure(ctx, c, length)
}

// rest stops what polls on a platform until its next path, at the end of a function.
func rest(p platform.Platform, err *error) {
	if r, ok := p.(platform.Resting); ok {
		*err = errors.Join(*err, r.Rest())
	}
}

// Close leaves the platform to others.
func (c *chain) Close() error { return nil }

// size of frames as the papers count: 64 with the FCS, the smallest there is, larger ones without. 0: no such factor.
func size(l Levels) (int, error) {
	text, ok := l[factorSize]
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 60 || n > traffic.MaxFrame {
		return 0, fmt.Errorf("size %q: want bytes of a frame, 60 to %d", text, traffic.MaxFrame)
	}
	return n, nil
}

// pingExperiment is the round trip of an idle path.
func pingExperiment() Experiment {
	return &chains{
		name: "ping", about: "round trips of ICMP echoes through an idle path, one at a time, for up to 5 s; the mean of the middle half, and that of the first 100", programs: []string{"ping"},
		metrics: map[string]string{"rtt": "us", "mean": "us", "p90": "us", "lost": "echoes"}, measure: measurePing,
		more: []Factor{
			crowding(),
			{Name: factorInterval, Default: backToBack, Check: checkInterval, About: "from one request to the next: " + backToBack + " (each when the answer to the one before is there), or a time, as 2ms: caches go cold meanwhile"},
			{Name: factorEnds, Default: endsInPing, Check: oneOf(endsInPing, endsInQueue), About: "where a round trip ends: in " + endsInPing + ", which is what a user waits for (-U), or where the kernel " +
				"queued the answer last, which may be before the way back through a chain without queues"},
		},
	}
}

// Factors of echoes, and their levels.
const (
	factorInterval = "interval"
	backToBack     = "0"

	factorEnds  = "ends"
	endsInPing  = "ping"
	endsInQueue = "queue"
)

// mostInterval bounds a trial: all its echoes take half a minute.
const mostInterval = 100 * time.Millisecond

func checkInterval(level string) error {
	d, err := time.ParseDuration(level)
	if err != nil || level != backToBack && (d < time.Millisecond || d > mostInterval) {
		return fmt.Errorf("%q: want %s, or a time of 1ms to %s", level, backToBack, mostInterval)
	}
	return nil
}

// Echoes of a trial, how many of them only warm the path up, and of how many behind these papers tell the mean.
const (
	echoes = 220
	warm   = 20
	meanOf = 100
)

// A path on which the echoes of a trial take longer than echoTime has fewer: leastEchoes, and a tenth of them warm it up.
const (
	echoTime    = 5 * time.Second
	leastEchoes = 3
)

// behindWarm are the round trips of a trial without those that warm the path up; nil: too few came back.
func behindWarm(p tools.Ping, cut bool) []time.Duration {
	if cut && len(p.RTT) >= leastEchoes {
		return p.RTT[min(warm, len(p.RTT)/10):]
	}
	if len(p.RTT) > warm+stats.MinBeyond {
		return p.RTT[warm:]
	}
	return nil
}

func measurePing(ctx context.Context, c *chain, _ time.Duration) (Measurement, error) {
	path, err := c.platform.Path(ctx, c.layout)
	if err != nil {
		return Measurement{}, err
	}
	release := machine.Awake()
	bounded, cancel := context.WithTimeout(ctx, echoGrace)
	defer cancel()
	interval, _ := time.ParseDuration(c.levels.or(factorInterval, backToBack)) // checked
	o := tools.PingOptions{To: path.Address, Count: echoes, Interval: interval, FullTrip: c.levels.or(factorEnds, endsInPing) == endsInPing}
	if interval == 0 {
		o.Deadline = echoTime
	}
	p, err := tools.RunPing(bounded, path.From, o)
	release()
	if err != nil {
		return Measurement{}, err
	}
	m, err := echoed(p, interval == 0 && p.Sent < echoes)
	if err != nil {
		return m, err
	}
	p.Raw.Output = "" // the samples are it
	m.Raw = p
	if m.Conditions, err = c.conditions(path); err != nil {
		return m, err
	}
	m.Conditions[condTool] = "ping, which tells whole microseconds" // an interval of less is no precision
	return m, nil
}

// echoed is what a trial's echoes tell. If it was cut short, the last one was under way.
func echoed(p tools.Ping, cut bool) (Measurement, error) {
	trips, lost := behindWarm(p, cut), p.Sent-p.Received
	if trips == nil {
		return Measurement{}, fmt.Errorf("%d of %d echoes came back", p.Received, p.Sent)
	}
	if cut {
		lost = max(0, lost-1)
	}
	m := Measurement{Idle: true, Sampled: "rtt", Values: map[string]float64{"lost": float64(lost)}}
	for _, rtt := range trips {
		m.Samples = append(m.Samples, float64(rtt)/float64(time.Microsecond))
	}
	m.Values["rtt"] = middle(m.Samples)
	m.Values["mean"] = stats.Mean(m.Samples[:min(meanOf, len(m.Samples))])
	if v, ok := stats.Percentile(m.Samples, 0.9); ok {
		m.Values["p90"] = v
	}
	return m, nil
}

// middle is the mean of the middle half: as robust as the median for our purpose, and finer, since ping tells whole microseconds.
func middle(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return stats.Mean(s[len(s)/4 : len(s)-len(s)/4])
}
