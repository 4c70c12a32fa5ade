package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
)

// changeExperiment is how long a change of what runs takes.
type changeExperiment struct{}

func (changeExperiment) Name() string { return "change" }
func (changeExperiment) About() string {
	return "`weir apply` of a change on a Weir that runs, this one or another version, until it is in force"
}
func (changeExperiment) Metrics() map[string]string { return map[string]string{"took": "ms"} }
func (changeExperiment) Needs() string              { return "daemon" }

// Levels of the factor change.
const (
	factorChange   = "change"
	changeWire     = "wire"
	changeFirewall = "firewall"
	changeChain    = "chain"
)

// What there is before the change, and how often it is made in a trial.
const (
	besideChange = 9 // wires in a chain
	fewWires     = 1
	manyWires    = 100
	oneChange    = 5
)

func (changeExperiment) Factors() []Factor {
	return []Factor{
		{Name: FactorPlatform, About: "whose daemon: this program's, or another version's", Check: oneOf(platform.PlatformDaemon, platform.PlatformFormer)},
		{Name: factorChange, Check: oneOf(changeWire, changeFirewall, changeChain),
			About: fmt.Sprintf("wire, firewall: one more function of this image beside a chain of %d wires, %d times; chain: %d wires in a chain where there was %d",
				besideChange, oneChange, manyWires, fewWires)},
	}
}

func (changeExperiment) Check(_ context.Context, b *Bench, l Levels) string {
	k, ok := platform.Find(l[FactorPlatform])
	if !ok {
		return fmt.Sprintf("there is no platform %q", l[FactorPlatform])
	}
	return k.Check(b.options())
}

// changing is a Weir that is about to change.
type changing struct {
	d    *platform.Daemon
	what string
}

func (changeExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	d, err := platform.StartDaemon(ctx, b.options(), l[FactorPlatform] == platform.PlatformFormer)
	if err != nil {
		return nil, err
	}
	c := &changing{d, l[factorChange]}
	if err := c.back(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return c, nil
}

func (c *changing) Close() error { return c.d.Close() }

// back to what there is before the change.
func (c *changing) back(ctx context.Context) error {
	wires := besideChange
	if c.what == changeChain {
		wires = fewWires
	}
	if err := c.d.Apply(ctx, c.d.Endpoints()+platform.Wires(wires), "--prune"); err != nil {
		return err
	}
	_, err := c.d.Settle(ctx)
	return err
}

func (c *changing) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	m := Measurement{Sampled: "took", Conditions: map[string]string{condWeir: c.d.Version()}}
	document, times := fmt.Sprintf("functions:\n  one-more: {image: %s}\n", c.what), oneChange
	if c.what == changeChain {
		document, times = platform.Wires(manyWires), 1
	}
	for range times {
		begin := time.Now()
		if err := c.d.Apply(ctx, document); err != nil {
			return m, err
		}
		m.Samples = append(m.Samples, time.Since(begin).Seconds()*1e3)
		if err := c.back(ctx); err != nil {
			return m, err
		}
	}
	m.Values = map[string]float64{"took": stats.Median(m.Samples)}
	return m, nil
}
