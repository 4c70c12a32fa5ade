package lab

import (
	"strings"
	"testing"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/study"
)

func TestFiguresSayThatEmulationIsMeasured(t *testing.T) {
	p := PartResult{Conditions: []Condition{
		{Name: "GRO", Value: "on"},
		{Name: "virtual machines", Value: "emulated processor (tcg), machine microvm: with /dev/kvm none came up, or there is none", Levels: []string{"kvm", "qemu"}},
	}}
	const want = "kvm, qemu: emulation is measured, no processor that runs machines (emulated processor (tcg), machine microvm: with /dev/kvm none came up, or there is none)."
	if have := p.EmulatedText(); have != want {
		t.Errorf("%s\nwant %s", have, want)
	}
	p.Conditions[1].Value = "processor by /dev/kvm, machine microvm"
	if have := p.EmulatedText(); have != "" {
		t.Errorf("on a processor that runs machines: %s", have)
	}
}

// A paper's figure is not compared with an emulated processor's; a target of ours is.
func TestNoPaperIsComparedWithEmulation(t *testing.T) {
	p := study.Part{
		Metrics: []study.Metric{{Name: "run", Unit: "s", Better: "lower"}}, Factors: []study.Factor{{Name: "runtime", Levels: []string{"native", "qemu"}}},
		Compare: "runtime", Baseline: "native",
	}
	claims := []study.Claim{
		{ID: "theirs", Source: "a paper", Metric: "run", Against: map[string]string{"runtime": "qemu"}, Systems: []string{"native"}, Value: 0.3},
		{ID: "ours", Source: "target of Weir", Metric: "run", At: map[string]string{"runtime": "qemu"}, Against: map[string]string{"runtime": "native"}, AtMost: 3},
	}
	all := cells{}
	for level, seconds := range map[string]float64{"native": 1, "qemu": 2} {
		c := &cell{}
		for block := range 8 {
			c.records = append(c.records, &study.Record{Trial: study.Trial{Block: block, Variant: study.Variant{level}}, Values: map[string]float64{"run": seconds}})
		}
		all[level] = c
	}
	p.Claims = claims
	emulated := []Condition{{Name: "virtual machines", Value: "emulated processor (tcg)", Levels: []string{"qemu"}}}
	got := judgeClaims(p, all, 8, emulated)
	if r := got[0]; r.Verdict != claim.NotTestable || !strings.Contains(r.Headline().Why, "the processor of qemu is emulated here") {
		t.Errorf("theirs: %s (%s)", r.Verdict, r.Headline().Why)
	}
	if r := got[1]; r.Verdict != claim.Met {
		t.Errorf("ours: %s (%s)", r.Verdict, r.Headline().Why)
	}
	if r := judgeClaims(p, all, 8, nil)[0]; r.Verdict == claim.NotTestable {
		t.Errorf("theirs, of a real processor: %s", r.Headline().Why)
	}
}

// A condition that only some of the measured levels have is theirs, also where of the others nothing is known.
func TestConditionsAreOfTheirLevels(t *testing.T) {
	p := study.Part{Factors: []study.Factor{{Name: "runtime", Levels: []string{"native", "qemu"}}}, Compare: "runtime", Baseline: "native"}
	values := map[string]float64{"run": 1}
	got := conditionsOf(p, []study.Record{
		{Trial: study.Trial{Variant: study.Variant{"native"}}, Values: values},
		{Trial: study.Trial{Variant: study.Variant{"qemu"}}, Values: values, Conditions: map[string]string{"virtual machines": "emulated processor (tcg)"}},
	})
	if len(got) != 1 || len(got[0].Levels) != 1 || got[0].Levels[0] != "qemu" {
		t.Errorf("%+v", got)
	}
}
