package experiment

import (
	"runtime"
	"strings"
	"testing"
)

// A study names the program that makes its traffic. Each gives the metrics that it can, and its version stands with the result.
func TestProgramsOfOthersMeasure(t *testing.T) {
	b := testBench(t)
	machine, err := machineCongestion()
	if err != nil {
		t.Fatal(err)
	}
	on := func(more Levels) Levels {
		l := Levels{FactorPlatform: "veth"}
		for name, level := range more {
			l[name] = level
		}
		return l
	}
	for name, c := range map[string]struct {
		x          Experiment
		l          Levels
		want       []string // metrics
		without    []string // metrics that the program cannot give
		conditions map[string]string
	}{
		"iperf3": {tcpExperiment(), on(nil), []string{"rate", "cpu", "retransmits"}, nil, map[string]string{condTool: "iperf 3", condCongestion: "cubic", condMessage: "131072 B"}},
		"ping":   {pingExperiment(), on(nil), []string{"rtt", "p90"}, nil, map[string]string{condTool: "ping, which tells whole microseconds", condRepresentation: "socket"}},
		"iperf": {tcpExperiment(), on(Levels{factorTool: toolIPerf2, factorFlows: "2", factorMessage: "65536", factorCongestion: "reno"}), []string{"rate", "cpu"}, []string{"retransmits"},
			map[string]string{condTool: "iperf version 2", condCongestion: "reno (asked for", condFlows: "2", condMessage: "65536 B"}},
		"nuttcp": {tcpExperiment(), on(Levels{factorTool: toolNuttcp, factorFlows: "2", factorMessage: "65536"}), []string{"rate", "cpu", "retransmits"}, nil,
			map[string]string{condTool: "nuttcp", condCongestion: machine, condFlows: "2"}},
		"sockperf, a stream": {tcpExperiment(), on(Levels{factorTool: toolSockperf, factorMessage: "1000"}), []string{"rate", "cpu"}, []string{"retransmits"},
			map[string]string{condTool: "sockperf", condMessage: "1000 B"}},
		"sockperf": {rrExperiment(), on(Levels{factorTool: toolSockperf, factorRequest: "200"}), []string{"rate", "mean", "p50", "p90", "p99"}, nil,
			map[string]string{condTool: "sockperf", condMessage: "200 B there, 200 B back", condCongestion: machine}},
		"netcat": {fctExperiment(), on(Levels{factorTool: toolNetcat, factorFlows: "5", factorRounds: "2", factorMouse: "20000", factorElephant: "3000000"}),
			[]string{"fct", "mice", "elephants", "slowest", "rate", "fairness"}, []string{"retransmits"}, map[string]string{condTool: "OpenBSD netcat", condFlows: "5", condCongestion: machine}},
	} {
		t.Run(name, func(t *testing.T) {
			m := measure(t, c.x, b, c.l)
			for _, metric := range c.want {
				if m.Values[metric] <= 0 && metric != "retransmits" {
					t.Errorf("%s: %v", metric, m.Values)
				}
				if _, ok := m.Values[metric]; !ok {
					t.Errorf("no %s: %v", metric, m.Values)
				}
			}
			if perGB, told := m.Values["cpu"]; told { // a stream keeps a processor busy, and a program its start besides
				if busy := perGB * m.Values["rate"] / 8; busy < 0.2 || busy > 10*float64(runtime.NumCPU()) {
					t.Errorf("%v CPU s per GB at %v Gb/s: %.3g of %d processors are busy", perGB, m.Values["rate"], busy, runtime.NumCPU())
				}
			}
			for _, metric := range c.without {
				if v, ok := m.Values[metric]; ok {
					t.Errorf("%s is %v: the program does not tell", metric, v)
				}
			}
			for condition, want := range c.conditions {
				if !strings.HasPrefix(m.Conditions[condition], want) {
					t.Errorf("%s %q: want %q", condition, m.Conditions[condition], want)
				}
			}
		})
	}
	if m := measure(t, fctExperiment(), b, on(Levels{factorTool: toolNetcat, factorFlows: "5", factorElephants: "40", factorMouse: "20000", factorElephant: "9000000"})); len(m.Samples) != 5 || m.Values["elephants"] <= m.Values["mice"] {
		t.Errorf("%d flows: want 5; elephants 450 times as large as mice took %v ms, mice %v", len(m.Samples), m.Values["elephants"], m.Values["mice"])
	}
}

// What a program cannot do is a reason to skip, and a tool that there is not a mistake of the study.
func TestProgramsOfOthersAreRefused(t *testing.T) {
	b := testBench(t)
	other := "reno"
	if machine, err := machineCongestion(); err != nil {
		t.Fatal(err)
	} else if machine == other {
		other = "cubic"
	}
	for want, c := range map[string]struct {
		x Experiment
		l Levels
	}{
		"nuttcp cannot choose a congestion control": {tcpExperiment(), Levels{factorTool: toolNuttcp, factorCongestion: other}},
		"nuttcp counts from its beginning":          {tcpExperiment(), Levels{factorTool: toolNuttcp, factorWarm: "1s"}},
		"sockperf has one stream":                   {tcpExperiment(), Levels{factorTool: toolSockperf, factorFlows: "2"}},
		"want at most 65507":                        {tcpExperiment(), Levels{factorTool: toolSockperf, factorMessage: "131072"}},
		"sockperf has one connection":               {rrExperiment(), Levels{factorTool: toolSockperf, factorConnections: "2"}},
		"want the same, 14 to 65507":                {rrExperiment(), Levels{factorTool: toolSockperf, factorRequest: "1"}},
		"a response of 30: want":                    {rrExperiment(), Levels{factorTool: toolSockperf, factorRequest: "20", factorResponse: "30"}},
		"at most 200, each has two processes":       {fctExperiment(), Levels{factorTool: toolNetcat, factorFlows: "201"}},
		"leave message away":                        {fctExperiment(), Levels{factorTool: toolNetcat, factorMessage: "1000"}},
	} {
		c.l[FactorPlatform] = "veth"
		if why := c.x.Check(t.Context(), b, c.l); !strings.Contains(why, want) {
			t.Errorf("%v: %q: want %q", c.l, why, want)
		}
	}
	t.Run("not installed", func(t *testing.T) {
		path := t.TempDir()
		t.Setenv("PATH", path)
		for tool, x := range map[string]Experiment{toolIPerf2: tcpExperiment(), toolNuttcp: tcpExperiment(), toolSockperf: rrExperiment(), toolNetcat: fctExperiment()} {
			why := x.(*chains).check(Levels{factorTool: tool})
			if !strings.Contains(why, "not installed (apt-get install "+map[string]string{toolNetcat: "netcat-openbsd"}[tool]) {
				t.Errorf("%s: %q", tool, why)
			}
		}
	})
}
