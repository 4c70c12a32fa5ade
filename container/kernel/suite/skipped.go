package suite

import (
	"slices"
	"strings"

	contract "weir.dev/weir/container/suite"
)

// Skipped tells why an engine is not tested with a case, or a part of one ("CASE/PART"); "": it is. docs/conformance.md shows it.
func Skipped(runtime, name string) string { return skipped()[runtime][name] }

// Parts are the parts of a case that an engine is not tested with, each with the reason.
func Parts(runtime, name string) (out []string) {
	for part, why := range skipped()[runtime] {
		if part, ok := strings.CutPrefix(part, name+"/"); ok {
			out = append(out, "yes, but not \""+part+"\": "+why)
		}
	}
	slices.Sort(out)
	return out
}

const (
	machines = "its processes are in a machine: `container/kvm` "
	noUserns = "its processes are the host's root: there is no user namespace"
	unblocks = "crun unblocks all signals for its programs: one that writes beyond 32 MiB gets SIGXFSZ, and ends, unless it is the container's first"
	recorded = "no distribution has rkt: it is tested against what its documentation says, with the conformance suite alone"
)

func skipped() map[string]map[string]string {
	kvm := map[string]string{
		"what a program finds in its container":         machines + "TestWhatAProgramFinds",
		"limits hold":                                   machines + "TestWhatAProgramFinds, TestMachinesThatFail",
		"the host's defaults bound what names no limit": machines + "TestMachinesThatFail; a machine wants 96 MiB",
		"appetite for processors and disks is bounded":  "its disks are in the host's memory, and its processors those of one process: `e2e/escape` TestAppetiteIsBounded",
		"a log is bounded between two looks":            "what the program prints goes through its machine; QEMU's files are bounded: `e2e/escape` TestAppetiteIsBounded",
		endless:                                         "what the program prints goes through its machine; QEMU's files are bounded: `e2e/escape` TestAppetiteIsBounded",
		"calls of 32 bits are refused":                  "they are of the machine's own kernel",
		"rings are bounded as the last daemon says":     "its rings are the machine's own memory",
	}
	rkt := map[string]string{}
	_, isolation, promises := Cases()
	for _, name := range isolation {
		kvm[name], rkt[name] = machines+"TestAMachinesProcessIsNobody", recorded
	}
	for _, name := range promises {
		rkt[name] = recorded
	}
	return map[string]map[string]string{"kvm": kvm, "rkt": rkt, "crun": {
		endless + "/" + endsNobody: unblocks,
	}, "bare": {
		contract.IDs:                   noUserns,
		contract.Owners:                noUserns,
		"calls of 32 bits are refused": "it has no filter",
		"what a program finds in its container/it is process 1":           "its processes are among the host's",
		"what a program finds in its container/system calls are filtered": "it has no filter",
		"what a program finds in its container/its hostname is its id":    "it has the host's",
	}}
}
