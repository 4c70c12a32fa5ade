package experiment_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/study"
)

// busy keeps a CPU busy until the test ends.
func busy(t *testing.T, cpu int) {
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
		for !over.Load() {
			machine.Canary()
		}
	})
	t.Cleanup(func() { over.Store(true); all.Wait() })
}

var tries = flag.Int("tries", 3, "searches of TestKnownLimitsAreFound, three at a time")

// TestKnownLimitsAreFound: a program passes N frames a second. The search finds that within its width, although the second CPU is busy.
func TestKnownLimitsAreFound(t *testing.T) {
	x, chain := experiment.NewShaped(t)
	busy(t, chain)
	text, err := os.ReadFile("../testdata/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := study.Parse("limits.yaml", bytes.ReplaceAll(text, []byte("BLOCKS"), []byte(strconv.Itoa((*tries+2)/3))), []string{"ndr"})
	if err != nil {
		t.Fatal(err)
	}
	j, err := study.Create(filepath.Join(t.TempDir(), "run"), study.Header{Study: f.Study, Mode: study.Quick, Seed: 5, Started: time.Unix(0, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	const lowered = 0.3 // 5, 10 and 20 %
	begun := time.Now()
	r := lab.Runner{Experiments: map[string]experiment.Experiment{"ndr": x}, Journal: j, Progress: lab.Silent{}, Rules: lab.VoidRules{Steal: 2, Canary: 1e9, Squeeze: 1e9}}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, r := range j.Records {
		if r.Void != "" || r.Skipped != "" {
			t.Fatalf("%s: %s%s", r.Trial.Key(), r.Void, r.Skipped)
		}
		var raw experiment.NDRRaw
		if err := json.Unmarshal(r.Raw, &raw); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseFloat(r.Trial.Variant[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range raw.Verification { // one short disturbance refuses a load, since the limit stores few frames: other programs take three steps at most
			if off := v.Load/n - 1; off > experiment.SearchWidth || off < -lowered {
				t.Errorf("%s of a limit of %.0f verified is off by %.2f %%: %+v", v.Goal, n, off*100, v)
			}
		}
		for _, found := range raw.Results {
			if off := found.Lower/n - 1; !found.Settled || math.Abs(off) > experiment.SearchWidth || (found.Upper-found.Lower)/found.Upper > experiment.SearchWidth {
				t.Errorf("%s of a limit of %.0f is off by %.2f %%: %+v; %d trials", found.Goal, n, off*100, found, raw.Trials)
			}
		}
		if raw.Limited || raw.Ceiling < n {
			t.Errorf("a ceiling of %.0f limits %.0f", raw.Ceiling, n)
		}
		t.Logf("%s: %d steps, %d trials of the search, ceiling %.2f Mpps, %+v", r.Trial.Key(), len(j.StepsOf(r.Trial)), raw.Trials, raw.Ceiling/1e6, raw.Verification)
	}
	t.Logf("%d searches in %s", len(j.Records), time.Since(begun).Round(time.Millisecond))
}
