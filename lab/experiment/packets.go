package experiment

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/tools"
)

// packets sends frames through a path of wires as fast as they go.
type packets struct{}

// ppsExperiment is what a packet costs, or how many get through.
func ppsExperiment() Experiment { return packets{} }

// PPS as studies write it.
const PPS = "pps"

func (packets) Name() string { return PPS }
func (packets) About() string {
	return "UDP frames as fast as they go: what a packet costs (mode cost) or how many get through (mode loss), as socket buffers or XDP frames; each is counted"
}
func (packets) Metrics() map[string]string {
	return map[string]string{"rate": "Mpps", "throughput": "Gb/s", "cost": "ns", "cpu": "us", "loss": "%"}
}

// Factors that a study can name.
func (x packets) Factors() []Factor {
	return append(x.path(), crowding(), warming(), Factor{
		Name: factorLoad, About: "frames a second that are offered, or " + mostLoad, Default: mostLoad,
		Check: func(level string) error { _, err := offered(level); return err },
	})
}

// path are the factors of what is sent, how, and through what.
func (packets) path() []Factor {
	out := append(platformFactors(), Factor{Name: factorWires, About: "functions in the chain", Default: "1", Check: between(0, maxWires, "a number of wires")}, parallel())
	return append(append(out, rigFactors()...), loadFactors()...)
}

// mostLoad is as fast as the generator goes.
const mostLoad = "most"

// offered frames a second of a level of the factor load; 0: as many as the generator makes.
func offered(level string) (float64, error) {
	if level == mostLoad {
		return 0, nil
	}
	x, err := parseLoadLevel(level)
	if err != nil || x.share > 0 {
		return 0, fmt.Errorf("load %q: want frames a second, or %s", level, mostLoad)
	}
	return x.rate, nil
}

func (packets) Check(_ context.Context, b *Bench, l Levels) string {
	k, err := platformOf(l)
	if err != nil {
		return err.Error()
	}
	if err := tools.Installed("ping"); err != nil {
		return err.Error()
	}
	if _, why := rigOf(l, k); why != "" {
		return why
	}
	layout, why := layoutOf(l, k)
	if why != "" {
		return why
	}
	if why := crowded(l, k, layout); why != "" {
		return why
	}
	if _, err := loadOf(l); err != nil {
		return err.Error()
	}
	return k.Check(b.options())
}

// flood is a path that is ready.
type flood struct {
	platform platform.Platform
	layout   platform.Layout
	rig      rig
	takes    int // frames at a time that pass without a loss
	batch    int // frames that enter at a time: no more than what is compared with it takes
	load     load
	rate     float64 // frames a second; 0: as fast as it goes
	warm     time.Duration
}

const warmRate = 1000 // frames a second

func (packets) Setup(ctx context.Context, b *Bench, l Levels) (_ Arrangement, err error) {
	k, err := platformOf(l)
	if err != nil {
		return nil, err
	}
	f := &flood{}
	f.rig, _ = rigOf(l, k) // checked, as all below
	f.layout, _ = layoutOf(l, k)
	f.warm = warmOf(l)
	if f.load, err = loadOf(l); err != nil {
		return nil, err
	}
	if f.rate, err = offered(l.or(factorLoad, mostLoad)); err != nil {
		return nil, err
	}
	if f.platform, err = b.Platform(ctx, k.Name); err != nil {
		return nil, err
	}
	defer rest(f.platform, &err)
	path, err := f.platform.Path(ctx, f.layout)
	if err != nil {
		return nil, err
	}
	if err := path.Try(ctx); err != nil {
		return nil, err
	}
	return f, f.close(ctx, path)
}

// heat sends few frames, before those that count.
func (f *flood) heat(ctx context.Context, path platform.Path) error {
	if f.warm == 0 {
		return nil
	}
	few := *f
	few.rate, few.batch = warmRate, 1
	_, err := few.send(ctx, path, f.warm)
	return err
}

// probe of a closed loop.
const probe = 100 * time.Millisecond

// close the loop: in mode cost the batch is halved until a probe loses no frame. If a batch of one frame loses some, its trials say so.
func (f *flood) close(ctx context.Context, path platform.Path) error {
	f.batch = f.rig.batch(f.layout.Chain)
	defer func() { f.takes = f.batch }()
	for f.rig.mode == modeCost && f.batch > 1 {
		n, err := f.send(ctx, path, probe)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if n.Lost == 0 {
			return nil
		}
		f.batch /= 2
	}
	return nil
}

// send frames through the path.
func (f *flood) send(ctx context.Context, path platform.Path, length time.Duration) (n traffic.Count, err error) {
	from, to, err := path.MACs()
	if err != nil {
		return n, err
	}
	g, err := f.rig.generator(path, f.batch)
	if err != nil {
		return n, err
	}
	defer closing(g, &err)
	spec := f.load.spec(path, from, to, length)
	spec.Rate = f.rate
	return traffic.Send(ctx, g, spec)
}

