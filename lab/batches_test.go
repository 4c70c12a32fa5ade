package lab

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// amortised are the known figures behind batches: what a frame costs depends on how many enter at a time.
type amortised struct {
	*fake
	takes func(l experiment.Levels, setups int) int
}

func (x amortised) Setup(ctx context.Context, b *experiment.Bench, l experiment.Levels) (experiment.Arrangement, error) {
	a, err := x.fake.Setup(ctx, b, l)
	n := x.takes(l, len(x.setups))
	return &amortisedPath{a, n, n}, err
}

type amortisedPath struct {
	experiment.Arrangement
	takes, batch int
}

func (a *amortisedPath) Takes() int     { return a.takes }
func (a *amortisedPath) SetBatch(n int) { a.batch = n }
func (a *amortisedPath) Measure(ctx context.Context, d time.Duration) (experiment.Measurement, error) {
	m, err := a.Arrangement.Measure(ctx, d)
	if err != nil {
		return m, err
	}
	m.Conditions = map[string]string{"batch": strconv.Itoa(a.batch)}
	m.Values["rate"] /= 1 + 1/float64(a.batch)
	if a.batch > a.takes {
		m.Void = "lost 1 of 100 frames: not a closed loop"
	}
	return m, nil
}

// batchesOf a run by block and group.
func batchesOf(t *testing.T, j *study.Journal) map[string]map[int]int {
	t.Helper()
	out := map[string]map[int]int{}
	for _, r := range j.Records {
		if r.Skipped != "" {
			continue
		}
		k := groupKey(j.Header.Study.Parts[0], r.Trial)
		if out[k] == nil {
			out[k] = map[int]int{}
		}
		out[k][experiment.BatchOf(r.Conditions)]++
	}
	return out
}

// What is compared in a block has one batch, the smallest that any variant takes: with all set up at once, and with one set up after another since
// memory is short, where a variant that takes less loses frames and does not count. Another group has another batch, and so may another block.
func TestWhatIsComparedHasOneBatch(t *testing.T) {
	takes := func(l experiment.Levels, setups int) int {
		wires, _ := strconv.Atoi(l["wires"])
		switch l["platform"] {
		case "theirs":
			return 16 / wires
		case "third":
			return 8 + setups/40 // which grows from block to block
		}
		return 64
	}
	for name, memory := range map[string]float64{"enough": 1, "short": 0.01} {
		f := &fake{value: known}
		r := fakeRun(t, f, filepath.Join(t.TempDir(), "run"))
		r.Experiments = map[string]experiment.Experiment{"fake": amortised{f, takes}}
		r.Memory = func() float64 { return memory }
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		least := map[string]bool{}
		for k, sizes := range batchesOf(t, r.Journal) {
			if len(sizes) != 1 {
				t.Errorf("memory %s: %s has batches %v", name, k, sizes)
			}
			for n := range sizes {
				least[k[strings.LastIndex(k, "/")+1:]+" "+strconv.Itoa(n)] = true
			}
		}
		results := Summarise(r.Journal)
		if memory == 1 {
			if !least["wires=1 8"] || !least["wires=1 9"] || !least["wires=4 4"] || len(least) > 6 || least["wires=1 64"] || results.Void != 0 {
				t.Errorf("batches %v, %d void", least, results.Void)
			}
			if v := results.Parts[0].Groups[0].Metrics[0].Comparison.Variants["third"]; !v.Decided() || v.Claimed() {
				t.Errorf("what costs the same, in batches that it would have had apart: %+v", v)
			}
			continue
		}
		for _, x := range r.Journal.Records {
			wires, _ := strconv.Atoi(x.Trial.Variant[1])
			if took := experiment.BatchOf(x.Conditions); x.Trial.Variant[0] == "theirs" && (took > 16/wires) != (x.Void != "") {
				t.Errorf("%s: %d at a time: %q", x.Trial.Key(), took, x.Void)
			}
		}
	}
}

// A run that goes on within a block has the block's batch still, whatever its new set-ups take.
func TestABlockThatGoesOnKeepsItsBatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{value: known}
	f.measure = func() {
		if f.trials == 17 { // in the second block
			cancel()
		}
	}
	r := fakeRun(t, f, dir)
	r.Experiments = map[string]experiment.Experiment{"fake": amortised{f, func(experiment.Levels, int) int { return 16 }}}
	if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("it was not cut off: %v", err)
	}
	if err := r.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	j, err := study.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	again := runner(nil, j)
	again.Experiments = map[string]experiment.Experiment{"fake": amortised{&fake{value: known}, func(experiment.Levels, int) int { return 64 }}}
	if err := again.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[int]int{}
	for k, sizes := range batchesOf(t, j) {
		if len(sizes) != 1 {
			t.Errorf("%s has batches %v", k, sizes)
		}
		for n := range sizes {
			seen[n]++
		}
	}
	if seen[16] < 4 || seen[16]+seen[64] != 3*8 || seen[64] < 3*6 {
		t.Errorf("groups of blocks by their batch: %v", seen)
	}
}

// A journal whose trials had other batches than what they are compared with, as another version may have made it, counts none of that group and block.
// A batch that contradicts the raw counts is refused.
func TestUnlikeBatchesDoNotCount(t *testing.T) {
	write := func(batch func(tr study.Trial) int) Results {
		return Summarise(booksJournal(t, func(r *study.Record, _ []study.Step) {
			if r.Trial.Part != "packets" {
				return
			}
			var n experiment.SentFrames
			if err := json.Unmarshal(r.Raw, &n); err != nil {
				t.Fatal(err)
			}
			n.Batch = batch(r.Trial)
			r.Raw, r.Conditions = raw(t, n), map[string]string{"batch": strconv.Itoa(n.Batch)}
		}))
	}
	alike := write(func(tr study.Trial) int { return 8 + tr.Block })
	apart := write(func(tr study.Trial) int {
		if tr.Variant[0] == "ebpf" && tr.Variant[1] == "5" && tr.Block < 2 {
			return 64
		}
		return 8
	})
	if n := apart.Void - alike.Void; n != 2*3 {
		t.Errorf("%d trials more do not count: want those of two groups of three", n)
	}
	told := 0
	for _, v := range apart.Parts[0].Voids {
		if v.Reason == "refused: batches differ: 8 and 64 frames enter at a time in what is compared" && v.Variant[1] == "5" && v.Block < 2 {
			told++
		}
	}
	if told != 2*3 {
		t.Errorf("%d trials say why: %+v", told, apart.Parts[0].Voids)
	}
	compared := func(r Results, group int) stats.Ratio {
		return r.Parts[0].Groups[group].Metrics[0].Comparison.Variants["ebpf"]
	}
	if a, b := compared(alike, 1), compared(apart, 1); a.Blocks != 6 || b.Blocks != 4 || compared(apart, 0).Blocks != 6 {
		t.Errorf("blocks that are compared: %d, %d, and %d in a group without", a.Blocks, b.Blocks, compared(apart, 0).Blocks)
	}
	forged := Summarise(booksJournal(t, func(r *study.Record, _ []study.Step) {
		if r.Trial.Part == "packets" && r.Trial.Block == 3 {
			r.Conditions = map[string]string{"batch": "77"}
		}
	}))
	if len(forged.Refused) == 0 || !strings.Contains(forged.Refused[0], "77 frames are said to enter at a time: they were sent in batches of ") {
		t.Errorf("refused: %v", forged.Refused)
	}
}
