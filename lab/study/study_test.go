package study

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/api/file"
)

const good = `name: wires
title: Chains of wires
source: a paper
parts:
  - name: chain
    question: How fast is a chain?
    experiment: tcp
    metrics: [{name: rate, unit: Gb/s, better: higher}]
    factors:
      - {name: platform, levels: [ebpf, bridges, veth]}
      - {name: wires, levels: ["1", "9", "100"]}
    compare: platform
    baseline: bridges
    quick: {blocks: 6, duration: 1s}
    full: {blocks: 20, duration: 5s}
    claims:
      - {id: nine, text: 9 wires carry 13.8 Gb/s, source: Fig. 5, metric: rate, at: {wires: "9"}, value: 13.8}
  - name: boot
    question: How long does a start take?
    experiment: boot
    metrics: [{name: seconds, unit: s, better: lower}]
    factors:
      - {name: runtime, levels: [oci, docker]}
    compare: runtime
    baseline: docker
    quick: {blocks: 3}
    full: {blocks: 10}
`

func load(t testing.TB, text string) (File, error) {
	t.Helper()
	return Load(file.Stdin, strings.NewReader(text), []string{"tcp", "boot", "ping"})
}

func mustLoad(t testing.TB, text string) Study {
	t.Helper()
	f, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return f.Study
}

func TestGoodStudyIsRead(t *testing.T) {
	s := mustLoad(t, good)
	if len(s.Parts) != 2 || len(s.Parts[0].Variants()) != 9 || s.Parts[0].Group(Variant{"ebpf", "9"}) != "wires=9" {
		t.Errorf("%+v", s)
	}
}

// A mode's settings take the place of the part's, in that mode only.
func TestSettingsOfAMode(t *testing.T) {
	text := strings.Replace(good, "compare: platform", "settings: {congestion: cubic, flows: \"8\"}\n    compare: platform", 1)
	text = strings.Replace(text, "quick: {blocks: 6,", "quick: {settings: {flows: \"1\"}, blocks: 6,", 1)
	s := mustLoad(t, text)
	for mode, want := range map[Mode]string{Quick: "1", Full: "8"} {
		got := s.For(mode).Parts[0].Settings
		if got["flows"] != want || got["congestion"] != "cubic" {
			t.Errorf("%s: %v", mode, got)
		}
	}
	if s.Parts[0].Settings["flows"] != "8" {
		t.Errorf("the study itself has changed: %v", s.Parts[0].Settings)
	}
}

// factors of two levels each.
func factors(n int) string {
	var b strings.Builder
	b.WriteString("      - {name: platform, levels: [ebpf, bridges]}\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "      - {name: f%d, levels: [a, b]}\n", i)
	}
	return b.String()
}

// numbers as levels, from 1000 on.
func numbers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%q", fmt.Sprint(1000+i)))
	}
	return strings.Join(all, ", ")
}

func TestBlocksAreBounded(t *testing.T) {
	s := Study{Parts: []Part{{Name: "a", Quick: Plan{Blocks: 7, Duration: "1s"}, Full: Plan{Blocks: 20}}, {Name: "b", Quick: Plan{Blocks: 1}, Full: Plan{Blocks: 20}}}}
	want := Study{Parts: []Part{{Name: "a", Quick: Plan{Blocks: 2, Duration: "1s"}, Full: Plan{Blocks: 20}}, {Name: "b", Quick: Plan{Blocks: 1}, Full: Plan{Blocks: 20}}}}
	if diff := cmp.Diff(want, s.AtMost(2, Quick)); diff != "" {
		t.Error(diff)
	}
	if full := s.AtMost(3, Full); full.Parts[1].Full.Blocks != 3 || full.Parts[0].Quick.Blocks != 7 || s.Parts[0].Full.Blocks != 20 {
		t.Errorf("%+v of %+v", full, s)
	}
}

// A ratio near 1 needs no tolerance of its own: package claim keeps the tolerance away from 1.
func TestARatioNear1MayBeClaimed(t *testing.T) {
	for _, v := range []string{"1.2", "0.96", "1.06", "1"} {
		text := strings.Replace(good, "value: 13.8}", `against: {wires: "1"}, value: `+v+"}", 1)
		if s := mustLoad(t, text); fmt.Sprint(s.Parts[0].Claims[0].Value) != v {
			t.Errorf("%+v", s.Parts[0].Claims)
		}
	}
}

