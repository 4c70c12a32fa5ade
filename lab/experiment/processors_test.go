package experiment

import (
	"errors"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic/datagrams"
)

// A known limit is found from below, whether it is near the highest load or far from it.
func TestLimitOfProcessorsIsFound(t *testing.T) {
	for _, limit := range []float64{900, 5000, 60_000, 81_000, -10_000, -40_000} {
		collapse := 1.0 // what comes of an overload is a share of the limit
		if limit < 0 {
			limit, collapse = -limit, 0.3
		}
		loads := 0
		steps, rate, err := seek(82_000, time.Second, func(load float64, length time.Duration) (step, error) {
			loads++
			s := step{Load: load}
			s.Sent = datagrams.Sent{Sent: uint64(load), Took: length}
			s.Unique = uint64(min(load, limit))
			if load > limit*1.01 {
				s.Unique = uint64(limit * collapse)
			}
			s.InTime = s.Unique
			return s, nil
		})
		if err != nil || len(steps) != loads || loads > processorSteps || !rate.found || rate.pps > limit*1.011 || rate.pps < limit/processorWidth*0.994 {
			t.Errorf("a limit of %g: %v in %d steps, %v", limit, rate, loads, err)
		}
	}
	// What carries everything needs one step; what carries nothing has no rate.
	all := func(load float64, length time.Duration) (step, error) {
		return step{load, datagrams.Count{Sent: datagrams.Sent{Sent: uint64(load), Took: length}, Unique: uint64(load)}}, nil
	}
	if steps, rate, err := seek(82_000, time.Second, all); err != nil || len(steps) != 1 || rate != (limit{82_000, true}) {
		t.Errorf("everything: %v in %d steps, %v", rate, len(steps), err)
	}
	none := func(load float64, length time.Duration) (step, error) {
		return step{load, datagrams.Count{Sent: datagrams.Sent{Sent: uint64(load), Took: length}}}, nil
	}
	if _, rate, err := seek(82_000, time.Second, none); err != nil || rate.pps != 0 {
		t.Errorf("nothing: %v, %v", rate, err)
	}
	// A sender that cannot send faster says nothing of the processors.
	slow := func(load float64, length time.Duration) (step, error) {
		sent := datagrams.Sent{Sent: uint64(min(load, 20_000)), Skipped: uint64(max(load-20_000, 0)), Took: length}
		return step{load, datagrams.Count{Sent: sent, Unique: sent.Sent, InTime: sent.Sent}}, nil
	}
	if _, rate, err := seek(82_000, time.Second, slow); err != nil || rate.found {
		t.Errorf("a slow sender: %v, %v", rate, err)
	}
	bad := errors.New("bad")
	if _, _, err := seek(1, 1, func(float64, time.Duration) (step, error) { return step{}, bad }); !errors.Is(err, bad) {
		t.Errorf("an error: %v", err)
	}
}

// A load counts only if it was sent on time and nothing was damaged.
func TestStepsOfProcessors(t *testing.T) {
	good := step{1000, datagrams.Count{Sent: datagrams.Sent{Sent: 1000}, Unique: 996}}
	if !good.passed() {
		t.Errorf("%+v", good)
	}
	for name, spoil := range map[string]func(*step){
		"lost": func(s *step) { s.Unique = 990 }, "late": func(s *step) { s.Skipped = 10 }, "damaged": func(s *step) { s.Damaged = 1 }, "another's": func(s *step) { s.Foreign = 1 },
	} {
		s := good
		spoil(&s)
		if s.passed() {
			t.Errorf("%s: %+v passed", name, s)
		}
	}
}

func TestProcessorsSayWhatIsWrong(t *testing.T) {
	x, b := processorsExperiment{}, &Bench{Name: "lab-0000"}
	for want, l := range map[string]Levels{
		`did you mean "docker"`: {factorRuntime: "dokcer"}, "one Docker engine": {factorRuntime: "docker", FactorNetwork: "host", factorHosts: "2"},
	} {
		if why := x.Check(t.Context(), b, l); !strings.Contains(why, want) {
			t.Errorf("%v: %q: want %q", l, why, want)
		}
	}
	for _, f := range x.Factors() {
		if f.Name == factorLink && (f.Check("0") == nil || f.Check("fast") == nil || f.Check(linkNone) != nil) {
			t.Error("links")
		}
	}
}
