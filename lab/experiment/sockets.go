package experiment

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic/rr"
	"weir.dev/weir/lab/traffic/tools"
)

// Factors of requests and of flows.
const (
	factorConnections = "connections"
	factorRequest     = "request"
	factorResponse    = "response"
	factorRounds      = "rounds"
	factorMouse       = "mouse"
	factorElephant    = "elephant"
	factorElephants   = "elephants"
	factorSeed        = "seed"
)

// rrExperiment is requests and responses, one at a time on each connection.
func rrExperiment() Experiment {
	return &chains{
		name: "rr", about: "TCP requests and responses through a path, on each connection one at a time; its latency is the client's", programs: []string{"ping"},
		metrics: map[string]string{"rate": "transactions/s", "mean": "us", "p50": "us", "p90": "us", "p99": "us", "p99.9": "us", "fairness": "index"},
		measure: measureRR, check: checkRR, sockets: true, more: []Factor{
			{Name: factorTool, Sets: []string{condTool, condMessage, condCongestion}, Default: toolOwn, Check: oneOf(toolOwn, toolSockperf),
				About: "own, or sockperf: one connection, request and response of one size, 14 bytes at least, the machine's congestion control"},
			{Name: factorConnections, Sets: []string{condFlows}, About: "connections at once", Default: "1", Check: between(1, rr.MaxConnections, "a number of connections")},
			{Name: factorRequest, Sets: []string{condMessage}, About: "bytes of a request", Default: "1", Check: between(1, rr.MaxBytes, "bytes")},
			{Name: factorResponse, Sets: []string{condMessage}, About: "bytes of a response", Default: "1", Check: between(1, rr.MaxBytes, "bytes")},
		},
	}
}

func measureRR(ctx context.Context, c *chain, length time.Duration) (Measurement, error) {
	return c.sockets(ctx, func(path platform.Path) (Measurement, error) {
		if c.levels.or(factorTool, toolOwn) == toolSockperf {
			return sockperfRR(ctx, c, path, length)
		}
		o := rr.Options{
			From: path.From, To: path.To, Address: path.Address, Duration: length,
			Connections: c.levels.number(factorConnections, "1"), Request: c.levels.number(factorRequest, "1"), Response: c.levels.number(factorResponse, "1"),
			Congestion: c.levels.or(factorCongestion, DefaultCongestion),
		}
		release := machine.Awake()
		r, err := rr.Run(ctx, o)
		release()
		if err != nil {
			return Measurement{}, err
		}
		m := Measurement{
			Sending: r.CPU, Values: map[string]float64{"rate": r.PerSec, "mean": micros(r.Latency.Mean())},
			Conditions: map[string]string{
				condCongestion: r.Congestion, condFlows: strconv.Itoa(r.Connections), condMessage: fmt.Sprintf("%d B there, %d B back", r.Request, r.Response),
			},
		}
		if err := r.Check(); err != nil {
			m.Void = err.Error()
		}
		for name, q := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999} {
			if d, ok := r.Latency.Quantile(q); ok {
				m.Values[name] = micros(d)
			}
		}
		if r.Connections > 1 {
			m.Values["fairness"] = stats.Jain(r.PerConnection)
		}
		r.Latency.Buckets, r.PerConnection = nil, nil // what counts is in the values
		m.Raw = r
		return m, nil
	})
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Defaults of flows: those of the study of many containers on one host (elephants and mice).
const (
	defaultMouse     = "5000000"
	defaultElephant  = "50000000"
	defaultElephants = "20"
)

// fctExperiment is flows that are complete when their receivers have the last byte.
func fctExperiment() Experiment {
	return &chains{
		name: "fct", about: "rounds of TCP flows that start together, mice and elephants; each is complete when its receiver has the last byte",
		programs: []string{"ping"}, measure: measureFCT, check: checkFCT, sockets: true,
		metrics: map[string]string{
			"fct": "ms", "mean": "ms", "p90": "ms", "p99": "ms", "slowest": "ms", "mice": "ms", "mice-p99": "ms", "elephants": "ms", "elephants-p99": "ms",
			"rate": "Gb/s", "retransmits": "segments", "fairness": "index",
		},
		more: append([]Factor{
			{Name: factorTool, Sets: []string{condTool, condMessage, condCongestion}, Default: toolOwn, Check: oneOf(toolOwn, toolNetcat),
				About: "own, or netcat: a process at each end of a flow, the start of the sender's is in its time; the machine's congestion control"},
			{Name: factorFlows, About: "flows at once", Default: defaultFlows, Check: between(1, rr.MaxConnections, "a number of flows")},
			{Name: factorRounds, About: "rounds of a trial: in each every sender has one flow", Default: "1", Check: between(1, rr.MaxFlows, "rounds")},
		}, mixFactors()...),
	}
}