func TestBadStudySaysWhere(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown experiment":     {"experiment: tcp", "experiment: tpc", `7:17: parts[0].experiment: there is no experiment "tpc"`},
		"unknown key":            {"question: How fast", "questoin: How fast", "6:5"},
		"baseline is no level":   {"baseline: bridges", "baseline: bridge", `13:15: parts[0].baseline: factor platform has no level "bridge"`},
		"unknown compare":        {"compare: platform", "compare: platfrom", `parts[0].compare: there is no factor "platfrom"`},
		"level twice":            {"[ebpf, bridges, veth]", "[ebpf, bridges, ebpf]", `levels[2]: level "ebpf"`},
		"no blocks":              {"blocks: 6", "blocks: 0", "0 blocks: want 1"},
		"bad time":               {"quick: {blocks: 3}", "quick: {blocks: 3, takes: long}", "takes"},
		"bad duration":           {"duration: 1s", "duration: soon", "duration"},
		"claim about nothing":    {`at: {wires: "9"}`, `at: {wires: "8"}`, `factor wires has no level "8"`},
		"claim without a figure": {"value: 13.8", "value: 0", "want exactly one of"},
		"part twice":             {"name: boot", "name: chain", `part "chain" is there twice`},
		"factor and setting":     {"compare: platform", "settings: {wires: \"9\"}\n    compare: platform", `12:23: parts[0].settings.wires: "wires" is both a setting, the same for all, and a factor`},
		"a plan's, too":          {"quick: {blocks: 6,", "quick: {settings: {wires: \"9\"}, blocks: 6,", `parts[0].quick.settings.wires: "wires" is both a setting, the same for all, and a factor`},
		"setting without level":  {"compare: platform", "settings: {congestion: \"\"}\n    compare: platform", `parts[0].settings.congestion: level ""`},
		"left out what is not":   {"quick: {blocks: 6,", "quick: {leave: [{wires: \"8\"}], blocks: 6,", `parts[0].quick.leave[0].wires: factor wires has no level "8"`},
		"left out, one of some":  {"quick: {blocks: 6,", "quick: {leave: [{wires: [\"1\", \"8\"]}], blocks: 6,", `parts[0].quick.leave[0].wires: factor wires has no level "8"`},
		"left out, nothing":      {"quick: {blocks: 6,", "quick: {leave: [{wires: []}], blocks: 6,", `parts[0].quick.leave[0].wires: no level`},
		"a duplicate's name":     {"[ebpf, bridges, veth]", `[ebpf, bridges, "bridges'"]`, `levels[2]: level "bridges'"`},
		"2^64 combinations":      {"- {name: platform, levels: [ebpf, bridges, veth]}", strings.TrimSpace(factors(64)), "too many combinations of levels: want at most 2000"},
		"a life's work":          {"levels: [\"1\", \"9\", \"100\"]", "levels: [\"9\", " + numbers(600) + "]", "quick: more than 1000000 trials"},
		"claim that contradicts": {"value: 13.8}", "value: 13.8, at_least: 20}", "want exactly one of"},
		"shape of few levels":    {"value: 13.8}", "shape: linear, along: wires}", "along a factor of at least 5 levels"},
		"unknown system":         {"value: 13.8}", "value: 13.8, systems: [ovs]}", `claims[0].systems[0]: factor platform has no level "ovs"`},
		"system and instead":     {"value: 13.8}", "value: 13.8, systems: [bridges], instead: [bridges]}", `claims[0].instead[0]: "bridges" is there twice`},
		"instead of nothing":     {"value: 13.8}", "value: 13.8, instead: [ebpf]}", "stands beside no system"},
		"system twice said":      {`at: {wires: "9"}, value: 13.8}`, `at: {platform: ebpf}, systems: [bridges], value: 13.8}`, "systems and instead say where the claim is judged"},
		"tolerance of all":       {"value: 13.8}", `against: {wires: "1"}, value: 3, tolerance: 1}`, "want a share between 0 and 1"},
		"tolerance of hardware":  {"value: 13.8}", `value: 3, tolerance: 0.1}`, "an absolute figure of other hardware is not compared"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if name == "a life's work" {
			text = strings.Replace(text, "blocks: 6,", "blocks: 1000,", 1)
		}
		if text == good {
			t.Fatalf("%s: nothing changed", name)
		}
		_, err := load(t, text)
		var bad *file.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q in:\n%v", name, c.want, err)
		}
	}
}

func TestScheduleIsInterleavedAndRepeatable(t *testing.T) {
	s := mustLoad(t, good)
	one, again, other := s.Schedule(Quick, 7), s.Schedule(Quick, 7), s.Schedule(Quick, 8)
	if diff := cmp.Diff(one, again); diff != "" {
		t.Errorf("the same seed gives another schedule:\n%s", diff)
	}
	if cmp.Equal(one, other) {
		t.Error("another seed gives the same order")
	}
	keys := map[string]int{}
	orders := map[string]bool{}
	block, order := -1, ""
	for _, tr := range one {
		keys[tr.Key()]++
		if tr.Part != "chain" {
			continue
		}
		if tr.Block != block {
			if tr.Block != block+1 {
				t.Fatalf("block %d follows block %d", tr.Block, block)
			}
			orders[order], order, block = true, "", tr.Block
		}
		order += strings.TrimPrefix(tr.Key(), fmt.Sprintf("chain/%d", tr.Block)) + ";"
	}
	if len(orders) < 5 { // of 12! possible ones
		t.Errorf("the blocks have %d different orders", len(orders))
	}
	// Each block: 9 variants and 3 duplicates; and 2 variants and 1.
	if len(keys) != 6*12+3*3 {
		t.Errorf("%d trials", len(keys))
	}
	for k, n := range keys {
		if n != 1 {
			t.Errorf("trial %s %d times", k, n)
		}
	}
}

