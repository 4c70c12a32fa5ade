// Package experiment has what parts of a study measure: the experiments, and the bench on which they are set up (all of it in namespaces of its own,
// removed at the end, found and removed by the next run after a crash). lab runs their trials.
package experiment

import (
	"context"
	"maps"
	"slices"
	"time"

	"weir.dev/weir/lab/guest"
)

// ErrNotHere is of what only a set-up can tell: that this machine has no such variant. The variant is skipped, and the error is the reason.
var ErrNotHere = guest.ErrOther

// Levels of a variant, by factor.
type Levels map[string]string

// Experiment makes the trials of a part. The engine calls it from one goroutine.
type Experiment interface {
	// Name as studies write it.
	Name() string
	// About says in a line what a trial is.
	About() string
	// Metrics that a trial gives, by name, with their units.
	Metrics() map[string]string
	// Check tells why a variant cannot be measured here; empty: it can. It changes nothing.
	Check(ctx context.Context, b *Bench, l Levels) string
	// Setup prepares a variant on a bench. It is kept for one block, or less where memory is short.
	Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error)
}

// Arrangement is a variant that is ready to be measured.
type Arrangement interface {
	Measure(ctx context.Context, length time.Duration) (Measurement, error)
	Close() error
}

// Batched is an arrangement through which frames pass in batches. A batch amortises what is done once for all of its frames, so everything that is
// compared in a block has to have the same one: the engine sets the smallest that any of it takes.
type Batched interface {
	Arrangement
	// Takes is the largest batch that passes without a loss, as it was found when the arrangement was set up.
	Takes() int
	// SetBatch of the next trials.
	SetBatch(frames int)
}

// Measurement is what came of a trial.
type Measurement struct {
	Values  map[string]float64
	Samples []float64     // of the metric Sampled, where there are many
	Sampled string        // kept only if it is the part's first metric; empty: they are that one's
	Raw     any           // JSON
	Idle    bool          // the trial leaves the machine idle: softirq that runs out of budget is somebody else's
	Offered float64       // share of the intended load that was offered on time; 0: no load was intended
	Sending time.Duration // CPU time in which this process made traffic
	Void    string        // the books do not balance: why
	// Conditions under which it was measured, as they were read back: settings, which have to be alike for what is compared, and what the platform is.
	// See Setting.
	Conditions map[string]string
}

// All experiments that parts of a study can name.
func All() map[string]Experiment {
	out := map[string]Experiment{}
	for _, x := range []Experiment{tcpExperiment(), pingExperiment(), ppsExperiment(), ndrExperiment(), rrExperiment(), fctExperiment(), bootExperiment{},
		ceilingExperiment(), paceExperiment(), latencyExperiment(), installExperiment{}, compileExperiment{},
		tcpPairs(), udpPairs(), fctPairs(), processorsExperiment{},
		rulesExperiment{}, policiesExperiment{}, startExperiment{}, changeExperiment{}, appliedExperiment{},
		httpExperiment(), dnsExperiment(), compressExperiment(), transferExperiment(), exchangeExperiment(), memoryExperiment(), diskExperiment(), usableExperiment()} {
		out[x.Name()] = x
	}
	return out
}

// Names in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(All())) }
