package lab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/search"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
	"weir.dev/weir/lab/traffic"
)

const booksStudy = `name: books
title: Books
parts:
  - name: packets
    question: What does a packet cost?
    experiment: pps
    metrics: [{name: cost, unit: ns, better: lower}, {name: rate, unit: Mpps, better: higher}]
    settings: {mode: cost}
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["1", "5", "9", "20", "50"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 6, duration: 50ms}
    full: {blocks: 6, duration: 50ms}
  - name: limits
    question: What passes?
    experiment: ndr
    metrics: [{name: ndr, unit: Mpps, better: higher}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
    compare: platform
    baseline: bridges
    quick: {blocks: 6, duration: 50ms}
    full: {blocks: 6, duration: 50ms}
`

// booksJournal is a run whose trials forge may change before they are written. A packet costs 100 ns a wire and 50 more; bridges of 50 wires lose frames.
func booksJournal(t *testing.T, forge func(r *study.Record, steps []study.Step)) *study.Journal {
	t.Helper()
	f, err := study.Parse("books.yaml", []byte(booksStudy), []string{"pps", "ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(t.TempDir(), study.Header{Study: f.Study, Mode: study.Quick, Seed: 1, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	var records []study.Record
	var all []study.Step
	for _, tr := range j.Left() {
		r := study.Record{Trial: tr, Took: time.Second}
		var steps []study.Step
		if tr.Part == "packets" {
			packetsRecord(t, &r)
		} else {
			steps = searchRecord(t, &r)
		}
		forge(&r, steps)
		records, all = append(records, r), append(all, steps...)
	}
	slices.SortFunc(all, func(a, b study.Step) int { // in the order that the seed wants
		return cmp.Or(cmp.Compare(a.N, b.N), cmp.Compare(draw(1, a.Of, a.N), draw(1, b.Of, b.N)))
	})
	for _, s := range all {
		if err := j.AddStep(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range records {
		if err := j.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

func raw(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func packetsRecord(t *testing.T, r *study.Record) {
	var wires int
	fmt.Sscan(r.Trial.Variant[1], &wires)
	sent := uint64(1e9 / (100*float64(wires) + 50))
	n := experiment.SentFrames{Count: traffic.Count{Intended: sent, Sent: sent, Received: sent, Unique: sent, Took: time.Second}, Mode: "cost", Closed: true}
	if wires == 50 && r.Trial.Variant[0] == "bridges" {
		n.Unique, n.Received, n.Lost = sent/2, sent/2, sent-sent/2
		r.Void = "lost half: not a closed loop"
	}
	r.Values, r.Raw = n.Values(), raw(t, n)
}

func searchRecord(t *testing.T, r *study.Record) (steps []study.Step) {
	const load = 100_000.
	step := func(what string, load float64, f experiment.Frames) {
		steps = append(steps, study.Step{Of: r.Trial, N: len(steps), What: what, Load: load, Length: time.Second, Values: f.Values(), Raw: raw(t, f)})
	}
	clean := experiment.Frames{Intended: 1e5, Sent: 1e5, Received: 1e5, Unique: 1e5, Length: time.Second}
	lossy := clean
	lossy.Received, lossy.Unique, lossy.Lost = 9e4, 9e4, 1e4
	steps = append(steps, study.Step{Of: r.Trial, What: experiment.StepCeiling, Length: time.Second, Values: map[string]float64{experiment.ValueArrived: booksCeiling}})
	step(experiment.StepSearch, 2*load, lossy)
	step(experiment.StepNDR, 1.05*load, lossy)
	for range search.VerifyTrials {
		step(experiment.StepNDR, load, clean)
	}
	v := []search.Verified{{Goal: experiment.GoalNDR, Load: load, Upper: 1.05 * load}, {Goal: experiment.GoalPDR, Load: load}}
	r.Values = map[string]float64{experiment.MetricNDR: load / 1e6, experiment.MetricPDR: load / 1e6}
	r.Raw = raw(t, experiment.NDRRaw{Verification: v, Ceiling: booksCeiling})
	return steps
}

// booksCeiling is far above what passes.
const booksCeiling = 1e6

// forgeSearch changes what a search says of itself.
func forgeSearch(t *testing.T, r *study.Record, change func(n *experiment.NDRRaw)) {
	t.Helper()
	var n experiment.NDRRaw
	if err := json.Unmarshal(r.Raw, &n); err != nil {
		t.Fatal(err)
	}
	change(&n)
	r.Raw = raw(t, n)
}

// nothingFound makes a search one that no load verified: all steps lose what the first did.
func nothingFound(t *testing.T, r *study.Record, steps []study.Step) {
	t.Helper()
	for i := 2; i < len(steps); i++ {
		steps[i].Values, steps[i].Raw = steps[1].Values, steps[1].Raw
	}
	forgeSearch(t, r, func(n *experiment.NDRRaw) {
		for i := range n.Verification {
			n.Verification[i].Load, n.Verification[i].Upper, n.Verification[i].Why = 0, steps[3].Load, "not found"
		}
	})
	r.Values = map[string]float64{experiment.MetricNDR: 0, experiment.MetricPDR: 0}
}

// TestForgedLossIsRefused: a trial whose values hide what its raw counts say was lost does not count, and the run says not to trust it.
func TestForgedLossIsRefused(t *testing.T) {
	honest := Summarise(booksJournal(t, func(*study.Record, []study.Step) {}))
	if len(honest.Refused) != 0 || honest.Void != 12 { // bridges and their duplicate, of 50 wires
		t.Fatalf("an honest run: %d void, refused: %v", honest.Void, honest.Refused)
	}
	// lose a tenth of the frames of raw counts, but not in Lost nor in the values
	hide := func(b json.RawMessage) json.RawMessage {
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		m["unique"] = math.Floor(m["unique"].(float64) * 0.9)
		return raw(t, m)
	}
	for what, c := range map[string]struct {
		part, why string
		forge     func(r *study.Record, steps []study.Step)
	}{
		"a sink that reports Lost=0 while frames are missing": {"packets", "books do not balance", func(r *study.Record, _ []study.Step) { r.Raw = hide(r.Raw) }},
		"a rate of a loop that was not closed": {"packets", "of a closed loop were lost", func(r *study.Record, _ []study.Step) {
			var n experiment.SentFrames
			if err := json.Unmarshal(r.Raw, &n); err != nil {
				t.Fatal(err)
			}
			n.Unique, n.Received, n.Lost = n.Sent-1, n.Sent-1, 1
			r.Raw = raw(t, n)
		}},
		"a better rate":           {"packets", "rate is said to be", func(r *study.Record, _ []study.Step) { r.Values["rate"] *= 2 }},
		"packets without counts":  {"packets", "no raw counts", func(r *study.Record, _ []study.Step) { r.Raw = nil }},
		"a search without counts": {"limits", "no raw counts", func(r *study.Record, _ []study.Step) { r.Raw = nil }},
		"a search that verified nothing it tells of": {"limits", "no result was verified", func(r *study.Record, _ []study.Step) {
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Verification = nil })
		}},
		"a generator with more to give": {"limits", "ceiling is said to be", func(r *study.Record, _ []study.Step) {
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Ceiling *= 2 })
		}},
		"a load that was said not to be offered": {"limits", "not offered is said to be", func(r *study.Record, _ []study.Step) {
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Denied = 2e5 })
		}},
		"a generator whose limit nobody measured": {"limits", "ceiling was measured by 0 steps", func(_ *study.Record, s []study.Step) { s[0].Void = "away" }},
		"nothing found though a load was verified": {"limits", "3 trials verified 100000", func(r *study.Record, s []study.Step) {
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Verification[0].Load, n.Verification[0].Upper = 0, s[2].Load })
			r.Values[experiment.MetricNDR] = 0
		}},
		"nothing found though nothing was lost": {"limits", "no step lost too much there", func(r *study.Record, s []study.Step) {
			nothingFound(t, r, s)
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Verification[0].Upper /= 2 })
		}},
		"a step that hides loss":  {"limits", "are said to be lost", func(_ *study.Record, s []study.Step) { s[4].Raw = hide(s[4].Raw) }},
		"a step without counts":   {"limits", "step 4", func(_ *study.Record, s []study.Step) { s[4].Raw = nil }},
		"a step of another loss":  {"limits", "loss is said to be 0", func(_ *study.Record, s []study.Step) { s[1].Values[experiment.ValueLoss] = 0 }},
		"a trial that was lossy":  {"limits", "lost 10.0000 %", func(_ *study.Record, s []study.Step) { s[4].Values, s[4].Raw = s[2].Values, s[2].Raw }},
		"too few trials":          {"limits", "by 2 trials: want 3", func(_ *study.Record, s []study.Step) { s[4].Load *= 0.99 }},
		"another load is claimed": {"limits", "ndr is said to be", func(r *study.Record, _ []study.Step) { r.Values[experiment.MetricNDR] *= 1.05 }},
	} {
		got := Summarise(booksJournal(t, func(r *study.Record, steps []study.Step) {
			if r.Trial.Part == c.part && r.Trial.Block == 2 && r.Trial.Variant[0] == "ebpf" && (len(r.Trial.Variant) == 1 || r.Trial.Variant[1] == "9") {
				c.forge(r, steps)
			}
		}))
		if len(got.Refused) != 1 || !strings.Contains(got.Refused[0], c.why) || got.Void != honest.Void+1 {
			t.Errorf("%s: %d void, refused: %v", what, got.Void, got.Refused)
			continue
		}
		var text strings.Builder
		if err := Text(&text, got); err != nil || !strings.Contains(text.String(), "DO NOT TRUST THIS RUN: "+c.part+"/2/") {
			t.Errorf("%s: %v\n%s", what, err, text.String())
		}
	}
}

