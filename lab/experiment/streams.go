package experiment

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/tools"
)

// tcpExperiment is a TCP stream, or several (factor flows), of one of the programs that make such (factor tool).
func tcpExperiment() Experiment {
	return &chains{
		name: "tcp", about: "TCP streams of iperf3, or of another program, through a path; what the receiver got", programs: []string{"ping"},
		metrics: map[string]string{"rate": "Gb/s", "retransmits": "segments", "cpu": "CPU s per GB"}, measure: measureTCP, check: checkStream,
		sockets: true, more: []Factor{
			{Name: factorTool, Sets: []string{condTool, condMessage, condCongestion}, Default: toolIPerf3, Check: oneOf(toolIPerf3, toolIPerf2, toolNuttcp, toolSockperf), About: "program that makes the streams: " +
				"of iperf and sockperf what the sender's sockets took counts; nuttcp and sockperf have the machine's congestion control; sockperf has one stream"},
			{Name: factorFlows, About: "streams at once", Default: defaultFlows, Check: between(1, maxStreams, "a number of streams")},
			{Name: factorMessage, About: "bytes that the program writes at once", Default: defaultMessage, Check: between(64, maxMessage, "bytes")},
			{Name: factorCPUs, Sets: []string{condCPUs}, Default: cpusAll, Check: oneOf(cpusAll, cpusOne), About: "iperf3: " + cpusAll + ": both ends where the scheduler puts them, anew in each trial; " +
				cpusOne + ": both on one CPU, at the same real-time priority: the rate is what the whole path costs"},
			warming(),
		},
	}
}

// Levels of the factor cpus.
const (
	factorCPUs = "cpus"
	cpusAll    = "all"
	cpusOne    = "one"
)

// Levels of the factor tool. What is ours has no process of its own.
const (
	factorTool = "tool"

	toolIPerf3   = "iperf3"
	toolIPerf2   = "iperf"
	toolNuttcp   = "nuttcp"
	toolSockperf = "sockperf"
	toolNetcat   = "netcat"
	toolOwn      = "own"
)

const (
	maxStreams = 128 // iperf3's bound

	maxSockperfTCP = 65507 // bytes of a message: those of a datagram, also with TCP
)

// Beyond what a trial takes, how long it may take on a busy machine: a path that does not carry any more is then known.
const (
	streamGrace = 30 * time.Second
	echoGrace   = time.Minute
)

// factorWarm is how long the same goes through the path before the trial: what functions settle is settled by then.
const factorWarm = "warm"

const mostWarm = 30 * time.Second

func warming() Factor {
	return Factor{Name: factorWarm, Default: "0s", About: "how long the same traffic passes before what counts (iperf3 and requests at full rate, frames at a low one): functions have settled their flows by then; 0s to 30s, whole seconds",
		Check: func(level string) error {
			d, err := time.ParseDuration(level)
			if err != nil || d < 0 || d > mostWarm || d%time.Second != 0 {
				return fmt.Errorf("%q: want whole seconds, 0s to %s", level, mostWarm)
			}
			return nil
		}}
}

// warmOf levels, which are checked.
func warmOf(l Levels) time.Duration {
	d, _ := time.ParseDuration(l.or(factorWarm, "0s"))
	return d
}

// program of a level of the factor tool.
func program(tool string) string {
	if tool == toolNetcat {
		return "nc"
	}
	return tool
}

// checkTool tells why a program cannot be used with these levels; chooses: it sets the congestion control of its sockets itself.
func checkTool(tool string, l Levels, chooses bool) string {
	if err := tools.Installed(program(tool)); err != nil {
		return err.Error()
	}
	if want, named := l[factorCongestion]; named && !chooses {
		have, err := machineCongestion()
		if err != nil {
			return err.Error()
		}
		if have != want {
			return fmt.Sprintf("%s cannot choose a congestion control, and this machine's is %s: want another tool, or congestion: %s", tool, have, have)
		}
	}
	return ""
}

func checkStream(l Levels) string {
	tool := l.or(factorTool, toolIPerf3)
	if warmOf(l) > 0 && tool != toolIPerf3 {
		return fmt.Sprintf("%s counts from its beginning: want tool %s, or no %s", tool, toolIPerf3, factorWarm)
	}
	if l.or(factorCPUs, cpusAll) == cpusOne {
		if tool != toolIPerf3 {
			return fmt.Sprintf("%s does not keep both ends on one CPU: want tool %s, or cpus: %s", tool, toolIPerf3, cpusAll)
		}
		if err := tools.Installed(tools.RealTime); err != nil {
			return err.Error()
		}
	}
	if why := checkTool(tool, l, tool == toolIPerf3 || tool == toolIPerf2); why != "" || tool != toolSockperf {
		return why
	}
	return checkSockperf(l)
}

