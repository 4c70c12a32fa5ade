package experiment

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/traffic/rr"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// Programs of others in the place of our own runners: sockperf asks and answers, netcat sends flows.

// machineCongestion is the congestion control of sockets that do not choose, in every new namespace.
func machineCongestion() (string, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	return strings.TrimSpace(string(text)), err
}

// spaceCongestion is that of one namespace.
func spaceCongestion(space string) (name string, err error) {
	err = netns.Do(space, func() error {
		name, err = machineCongestion()
		return err
	})
	return name, err
}

const leastSockperf = 14 // bytes of a message

// sockperfBytes of a request and of its response.
func sockperfBytes(l Levels) (request, response int) {
	least := strconv.Itoa(leastSockperf)
	return l.number(factorRequest, l.or(factorResponse, least)), l.number(factorResponse, l.or(factorRequest, least))
}

// checkRR tells why a tool cannot ask and answer so.
func checkRR(l Levels) string {
	tool := l.or(factorTool, toolOwn)
	if tool == toolOwn {
		return ""
	}
	if why := checkTool(tool, l, false); why != "" {
		return why
	}
	if n := l.number(factorConnections, "1"); n != 1 {
		return fmt.Sprintf("sockperf has one connection: %d connections: want 1, or tool: own", n)
	}
	if request, response := sockperfBytes(l); request != response || request < leastSockperf || request > maxSockperfTCP {
		return fmt.Sprintf("sockperf: a request of %d bytes, a response of %d: want the same, %d to %d", request, response, leastSockperf, maxSockperfTCP)
	}
	return ""
}

// sockperfRR is the experiment rr by sockperf: it tells half of a round trip.
func sockperfRR(ctx context.Context, c *chain, path platform.Path, length time.Duration) (Measurement, error) {
	request, _ := sockperfBytes(c.levels)
	bounded, cancel := context.WithTimeout(ctx, length+streamGrace)
	defer cancel()
	release := machine.Awake()
	r, err := tools.RunSockperfLatency(bounded, tools.SockperfOptions{
		From: path.From, To: path.To, Address: path.Address, Duration: length, Message: request, TCP: true,
	})
	release()
	if err != nil {
		return Measurement{}, err
	}
	if r.Mean <= 0 {
		return Measurement{}, fmt.Errorf("sockperf: a mean latency of %s", r.Mean)
	}
	m := Measurement{Raw: r, Values: map[string]float64{"rate": 1 / (2 * r.Mean).Seconds(), "mean": micros(2 * r.Mean)}, Conditions: map[string]string{
		condTool: r.Raw.Version, condFlows: "1", condMessage: fmt.Sprintf("%d B there, %d B back", request, request),
	}}
	for p, d := range r.Percentiles {
		name := "p" + strconv.FormatFloat(p, 'f', -1, 64)
		if beyond := float64(r.Samples) * (1 - p/100); beyond >= stats.MinBeyond && slices.Contains([]string{"p50", "p90", "p99", "p99.9"}, name) {
			m.Values[name] = micros(2 * d)
		}
	}
	if r.Dropped > 0 {
		m.Void = fmt.Sprintf("sockperf: %d messages were dropped", r.Dropped)
	}
	m.Conditions[condCongestion], err = spaceCongestion(path.From)
	return m, err
}

// checkFCT tells why a tool cannot send such flows.
func checkFCT(l Levels) string {
	tool := l.or(factorTool, toolOwn)
	if tool == toolOwn {
		return ""
	}
	if why := checkTool(tool, l, false); why != "" {
		return why
	}
	if n := l.number(factorFlows, defaultFlows); n > tools.MaxNetcats {
		return fmt.Sprintf("netcat: %d flows at once: want at most %d, each has two processes", n, tools.MaxNetcats)
	}
	if _, named := l[factorMessage]; named {
		return "netcat writes 16 KiB at once: leave message away"
	}
	return ""
}

// netcatFlows are the flows of a mix by netcat. The start of its process is in their times, that of the receiver's is not.
func netcatFlows(ctx context.Context, path platform.Path, m rr.Mix, seed uint64) (r rr.FlowResult, raw *tools.Raw, err error) {
	if err := m.Check(); err != nil {
		return r, nil, err
	}
	r.Flows = m.Plan(seed)
	for round := range slices.Chunk(r.Flows, m.Clients) {
		var sizes []int64
		for _, f := range round {
			sizes = append(sizes, f.Bytes)
		}
		done, last, err := tools.RunNetcat(ctx, tools.NetcatOptions{From: path.From, To: path.To, Address: path.Address, Sizes: sizes})
		if err != nil {
			return r, nil, fmt.Errorf("flows of round %d: %w", round[0].Round, err)
		}
		raw = &last
		busy := time.Duration(0)
		for i := range round {
			round[i].Done = done[i].Done
			busy = max(busy, done[i].Done)
			r.Sent, r.Received = r.Sent+round[i].Bytes, r.Received+done[i].Bytes
		}
		r.Busy += busy
	}
	r.Congestion, err = spaceCongestion(path.From)
	return r, raw, err
}
