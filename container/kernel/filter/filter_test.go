package filter

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// What the filter does is tested by package native, with the profile that containers have.
func TestProfilesThatCannotBeCompiledAreRefused(t *testing.T) {
	condition := func(a specs.LinuxSeccompArg) []specs.LinuxSyscall {
		return []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{a}}}
	}
	for name, p := range map[string]specs.LinuxSeccomp{
		"an action":            {DefaultAction: specs.ActTrace},
		"all is allowed":       {DefaultAction: specs.ActAllow},
		"a comparison":         {DefaultAction: specs.ActErrno, Syscalls: condition(specs.LinuxSeccompArg{Op: "SCMP_CMP_LIKE"})},
		"an argument too many": {DefaultAction: specs.ActErrno, Syscalls: condition(specs.LinuxSeccompArg{Index: 6, Op: specs.OpEqualTo})},
		"a rule's action":      {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActNotify}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compile(&p); err == nil {
				t.Error("it is taken")
			}
		})
	}
}

func TestSystemCallsOfOtherMachinesAreTold(t *testing.T) {
	for name, want := range map[string]bool{"socketcall": true, "clock_gettime64": true, "read": false, "newer_than_all_tables": false} {
		if got := Foreign(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