func TestSelection(t *testing.T) {
	s := mustLoad(t, good)
	pick := func(text string) (Study, error) {
		sel, err := ParseSelection(text)
		if err != nil {
			return s, err
		}
		return s.Select(sel)
	}
	got, err := pick("part=chain,platform=ebpf,wires=1,wires=9")
	if err != nil || len(got.Parts) != 1 || !slices.Equal(got.Parts[0].Factors[0].Levels, []string{"ebpf", "bridges"}) || !slices.Equal(got.Parts[0].Factors[1].Levels, []string{"1", "9"}) {
		t.Errorf("%+v, %v (the baseline stays)", got, err)
	}
	for text, want := range map[string]string{
		"wires=7": `factor wires has no level "7": want one of 1, 9, 100`, "wire=9": `has no factor "wire": want one of part, platform, runtime, wires`,
		"wires": "want factor=level", "part=none": "nothing of study wires is left",
	} {
		if _, err := pick(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", text, want, err)
		}
	}
}

func newJournal(t *rapid.T, s Study, dir string) *Journal {
	j, err := Create(dir, Header{Study: s, Mode: Quick, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestCrashLosesNothing: whatever was cut off at whatever byte, the trials that were on the disk are there once, and the rest is left to do.
func TestCrashLosesNothing(t *testing.T) {
	s := mustLoad(t, good)
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(root, fmt.Sprint(n))
		j := newJournal(t, s, dir)
		schedule := j.Left()
		made := rapid.IntRange(1, 10).Draw(t, "trials made")
		var size int64
		for i := range made {
			if st, err := os.Stat(filepath.Join(dir, journalName)); err == nil {
				size = st.Size()
			}
			if err := j.Add(Record{Trial: schedule[i], Values: map[string]float64{"rate": float64(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(dir, journalName))
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.Int64Range(size, st.Size()).Draw(t, "bytes that survive")
		if err := os.Truncate(filepath.Join(dir, journalName), cut); err != nil {
			t.Fatal(err)
		}
		want := made
		if cut < st.Size() {
			want--
		}
		j, err = Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if len(j.Records) != want || !cmp.Equal(j.Left(), schedule[want:]) {
			t.Fatalf("%d records of %d, %d left of %d", len(j.Records), want, len(j.Left()), len(schedule))
		}
		for _, tr := range j.Left() {
			if err := j.Add(Record{Trial: tr}); err != nil {
				t.Fatal(err)
			}
		}
		back, err := Read(dir)
		if err != nil || len(back.Records) != len(schedule) || len(back.Left()) != 0 {
			t.Fatalf("%v", err)
		}
	})
}

func TestJournalIsGuarded(t *testing.T) {
	s := mustLoad(t, good)
	dir := t.TempDir()
	j, err := Create(dir, Header{Study: s, Mode: Quick})
	if err != nil {
		t.Fatal(err)
	}
	tr := j.Left()[0]
	if err := j.Add(Record{Trial: tr}); err != nil {
		t.Fatal(err)
	}
	if err := j.Add(Record{Trial: tr}); !errors.Is(err, ErrJournal) {
		t.Errorf("a trial twice: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), "a run is writing to "+dir) {
		t.Errorf("opened while it is written: %v", err)
	}
	if back, err := Read(dir); err != nil || len(back.Records) != 1 {
		t.Errorf("read while it is written: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := Open(dir); err != nil {
		t.Errorf("opened when nobody writes: %v", err)
	} else if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, Header{Study: s}); !errors.Is(err, ErrJournal) {
		t.Errorf("a second run in one directory: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"another seed": strings.Replace(string(b), `"seed":0`, `"seed":1`, 1), "another mode": strings.Replace(string(b), `"mode":"quick"`, `"mode":"full"`, 1),
		"other levels": strings.Replace(string(b), `"ebpf","bridges"`, `"ovs","bridges"`, 1), "longer trials": strings.Replace(string(b), `"1s"`, `"2s"`, 1),
		"another run's trial": strings.Replace(string(b), `"trial":{"part":"chain"`, `"trial":{"part":"chains"`, 1),
		"a trial twice":       string(b) + string(b[strings.IndexByte(string(b), '\n')+1:]),
		"resumed too often":   string(b) + strings.Repeat(`{"resumed":{"at":"2026-01-02T03:04:05Z","version":"v"}}`+"\n", maxResumed+1),
		"empty":               "", "no JSON": "x\n", "another format": `{"format":9}` + "\n", "damaged in the middle": strings.Replace(string(b), `{"trial"`, `{"tri`, 1) + string(b[strings.IndexByte(string(b), '\n')+1:]),
	} {
		other := t.TempDir()
		if text == string(b) {
			t.Fatalf("%s: nothing changed", name)
		}
		if err := os.WriteFile(filepath.Join(other, journalName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(other); !errors.Is(err, ErrJournal) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.ReadFile(filepath.Join(other, journalName)); err != nil || string(after) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}
