package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/afpacket"
	"weir.dev/weir/lab/traffic/testpmd"
	"weir.dev/weir/lab/traffic/xdp"
)

// The experiments of this file test the lab's own generators, over a bare link or none at all: what comes of it bounds what the lab may claim.

// Generators that can be tested.
const (
	genFrame   = "xdp-frame" // XDP live frames through a link, counted by XDP
	genSkb     = "xdp-skb"   // XDP live frames passed up as if received, counted at tc ingress of the same interface: no link at all
	genPacket  = "afpacket"  // a packet socket
	genTestpmd = "testpmd"   // DPDK over a packet socket
)

// genFactor is the factor generator of these experiments.
func genFactor(names ...string) Factor {
	return Factor{Name: factorGenerator, About: "xdp-frame: XDP live frames through a link; xdp-skb: passed up as if received, no link; afpacket: a packet socket; testpmd: DPDK over a packet socket",
		Check: oneOf(names...)}
}

// bareLink is the path on which generators are tested.
func bareLink(ctx context.Context, b *Bench) (platform.Path, error) {
	p, err := b.Platform(ctx, "veth")
	if err != nil {
		return platform.Path{}, err
	}
	return p.Path(ctx, platform.Layout{})
}

// generatorOn opens one of the lab's own generators. One that comes first, where it can, keeps its rate beside other programs.
func generatorOn(p platform.Path, name string, batch int, first bool) (traffic.Generator, error) {
	from, to := xdp.Place{Space: p.From, Link: platform.Station}, xdp.Place{Space: p.To, Link: platform.Station}
	cpu, other, err := twoCPUs()
	if err != nil && cpu < 0 {
		return nil, err
	}
	o := xdp.Options{In: to, Sink: to, Batch: batch, CPU: cpu, First: first && other >= 0}
	switch name {
	case genFrame:
		o.In, o.Frames, o.SinkFrames = from, true, true
		return xdp.New(o)
	case genSkb:
		return xdp.New(o)
	case genPacket:
		return afpacket.New(afpacket.Options{Out: from, Sink: to})
	}
	return nil, fmt.Errorf("there is no generator %q", name)
}

// selfTest is what the experiments have in common.
type selfTest struct {
	name, about string
	metrics     map[string]string
	factors     []Factor
	check       func(l Levels) string
	measure     func(ctx context.Context, t *test, length time.Duration) (Measurement, error)
}

func (x *selfTest) Name() string               { return x.name }
func (x *selfTest) About() string              { return x.about }
func (x *selfTest) Metrics() map[string]string { return x.metrics }
func (x *selfTest) Factors() []Factor          { return x.factors }

func (x *selfTest) Check(_ context.Context, _ *Bench, l Levels) string {
	if _, err := loadOf(l); err != nil {
		return err.Error()
	}
	if x.check == nil {
		return ""
	}
	return x.check(l)
}

// test is a generator that is to be tested.
type test struct {
	x      *selfTest
	levels Levels
	load   load
	path   platform.Path
}

func (x *selfTest) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	t := &test{x: x, levels: l}
	var err error
	if t.load, err = loadOf(l); err != nil {
		return nil, err
	}
	if t.path, err = bareLink(ctx, b); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *test) Measure(ctx context.Context, length time.Duration) (Measurement, error) {
	m, err := t.x.measure(ctx, t, length)
	m.Sending += length
	return m, err
}

// Close leaves the link to others.
func (t *test) Close() error { return nil }

// spec of a run; rate 0: as fast as it goes.
func (t *test) spec(rate float64, length time.Duration) (traffic.Spec, error) {
	from, to, err := t.path.MACs()
	s := t.load.spec(t.path, from, to, length)
	s.Rate = rate
	return s, err
}

// run of one of our generators.
func (t *test) run(ctx context.Context, name string, batch int, rate float64, first bool, length time.Duration) (n traffic.Count, err error) {
	s, err := t.spec(rate, length)
	if err != nil {
		return n, err
	}
	g, err := generatorOn(t.path, name, batch, first)
	if err != nil {
		return n, err
	}
	defer closing(g, &err)
	return traffic.Send(ctx, g, s)
}

// booked begins a measurement with the books of a run.
func booked(n traffic.Count) (m Measurement) {
	if err := n.Check(); err != nil {
		m.Void = err.Error()
	} else if n.Sent == 0 {
		m.Void = "the generator sent nothing"
	}
	n.Latency.Buckets = nil
	m.Raw = n
	return m
}

// factorBatch of an XDP generator. On a path of many hops fewer go in at a time than on a bare link.
const (
	factorBatch  = "batch"
	defaultBatch = "64"
)

