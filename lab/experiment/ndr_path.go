package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/afpacket"
	"weir.dev/weir/lab/traffic/stall"
	"weir.dev/weir/lab/traffic/xdp"
)

// What sends.
const (
	generatorXDP    = "xdp"
	generatorPacket = "afpacket"
)

// ndr searches the highest loads that a path takes. It is the same rig as that of packets, with loads instead of full speed.
type ndr struct {
	packets
	senders map[site]sender
	watch   *stall.Watch // over the CPUs of the sender and of the path
	users   int          // arrangements that are open
}

func ndrExperiment() Experiment { return &ndr{senders: map[site]sender{}} }

func (*ndr) Name() string { return NDR }
func (*ndr) About() string {
	return "highest load of UDP frames without loss (NDR) and with less than 0.5 % (PDR): searched by MLRsearch, the variants in turns, and verified by long trials; what is lost near stalls of a CPU is counted apart; delays at 1 (idle), 10, 50 and 90 % of PDR"
}
func (*ndr) Metrics() map[string]string { return ndrMetrics() }

// Factors are those of packets; here the path has a CPU of its own unless a study says otherwise.
func (x *ndr) Factors() []Factor {
	out := x.packets.path()
	for i := range out {
		if out[i].Name == factorMode {
			out[i].Default = modeLoss
		}
	}
	return append(out, Factor{Name: factorGenerator, About: "what sends: XDP live frames or a packet socket", Default: generatorXDP, Check: oneOf(generatorXDP, generatorPacket)})
}

func (*ndr) levels(l Levels) Levels {
	out := Levels{factorMode: modeLoss}
	maps.Copy(out, l)
	return out
}

func (x *ndr) Check(ctx context.Context, b *Bench, l Levels) string {
	l = x.levels(l)
	if why := x.packets.Check(ctx, b, l); why != "" {
		return why
	}
	k, _ := platformOf(l) // checked, as the rig
	if r, _ := rigOf(l, k); r.representation == asFrame && l[factorGenerator] == generatorPacket {
		return "a packet socket sends no XDP frames"
	}
	return ""
}

func (x *ndr) Begin(_ Levels, length, verify time.Duration) (Course, error) {
	return newNDRCourse(length, verify)
}

func (x *ndr) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	l = x.levels(l)
	a, err := x.packets.Setup(ctx, b, l)
	if err != nil {
		return nil, err
	}
	f := a.(*flood)                // that is what packets make
	f.rig.first = f.rig.chain >= 0 // there is another CPU for other programs
	bare, err := b.Platform(ctx, "veth")
	if err != nil {
		return nil, fmt.Errorf("a bare link for the generator's ceiling: %w", err)
	}
	generator := l.or(factorGenerator, generatorXDP)
	path := func(ctx context.Context) (site, error) {
		p, err := f.platform.Path(ctx, f.layout)
		return site{f.rig, p, f.batch, generator}, err
	}
	ceiling := func(ctx context.Context) (site, error) {
		p, err := bare.Path(ctx, platform.Layout{})
		p.Space, p.Link = p.To, platform.Station // skbs enter where they are counted
		r := f.rig
		r.process = false
		return site{r, p, f.rig.batch(0), generator}, err
	}
	arranged, err := x.arrange(f.rig, f.load, path, ceiling)
	if err != nil {
		return nil, err
	}
	arranged.platform = f.platform
	return arranged, nil
}

func (x *ndr) arrange(r rig, l load, path, ceiling func(context.Context) (site, error)) (*ndrPath, error) {
	if x.watch == nil {
		cpus := []int{r.sender}
		if r.chain >= 0 {
			cpus = append(cpus, r.chain)
		}
		var err error
		if x.watch, err = stall.New(cpus...); err != nil {
			return nil, err
		}
	}
	x.users++
	return &ndrPath{x: x, load: l, path: path, ceiling: ceiling}, nil
}

// site is where and how frames enter, and where they are counted.
type site struct {
	rig       rig
	path      platform.Path
	batch     int
	generator string
}

// sender is a generator that stays open for the next step.
type sender struct {
	traffic.Traced
	undo func() error
}

func (s sender) close() error { return errors.Join(s.Close(), s.undo()) }

// sender of a site. Variants that share a site share it (the bare link of a bench, for example): each of two sinks at one place would take the
// other's frames. For the same reason others at the place are closed.
func (x *ndr) sender(s site) (sender, error) {
	if g, ok := x.senders[s]; ok {
		return g, nil
	}
	for o := range x.senders {
		if o.path.To == s.path.To {
			if err := x.drop(o); err != nil {
				return sender{}, err
			}
		}
	}
	g, err := s.open()
	if err == nil {
		x.senders[s] = g
	}
	return g, err
}

func (x *ndr) drop(s site) error {
	g, ok := x.senders[s]
	if !ok {
		return nil
	}
	delete(x.senders, s)
	return g.close()
}

func (s site) open() (sender, error) {
	undo := func() error { return nil }
	if s.generator == generatorXDP {
		g, err := s.rig.generator(s.path, s.batch)
		return sender{g, undo}, err
	}
	if s.rig.mode == modeLoss && !s.rig.process {
		var err error
		if undo, err = xdp.Steer(xdp.Place{Space: s.path.Space, Link: s.path.Link}, s.rig.chain); err != nil {
			return sender{}, err
		}
	}
	o := afpacket.Options{Out: xdp.Place{Space: s.path.From, Link: platform.Station}, Sink: xdp.Place{Space: s.path.To, Link: platform.Station}}
	g, err := afpacket.New(o)
	if err != nil {
		return sender{}, errors.Join(err, undo())
	}
	g.Pin(s.rig.sender)
	return sender{pinned{g, s.rig.sender}, undo}, nil
}

