package experiment

import (
	"context"
	"fmt"
	goruntime "runtime"
	"time"

	"weir.dev/weir/lab/traffic/rr"
)

// factorTransfers is how many flows a trial has.
const factorTransfers = "transfers"

// flowMemory is what the two threads of a pair and their sockets take, about.
const flowMemory = 12 << 20

// fctPairs is the experiment fct on many pairs at once.
func fctPairs() Experiment {
	metrics := fctExperiment().Metrics()
	return &pairs{
		name: "fct-pairs", about: "rounds of TCP flows of many pairs of containers that start together, mice and elephants; each is complete when its receiver has the last byte",
		metrics: metrics, programs: []string{"ping"}, memory: flowMemory, measure: measureFCTPairs, check: checkFCTPairs, more: append([]Factor{
			{Name: factorTransfers, About: "flows of a trial, in whole rounds: in each every pair has one", Default: "1", Check: between(1, rr.MaxFlows, "flows")},
		}, mixFactors()...),
	}
}

// pairsMix is the mix of flows of pairs.
func pairsMix(l Levels) rr.Mix {
	m := mix(l)
	m.Clients = l.number(factorPairs, "1")
	m.Rounds = (l.number(factorTransfers, "1") + m.Clients - 1) / m.Clients
	return m
}

func checkFCTPairs(l Levels) string {
	if n := l.number(factorPairs, "1"); n > rr.MaxConnections/2 {
		return fmt.Sprintf("flows of %d pairs: want at most %d", n, rr.MaxConnections/2)
	}
	if err := pairsMix(l).Check(); err != nil {
		return err.Error()
	}
	return ""
}

func measureFCTPairs(ctx context.Context, p *paired, _ time.Duration) (Measurement, error) {
	l := p.levels
	o := rr.FlowOptions{
		Mix: pairsMix(l), Message: l.number(factorMessage, defaultMessage), Seed: uint64(l.number(factorSeed, "1")),
		Congestion: l.or(factorCongestion, DefaultCongestion),
	}
	var err error
	if o.Pairs, err = p.ends(); err != nil {
		return Measurement{}, err
	}
	// A thread that comes back from the kernel waits for a turn of Go's scheduler: there are as many turns as threads.
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(max(2*o.Mix.Clients+4, goruntime.NumCPU())))
	r, err := rr.RunFlows(ctx, o)
	if err != nil {
		return Measurement{}, err
	}
	m := flowsMeasured(o, r, nil)
	m.Conditions[condFlows] = fmt.Sprintf("%d pairs, 1 each", o.Mix.Clients)
	m.Conditions[condCPUs] = fmt.Sprintf("%s, pinning %s", l.or(factorCores, coresAll), l.or(factorPinning, pinNone))
	if o.Pairs[0].FromCPUs != nil {
		m.Conditions[condCPUs] += ", by affinity"
	}
	m.Conditions[condEnds] = "threads of the lab in the network namespaces of the containers"
	return m, nil
}
