package experiment

import (
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic/tools"
)

// Echoes come at the interval that was asked for, and end where it was said.
func TestWaysToPing(t *testing.T) {
	b := testBench(t)
	for _, l := range []Levels{
		{FactorPlatform: "bridges", factorWires: "1"},
		{FactorPlatform: "bridges", factorWires: "1", factorInterval: "1ms", factorEnds: endsInQueue},
	} {
		m := measure(t, pingExperiment(), b, l)
		if m.Values["rtt"] <= 0 || m.Values["lost"] != 0 {
			t.Errorf("%v: %v", l, m.Values)
		}
		argv := strings.Join(m.Raw.(tools.Ping).Raw.Argv, " ")
		if cold := strings.Contains(argv, "-i 0.001"); cold != (l[factorInterval] == "1ms") {
			t.Errorf("%v: %s", l, argv)
		}
		if whole := strings.Contains(argv, "-U"); whole == (l[factorEnds] == endsInQueue) {
			t.Errorf("%v: %s", l, argv)
		}
	}
	for _, level := range []string{"", "1", "-1ms", "1us", "1h", "0s"} {
		if checkInterval(level) == nil {
			t.Errorf("interval %q: accepted", level)
		}
	}
}

// A path so slow that a trial ends before its echoes has the mean of those that came back, and the one under way is not lost.
func TestSlowEchoes(t *testing.T) {
	ping := func(sent int, answers int) tools.Ping {
		p := tools.Ping{Sent: sent, Received: answers}
		for i := range answers {
			p.RTT = append(p.RTT, time.Duration(i+1)*time.Millisecond)
		}
		return p
	}
	for _, c := range []struct {
		sent, answers int
		cut           bool
		mean, lost    float64 // mean 0: refused
	}{
		{echoes, echoes, false, 70500, 0},
		{echoes, echoes - 5, false, 70500, 5},
		{echoes, 30, false, 0, 0},
		{200, 199, true, 69500, 0},
		{31, 30, true, 17000, 0},
		{5, 3, true, 2000, 1},
		{3, 2, true, 0, 0},
	} {
		m, err := echoed(ping(c.sent, c.answers), c.cut)
		if (err != nil) != (c.mean == 0) || m.Values["mean"] != c.mean || m.Values["lost"] != c.lost {
			t.Errorf("%+v: %v, %v", c, m.Values, err)
		}
	}
}

// What passes before a trial is in none of its figures: the same bytes, and the CPU time of their second alone.
func TestWarmTrafficDoesNotCount(t *testing.T) {
	b := testBench(t)
	l := Levels{FactorPlatform: "bridges", factorWires: "1", factorWarm: "1s"}
	begun := time.Now()
	m := measure(t, tcpExperiment(), b, l)
	s := m.Raw.(tools.Stream)
	if took := time.Since(begun); took < 2*time.Second || s.Seconds > 1.5 || !slices.Contains(s.Raw.Argv, "-O") {
		t.Errorf("%v took %s, %g s of it counted: want 1 s of at least 2", s.Raw.Argv, took, s.Seconds)
	}
	if cpu := m.Values["cpu"] * float64(s.Bytes) / 1e9; cpu <= 0 || cpu > 1.6*float64(goruntime.NumCPU()) {
		t.Errorf("%g s of CPU time in a second of %d CPUs", cpu, goruntime.NumCPU())
	}
	l[factorMode] = modeLoss
	few := measure(t, ppsExperiment(), b, l).Raw.(SentFrames)
	if sent := float64(few.Sent) / few.Took.Seconds(); sent < 10*warmRate {
		t.Errorf("%g frames a second were sent: want those of the trial, not the %d before it", sent, warmRate)
	}
	for level, want := range map[string]bool{"0s": true, "30s": true, "500ms": false, "31s": false, "-1s": false, "1": false} {
		if err := warming().Check(level); (err == nil) != want {
			t.Errorf("%s %s: %v", factorWarm, level, err)
		}
	}
}

// A stream whose ends share a CPU says so. Other programs than iperf3 cannot.
func TestStreamOnOneCPU(t *testing.T) {
	b := testBench(t)
	one := Levels{FactorPlatform: "bridges", factorWires: "1", factorCPUs: cpusOne}
	m := measure(t, tcpExperiment(), b, one)
	if m.Values["rate"] <= 0 || !strings.HasPrefix(m.Conditions[condCPUs], "both ends on CPU") || !strings.HasPrefix(m.Conditions[condTool], "iperf") {
		t.Errorf("%v, %v", m.Values, m.Conditions)
	}
	one[factorTool] = toolNuttcp
	if why := tcpExperiment().Check(t.Context(), b, one); !strings.Contains(why, "want tool iperf3") {
		t.Errorf("nuttcp on one CPU: %q", why)
	}
}