// mixFactors are those of mice and elephants.
func mixFactors() []Factor {
	return []Factor{
		{Name: factorMouse, About: "bytes of a mouse", Default: defaultMouse, Check: between(rr.MinFlow, rr.MaxFlow, "bytes")},
		{Name: factorElephant, About: "bytes of an elephant", Default: defaultElephant, Check: between(rr.MinFlow, rr.MaxFlow, "bytes")},
		{Name: factorElephants, About: "elephants, percent of the flows", Default: defaultElephants, Check: between(0, 100, "percent")},
		{Name: factorMessage, About: "bytes that the program writes at once", Default: defaultMessage, Check: between(rr.MinFlow, maxMessage, "bytes")},
		{Name: factorSeed, About: "seed of who sends elephants", Default: "1", Check: between(0, math.MaxInt32, "a seed")},
	}
}

func mix(l Levels) rr.Mix {
	return rr.Mix{
		Clients: l.number(factorFlows, defaultFlows), Rounds: l.number(factorRounds, "1"), Mouse: int64(l.number(factorMouse, defaultMouse)),
		Elephant: int64(l.number(factorElephant, defaultElephant)), Elephants: float64(l.number(factorElephants, defaultElephants)) / 100,
	}
}

func measureFCT(ctx context.Context, c *chain, _ time.Duration) (Measurement, error) {
	return c.sockets(ctx, func(path platform.Path) (Measurement, error) {
		o := rr.FlowOptions{
			From: path.From, To: path.To, Address: path.Address, Mix: mix(c.levels), Message: c.levels.number(factorMessage, defaultMessage),
			Seed: uint64(c.levels.number(factorSeed, "1")), Congestion: c.levels.or(factorCongestion, DefaultCongestion),
		}
		var r rr.FlowResult
		var netcat *tools.Raw // nil: our own flows
		var err error
		if c.levels.or(factorTool, toolOwn) == toolNetcat {
			r, netcat, err = netcatFlows(ctx, path, o.Mix, o.Seed)
		} else {
			r, err = rr.RunFlows(ctx, o)
		}
		if err != nil {
			return Measurement{}, err
		}
		return flowsMeasured(o, r, netcat), nil
	})
}

// flowsMeasured is what became of flows. netcat is the program that made them; nil: they are our own.
func flowsMeasured(o rr.FlowOptions, r rr.FlowResult, netcat *tools.Raw) Measurement {
	m := Measurement{
		Sending: r.CPU, Sampled: "fct", Conditions: map[string]string{condCongestion: r.Congestion, condFlows: strconv.Itoa(o.Mix.Clients)},
		Values: map[string]float64{"rate": 8 * float64(r.Received) / float64(r.Busy)}, // bits by ns
	}
	if netcat != nil { // it does not say what was sent again
		m.Conditions[condTool] = netcat.Version
	} else {
		m.Conditions[condMessage], m.Values["retransmits"] = strconv.Itoa(o.Message)+" B", float64(r.Retransmits)
	}
	if err := r.Check(); err != nil {
		m.Void = err.Error()
	}
	m.Samples = completions(m.Values, r.Flows)
	skew := time.Duration(0)
	for _, f := range r.Flows {
		skew = max(skew, f.Begun)
	}
	r.Flows = nil // they are the samples
	m.Raw = struct {
		rr.FlowResult
		Mix  rr.Mix        `json:"mix"`
		Seed uint64        `json:"seed"`
		Skew time.Duration `json:"skew_ns"`       // from a round's start until its last flow began
		Raw  *tools.Raw    `json:"raw,omitempty"` // of a program
	}{r, o.Mix, o.Seed, skew, netcat}
	return m
}

// completions adds what flows took to the values, by class, and returns the milliseconds of each. A percentile is there only where enough flows
// are beyond it.
func completions(values map[string]float64, flows []rr.Flow) (all []float64) {
	var mice, elephants, rates []float64
	for _, f := range flows {
		ms := float64(f.Done) / float64(time.Millisecond)
		all, rates = append(all, ms), append(rates, float64(f.Bytes)/ms)
		if f.Elephant {
			elephants = append(elephants, ms)
		} else {
			mice = append(mice, ms)
		}
	}
	for name, x := range map[string][]float64{"fct": all, "mice": mice, "elephants": elephants} {
		if len(x) > 0 {
			values[name] = stats.Median(x)
		}
	}
	for _, p := range []struct {
		name string
		x    []float64
		q    float64
	}{{"p90", all, 0.9}, {"p99", all, 0.99}, {"mice-p99", mice, 0.99}, {"elephants-p99", elephants, 0.99}} {
		if v, ok := stats.Percentile(p.x, p.q); ok {
			values[p.name] = v
		}
	}
	values["slowest"], values["mean"] = slices.Max(all), stats.Mean(all)
	if len(rates) > 1 {
		values["fairness"] = stats.Jain(rates)
	}
	return all
}
