package lab

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// TestAClaimBesideNothing: what is related to a figure of 0 has no ratio, and the results can still be written.
func TestAClaimBesideNothing(t *testing.T) {
	p := study.Part{
		Name: "one", Metrics: []study.Metric{{Name: "loss", Unit: "%", Better: "lower"}}, Compare: "platform", Baseline: "theirs",
		Factors: []study.Factor{{Name: "platform", Levels: []string{"ours", "theirs"}}},
		Quick:   study.Plan{Blocks: 8},
		Claims:  []study.Claim{{ID: "half", Metric: "loss", At: map[string]string{"platform": "ours"}, Against: map[string]string{"platform": "theirs"}, Value: 0.5}},
	}
	var records []study.Record
	for b := range 8 {
		for _, level := range []string{"ours", "theirs"} {
			v := map[string]float64{"ours": 3, "theirs": float64(b % 4)}[level]
			records = append(records, study.Record{Trial: study.Trial{Part: "one", Block: b, Variant: study.Variant{level}}, Values: map[string]float64{"loss": v}})
		}
	}
	r := summarisePart(p, 8, records, 1)
	if c := r.Claims[0]; c.Verdict != claim.NotTestable || c.Headline().Why != "what it is related to is 0 in 2 blocks" || c.Headline().Ours != nil {
		t.Errorf("%+v", c)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// TestFewValuesHaveNoInterval: of fewer than six values even the least and the greatest hold the median with less than 95 %.
func TestFewValuesHaveNoInterval(t *testing.T) {
	for n := 1; n <= 8; n++ {
		s := make([]float64, 8)
		for i := range s {
			s[i] = math.NaN()
			if i < n {
				s[i] = float64(10 + i)
			}
		}
		if v := value("x", false, nil, stats.Exact(s)); (v.Interval != nil) != (n >= stats.MinBlocks) || v.Median == nil || v.N != n || (v.CV != nil) != (n > 1) {
			t.Errorf("%d values: %+v", n, v)
		}
	}
	of := func(n int, value float64) Results {
		f := &fake{value: func(l experiment.Levels, i int) (experiment.Measurement, error) {
			m, err := known(l, i)
			m.Values["rate"] *= value
			return m, err
		}}
		r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		j := *r.Journal
		j.Records = slices.DeleteFunc(slices.Clone(j.Records), func(x study.Record) bool { return x.Trial.Block >= n })
		return Summarise(&j)
	}
	for _, p := range Beside(of(2, 1), of(2, 3)) {
		if p.Apart || !p.TooFew {
			t.Errorf("two blocks each: %+v", p)
		}
	}
	for _, p := range Beside(of(8, 1), of(8, 3)) {
		if !p.Apart || p.TooFew {
			t.Errorf("eight blocks each: %+v", p)
		}
	}
}

// TestASlopeStandsOnTheBlocksThatWereMade, not on those that were planned.
func TestASlopeStandsOnTheBlocksThatWereMade(t *testing.T) {
	p := study.Part{
		Name: "one", Metrics: []study.Metric{{Name: "cost", Unit: "ns", Better: "lower"}}, Compare: "platform", Baseline: "ours",
		Factors: []study.Factor{{Name: "platform", Levels: []string{"ours"}}, {Name: "wires", Levels: []string{"1", "2", "4", "8", "16"}}},
		Claims:  []study.Claim{{ID: "linear", Metric: "cost", At: map[string]string{"platform": "ours"}, Shape: "linear", Along: "wires"}},
	}
	for made := 1; made <= 8; made++ {
		var records []study.Record
		for b := range made {
			for i, w := range p.Factors[1].Levels {
				records = append(records, study.Record{
					Trial:  study.Trial{Part: "one", Block: b, Variant: study.Variant{"ours", w}},
					Values: map[string]float64{"cost": 100 + 50*float64(int(1)<<i) + float64((b*7+i*3)%5)},
				})
			}
		}
		r := summarisePart(p, 8, records, 1)
		told := made >= stats.MinBlocks
		if (r.Fits[0].Interval != nil) != told || (r.Claims[0].Verdict == claim.Reproduced) != told {
			t.Errorf("%d of 8 blocks: %+v, %+v", made, r.Fits[0], r.Claims[0])
		}
		if !told && (r.Claims[0].Verdict != claim.Inconclusive || !strings.HasSuffix(r.Claims[0].Headline().Why, "complete blocks: want at least 6")) {
			t.Errorf("%d of 8 blocks: %+v", made, r.Claims[0])
		}
	}
}

// TestDifferencesOfRunsAreTold: what two runs that are set side by side do not have in common.
func TestDifferencesOfRunsAreTold(t *testing.T) {
	run := func(study study.Study, kernel string) Results {
		return Results{Study: study, Mode: "quick", Version: "1", Environment: map[string]string{"kernel": kernel, "cpus": "2"}}
	}
	of := func(name, wires, duration string) study.Study {
		return study.Study{Name: name, Parts: []study.Part{{Name: "one", Experiment: "tcp", Settings: map[string]string{"wires": wires}, Quick: study.Plan{Duration: duration}}}}
	}
	a := run(of("x", "1", "1s"), "6.1")
	if got := Differences(a, a); len(got) > 0 {
		t.Errorf("a run and itself: %q", got)
	}
	got := strings.Join(Differences(a, run(of("y", "9", "2s"), "6.2")), "; ")
	if want := "study: x and y; kernel: 6.1 and 6.2; part one, length of a trial: 1s and 2s; part one, wires: 1 and 9"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestAnotherVersionIsTold: a run that another version went on with says so, with what is other.
func TestAnotherVersionIsTold(t *testing.T) {
	r := fakeRun(t, &fake{value: known}, filepath.Join(t.TempDir(), "run"))
	for _, version := range []string{"2", "2", "3"} {
		if err := r.Journal.GoOn(study.Resumption{At: time.Unix(60, 0), Version: version, Environment: map[string]string{"kernel": "6." + version}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"went on at 1970-01-01 00:01:00 UTC not as it was (before and behind it): version: none and 2; kernel: none and 6.2",
		"went on at 1970-01-01 00:01:00 UTC not as it was (before and behind it): version: 2 and 3; kernel: 6.2 and 6.3",
	}
	got := Summarise(r.Journal)
	if d := cmp.Diff(want, got.ResumedText()); d != "" {
		t.Error(d)
	}
	var text strings.Builder
	if err := Text(&text, got); err != nil || strings.Count(text.String(), "This run went on at ") != 2 {
		t.Errorf("%v\n%s", err, text.String())
	}
}
