package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
