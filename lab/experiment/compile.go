package experiment

import (
	"context"
	"time"

	"weir.dev/weir/lab/controllers"
	"weir.dev/weir/lab/stats"
)

// compileExperiment is how long the router takes to compile the policies of a large fabric, and one more among them.
type compileExperiment struct{}

func (compileExperiment) Name() string { return "compile" }
func (compileExperiment) About() string {
	return "policies (chains of 1 to 4 functions, across hosts) compiled for 100 OpenFlow switches: all from nothing, then one more among them, many times"
}
func (compileExperiment) Metrics() map[string]string {
	return map[string]string{"all": "s", "one": "ms", "one-p99": "ms", "entries": "entries"}
}
func (compileExperiment) Factors() []Factor {
	return []Factor{{Name: factorPolicies, About: "how many", Default: defaultPolicies, Check: between(10, maxPolicies, "policies")}}
}
func (compileExperiment) Check(context.Context, *Bench, Levels) string { return "" }

const (
	compileSpines   = 10
	compileLeaves   = 90
	compileStations = 1000
	oneMore         = 1100 // times of a trial: enough for a p99
)

type compiled struct{ policies int }

func (compileExperiment) Setup(_ context.Context, _ *Bench, l Levels) (Arrangement, error) {
	return compiled{l.number(factorPolicies, defaultPolicies)}, nil
}

func (compiled) Close() error { return nil }

func (c compiled) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	defer controllers.Calm()()
	compiler := controllers.NewCompiler(controllers.LeafSpine(compileSpines, compileLeaves, compileStations, c.policies))
	all, entries, err := compiler.All()
	if err != nil {
		return Measurement{}, err
	}
	m := Measurement{Sampled: "one", Values: map[string]float64{"all": all.Seconds(), "entries": float64(entries)}}
	for range oneMore {
		took, err := compiler.OneMore()
		if err != nil {
			return Measurement{}, err
		}
		m.Samples = append(m.Samples, took.Seconds()*1e3)
		if err := ctx.Err(); err != nil {
			return Measurement{}, err
		}
	}
	m.Values["one"] = stats.Median(m.Samples)
	if v, ok := stats.Percentile(m.Samples, 0.99); ok {
		m.Values["one-p99"] = v
	}
	return m, nil
}