// Close leaves the platform to others.
func (f *flood) Close() error { return nil }

func (f *flood) Takes() int     { return f.takes }
func (f *flood) SetBatch(n int) { f.batch = n }

func (f *flood) Measure(ctx context.Context, length time.Duration) (m Measurement, err error) {
	defer rest(f.platform, &err)
	path, err := f.platform.Path(ctx, f.layout)
	if err != nil {
		return m, err
	}
	if err := f.heat(ctx, path); err != nil {
		return m, fmt.Errorf("before the trial: %w", err)
	}
	before, err := machine.Take()
	if err != nil {
		return m, err
	}
	n, err := f.send(ctx, path, length)
	if err != nil {
		return m, err
	}
	after, err := machine.Take()
	if err != nil {
		return m, err
	}
	m.Sending = length
	if f.rate > 0 {
		m.Offered = n.OnTime()
	}
	if err := n.Check(); err != nil {
		m.Void = err.Error()
	}
	if cpu, one := f.rig.works(); one && n.CPUs&^(1<<(cpu%64)) != 0 { // a queue that had been polled elsewhere went on so
		m.Void = "another CPU did some of the path's work"
	}
	if n.Sent == 0 { // it did not come to run
		m.Void = "the generator sent nothing"
		return m, nil
	}
	n.Latency.Buckets = nil // it would say how long the queues are
	raw := SentFrames{n, f.batch, f.load.sizes, f.load.flows, f.rig.mode, f.rig.kind(), f.rig.label(), f.rig.mode == modeCost, after.Busy() - before.Busy()}
	m.Values, m.Raw = raw.Values(), raw
	if raw.open() && m.Void == "" {
		m.Void = fmt.Sprintf("lost %d of %d frames: not a closed loop", n.Lost, n.Sent)
	}
	if m.Conditions, err = path.Conditions(); err != nil {
		return m, err
	}
	if p, ok := f.platform.(platform.Described); ok {
		maps.Copy(m.Conditions, p.Conditions())
	}
	m.Conditions[condRepresentation], m.Conditions[condMode] = f.rig.kind(), f.rig.label()
	m.Conditions[condFlows], m.Conditions[condBatch] = strconv.Itoa(f.load.flows), strconv.Itoa(f.batch)
	return m, nil
}

// SentFrames are the raw counts of a trial of the experiment pps: what the journal keeps of it. The trial's values follow from them.
type SentFrames struct {
	traffic.Count
	Batch          int    `json:"batch"`
	Sizes          []int  `json:"wire_bytes"`
	Flows          int    `json:"flows"`
	Mode           string `json:"mode"`
	Representation string `json:"representation"`
	Label          string `json:"label"`
	// Closed: the trial was to lose nothing, and was judged so. Runs of versions that did not ask for that told a rate all the same.
	Closed bool `json:"closed,omitempty"`
	// Busy are the seconds for which CPUs of the machine were busy, the sender's too. Earlier versions did not write them.
	Busy float64 `json:"busy_s,omitempty"`
}

// missing are the frames that were sent and did not arrive, whatever Lost says.
func (n SentFrames) missing() uint64 { return n.Sent - min(n.Unique, n.Sent) }

// open tells of a closed loop that it was none.
func (n SentFrames) open() bool { return n.Mode == modeCost && n.missing() > 0 }

// Values of the trial. Where frames of a closed loop were lost, the time was not spent on those that arrived: there is no rate and no cost.
func (n SentFrames) Values() map[string]float64 {
	v := map[string]float64{"loss": ratio(float64(n.missing()), float64(n.Sent)) * 100}
	if n.open() {
		return v
	}
	v["rate"] = n.Goodput() / 1e6
	if n.Unique > 0 {
		v["cost"] = 1e9 / n.Goodput()
	}
	if n.Busy > 0 {
		v["throughput"] = ratio(float64(n.Bytes), float64(n.Received)) * 8 * n.Goodput() / 1e9
		if n.Unique > 0 {
			v["cpu"] = n.Busy * 1e6 / float64(n.Unique)
		}
	}
	return v
}

// Underfed tells of a trial's raw counts whether the generator sent so little more than what arrived that it may be what limited the rate. ok is false where
// the rate is not that of an overload.
func Underfed(raw json.RawMessage) (limited, ok bool) {
	var n SentFrames
	if err := json.Unmarshal(raw, &n); err != nil || n.Mode != modeLoss || n.Unique == 0 {
		return false, false
	}
	return float64(n.Sent) < Headroom*float64(n.Unique), true
}

// Check reports counts that contradict each other, and values that do not follow from them.
func (n SentFrames) Check(values map[string]float64) error {
	if err := n.Count.Check(); err != nil {
		return err
	}
	for _, name := range []string{"rate", "cost"} {
		if v, ok := values[name]; ok && n.Closed && n.open() {
			return fmt.Errorf("%s is said to be %v: %d of %d frames of a closed loop were lost", name, v, n.missing(), n.Sent)
		}
	}
	return follow(values, n.Values())
}