// ceilingExperiment is how fast the generators are.
func ceilingExperiment() Experiment {
	return &selfTest{
		name: "ceiling", about: "frames as fast as a generator makes them, over a bare link on one CPU; those that arrive are counted",
		metrics: map[string]string{"rate": "Mpps", "cost": "ns"},
		factors: append([]Factor{genFactor(genFrame, genSkb, genPacket, genTestpmd), {
			Name: factorBatch, About: "frames that an XDP generator puts in at a time", Default: defaultBatch, Check: between(1, xdp.MaxBatch, "frames"),
		}}, loadFactors()...),
		check: checkCeiling, measure: measureCeiling,
	}
}

func checkCeiling(l Levels) string {
	if l[factorGenerator] != genTestpmd {
		return ""
	}
	if err := testpmd.Installed(); err != nil {
		return err.Error()
	}
	if _, _, err := twoCPUs(); err != nil {
		return "testpmd: " + err.Error()
	}
	if s, _ := sizes(l.or(factorSize, "64")); len(s) > 1 || l.or(factorFlows, "1") != "1" || l.or(factorIP, "4") != "4" || l.or(factorVLAN, "0") != "0" {
		return "testpmd sends one flow of one size here, IPv4 without VLAN"
	}
	return ""
}

func measureCeiling(ctx context.Context, t *test, length time.Duration) (Measurement, error) {
	name := t.levels[factorGenerator]
	if name == genTestpmd {
		return measureTestpmd(ctx, t, length)
	}
	n, err := t.run(ctx, name, t.levels.number(factorBatch, defaultBatch), 0, false, length)
	if err != nil {
		return Measurement{}, err
	}
	m := booked(n)
	if n.Unique > 0 {
		m.Values = ceilingValues(n.Goodput())
	}
	return m, nil
}

func ceilingValues(rate float64) map[string]float64 {
	return map[string]float64{"rate": rate / 1e6, "cost": 1e9 / rate}
}

// startTestpmd bounds how long testpmd may take to begin.
const startTestpmd = 30 * time.Second

// measureTestpmd counts what arrives in a window of the trial's length, after it has begun.
func measureTestpmd(ctx context.Context, t *test, length time.Duration) (m Measurement, err error) {
	// The sink counts before testpmd begins.
	s, err := t.spec(0, length)
	if err != nil {
		return m, err
	}
	sink, err := xdp.NewSink(xdp.Place{Space: t.path.To, Link: platform.Station}, false)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	if err := sink.Arm(s); err != nil {
		return m, err
	}
	// testpmd runs on two CPUs: one sends, the other does the rest.
	rest, sender, err := twoCPUs()
	if err != nil {
		return m, err
	}
	o := testpmd.Options{
		Space: t.path.From, Link: platform.Station, Port: targetPort, Size: t.load.sizes[0], Main: rest, Send: sender, DstMAC: s.Flows[0].DstMAC,
		Dir: filepath.Dir(t.path.From), // it goes with the platform, also after a crash
	}
	r, err := testpmd.Start(ctx, o)
	if err != nil {
		return m, err
	}
	defer func() {
		out, serr := r.Stop()
		m.Raw = struct {
			Argv   []string `json:"argv"`
			Output string   `json:"output"`
		}{r.Argv, out}
		err = errors.Join(err, serr)
	}()
	// The window opens when the first frame has arrived.
	begin, cancel := context.WithTimeout(ctx, startTestpmd)
	defer cancel()
	for n := uint64(0); n == 0; {
		if n, err = sink.Foreign(); err != nil {
			return m, err
		}
		if err := r.Ended(); err != nil {
			return m, err
		}
		if err := wait(begin, 10*time.Millisecond); err != nil {
			return m, fmt.Errorf("testpmd sends nothing: %w", err)
		}
	}
	// Count over the window.
	first, err := sink.Foreign()
	if err != nil {
		return m, err
	}
	at := time.Now()
	if err := wait(ctx, length); err != nil {
		return m, err
	}
	last, err := sink.Foreign()
	if err != nil {
		return m, err
	}
	if last == first {
		m.Void = "testpmd sent nothing"
		return m, nil
	}
	m.Values = ceilingValues(float64(last-first) / time.Since(at).Seconds())
	return m, nil
}

// wait for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// factorLoad of a generator.
const factorLoad = "load"

