package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"weir.dev/weir/lab/guest"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of experiments that run programs inside guests.
const (
	factorHost    = "host"
	factorMemory  = "memory"
	factorLine    = "line"
	defaultLine   = "1000"
	defaultMemory = "1024"
	mostMemory    = 1 << 20 // MiB
)

// Conditions that a host kind decides.
const (
	condServices = "services"
	condNetwork  = "network"
	condLimit    = "memory limit"
)

// inside is what experiments have in common that run a program in a guest of a host kind (factor host).
type inside struct {
	name, about string
	metrics     map[string]string
	programs    []string // of this machine, that guests are given
	more        []Factor
	check       func(l Levels) string // levels that were checked one by one: why they cannot be here; nil: they can
	guests      func(ctx context.Context, s *guest.Site, l Levels) ([]*guest.Guest, error)
	measure     func(ctx context.Context, h *hosted, length time.Duration) (Measurement, error)
}

func (x *inside) Name() string               { return x.name }
func (x *inside) About() string              { return x.about }
func (x *inside) Metrics() map[string]string { return x.metrics }

func (x *inside) Factors() []Factor {
	return append([]Factor{{
		Name: factorHost, Default: guest.BareMetal, Check: oneOf(guest.Kinds()...), Sets: []string{condServices, condNetwork, condLimit},
		About: guest.BareMetal + ": a process of the host; " + guest.Compute + ": the same beside a Weir that runs with a chain, as containers and machines have it, too; " +
			guest.DockerRun + ": on an engine of the lab's own; " + guest.VM + ": a machine by KVM; " + guest.Emulated + ": a machine whose processor is emulated; the others: a container of that runtime of Weir's",
	}}, x.more...)
}

func (x *inside) Check(_ context.Context, b *Bench, l Levels) string {
	if x.check != nil {
		if why := x.check(l); why != "" {
			return why
		}
	}
	if why := guest.Check(l.or(factorHost, guest.BareMetal), b.options()); why != "" {
		return why
	}
	if err := tools.Installed(x.programs...); err != nil {
		return err.Error()
	}
	return ""
}

func (x *inside) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	if b.site == nil {
		s, err := guest.Open(ctx, b.options())
		if err != nil {
			return nil, err
		}
		b.site = s
	}
	guests, err := x.guests(ctx, b.site, l)
	return &hosted{x: x, site: b.site, guests: guests, levels: l}, err
}

// hosted is a variant whose guests are there.
type hosted struct {
	x      *inside
	site   *guest.Site
	guests []*guest.Guest
	levels Levels
}

func (h *hosted) kind() string { return h.levels.or(factorHost, guest.BareMetal) }

// Measure with what the host kind has beside it, and nothing else.
func (h *hosted) Measure(ctx context.Context, length time.Duration) (m Measurement, err error) {
	end, err := h.site.Begin(h.kind())
	if err != nil {
		return m, errors.Join(err, end())
	}
	m, err = h.x.measure(ctx, h, length)
	if err := errors.Join(err, end()); err != nil {
		return m, err
	}
	if m.Conditions == nil {
		m.Conditions = map[string]string{}
	}
	for _, g := range h.guests {
		maps.Copy(m.Conditions, g.Conditions())
	}
	return m, nil
}

// Close leaves the guests to others: the bench takes them down.
func (*hosted) Close() error { return nil }

// one guest of a Spec, on the levels' host kind.
func one(ctx context.Context, s *guest.Site, l Levels, spec guest.Spec) ([]*guest.Guest, error) {
	spec.Kind = l.or(factorHost, guest.BareMetal)
	g, err := s.Guest(ctx, spec)
	return []*guest.Guest{g}, err
}

// memoryOf a guest in MiB; processes of the host have no limit.
func memoryOf(l Levels, without string) int {
	if guest.OnHost(l.or(factorHost, guest.BareMetal)) {
		return 0
	}
	return l.number(factorMemory, without)
}

func memoryFactor(without, of string) Factor {
	return Factor{Name: factorMemory, About: "MiB of memory of " + of, Default: without, Check: between(128, mostMemory, "MiB")}
}

func lineFactor() Factor {
	return Factor{Name: factorLine, About: "Mb/s of the cable between a guest and its peer: a shaped veth pair", Default: defaultLine, Check: between(1, 100_000, "Mb/s")}
}

// usableExperiment is how long a guest takes to be there.
func usableExperiment() Experiment {
	return &inside{
		name: "usable", about: "from the request for a guest until the first program in it has printed a line, and from the request to remove it until it is gone; images and engines are there",
		metrics: map[string]string{"usable": "ms", "gone": "ms"}, measure: measureUsable, more: []Factor{memoryFactor("512", "containers and machines")},
		guests: func(ctx context.Context, s *guest.Site, l Levels) ([]*guest.Guest, error) {
			return one(ctx, s, l, usableSpec(l)) // the first one makes what all of a runtime have in common
		},
	}
}

func usableSpec(l Levels) guest.Spec {
	return guest.Spec{Kind: l.or(factorHost, guest.BareMetal), Memory: memoryOf(l, "512")}
}

func measureUsable(ctx context.Context, h *hosted, _ time.Duration) (Measurement, error) {
	begin := time.Now()
	g, err := h.site.Start(ctx, usableSpec(h.levels))
	if err != nil {
		return Measurement{}, err
	}
	if err := g.Ready(ctx); err != nil {
		return Measurement{}, errors.Join(err, g.Close())
	}
	there := time.Now()
	if err := g.Close(); err != nil {
		return Measurement{}, err
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	return Measurement{Values: map[string]float64{"usable": ms(there.Sub(begin)), "gone": ms(time.Since(there))}}, nil
}

// seconds as programs take them.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }

// atLeast is a trial's length, or the shortest that a program can make.
func atLeast(length, least time.Duration) time.Duration { return max(length, least) }

// unread says that a program's output is not what it should be.
func misread(program, out string) error {
	return fmt.Errorf("%s: want figures, it printed %q", program, out[:min(len(out), 300)])
}
