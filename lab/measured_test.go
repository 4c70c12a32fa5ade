package lab

import "testing"

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