// TestCostBeyondWhatWasMeasured: bridges of 50 wires lost frames, so that their cost is the line's, and is said to be.
func TestCostBeyondWhatWasMeasured(t *testing.T) {
	r := Summarise(booksJournal(t, func(*study.Record, []study.Step) {}))
	i := slices.IndexFunc(r.Parts[0].Fits, func(f Fit) bool { return f.Level == "bridges" && f.Metric.Name == "cost" })
	f := r.Parts[0].Fits[i]
	if len(f.Extrapolated) != 1 || f.Extrapolated[0].X != 50 || math.Abs(f.Extrapolated[0].Y/5050-1) > 1e-3 || slices.Contains(f.X, 50) {
		t.Fatalf("%+v", f)
	}
	var text strings.Builder
	if err := Text(&text, r); err != nil || !strings.Contains(text.String(), "cost of bridges by the line, measured to 20 only: 5050 at 50 (lost half: not a closed loop)") {
		t.Errorf("%v\n%s", err, text.String())
	}
	if i := slices.IndexFunc(r.Parts[0].Fits, func(f Fit) bool { return f.Level == "ebpf" && len(f.Extrapolated) > 0 }); i >= 0 {
		t.Errorf("everything of ebpf was measured: %+v", r.Parts[0].Fits[i])
	}
}

