package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic/tools"
)

// programMemory is what the two programs of a pair and their sockets take, about.
const programMemory = 16 << 20

// MetricResent is how many segments the clients of pairs sent again.
const MetricResent = "retransmits"

// Metrics of streams of pairs.
const (
	metricRate     = "rate"
	metricMean     = "mean"
	metricClient   = "client"
	metricSlowest  = "slowest"
	metricFastest  = "fastest"
	metricSpread   = "spread"
	metricFairness = "fairness"
	metricHalf     = "retransmits-fast"
	metricCPU      = "cpu"
	metricLoss     = "loss"
)

// TCPPairs is the experiment whose raw output is a tools.PairResult of streams.
const TCPPairs = "tcp-pairs"

// tcpPairs is TCP streams of many pairs at once.
func tcpPairs() Experiment {
	return &pairs{
		name: TCPPairs, about: "TCP streams of many pairs of containers at once, started together; what the receivers' sockets got in one window for all", memory: programMemory,
		metrics: map[string]string{
			metricRate: "Gb/s", metricMean: "Gb/s", metricClient: "Gb/s", metricSlowest: "Gb/s", metricFastest: "Gb/s", metricSpread: "times", metricFairness: "index",
			MetricResent: "segments", metricHalf: "share", metricCPU: "CPU s per GB",
		},
		programs: []string{"ping", "taskset"}, measure: measureTCPPairs, check: checkTCPPairs, more: []Factor{
			{Name: factorTool, Sets: []string{condTool, condMessage, condCongestion}, Default: toolIPerf2, Check: oneOf(toolIPerf2, toolIPerf3, toolSockperf),
				About: "program that makes the streams; sockperf has the machine's congestion control, and one stream a pair"},
			{Name: factorFlows, Sets: []string{condFlows}, About: "streams of a pair", Default: defaultFlows, Check: between(1, maxStreams, "a number of streams")},
			{Name: factorMessage, Sets: []string{condMessage}, About: "bytes that the program writes at once", Default: defaultMessage, Check: between(14, maxMessage, "bytes")},
		},
	}
}

// udpPairs is datagrams of many pairs at once.
func udpPairs() Experiment {
	return &pairs{
		name: "udp-pairs", about: "UDP datagrams of many pairs of containers at once, by iperf; what programs in the receivers' namespaces read in one window for all", memory: programMemory,
		metrics:  map[string]string{metricRate: "Gb/s", metricClient: "Gb/s", metricLoss: "%", metricFairness: "index", metricCPU: "CPU s per GB"},
		programs: []string{"ping", "taskset", toolIPerf2}, measure: measureUDPPairs, more: []Factor{
			{Name: factorOffered, About: "Mb/s that each client offers", Default: "10000", Check: between(1, 100_000, "Mb/s")},
			{Name: factorMessage, Sets: []string{condMessage}, About: "bytes of a datagram", Default: "1470", Check: between(14, 65507, "bytes")},
		},
	}
}

func checkTCPPairs(l Levels) string {
	tool := l.or(factorTool, toolIPerf2)
	if why := checkTool(tool, l, tool != toolSockperf); why != "" || tool != toolSockperf {
		return why
	}
	return checkSockperf(l)
}

func measureTCPPairs(ctx context.Context, p *paired, length time.Duration) (Measurement, error) {
	l := p.levels
	o := tools.PairOptions{
		Program: l.or(factorTool, toolIPerf2), Flows: l.number(factorFlows, defaultFlows), Message: l.number(factorMessage, defaultMessage),
		Congestion: l.or(factorCongestion, DefaultCongestion),
	}
	if o.Program == toolSockperf {
		o.Message, o.Congestion = sockperfMessage(l), ""
	}
	m, r, err := p.stream(ctx, o, length)
	if err != nil {
		return m, err
	}
	rates := rates(r.Pairs)
	m.Values[metricSlowest], m.Values[metricFastest] = slices.Min(rates), slices.Max(rates)
	m.Values[metricMean] = stats.Mean(rates)
	if len(rates) > 1 && m.Values[metricRate] > 0 {
		write := 8 * float64(o.Message) / length.Seconds() / 1e9
		m.Values[metricSpread] = slices.Max(rates) / max(slices.Min(rates), write) // who got nothing counts as who got one write
	}
	var resent []float64
	for _, c := range r.Pairs {
		resent = append(resent, float64(c.Retransmits))
	}
	m.Values[MetricResent] = sum(resent)
	if share, ok := FasterHalf(rates, resent); ok {
		m.Values[metricHalf] = share
	}
	m.Conditions[condCongestion] = o.Congestion + " (asked for; " + o.Program + " does not say what it had)"
	if o.Program == toolSockperf {
		if m.Conditions[condCongestion], err = spaceCongestion(p.path(0).From); err != nil {
			return m, err
		}
	}
	return m, nil
}