// checkSockperf tells why sockperf cannot make such streams.
func checkSockperf(l Levels) string {
	if n := l.number(factorFlows, defaultFlows); n != 1 {
		return fmt.Sprintf("sockperf has one stream: %d flows: want 1, or another tool", n)
	}
	if n := sockperfMessage(l); n > maxSockperfTCP {
		return fmt.Sprintf("sockperf: a message of %d bytes: want at most %d", n, maxSockperfTCP)
	}
	return ""
}

// sockperfMessage is the message of a stream of sockperf, which does not take as long ones as the others' default.
func sockperfMessage(l Levels) int { return l.number(factorMessage, strconv.Itoa(maxSockperfTCP)) }

// stream of a tool.
func stream(ctx context.Context, tool string, o tools.StreamOptions) (tools.Stream, error) {
	switch tool {
	case toolIPerf2:
		return tools.RunIPerf2(ctx, o)
	case toolNuttcp:
		return tools.RunNuttcp(ctx, o)
	case toolSockperf:
		r, err := tools.RunSockperfRate(ctx, tools.SockperfOptions{
			From: o.From, To: o.To, Address: o.Address, Duration: o.Duration, Message: o.Message, TCP: true,
		})
		bits := 8 * r.PerSec * float64(o.Message)
		seconds := max(o.Duration, time.Second).Truncate(time.Second).Seconds()
		return tools.Stream{Raw: r.Raw, BitsPerSec: bits, Bytes: uint64(bits / 8 * seconds), Seconds: seconds}, err
	}
	return tools.RunIPerf3(ctx, o)
}

// takeAfter takes what the CPUs have done by a moment from now on.
func takeAfter(ctx context.Context, d time.Duration) func() (machine.Sample, error) {
	if d == 0 {
		s, err := machine.Take()
		return func() (machine.Sample, error) { return s, err }
	}
	type taken struct {
		s   machine.Sample
		err error
	}
	c := make(chan taken, 1)
	go func() {
		select {
		case <-time.After(d):
			s, err := machine.Take()
			c <- taken{s, err}
		case <-ctx.Done():
			c <- taken{err: context.Cause(ctx)}
		}
	}()
	return func() (machine.Sample, error) {
		t := <-c
		return t.s, t.err
	}
}

func measureTCP(ctx context.Context, c *chain, length time.Duration) (Measurement, error) {
	return c.sockets(ctx, func(path platform.Path) (Measurement, error) {
		tool := c.levels.or(factorTool, toolIPerf3)
		o := tools.StreamOptions{
			From: path.From, To: path.To, Address: path.Address, Duration: length, Warm: warmOf(c.levels),
			Streams: c.levels.number(factorFlows, defaultFlows), Message: c.levels.number(factorMessage, defaultMessage),
			Congestion: c.levels.or(factorCongestion, DefaultCongestion),
		}
		if tool == toolSockperf {
			o.Message = sockperfMessage(c.levels)
		}
		where := "as the scheduler puts them"
		if c.levels.or(factorCPUs, cpusAll) == cpusOne {
			first, _, err := twoCPUs()
			if first < 0 {
				return Measurement{}, err
			}
			o.CPU, where = &first, fmt.Sprintf("both ends on CPU %d", first)
		}
		bounded, cancel := context.WithTimeout(ctx, o.Warm+length+streamGrace)
		defer cancel()
		begun := takeAfter(bounded, o.Warm)
		s, err := stream(bounded, tool, o)
		if err != nil {
			return Measurement{}, err
		}
		after, err := machine.Take()
		if err != nil {
			return Measurement{}, err
		}
		before, err := begun()
		if err != nil {
			return Measurement{}, err
		}
		m := Measurement{
			Values: map[string]float64{"rate": s.BitsPerSec / 1e9}, Conditions: map[string]string{
				condTool: s.Raw.Version, condFlows: strconv.Itoa(o.Streams), condMessage: strconv.Itoa(o.Message) + " B", condCPUs: where,
			},
		}
		if tool == toolIPerf3 || tool == toolNuttcp { // the others do not say
			m.Values["retransmits"] = float64(s.Retransmits)
		}
		switch tool {
		case toolIPerf3:
			if s.Congestion != o.Congestion {
				return Measurement{}, fmt.Errorf("iperf3 used congestion control %q: want %s", s.Congestion, o.Congestion)
			}
			s.Raw.Output = "" // thousands of lines; what counts is in the values
			m.Conditions[condCongestion] = s.Congestion
		case toolIPerf2:
			m.Conditions[condCongestion] = o.Congestion + " (asked for; iperf does not say what it had)"
		default:
			if m.Conditions[condCongestion], err = spaceCongestion(path.From); err != nil {
				return Measurement{}, err
			}
		}
		m.Raw = s
		if gigabytes := float64(s.Bytes) / 1e9; gigabytes > 0 {
			busy := (after.Total - before.Total) - (after.Idle - before.Idle) - (after.Steal - before.Steal) // seconds
			m.Values["cpu"] = busy / gigabytes
		}
		return m, nil
	})
}