// TestNotFoundIsAResult: a path that met the goal at no load has 0 as a result, below the load that was refused. Blocks without a result because of the path
// do not drop out of the ratio; those that the generator limits are lower bounds, of which nothing equivalent is said.
func TestNotFoundIsAResult(t *testing.T) {
	limits := func(r Results) (MetricResult, string) {
		var text strings.Builder
		if err := Text(&text, r); err != nil {
			t.Fatal(err)
		}
		if len(r.Refused) > 0 {
			t.Errorf("refused: %v", r.Refused)
		}
		return r.Parts[1].Groups[0].Metrics[0], text.String()
	}
	of := func(m MetricResult) Value {
		return m.Values[slices.IndexFunc(m.Values, func(v Value) bool { return v.Level == "ebpf" })]
	}
	ours := func(r *study.Record) bool { return r.Trial.Part == "limits" && r.Trial.Variant[0] == "ebpf" }

	m, text := limits(Summarise(booksJournal(t, func(r *study.Record, s []study.Step) {
		if ours(r) && r.Trial.Block < 2 {
			nothingFound(t, r, s)
		}
		if ours(r) && r.Trial.Block == 1 { // as versions wrote it that left such a result out
			delete(r.Values, experiment.MetricNDR)
		}
	})))
	v, ratio := of(m), m.Comparison.Variants["ebpf"]
	if v.N != 6 || v.NotFound != 2 || v.Open != stats.Closed || ratio.Blocks != 6 || ratio.Bounds != 2 || ratio.Interval.Low != 0 || ratio.Verdict != stats.Inconclusive {
		t.Errorf("none in two of six blocks: %+v, %+v", v, ratio)
	}
	if !strings.Contains(text, "found in 4 of 6 blocks") {
		t.Error(text)
	}

	m, text = limits(Summarise(booksJournal(t, func(r *study.Record, s []study.Step) {
		if ours(r) {
			nothingFound(t, r, s)
		}
	})))
	v, ratio = of(m), m.Comparison.Variants["ebpf"]
	if v.Median == nil || *v.Median != 0.1 || v.Open != stats.AtMost || ratio.Open != stats.AtMost || ratio.Interval.High != 1 {
		t.Errorf("none in any block: %+v, %+v", v, ratio)
	}
	if !strings.Contains(text, "≤ 0.1") || !strings.Contains(text, "found in 0 of 6 blocks") {
		t.Error(text)
	}

	m, text = limits(Summarise(booksJournal(t, func(r *study.Record, s []study.Step) {
		if ours(r) {
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Ceiling = 1.2e5 })
			s[0].Values = map[string]float64{experiment.ValueArrived: 1.2e5}
		}
	})))
	v, ratio = of(m), m.Comparison.Variants["ebpf"]
	if v.Limited != 6 || v.Open != stats.AtLeast || ratio.Open != stats.AtLeast || ratio.Verdict == stats.Equivalent || !math.IsInf(ratio.Interval.High, 1) {
		t.Errorf("limited by the generator: %+v, %+v", v, ratio)
	}
	if !strings.Contains(text, "≥ 0.1") || !strings.Contains(text, "a lower bound in 6 of 6 blocks") {
		t.Error(text)
	}

	// The generator could not send much more than what was refused, so that it may be the reason: nothing is known.
	m, _ = limits(Summarise(booksJournal(t, func(r *study.Record, s []study.Step) {
		if ours(r) && r.Trial.Block == 0 {
			nothingFound(t, r, s)
			forgeSearch(t, r, func(n *experiment.NDRRaw) { n.Ceiling = 1.2e5 })
			s[0].Values = map[string]float64{experiment.ValueArrived: 1.2e5}
		}
	})))
	if v := of(m); v.N != 5 || v.NotFound != 0 {
		t.Errorf("refused near the generator's ceiling: %+v", v)
	}

	// The machine is the reason: nothing is known, and the block does not count.
	m, _ = limits(Summarise(booksJournal(t, func(r *study.Record, s []study.Step) {
		if ours(r) && r.Trial.Block == 0 {
			nothingFound(t, r, s)
			forgeSearch(t, r, func(n *experiment.NDRRaw) {
				for i := range n.Verification {
					n.Verification[i].Upper = 0
				}
			})
			r.Values, r.Void = nil, "NDR: not found: the machine stalls"
		}
	})))
	if v := of(m); v.N != 5 || v.NotFound != 0 {
		t.Errorf("the machine stalled: %+v", v)
	}
}

