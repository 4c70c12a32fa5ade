package lab

import (
	"math"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
)

// What the lab itself uses while it measures is counted; the making of traffic is not.
func TestOverheadIsTheLabsOwn(t *testing.T) {
	begin := time.Now()
	before := machine.Sample{At: begin, Own: 3 * time.Second}
	after := machine.Sample{At: begin.Add(2 * time.Second), Own: 4 * time.Second}
	for name, c := range map[string]struct {
		sending time.Duration
		want    float64
	}{"nothing sent": {0, 0.5}, "most of it was sending": {800 * time.Millisecond, 0.1}, "more than there was": {3 * time.Second, 0}} {
		got := covariates(before, after, 1, experiment.Measurement{Sending: c.sending})
		if math.Abs(got[covOwnCPU]-c.want) > 1e-9 || got[covOwnRSS] <= 0 {
			t.Errorf("%s: %v cores, %v MiB: want %v", name, got[covOwnCPU], got[covOwnRSS], c.want)
		}
	}
	o := overhead([]Point{
		{Covariates: map[string]float64{covOwnCPU: 0.1, covOwnRSS: 40}}, {Covariates: map[string]float64{covOwnCPU: 0.3, covOwnRSS: 60}}, {},
	})
	if math.Abs(o.CPU-0.2) > 1e-9 || o.MaxCPU != 0.3 || o.RSS != 60 {
		t.Errorf("%+v: want 0.2 cores on average, 0.3 at most, 60 MiB", o)
	}
	// A sample is of this process: work that it does is in the next one.
	a, err := machine.Take()
	if err != nil {
		t.Fatal(err)
	}
	for b := a; b.Own-a.Own < 20*time.Millisecond; {
		machine.Canary()
		if b, err = machine.Take(); err != nil {
			t.Fatal(err)
		}
	}
}
