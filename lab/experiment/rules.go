package experiment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/lab/platform"
)

// rulesExperiment is what a packet costs beside policies that do not select it.
type rulesExperiment struct{}

func (rulesExperiment) Name() string { return "rules" }
func (rulesExperiment) About() string {
	return "64-byte UDP frames as fast as they go through a wire of a Weir that runs, beside so many policies at the receiver's port that do not select them"
}
func (rulesExperiment) Metrics() map[string]string { return packets{}.Metrics() }
func (rulesExperiment) Needs() string              { return "daemon" }
func (rulesExperiment) Factors() []Factor {
	return []Factor{{Name: factorPolicies, About: "policies that do not select the frames", Default: defaultPolicies, Check: between(0, maxPolicies, "policies")}}
}
func (rulesExperiment) Check(_ context.Context, b *Bench, _ Levels) string { return checkDaemon(b) }

// checkDaemon tells why a Weir cannot run here.
func checkDaemon(b *Bench) string {
	k, _ := platform.Find(platform.PlatformDaemon)
	return k.Check(b.options())
}

// oneWire is the part of a document that leads the measured frames through a wire, and what other policies refer to.
const oneWire = "functions:\n  w1: {image: wire}\nchains:\n  one: w1\n"

// otherPolicies is a document with n policies that select nothing of what is sent, beside what a head has.
func otherPolicies(head string, n int) string {
	var d strings.Builder
	d.WriteString(head)
	for i := range n {
		fmt.Fprintf(&d, "  p%d: {from: 10.%d.%d.%d, to: bob, match: [tcp/80], symmetric: false, chain: one, priority: 100}\n", i, 100+i>>16, i>>8&255, i&255)
	}
	return d.String()
}

// ruled is a Weir with many policies.
type ruled struct {
	flood
	d *platform.Daemon
}

func (rulesExperiment) Setup(ctx context.Context, b *Bench, l Levels) (_ Arrangement, err error) {
	d, err := platform.StartDaemon(ctx, b.options(), false)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	head := oneWire + fmt.Sprintf("policies:\n  all: {from: alice, to: bob, match: [udp/%d], chain: one, priority: 5}\n", targetPort)
	if err := d.Apply(ctx, otherPolicies(head, l.number(factorPolicies, defaultPolicies))); err != nil {
		return nil, err
	}
	if _, err := d.Settle(ctx); err != nil {
		return nil, err
	}
	path, err := d.Path(ctx)
	if err != nil {
		return nil, err
	}
	k, _ := platform.Find(platform.PlatformDaemon)
	r := &ruled{d: d, flood: flood{platform: only{path}, layout: platform.Layout{Chain: 1}}}
	if r.rig, _ = rigOf(Levels{}, k); r.rig.sender < 0 {
		return nil, errors.New("no CPU to send on")
	}
	if r.load, err = loadOf(Levels{}); err != nil {
		return nil, err
	}
	return r, r.close(ctx, path)
}

func (r *ruled) Close() error { return r.d.Close() }

// only is a platform with one path, which stays as it is.
type only struct{ path platform.Path }

func (o only) Path(context.Context, platform.Layout) (platform.Path, error) { return o.path, nil }
func (only) Close() error                                                   { return nil }

// policiesExperiment is how long it takes until many policies are in force.
type policiesExperiment struct{}

func (policiesExperiment) Name() string { return "policies" }
func (policiesExperiment) About() string {
	return "`weir apply` of a file with many policies, until all are in force, and of the same file again, which changes nothing"
}
func (policiesExperiment) Metrics() map[string]string {
	return map[string]string{"apply": "s", "again": "s"}
}
func (policiesExperiment) Needs() string { return "daemon" }
func (policiesExperiment) Factors() []Factor {
	return []Factor{{Name: factorPolicies, About: "policies of the file", Default: defaultPolicies, Check: between(1, maxPolicies, "policies")}}
}
func (policiesExperiment) Check(_ context.Context, b *Bench, _ Levels) string { return checkDaemon(b) }

// applying is a Weir to which policies are applied.
type applying struct {
	d        *platform.Daemon
	document string
}

func (policiesExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	d, err := platform.StartDaemon(ctx, b.options(), false)
	if err != nil {
		return nil, err
	}
	return &applying{d, otherPolicies(oneWire+"policies:\n", l.number(factorPolicies, defaultPolicies))}, nil
}

func (a *applying) Close() error { return a.d.Close() }

func (a *applying) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	if err := a.d.Apply(ctx, a.d.Endpoints()+oneWire, "--prune"); err != nil {
		return Measurement{}, err
	}
	m := Measurement{Values: map[string]float64{}, Conditions: map[string]string{condWeir: a.d.Version()}}
	for _, metric := range []string{"apply", "again"} {
		begin := time.Now()
		if err := a.d.Apply(ctx, a.document); err != nil {
			return Measurement{}, err
		}
		m.Values[metric] = time.Since(begin).Seconds()
	}
	return m, nil
}
