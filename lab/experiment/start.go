package experiment

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"weir.dev/weir/container"
	"weir.dev/weir/lab/platform"
)

// startExperiment is how long a function takes to be there, and what the daemon needs that keeps it.
type startExperiment struct{}

func (startExperiment) Name() string { return "start" }
func (startExperiment) About() string {
	return "functions created and started one by one, then many at once: by `weir apply` on a Weir that runs, and what its daemon needs behind that; or by `docker run`"
}
func (startExperiment) Metrics() map[string]string {
	return map[string]string{metricOne: "ms", metricEach: "ms", metricAll: "s", "memory": "MB", "cpu": "% core"}
}
func (startExperiment) Needs() string { return "start" }

// Metrics: the time of one command that starts one function and returns when it runs; of all at once; and that divided by their number.
const (
	metricOne  = "one"
	metricEach = "each"
	metricAll  = "all"
)

// Levels of the factor by.
const (
	factorBy = "by"
	byDocker = "docker"
)

func (startExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorBy, Check: oneOf(byWeir, byDocker), About: "weir: a `weir apply` for each, then one for all in one chain, until it carries, and the daemon's memory and CPU time over the trial's length; " +
			"docker: `docker run -d --network none` on an engine of the lab's own, one after another, then as many at once as Weir starts at once"},
		{Name: factorFunctions, About: "how many", Default: "100", Check: between(1, maxFunctions, "functions")},
	}
}

func (startExperiment) Check(_ context.Context, b *Bench, l Levels) string {
	if l[factorBy] == byDocker {
		return platform.CheckEngine(b.options())
	}
	return checkDaemon(b)
}

func (startExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	n := l.number(factorFunctions, "100")
	if l[factorBy] == byWeir {
		d, err := platform.StartDaemon(ctx, b.options(), false)
		if err != nil {
			return nil, err
		}
		s := &starting{d: d, n: n}
		if err := s.warm(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return s, nil
	}
	r, err := b.starter(ctx, dockerRun)
	if err != nil {
		return nil, err
	}
	x := &running{r: r, n: n}
	return x, errors.Join(r.run(ctx, x.name(0)), r.remove(ctx, x.name(0))) // the first one warms the engine up
}

// starting is a Weir that starts functions.
type starting struct {
	d *platform.Daemon
	n int
}

func (s *starting) Close() error { return s.d.Close() }

// warm starts and deletes a function: the first one unpacks the image. The peer has had its first one, too.
func (s *starting) warm(ctx context.Context) error {
	for _, file := range []string{s.d.Endpoints(), platform.Wire("o000"), s.d.Endpoints()} {
		if err := s.d.Apply(ctx, file, "--prune"); err != nil {
			return err
		}
	}
	return nil
}

// resting is how long a daemon gets before what it needs at rest is measured: the last reports of the start are out then.
const resting = 3 * time.Second

func (s *starting) Measure(ctx context.Context, length time.Duration) (Measurement, error) {
	if err := s.d.Apply(ctx, s.d.Endpoints(), "--prune"); err != nil {
		return Measurement{}, err
	}
	m := Measurement{Sampled: metricOne, Values: map[string]float64{}, Conditions: map[string]string{condWeir: s.d.Version(), condAtOnce: strconv.Itoa(container.AtOnce())}}
	if err := oneByOne(&m, s.n, func(i int) error { return s.d.Apply(ctx, platform.Wire(fmt.Sprintf("o%03d", i))) }); err != nil {
		return Measurement{}, err
	}
	if err := s.d.Apply(ctx, s.d.Endpoints(), "--prune"); err != nil {
		return Measurement{}, err
	}
	begin := time.Now()
	if err := s.d.Apply(ctx, platform.Wires(s.n)); err != nil {
		return Measurement{}, err
	}
	m.together(begin, s.n)
	if _, err := s.d.Path(ctx); err != nil { // the chain really carries
		return Measurement{}, err
	}
	if _, err := s.d.Settle(ctx); err != nil {
		return m, err
	}
	if err := pause(ctx, resting); err != nil {
		return m, err
	}
	return m, s.rest(ctx, length, m.Values)
}

// rest adds what the daemon needs while it has nothing to do.
func (s *starting) rest(ctx context.Context, length time.Duration, values map[string]float64) error {
	before, err := s.d.CPU()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := pause(ctx, max(length, time.Second)); err != nil {
		return err
	}
	after, err := s.d.CPU()
	if err != nil {
		return err
	}
	values["cpu"] = float64(after-before) / float64(time.Since(begin)) * 100
	p, err := procfs.NewProc(s.d.PID())
	if err != nil {
		return err
	}
	st, err := p.NewStatus()
	if err == nil && st.VmRSS == 0 {
		err = errors.New("the daemon has ended")
	}
	values["memory"] = float64(st.VmRSS) / (1 << 20)
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mostRuns of a trial that are made one by one.
const mostRuns = 10

// oneByOne starts the first functions one after another, and takes the time of each.
func oneByOne(m *Measurement, n int, start func(i int) error) error {
	sum := time.Duration(0)
	n = min(n, mostRuns)
	for i := range n {
		begin := time.Now()
		if err := start(i); err != nil {
			return err
		}
		took := time.Since(begin)
		m.Samples = append(m.Samples, took.Seconds()*1e3)
		sum += took
	}
	m.Values[metricOne] = sum.Seconds() * 1e3 / float64(n)
	return nil
}

// together has what n functions took that were started at once.
func (m *Measurement) together(begin time.Time, n int) {
	took := time.Since(begin).Seconds()
	m.Values[metricAll], m.Values[metricEach] = took, took*1e3/float64(n)
}

// running is an engine on which containers are run.
type running struct {
	r starter
	n int
}

// Close leaves the engine to others.
func (*running) Close() error { return nil }

func (*running) name(i int) string { return fmt.Sprintf("s%03d", i) }

// atOnce calls f of 0 to n-1 for as many at once as Weir starts.
func (x *running) atOnce(n int, f func(name string) error) error {
	var g errgroup.Group
	g.SetLimit(container.AtOnce())
	for i := range n {
		g.Go(func() error { return f(x.name(i)) })
	}
	return g.Wait()
}

// clear removes all containers of a trial, those too that a failure left.
func (x *running) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearing)
	defer cancel()
	return x.atOnce(x.n, func(name string) error { return x.r.remove(ctx, name) })
}

func (x *running) Measure(ctx context.Context, _ time.Duration) (m Measurement, err error) {
	m = Measurement{Sampled: metricOne, Values: map[string]float64{}, Conditions: map[string]string{condAtOnce: strconv.Itoa(container.AtOnce())}}
	defer func() { err = errors.Join(err, x.clear(ctx)) }()
	if err := oneByOne(&m, x.n, func(i int) error { return x.r.run(ctx, x.name(i)) }); err != nil {
		return m, err
	}
	if err := x.clear(ctx); err != nil {
		return m, err
	}
	begin := time.Now()
	if err := x.atOnce(x.n, func(name string) error { return x.r.run(ctx, name) }); err != nil {
		return m, err
	}
	m.together(begin, x.n)
	return m, nil
}