// paceExperiment is how well the generators keep a rate.
func paceExperiment() Experiment {
	return &selfTest{
		name: "pace", about: "frames at a given rate over a bare link; the rate at which they arrive, by the sink's clock, and how far it is off",
		metrics: map[string]string{"error": "%", "rate": "Mpps", "skipped": "%"},
		factors: append([]Factor{genFactor(genFrame, genSkb, genPacket), {
			Name: factorLoad, About: "frames a second, or % of what the generator can do, measured just before", Default: "10000",
			Check: func(level string) error { _, err := parseLoadLevel(level); return err },
		}}, loadFactors()...),
		measure: measurePace,
	}
}

// loadLevel is an absolute rate in frames a second, or a share of the ceiling.
type loadLevel struct{ rate, share float64 }

func parseLoadLevel(level string) (loadLevel, error) {
	text, percent := strings.CutSuffix(level, "%")
	v, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(v) || v <= 0 || percent && v > 100 || v > 1e9:
		return loadLevel{}, fmt.Errorf("load %q: want frames a second, or %% of the ceiling: 1000, 80%%", level)
	case percent:
		return loadLevel{share: v / 100}, nil
	}
	return loadLevel{rate: v}, nil
}

// finest error of a rate that is told: what is less is this much, since ratios are made of it.
const finest = 1e-4 // %

func measurePace(ctx context.Context, t *test, length time.Duration) (Measurement, error) {
	at, err := parseLoadLevel(t.levels.or(factorLoad, "10000"))
	if err != nil {
		return Measurement{}, err
	}
	name, rate := t.levels[factorGenerator], at.rate
	if at.share > 0 {
		n, err := t.run(ctx, name, 0, 0, true, length)
		if err != nil {
			return Measurement{}, err
		}
		if n.Unique == 0 {
			m := booked(n)
			m.Void = "no ceiling: nothing arrived"
			return m, nil
		}
		rate = at.share * n.Goodput()
	}
	n, err := t.run(ctx, name, 0, rate, true, length)
	if err != nil {
		return Measurement{}, err
	}
	m := booked(n)
	if m.Void == "" && n.Pace() > 0 {
		m.Values = paceValues(n, rate)
	}
	if at.share > 0 {
		m.Sending = length // of the run before
	}
	return m, nil
}

// paceValues: the error is the worse of two: that of the rate at which frames came, and that of how many there were.
func paceValues(n traffic.Count, rate float64) map[string]float64 {
	pace := math.Abs(n.Pace()/rate-1) * 100
	skipped := float64(n.Skipped) / float64(max(n.Intended, 1)) * 100
	return map[string]float64{"error": max(pace, skipped, finest), "rate": n.Pace() / 1e6, "skipped": skipped}
}

// factorDelay of a forwarder that holds frames back.
const factorDelay = "delay"

// Frames of a test of latencies: one at a time.
const (
	latencyRate  = 2000
	latencyBatch = 1
)

// latencyExperiment is how well latencies are measured.
func latencyExperiment() Experiment {
	return &selfTest{
		name: "latency", about: "frames through a forwarder that holds each back for a known time; how much longer the median says that it took",
		metrics: map[string]string{"excess": "us", "median": "us", "worst": "us"},
		factors: []Factor{{Name: factorDelay, About: "us that each frame is held back", Default: "100", Check: between(0, int(xdp.MaxDelay/time.Microsecond), "us")}},
		measure: measureLatency,
	}
}

func measureLatency(ctx context.Context, t *test, length time.Duration) (m Measurement, err error) {
	s, err := t.spec(latencyRate, length)
	if err != nil {
		return m, err
	}
	cpu, _, err := twoCPUs()
	if err != nil && cpu < 0 {
		return m, err
	}
	from := xdp.Place{Space: t.path.From, Link: platform.Station}
	g, err := xdp.New(xdp.Options{In: from, Sink: xdp.Place{Space: t.path.To, Link: platform.Station}, Batch: latencyBatch, CPU: cpu})
	if err != nil {
		return m, err
	}
	defer closing(g, &err)
	d, err := xdp.NewDelay(from, platform.Station) // what it "receives" goes out where it came from
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	held := time.Duration(t.levels.number(factorDelay, "100")) * time.Microsecond
	if err := d.Set(held); err != nil {
		return m, err
	}
	n, err := traffic.Send(ctx, g, s)
	if err != nil {
		return m, err
	}
	histogram := n.Latency
	m = booked(n)
	median, ok := histogram.Quantile(0.5)
	if !ok || m.Void != "" {
		if m.Void == "" {
			m.Void = fmt.Sprintf("%d frames arrived: too few for a median", n.Unique)
		}
		return m, nil
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	m.Values = map[string]float64{"excess": us(median - held), "median": us(median)}
	if worst, ok := histogram.Quantile(0.99); ok {
		m.Values["worst"] = us(worst - held)
	}
	return m, nil
}
