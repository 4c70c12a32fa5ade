package experiment

import (
	"errors"
	"strings"
	"testing"

	"weir.dev/weir/lab/guest"
)

// Each experiment gives all of its figures, on the bare host and in a container.
func TestGuestsAreMeasured(t *testing.T) {
	b := weirBench(t)
	for name, c := range map[string]struct {
		x    Experiment
		l    Levels
		want []string
	}{
		"compress":     {compressExperiment(), Levels{factorCorpus: "1", factorMemory: "256"}, []string{"time", "slowest", "rate"}},
		"contention":   {compressExperiment(), Levels{factorCorpus: "1", factorMemory: "256", factorCores: coresHalf, factorInstances: "2"}, []string{"time", "slowest", "rate"}},
		"tcp":          {transferExperiment(), Levels{factorOffered: "200", factorLine: "100"}, []string{"rate", "line"}},
		"reverse-udp":  {transferExperiment(), Levels{factorTransfer: "reverse-udp", factorOffered: "50", factorLine: "100"}, []string{"rate", "line"}},
		"tcp requests": {exchangeExperiment(), Levels{}, []string{"rate", "latency", "p50"}},
		"udp requests": {exchangeExperiment(), Levels{factorProtocol: "udp"}, []string{"rate", "latency", "p50"}},
		"memory":       {memoryExperiment(), Levels{factorBlock: "32768", factorMemory: "256"}, []string{"read", "write", "random-read", "random-write"}},
		"disk":         {diskExperiment(), Levels{factorMemory: "128"}, []string{"dd-write", "dd-read", "requests", "read", "write"}},
		"usable":       {usableExperiment(), Levels{}, []string{"usable", "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []string{guest.BareMetal, "native"} {
				c.l[factorHost] = kind
				m := measure(t, c.x, b, c.l)
				for _, metric := range c.want {
					if m.Values[metric] <= 0 {
						t.Errorf("%s: %s: %v", kind, metric, m.Values)
					}
				}
				if rate, line := m.Values["line"], 100.0; rate > 1.05*line {
					t.Errorf("%s: a line of %g Mb/s has carried %g", kind, line, rate)
				}
				if len(m.Values) > len(c.x.Metrics()) || m.Conditions[condServices] == "" {
					t.Errorf("%s: %v, %v", kind, m.Values, m.Conditions)
				}
				t.Logf("%s: %v", kind, m.Values)
			}
		})
	}
}

// What this machine cannot have is told before anything is made, or skipped with the reason.
func TestGuestsThatCannotBe(t *testing.T) {
	b := weirBench(t)
	for name, c := range map[string]struct {
		x    Experiment
		l    Levels
		want string
	}{
		"more cores than there are": {compressExperiment(), Levels{factorCores: "1024"}, "1024 cores: this machine has "},
		"a block beyond the memory": {memoryExperiment(), Levels{factorBlock: "536870912", factorMemory: "512"}, "a block of 512 MiB: a guest of 512 MiB holds at most 384"},
		"a machine's disk":          {diskExperiment(), Levels{factorHost: guest.Emulated}, "gives a machine no disk"},
		"a kind that is none":       {usableExperiment(), Levels{factorHost: "jail"}, "no container runtime jail"},
	} {
		if why := c.x.Check(t.Context(), b, c.l); !strings.Contains(why, c.want) {
			t.Errorf("%s: %q: want %q", name, why, c.want)
		}
	}
	_, err := diskExperiment().Setup(t.Context(), b, Levels{factorHost: guest.BareMetal, factorMemory: "1000000000"})
	if !errors.Is(err, ErrNotHere) || !strings.Contains(err.Error(), "disk too small") {
		t.Errorf("a disk too small: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if why := diskExperiment().Check(t.Context(), b, Levels{factorHost: guest.BareMetal}); !strings.Contains(why, "sysbench: not installed (apt-get install sysbench)") {
		t.Errorf("no sysbench: %q", why)
	}
}

func TestFileioIsRead(t *testing.T) {
	v := map[string]float64{}
	err := parseFileio("File operations:\n    reads/s:                      1200.50\n    writes/s:                     800.25\n    fsyncs/s:  256.0\n\nThroughput:\n    read, MiB/s:                  18.76\n    written, MiB/s:               12.50\n", v)
	if err != nil || v["requests"] != 2000.75 || v["read"] < 19.6 || v["read"] > 19.7 {
		t.Errorf("%v, %v", v, err)
	}
	if err := parseFileio("FATAL: Cannot open file", v); err == nil || !strings.Contains(err.Error(), "sysbench: want figures") {
		t.Errorf("%v", err)
	}
}
