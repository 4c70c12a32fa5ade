package experiment

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/tools"
)

// packets sends frames through a path of wires as fast as they go.
type packets struct{}

// ppsExperiment is what a packet costs, or how many get through.
func ppsExperiment() Experiment { return packets{} }

func (packets) Name() string { return "pps" }
func (packets) About() string {
	return "UDP frames as fast as they go: what a packet costs (mode cost) or how many get through (mode loss), as socket buffers or XDP frames; each is counted"
}
func (packets) Metrics() map[string]string {
	return map[string]string{"rate": "Mpps", "cost": "ns", "loss": "%"}
}

// Factors that a study can name.
func (x packets) Factors() []Factor {
	return append(x.path(), Factor{
		Name: factorLoad, About: "frames a second that are offered, or " + mostLoad, Default: mostLoad,
		Check: func(level string) error { _, err := offered(level); return err },
	})
}

// path are the factors of what is sent, how, and through what.
func (packets) path() []Factor {
	out := append(platformFactors(), Factor{Name: factorWires, About: "functions in the chain", Default: "1", Check: between(0, maxWires, "a number of wires")})
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
	if _, why := layoutOf(l, k); why != "" {
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
	load     load
	rate     float64 // frames a second; 0: as fast as it goes
}

func (packets) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	k, err := platformOf(l)
	if err != nil {
		return nil, err
	}
	f := &flood{}
	f.rig, _ = rigOf(l, k) // checked, as all below
	f.layout, _ = layoutOf(l, k)
	if f.load, err = loadOf(l); err != nil {
		return nil, err
	}
	if f.rate, err = offered(l.or(factorLoad, mostLoad)); err != nil {
		return nil, err
	}
	if f.platform, err = b.Platform(ctx, k.Name); err != nil {
		return nil, err
	}
	path, err := f.platform.Path(ctx, f.layout)
	if err != nil {
		return nil, err
	}
	return f, path.Try(ctx)
}

// Close leaves the platform to others.
func (f *flood) Close() error { return nil }

func (f *flood) Measure(ctx context.Context, length time.Duration) (m Measurement, err error) {
	path, err := f.platform.Path(ctx, f.layout)
	if err != nil {
		return m, err
	}
	from, to, err := path.MACs()
	if err != nil {
		return m, err
	}
	batch := batchOf(f.layout.Chain)
	g, err := f.rig.generator(path, batch)
	if err != nil {
		return m, err
	}
	defer closing(g, &err)
	spec := f.load.spec(path, from, to, length)
	spec.Rate = f.rate
	n, err := traffic.Send(ctx, g, spec)
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
	m.Values = map[string]float64{"rate": n.Goodput() / 1e6, "loss": float64(n.Lost) / float64(n.Sent) * 100}
	switch {
	case n.Unique > 0:
		m.Values["cost"] = 1e9 / n.Goodput()
	case f.rig.mode == modeCost: // a path that is overrun may let nothing through, but one that is waited for cannot
		return m, fmt.Errorf("none of %d frames arrived", n.Sent)
	}
	n.Latency.Buckets = nil // at full speed it says how long the queues are
	m.Raw = sentFrames{n, batch, f.load.sizes, f.load.flows, f.rig.mode, f.rig.kind(), f.rig.label()}
	if m.Conditions, err = stationConditions(path); err != nil {
		return m, err
	}
	m.Conditions[condRepresentation], m.Conditions[condMode] = f.rig.kind(), f.rig.label()
	m.Conditions[condFlows] = strconv.Itoa(f.load.flows)
	return m, nil
}

// sentFrames is what the journal keeps of a trial.
type sentFrames struct {
	traffic.Count
	Batch          int    `json:"batch"`
	Sizes          []int  `json:"wire_bytes"`
	Flows          int    `json:"flows"`
	Mode           string `json:"mode"`
	Representation string `json:"representation"`
	Label          string `json:"label"`
}
