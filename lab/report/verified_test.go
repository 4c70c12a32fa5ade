package report

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/search"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic"
)

// TestVerificationIsPrinted: the losses of the trials that verified, and where there is no result, between which loads it was sought.
func TestVerificationIsPrinted(t *testing.T) {
	f, err := study.Parse("limits.yaml", []byte(strings.Replace(limitsStudy, `      - {name: wires, levels: ["1", "9"]}`+"\n", "", 1)), []string{"ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(t.TempDir(), study.Header{Study: f.Study, Mode: study.Quick, Seed: 1, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	raw := func(v any) json.RawMessage {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tr := range j.Left() {
		n := 0
		step := func(what string, load float64, f experiment.Frames) {
			s := study.Step{Of: tr, N: n, What: what, Load: load, Length: time.Second, Values: f.Values(), Raw: raw(f)}
			if err := j.AddStep(s); err != nil {
				t.Fatal(err)
			}
			n++
		}
		clean := experiment.Frames{Intended: 1000, Sent: 1000, Unique: 950, Lost: 50, Length: time.Second, Away: 20 * time.Millisecond, Stalls: 1, Stalled: traffic.Stalled{Due: 100, Lost: 50}}
		lossy, stalled := clean, clean
		lossy.Unique, lossy.Lost = 900, 100
		stalled.Stalled.Due = 500
		r := study.Record{Trial: tr, Begun: time.Unix(0, 0).UTC(), Took: time.Second}
		v := []search.Verified{{Goal: experiment.GoalNDR, Load: 1e5, Upper: 1.1e5}, {Goal: experiment.GoalPDR, Load: 1e5}}
		step(experiment.StepNDR, 1.1e5, lossy)
		if tr.Variant[0] == "ebpf" {
			step(experiment.StepNDR, 1.2e5, stalled)
			for range search.VerifyTrials {
				step(experiment.StepNDR, 1e5, clean)
			}
			r.Values = map[string]float64{experiment.MetricNDR: 0.1, experiment.MetricPDR: 0.1, experiment.ValueCeiling: 1, experiment.ValueLimited: 0}
		} else {
			v = []search.Verified{{Goal: experiment.GoalNDR, Upper: 1.1e5, Why: "not found between 50 and 60 frames a second"}}
			r.Void = "NDR: " + v[0].Why
		}
		r.Raw = raw(experiment.NDRRaw{Verification: v, Ceiling: 1e6})
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	files, err := Of(j).Files(Outputs()...)
	if err != nil {
		t.Fatal(err)
	}
	asSchema(t)(files["report.json"])
	for _, want := range []string{
		"| ebpf | NDR | 0.100 | 6 of 6 | 18 | 18000 | 0 | 900 | 2.0 % | 6 | 6 |",
		"| ebpf | PDR | 0.100 | 6 of 6 | 18 | 18000 | 0 | 900 | 2.0 % | 0 | 0 |",
		"| bridges | NDR | –; not found between 50 and 60 frames a second | 0 of 6 | 0 | 0 | 0 | 0 | 0.0 % | 6 | 0 |",
	} {
		if !strings.Contains(string(files["report.md"]), want) {
			i := strings.Index(string(files["report.md"]), "### Verification")
			t.Errorf("the report does not say %q:\n%s", want, string(files["report.md"])[max(i, 0):])
		}
	}
}