// pinned sends on one CPU.
type pinned struct {
	*afpacket.Generator
	cpu int
}

func (p pinned) Start(ctx context.Context, at time.Time) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return fmt.Errorf("affinity: %w", err)
	}
	one.Set(p.cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("run on CPU %d: %w", p.cpu, err)
	}
	err := p.Generator.Start(ctx, at)
	return errors.Join(err, unix.SchedSetaffinity(0, &old))
}

// ndrPath is a path that is ready.
type ndrPath struct {
	x             *ndr
	load          load
	path, ceiling func(ctx context.Context) (site, error)
	platform      platform.Platform // of the path; nil: one that needs no rest
	conditions    map[string]string // as they were read back at the first step
}

func (p *ndrPath) Measure(ctx context.Context, length time.Duration) (Measurement, error) {
	c, err := newNDRCourse(length, 0)
	if err != nil {
		return Measurement{}, err
	}
	return InARow(ctx, c, p)
}

// Close takes the senders away with the last arrangement, before what they stand on is taken down.
func (p *ndrPath) Close() (err error) {
	if p.x.users--; p.x.users > 0 {
		return nil
	}
	for s := range p.x.senders {
		err = errors.Join(err, p.x.drop(s))
	}
	err = errors.Join(err, p.x.watch.Close())
	p.x.watch = nil
	return err
}

// batcher is a generator that can send fewer frames at a time.
type batcher interface{ SetBatch(n int) error }

// delayBatch is how many frames enter at a time where delays are measured.
const delayBatch = 8

// batchFor a step. With the path on the sender's CPU small batches would take from what the path has: there delays are those of the search's.
func (s site) batchFor(n Next) int {
	if n.delayed() != 0 && s.rig.mode == modeLoss {
		return min(s.batch, delayBatch)
	}
	return s.batch
}

func (p *ndrPath) Step(ctx context.Context, n Next) (m Measurement, err error) {
	defer rest(p.platform, &err)
	where := p.path
	if n.What == StepCeiling {
		where = p.ceiling
	}
	s, err := where(ctx)
	if err != nil {
		return m, err
	}
	defer func() {
		if err != nil { // it may be broken
			err = errors.Join(err, p.x.drop(s))
		}
	}()
	g, err := p.x.sender(s)
	if err != nil {
		return m, err
	}
	if b, ok := g.Traced.(batcher); ok {
		if err := b.SetBatch(s.batchFor(n)); err != nil {
			return m, err
		}
	}
	from, to, err := s.path.MACs()
	if err != nil {
		return m, err
	}
	spec := p.load.spec(s.path, from, to, n.Length)
	spec.Rate = n.Load
	if m, err = p.send(ctx, g.Traced, n, spec, s.rig.mode == modeCost); err != nil {
		return m, err
	}
	if n.What == StepCeiling { // not under the conditions of the path
		return m, nil
	}
	if p.conditions == nil {
		if p.conditions, err = s.path.Conditions(); err != nil {
			return m, err
		}
		p.conditions[condRepresentation], p.conditions[condMode], p.conditions[condFlows] = s.rig.kind(), s.rig.label(), strconv.Itoa(p.load.flows)
		p.conditions[factorGenerator] = s.generator
	}
	m.Conditions = p.conditions
	return m, nil
}

// send what a step is to send, and measure.
func (p *ndrPath) send(ctx context.Context, g traffic.Traced, n Next, spec traffic.Spec, shared bool) (m Measurement, err error) {
	if n.Load == 0 || n.delayed() != 0 {
		c, err := traffic.Send(ctx, g, spec)
		if err != nil {
			return m, err
		}
		return n.outcome(c), nil
	}
	spec.CatchUp = traffic.StallCatchUp
	var enough func(c traffic.Count) bool
	most, verifies := n.most()
	if verifies {
		enough = func(c traffic.Count) bool { return framesOf(c, traffic.Stalls{}, shared).over(most) }
	}
	c, stalls, err := traffic.SendWatched(ctx, g, spec, p.x.watch, enough)
	if err != nil {
		return m, err
	}
	m = n.outcome(c)
	m.Sending = c.Took
	f := framesOf(c, stalls, shared)
	maps.Copy(m.Values, f.Values())
	m.Raw = f
	if verifies && c.Took < spec.Duration {
		m.Void = cmp.Or(m.Void, f.cutShort(most))
	}
	return m, nil
}

// outcome of a step, as if there were no stalls.
func (n Next) outcome(c traffic.Count) Measurement {
	m := Measurement{Sending: n.Length, Values: map[string]float64{ValueLoss: c.LossRatio(), ValueSent: c.Rate(), ValueArrived: c.Goodput()}}
	err := c.Check()
	switch {
	case err != nil:
		m.Void = err.Error()
	case c.Sent == 0: // it did not come to run
		m.Void = "the generator sent nothing"
	}
	if n.delayed() == 0 {
		return m
	}
	m.Offered = c.OnTime()
	for kind, q := range map[string]float64{ValueTypical: 0.5, valueWorst: 0.999} {
		if d, ok := c.Latency.Quantile(q); ok {
			m.Values[kind] = micros(d)
		}
	}
	m.Raw = Delays{Min: c.Latency.Min, Max: c.Latency.Max, Buckets: sparse(c.Latency.Buckets)}
	return m
}

// Delays is the histogram of a step: pairs of bucket (traffic.Bucket) and frames; those without frames are left out.
type Delays struct {
	Min     time.Duration `json:"min_ns"`
	Max     time.Duration `json:"max_ns"`
	Buckets [][2]uint64   `json:"buckets"`
}

func sparse(buckets []uint64) (out [][2]uint64) {
	for i, n := range buckets {
		if n > 0 {
			out = append(out, [2]uint64{uint64(i), n})
		}
	}
	return out
}
