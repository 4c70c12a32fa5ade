package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

const limits = `name: limits
title: Searches
parts:
  - name: limits
    question: What passes?
    experiment: ndr
    metrics:
      - {name: ndr, unit: Mpps, better: higher}
      - {name: typical-0, unit: us, better: lower}
      - {name: typical-10, unit: us, better: lower}
      - {name: typical-50, unit: us, better: lower}
      - {name: typical-90, unit: us, better: lower}
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["1"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 1, duration: 20ms, verify: 100ms}
    full: {blocks: 6, duration: 200ms}
`

// TestKilledSearchGoesOn: kill -9 in the middle of searches; resume goes on with them from their last steps and leaves nothing on the host.
func TestKilledSearchGoesOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	links := hostLinks(t)
	dir, file := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(limits), 0o644); err != nil {
		t.Fatal(err)
	}
	run := weir(t, ctx, "run", file, "--seed", "3", "--dir", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	first := until(t, ctx, run, dir, 8) // each search has made two steps or three
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	before, err := study.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Records) != 0 {
		t.Fatalf("%d trials are over already: the test does not test", len(before.Records))
	}
	resume := weir(t, ctx, "resume", dir)
	if text, err := resume.CombinedOutput(); err != nil || !strings.Contains(string(text), "report:") {
		t.Fatalf("%v\n%s", err, text)
	}
	gone(t, first)
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	after, err := study.Read(dir) // it refuses a journal in which a step is there twice or left out
	if err != nil {
		t.Fatal(err)
	}
	schedule := after.Header.Study.Schedule(study.Quick, 3)
	if len(after.Records) != len(schedule) || len(after.Left()) != 0 {
		t.Errorf("%d trials of %d", len(after.Records), len(schedule))
	}
	for _, r := range after.Records {
		old, now := before.StepsOf(r.Trial), after.StepsOf(r.Trial)
		if len(old) < 2 || len(now) <= len(old) {
			t.Errorf("%s: %d steps before, %d after", r.Trial.Key(), len(old), len(now))
		} else if diff := cmp.Diff(old, now[:len(old)]); diff != "" {
			t.Errorf("%s: other steps than before:\n%s", r.Trial.Key(), diff)
		}
		if strings.HasPrefix(r.Void, "failed") || r.Skipped != "" {
			t.Errorf("%s: %s%s %v", r.Trial.Key(), r.Void, r.Skipped, r.Values)
		}
		if r.Void != "" {
			continue
		}
		var raw experiment.NDRRaw
		if err := json.Unmarshal(r.Raw, &raw); err != nil {
			t.Fatal(err)
		}
		for _, v := range raw.Verification { // on a busy machine every load may lose frames: then the journal says why there is none
			if v.Load <= 0 && v.Why == "" {
				t.Errorf("%s: no %s, and nothing says why", r.Trial.Key(), v.Goal)
			}
			if v.Load > 0 && r.Values[experiment.MetricOf(v.Goal)] != v.Load/1e6 {
				t.Errorf("%s: %s of %v frames a second, and the values say %v", r.Trial.Key(), v.Goal, v.Load, r.Values)
			}
		}
		for _, share := range experiment.DelayShares() { // of the PDR
			name := experiment.DelayName(experiment.ValueTypical, share)
			if us, measured := r.Values[name]; measured != (r.Values[experiment.MetricPDR] > 0) || measured && us <= 0 {
				t.Errorf("%s: %s is %v us: %v", r.Trial.Key(), name, us, r.Values)
			}
		}
	}
}
