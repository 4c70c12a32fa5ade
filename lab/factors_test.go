package lab

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/api/file"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

const goodStudy = `name: mine
title: A study of mine
parts:
  - name: stream
    question: How fast?
    experiment: tcp
    metrics: [{name: rate, unit: Gb/s, better: higher}]
    factors:
      - {name: platform, levels: [ebpf, bridges]}
      - {name: wires, levels: ["1", "9"]}
    settings: {congestion: reno, message: "65536"}
    compare: platform
    baseline: bridges
    quick: {blocks: 6, duration: 1s}
    full: {blocks: 20, duration: 5s}
`

// What an experiment does not know is refused with its place, before anything is measured.
func TestFactorsAndLevelsAreChecked(t *testing.T) {
	good, err := Load(file.Stdin, strings.NewReader(goodStudy))
	if err != nil {
		t.Fatal(err)
	}
	l := levelsOf(good.Parts[0], study.Variant{"ebpf", "9"})
	if want := (experiment.Levels{"platform": "ebpf", "wires": "9", "congestion": "reno", "message": "65536"}); !maps.Equal(l, want) {
		t.Errorf("levels %v: want %v", l, want)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown factor":         {"name: wires", "name: wirse", `10:16: parts[0].factors[1].name: experiment tcp has no factor "wirse" (did you mean "wires"?)`},
		"unknown platform":       {"[ebpf, bridges]", "[ebfp, bridges]", `9:35: parts[0].factors[0].levels[0]: level "ebfp": did you mean "ebpf"?`},
		"too many wires":         {`"9"]`, `"9000"]`, `10:37: parts[0].factors[1].levels[1]: level "9000": want a number of wires, 0 to 500`},
		"unknown setting":        {"congestion: reno", "congstion: reno", `parts[0].settings.congstion: experiment tcp has no factor "congstion" (did you mean "congestion"?)`},
		"setting of another one": {"congestion: reno", "request: \"1\"", `experiment tcp has no factor "request"`},
		"bad congestion":         {"reno", "Reno", `want the kernel's name of a congestion control`},
		"bad message":            {"65536", "64k", `level "64k": want bytes, 64 to 1048576`},
		"another unit":           {"Gb/s", "Mb/s", `7:15: parts[0].metrics[0]: experiment tcp has no metric rate (Mb/s) (want cpu (CPU s per GB), rate (Gb/s), retransmits (segments))`},
	} {
		text := strings.Replace(goodStudy, c.old, c.new, 1)
		if text == goodStudy {
			t.Fatalf("%s: nothing changed", name)
		}
		_, err := Load(file.Stdin, strings.NewReader(text))
		var bad *file.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q in:\n%v", name, c.want, err)
		}
	}
}

// Every experiment says what it can vary, its defaults are right by its own rules, and its names are such that a study can use them.
func TestExperimentsSayWhatTheyVary(t *testing.T) {
	for name, x := range experiment.All() {
		known, ok := experiment.Factors(x)
		if !ok {
			t.Errorf("%s does not say what it can vary", name)
		}
		seen := map[string]bool{}
		for _, f := range known {
			if seen[f.Name] || f.Name == "" || f.About == "" {
				t.Errorf("%s: factor %+v", name, f)
			}
			seen[f.Name] = true
			if f.Default != "" && f.Check != nil && f.Check(f.Default) != nil {
				t.Errorf("%s: the default of %s is refused: %v", name, f.Name, f.Check(f.Default))
			}
		}
		if len(x.Metrics()) == 0 || x.About() == "" {
			t.Errorf("%s says nothing about itself", name)
		}
	}
}

func TestConditionsAreTold(t *testing.T) {
	p := study.Part{Name: "p", Compare: "platform", Factors: []study.Factor{{Name: "platform", Levels: []string{"veth", "ebpf", "ovs"}}}}
	record := func(level string, conditions ...string) study.Record {
		r := study.Record{Trial: study.Trial{Variant: study.Variant{level}}, Conditions: map[string]string{}}
		for pair := range slices.Chunk(conditions, 2) {
			r.Conditions[pair[0]] = pair[1]
		}
		return r
	}
	got := ConditionsText(conditionsOf(p, []study.Record{
		record("veth", "GRO", "off", "congestion control", "cubic"), record("ebpf", "GRO", "on", "congestion control", "cubic"),
		record("veth", "GRO", "off", "congestion control", "cubic"), record("ovs"), // skipped: nothing is known of it
	}))
	if want := "GRO off (veth), on (ebpf); congestion control cubic"; got != want {
		t.Errorf("%q: want %q", got, want)
	}
	if got := ConditionsText(nil); got != "" {
		t.Errorf("no conditions: %q", got)
	}
}

// A user's study can choose mode, representation and load; what no experiment knows is told with its place.
func TestStudyChoosesModeAndRepresentation(t *testing.T) {
	text := `name: mine
title: Mine
parts:
  - name: one
    question: Which?
    experiment: pps
    metrics: [{name: rate, unit: Mpps, better: higher}]
    settings: {mode: MODE, representation: frame, flows: "10", size: imix}
    factors: [{name: platform, levels: [xdp, veth]}]
    compare: platform
    baseline: veth
    quick: {blocks: 6, duration: 100ms}
    full: {blocks: 6, duration: 100ms}
`
	s, err := Load("-", strings.NewReader(strings.Replace(text, "MODE", "loss", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if l := levelsOf(s.Parts[0], study.Variant{"xdp"}); l["mode"] != "loss" || l["representation"] != "frame" {
		t.Errorf("%v", l)
	}
	if _, err := Load("-", strings.NewReader(strings.Replace(text, "MODE", "lossy", 1))); err == nil || !strings.Contains(err.Error(), "loss") {
		t.Errorf("a mode that there is not: %v", err)
	}
}

// A tool that there is not is a mistake of the study.
func TestToolsOfAStudyAreChecked(t *testing.T) {
	text := strings.Replace(goodStudy, "congestion: reno", "tool: nutcp", 1)
	if _, err := Load("-", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), `did you mean "nuttcp"`) {
		t.Errorf("a tool that there is not: %v", err)
	}
	s, err := Load("-", strings.NewReader(strings.Replace(text, "nutcp", "nuttcp", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if l := levelsOf(s.Parts[0], study.Variant{"ebpf", "9"}); l["tool"] != "nuttcp" {
		t.Errorf("%v", l)
	}
}