// TestNoLineThroughBounds: which blocks of a level are bounds depends on their values, so the others are no fair sample of it. The level is left out, and the
// line says why.
func TestNoLineThroughBounds(t *testing.T) {
	p := study.Part{Name: "limits", Experiment: experiment.NDR, Compare: "platform", Baseline: "bridges",
		Metrics: []study.Metric{{Name: experiment.MetricNDR, Unit: "Mpps"}},
		Factors: []study.Factor{{Name: "platform", Levels: []string{"bridges"}}, {Name: "wires", Levels: []string{"1", "2", "3", "4"}}}}
	all := cells{}
	for wires := 1; wires <= 4; wires++ {
		c := &cell{}
		for block := range 6 {
			load := 1e6 / float64(wires)
			raw := experiment.NDRRaw{Ceiling: 2e6, Verification: []search.Verified{{Goal: experiment.GoalNDR, Load: load}}}
			if wires == 4 && block > 0 {
				raw.Ceiling = 1.1 * load
			}
			b, err := json.Marshal(raw)
			if err != nil {
				t.Fatal(err)
			}
			c.records = append(c.records, &study.Record{Values: map[string]float64{experiment.MetricNDR: load / 1e6}, Raw: b})
		}
		all[key(study.Variant{"bridges", fmt.Sprint(wires)}, false)] = c
	}
	f, ok := fit(p, p.Metrics[0], p.Factors[1], []float64{1, 2, 3, 4}, study.Variant{"bridges", "1"}, all, 6, 1)
	if !ok || len(f.X) != 3 || len(f.Extrapolated) != 1 || f.Extrapolated[0].X != 4 || f.Extrapolated[0].Why != "it is only a bound in 5 blocks" {
		t.Errorf("%v: %+v", ok, f)
	}
}
