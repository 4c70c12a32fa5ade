package experiment

import (
	"strings"
	"testing"

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
