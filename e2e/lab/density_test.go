package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab"
	"weir.dev/weir/lab/study"
)

// small is a study of many containers with every part, network and runtime, few containers and short trials.
func small(t testing.TB, name string) string {
	t.Helper()
	s, err := lab.Load(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	few := map[string][]string{"processors": {"1", "3"}, "pairs": {"2"}, "message": {"64", "65507"}, "cores": {"1", "2"}, "flows": {"1", "3"}, "elephants": {"0", "50"}}
	for i := range s.Parts {
		p := &s.Parts[i]
		for k, f := range p.Factors {
			if levels, ok := few[f.Name]; ok {
				p.Factors[k].Levels = levels
			}
		}
		for name, level := range map[string]string{"processors": "3", "pairs": "2", "transfers": "4", "mouse": "20000", "elephant": "200000"} {
			if _, ok := p.Settings[name]; ok || p.Experiment == "fct-pairs" && name != "pairs" && name != "processors" {
				p.Settings[name] = level
			}
		}
		p.Quick = study.Plan{Blocks: 1, Duration: "100ms"}
		p.Claims = nil // they name other levels
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "small.yaml") // JSON is YAML
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKilledDensityGoesOn: kill -9 while pairs of containers send; resume removes what was left, makes every part, and leaves the host as it was.
func TestKilledDensityGoesOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	links := hostLinks(t)
	dir := filepath.Join(t.TempDir(), "run")
	run := weir(t, ctx, "run", small(t, "density"), "--seed", "3", "--dir", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	first := until(t, ctx, run, dir, 3)
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = run.Wait() // killed
	if len(traces(t, first)) == 0 {
		t.Error("a killed run leaves nothing: the test does not test")
	}
	second, _, problems := resumed(t, ctx, dir, 6)
	gone(t, first)
	gone(t, second)
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	checkContainers(t, dir, problems)
}

// TestForwardersRun: processors of every runtime on every network, on one host and two; nothing stays.
func TestForwardersRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	links := hostLinks(t)
	dir := filepath.Join(t.TempDir(), "run")
	run := weir(t, ctx, "run", small(t, "forwarders"), "--seed", "3", "--dir", dir)
	var out bytes.Buffer
	run.Stdout, run.Stderr = &out, &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	names := until(t, ctx, run, dir, 3)
	if err := run.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	gone(t, names)
	if diff := cmp.Diff(links, hostLinks(t)); diff != "" {
		t.Errorf("links of the host:\n%s", diff)
	}
	checkContainers(t, dir, out.String())
}

// lacking tells whether a trial may be skipped: for what not every machine has.
func lacking(why string) bool {
	return slices.ContainsFunc([]string{"openvswitch.ko", "this machine has 1 processors", "rkt: not installed", "one Docker engine"}, func(part string) bool {
		return strings.Contains(why, part)
	})
}

// checkContainers: every trial of every part is made, or skipped for what this machine lacks.
func checkContainers(t *testing.T, dir, problems string) {
	t.Helper()
	j, err := study.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{} // trials with a value, by part
	var trials []study.Trial
	for _, r := range j.Records {
		trials = append(trials, r.Trial)
		p := j.Header.Study.Parts[slices.IndexFunc(j.Header.Study.Parts, func(p study.Part) bool { return p.Name == r.Trial.Part })]
		switch {
		case r.Skipped != "":
			if !lacking(r.Skipped) {
				t.Errorf("%s: skipped: %s", r.Trial.Key(), r.Skipped)
			}
			continue
		case strings.HasPrefix(r.Void, "failed") || strings.Contains(r.Void, "want all the same"): // nor do the books balance
			t.Errorf("%s: %s", r.Trial.Key(), r.Void)
			continue
		}
		got := r.Values[p.Metrics[0].Name] > 0 // on a busy machine nobody may send anything in so short a window
		for _, m := range p.Metrics {
			v, ok := r.Values[m.Name]
			few := slices.Contains([]string{"p50", "p99", "retransmits-fast", "mice-p99"}, m.Name) || m.Name == "elephants" && slices.Contains(r.Trial.Variant, "0")
			if got && !ok && !few || v < 0 {
				t.Errorf("%s: %s is %v, %t of %v", r.Trial.Key(), m.Name, v, ok, r.Values)
			}
		}
		if r.Conditions["ends"] == "" || r.Conditions["MTU"] != "1500" || len(r.Raw) == 0 {
			t.Errorf("%s: %v under %v, raw of %d bytes", r.Trial.Key(), r.Values, r.Conditions, len(r.Raw))
		}
		if got {
			made[p.Name]++
		}
	}
	if diff := cmp.Diff(j.Header.Study.Schedule(study.Quick, 3), trials); diff != "" {
		t.Errorf("not the schedule, each trial once:\n%s\n%s", diff, problems)
	}
	for _, p := range j.Header.Study.Parts {
		if made[p.Name] == 0 {
			t.Errorf("part %s: nothing was measured", p.Name)
		}
	}
}
