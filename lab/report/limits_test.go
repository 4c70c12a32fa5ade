package report

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic"
)

const limitsStudy = `name: limits
title: Limits that are known
parts:
  - name: limits
    question: How much passes?
    experiment: ndr
    metrics: [{name: ndr, unit: Mpps, better: higher}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["1", "9"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 6, duration: 50ms}
    full: {blocks: 6, duration: 50ms}
`

// limitsOfSteps is a run in which ebpf takes 400,000 frames a second and bridges 100,000, a ninth with nine wires. A delay is 1 us for each percent
// of PDR, of one frame in a hundred ten times that.
func limitsOfSteps(t *testing.T) *study.Journal {
	t.Helper()
	f, err := study.Parse("limits.yaml", []byte(limitsStudy), []string{"ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(t.TempDir(), study.Header{Study: f.Study, Mode: study.Quick, Seed: 1, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	for i, tr := range j.Left() {
		limit := map[string]float64{"ebpf": 4e5, "bridges": 1e5}[tr.Variant[0]] / map[string]float64{"1": 1, "9": 9}[tr.Variant[1]]
		n := 0
		step := func(what string, load float64, void string, raw any) {
			s := study.Step{Of: tr, N: n, What: what, Load: load, Length: 50 * time.Millisecond, Void: void, Values: map[string]float64{experiment.ValueLoss: max(0, 1-limit/load)}}
			if raw != nil {
				if s.Raw, err = json.Marshal(raw); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.AddStep(s); err != nil {
				t.Fatal(err)
			}
			n++
		}
		step(experiment.StepCeiling, 0, "", nil)
		for _, x := range []float64{4, 2, 1.01, 0.99, 0.5} {
			step(experiment.StepSearch, x*limit, "", nil)
			step(experiment.StepSearch, x*limit*100, "noise", nil) // does not count
		}
		step(experiment.StepNDR, 0.99*limit, "", nil)
		step(experiment.StepPDR, 1.25*limit, "", nil)
		for _, share := range experiment.DelayShares() {
			us := uint64(share) * 1000
			step(experiment.StepDelay(share), limit*float64(share)/100, "", experiment.Delays{Max: time.Duration(10 * us), Buckets: [][2]uint64{
				{uint64(traffic.Bucket(us)), 990}, {uint64(traffic.Bucket(10 * us)), 10}, {1 << 40, 5}, // no such bucket
			}})
		}
		r := study.Record{Trial: tr, Begun: time.Unix(int64(i), 0).UTC(), Took: time.Second, Values: map[string]float64{"ndr": limit / 1e6 * (1 + 0.001*float64(i%3)), experiment.ValueCeiling: 1, experiment.ValueLimited: 0}}
		if tr.Variant[0] == "ebpf" && tr.Variant[1] == "1" && tr.Block == 0 {
			r.Values[experiment.ValueLimited] = 1
		}
		if tr.Block == 5 && tr.Variant[0] == "ebpf" {
			r.Void = "steal"
		}
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	j.Header.Format = 1 // the trials have no counts
	return j
}

func TestLimitsComeFromTheSteps(t *testing.T) {
	r := Of(limitsOfSteps(t))
	if len(r.Limits) != 4 {
		t.Fatalf("%d limits: want 4", len(r.Limits))
	}
	var l Limit
	for _, l = range r.Limits {
		if l.Level == "ebpf" && l.Group == "wires=1" {
			break
		}
	}
	if l.Trials != 5 || l.Limited != 1 || l.Ceiling != 1 {
		t.Errorf("%+v", l)
	}
	n := 0
	for i, x := range l.Losses {
		n += x.N
		if want := max(0, 1-4e5/x.Load); math.Abs(x.Median-want) > 0.02 || x.Low > x.Median || x.High < x.Median || i > 0 && x.Load <= l.Losses[i-1].Load {
			t.Errorf("%+v: want a loss of %v", x, want)
		}
	}
	if n != 5*5 {
		t.Errorf("losses of %d steps: want those of 5 valid trials", n)
	}
	if len(l.Verified) != 2 || l.Verified[0].Of != experiment.StepNDR || l.Verified[0].Median != 0 || math.Abs(l.Verified[1].Median-0.2) > 1e-9 {
		t.Errorf("verified: %+v", l.Verified)
	}
	if len(l.Delays) != 4 {
		t.Fatalf("delays: %+v", l.Delays)
	}
	for _, d := range l.Delays {
		share := float64(d.Share)
		if d.Frames != 5*1000 || math.Abs(d.Load/(4e5*share/100)-1) > 1e-9 || d.P50 == nil || math.Abs(*d.P50/share-1) > 0.016 || d.P90 == nil || math.Abs(*d.P90/share-1) > 0.016 {
			t.Errorf("delays at %d %%: %+v", d.Share, d)
		}
		if d.P99 == nil || d.P999 != nil { // 50 frames are beyond the first, 5 beyond the second
			t.Errorf("delays at %d %%: %+v", d.Share, d)
		}
	}
	more := strings.Join(r.Findings[0].More, " ")
	if !strings.Contains(more, "ebpf 1: limited by the generator") || !strings.Contains(more, "in 1 of 5 trials: its NDR or its PDR is a lower bound") {
		t.Errorf("a lower bound is not said to be one: %s", more)
	}
	files, err := r.Files(Outputs()...)
	if err != nil {
		t.Fatal(err)
	}
	asSchema(t)(files["report.json"])
	for _, want := range []string{"### Loss against load at wires=1", "### Delay at shares of PDR at wires=9", "| ebpf | 5 | 60 | 25 | 1.00 | 1 of 5 | 0 %; 0 to 0 | 20.0 %; 20.0 to 20.0 |", "| bridges | 90 % |"} {
		if !strings.Contains(string(files["report.md"]), want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	for _, name := range []string{"figures/limits-loss-at-wires-1.svg", "figures/limits-delays-at-wires-9.png"} {
		if len(files[name]) < 500 {
			t.Errorf("%s: %d bytes", name, len(files[name]))
		}
	}
}
