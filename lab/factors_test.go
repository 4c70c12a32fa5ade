package lab

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/api/file"
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
	if want := (Levels{"platform": "ebpf", "wires": "9", "congestion": "reno", "message": "65536"}); !maps.Equal(l, want) {
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
	for name, x := range Experiments() {
		known, ok := Factors(x)
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
		record("veth", condGRO, "off", condCongestion, "cubic"), record("ebpf", condGRO, "on", condCongestion, "cubic"),
		record("veth", condGRO, "off", condCongestion, "cubic"), record("ovs"), // skipped: nothing is known of it
	}))
	if want := "GRO off (veth), on (ebpf); congestion control cubic"; got != want {
		t.Errorf("%q: want %q", got, want)
	}
	if got := ConditionsText(nil); got != "" {
		t.Errorf("no conditions: %q", got)
	}
}
