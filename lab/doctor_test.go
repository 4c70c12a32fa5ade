package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/lab/study"
)

func TestTheModelOfTheCPUIsRead(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor lm\n": {"cpu": "AMD EPYC", "virtual": "yes"},
		"model name\t: Intel(R) Xeon(R)\nflags\t: fpu lm\n":                      {"cpu": "Intel(R) Xeon(R)"},
		"CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n":        {"cpu": "ARM implementer 0x41 part 0xd0c revision 1"},
		"": {},
	} {
		e := map[string]string{}
		if readCPU(text, e); !cmp.Equal(e, want) {
			t.Errorf("%q: %v", text, e)
		}
	}
	if e := Environment(); e["cpu"] == "" || e["kernel"] == "" || e["cpus"] == "" || e["memory_mib"] == "" {
		t.Errorf("this machine: %v", e)
	}
}

// What a study takes is the sum of its parts that can be measured here; a part that does not say it makes it unknown.
func TestTheTimeOfAStudyIsTold(t *testing.T) {
	s := study.Study{Name: "x", Parts: []study.Part{
		{Name: "a", Quick: study.Plan{Takes: "4m"}, Full: study.Plan{Takes: "1h"}},
		{Name: "b", Quick: study.Plan{Takes: "10m"}},
		{Name: "c", Quick: study.Plan{Takes: "3m"}, Full: study.Plan{Takes: "2h"}},
	}}
	levels := func(parts ...string) (out []VariantFindings) {
		for _, p := range parts {
			out = append(out, VariantFindings{Part: p, OK: []string{"level"}})
		}
		return out
	}
	const measured = ", as measured on a machine of 2 CPUs"
	for _, c := range []struct {
		here []VariantFindings
		want []Finding
	}{
		{nil, nil},
		{levels("a", "b"), []Finding{{"time: x", true, "--quick takes about 14m0s" + measured}}},
		{levels("a", "c"), []Finding{{"time: x", true, "--quick takes about 7m0s, --full takes about 3h0m0s" + measured}}},
		{levels("a", "b", "c"), []Finding{{"time: x", false, "--quick takes about 17m0s" + measured}}},
	} {
		var x Examination
		if x.time(s, c.here); !cmp.Equal(x.Findings, c.want) {
			t.Errorf("%+v: %+v: want %+v", c.here, x.Findings, c.want)
		}
	}
}