func measureUDPPairs(ctx context.Context, p *paired, length time.Duration) (Measurement, error) {
	l := p.levels
	o := tools.PairOptions{Program: toolIPerf2, UDP: true, Rate: l.number(factorOffered, "10000"), Message: l.number(factorMessage, "1470")}
	m, r, err := p.stream(ctx, o, length)
	if err != nil {
		return m, err
	}
	var sent, received float64
	for _, c := range r.Pairs {
		sent, received = sent+float64(c.Sent), received+float64(c.Received)
	}
	if sent > 0 { // what is on the way when the window begins or ends is in one of them
		m.Values[metricLoss] = 100 * max(0, sent-received) / sent
	}
	return m, nil
}

// stream runs a program's streams on all pairs. It gives what streams of TCP and of UDP have in common.
func (p *paired) stream(ctx context.Context, o tools.PairOptions, length time.Duration) (m Measurement, r tools.PairResult, err error) {
	where := ""
	if o.Pairs, where, err = p.place(); err != nil {
		return m, r, err
	}
	var marks []machine.Sample
	o.Duration, o.Port = length, p.port()
	o.Mark = func() error {
		s, err := machine.Take()
		marks = append(marks, s)
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, length+2*streamGrace)
	defer cancel()
	r, err = tools.RunPairs(bounded, o)
	if errors.Is(err, tools.ErrEnded) && len(marks) == 0 { // one of many iperf servers closes a new connection now and then: nothing was counted yet
		o.Port = p.port()
		r, err = tools.RunPairs(bounded, o)
	}
	if err != nil {
		return m, r, err
	}
	rates, bytes := rates(r.Pairs), uint64(0)
	for _, c := range r.Pairs {
		bytes += c.Bytes
	}
	m = Measurement{
		Raw: r, Sampled: metricClient, Samples: rates,
		Values: map[string]float64{metricRate: sum(rates), metricClient: stats.Median(rates)},
		Conditions: map[string]string{
			condTool: r.Version, condFlows: fmt.Sprintf("%d pairs, %d each", len(o.Pairs), max(o.Flows, 1)), condMessage: strconv.Itoa(o.Message) + " B",
			condCPUs: where, condEnds: endsText(o.Pairs),
		},
	}
	if len(rates) > 1 && m.Values[metricRate] > 0 {
		m.Values[metricFairness] = stats.Jain(rates)
	}
	if gigabytes := float64(bytes) / 1e9; gigabytes > 0 {
		a, b := marks[0], marks[1]
		m.Values[metricCPU] = ((b.Total - a.Total) - (b.Idle - a.Idle) - (b.Steal - a.Steal)) / gigabytes
	}
	return m, r, nil
}

// rates of pairs in Gb/s.
func rates(list []tools.PairCount) (out []float64) {
	for _, c := range list {
		out = append(out, c.BitsPerSec()/1e9)
	}
	return out
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// FasterHalf is the share of the retransmissions that the faster half of the clients have; one in the middle belongs to neither half. false: nobody has
// any, or there are too few clients to tell.
func FasterHalf(rates, resent []float64) (share float64, ok bool) {
	const least = 4
	if len(rates) < least {
		return 0, false
	}
	order := make([]int, len(rates))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(rates[a], rates[b]) })
	half := len(order) / 2
	slow, fast := 0.0, 0.0
	for i := range half {
		slow, fast = slow+resent[order[i]], fast+resent[order[len(order)-1-i]]
	}
	if slow+fast == 0 {
		return 0, false
	}
	return fast / (slow + fast), true
}
