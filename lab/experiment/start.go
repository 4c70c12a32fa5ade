package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"weir.dev/weir/lab/platform"
)

// startExperiment is how long a function takes to be there, and what the daemon needs that keeps it.
type startExperiment struct{}

func (startExperiment) Name() string { return "start" }
func (startExperiment) About() string {
	return "functions created, started and chained by `weir apply` on a Weir that runs, and what its daemon needs behind that; or `docker run`, one after another, at most 10"
}
func (startExperiment) Metrics() map[string]string {
	return map[string]string{"each": "ms", "all": "s", "memory": "MB", "cpu": "% core"}
}
func (startExperiment) Needs() string { return "start" }

// Levels of the factor by.
const (
	factorBy = "by"
	byDocker = "docker"
)

func (startExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorBy, Check: oneOf(byWeir, byDocker), About: "weir: all in one chain, from `weir apply` until it carries, and the daemon's memory and CPU time over the trial's length; " +
			"docker: `docker run -d --network none` on an engine of the lab's own, each from the call to its end"},
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
		return &starting{d: d, n: n}, nil
	}
	r, err := b.starter(ctx, byDocker)
	if err != nil {
		return nil, err
	}
	x := &running{r, min(n, mostRuns)}
	return x, x.once(ctx, 0) // the first one warms the engine up
}

// starting is a Weir that starts functions.
type starting struct {
	d *platform.Daemon
	n int
}

func (s *starting) Close() error { return s.d.Close() }

// resting is how long a daemon gets before what it needs at rest is measured: the last reports of the start are out then.
const resting = 3 * time.Second

func (s *starting) Measure(ctx context.Context, length time.Duration) (Measurement, error) {
	if err := s.d.Apply(ctx, s.d.Endpoints(), "--prune"); err != nil {
		return Measurement{}, err
	}
	begin := time.Now()
	if err := s.d.Apply(ctx, platform.Wires(s.n)); err != nil {
		return Measurement{}, err
	}
	took := time.Since(begin)
	if _, err := s.d.Path(ctx); err != nil { // the chain really carries
		return Measurement{}, err
	}
	m := Measurement{
		Values:     map[string]float64{"each": took.Seconds() * 1e3 / float64(s.n), "all": took.Seconds()},
		Conditions: map[string]string{condWeir: s.d.Version()},
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

// mostRuns of Docker's in a trial.
const mostRuns = 10

// running is an engine on which containers are run.
type running struct {
	r starter
	n int
}

// Close leaves the engine to others.
func (*running) Close() error { return nil }

// once runs a container and removes it; how long the run took is not asked.
func (x *running) once(ctx context.Context, i int) error {
	_, err := x.run(ctx, i)
	return err
}

func (x *running) run(ctx context.Context, i int) (took time.Duration, err error) {
	name := fmt.Sprintf("s%03d", i)
	begin := time.Now()
	if err = x.r.run(ctx, name); err == nil {
		took = time.Since(begin)
	}
	return took, err
}

func (x *running) Measure(ctx context.Context, _ time.Duration) (m Measurement, err error) {
	defer func() {
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearing)
		defer cancel()
		for i := range x.n + 1 {
			err = errors.Join(err, x.r.remove(cleaning, fmt.Sprintf("s%03d", i)))
		}
	}()
	sum := time.Duration(0)
	for i := range x.n {
		took, err := x.run(ctx, i+1)
		if err != nil {
			return m, err
		}
		sum += took
		m.Samples = append(m.Samples, took.Seconds()*1e3)
	}
	m.Sampled = "each"
	m.Values = map[string]float64{"each": sum.Seconds() * 1e3 / float64(x.n)}
	return m, nil
}
