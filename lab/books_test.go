package lab

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/search"
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
	for _, tr := range j.Left() {
		r := study.Record{Trial: tr, Took: time.Second}
		var steps []study.Step
		if tr.Part == "packets" {
			packetsRecord(t, &r)
		} else {
			steps = searchRecord(t, &r)
		}
		forge(&r, steps)
		for _, s := range steps {
			if err := j.AddStep(s); err != nil {
				t.Fatal(err)
			}
		}
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
	step(experiment.StepSearch, 2*load, lossy)
	step(experiment.StepNDR, 1.05*load, lossy)
	for range search.VerifyTrials {
		step(experiment.StepNDR, load, clean)
	}
	v := []search.Verified{{Goal: experiment.GoalNDR, Load: load, Upper: 1.05 * load}, {Goal: experiment.GoalPDR, Load: load}}
	r.Values = map[string]float64{experiment.MetricNDR: load / 1e6, experiment.MetricPDR: load / 1e6}
	r.Raw = raw(t, experiment.NDRRaw{Verification: v})
	return steps
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
		"a step that hides loss":  {"limits", "are said to be lost", func(_ *study.Record, s []study.Step) { s[3].Raw = hide(s[3].Raw) }},
		"a step without counts":   {"limits", "step 3", func(_ *study.Record, s []study.Step) { s[3].Raw = nil }},
		"a step of another loss":  {"limits", "loss is said to be 0", func(_ *study.Record, s []study.Step) { s[0].Values[experiment.ValueLoss] = 0 }},
		"a trial that was lossy":  {"limits", "lost 10.0000 %", func(_ *study.Record, s []study.Step) { s[3].Values, s[3].Raw = s[1].Values, s[1].Raw }},
		"too few trials":          {"limits", "by 2 trials: want 3", func(_ *study.Record, s []study.Step) { s[3].Load *= 0.99 }},
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
