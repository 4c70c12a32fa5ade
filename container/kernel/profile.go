package kernel

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel/filter"
)

// What is changed in Docker's profile, for all engines.

// allowMasked allows a system call if bits of an argument are as wanted.
func allowMasked(name string, argument uint, mask, want uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
		{Index: argument, Op: specs.OpMaskedEqual, Value: mask, ValueTwo: want},
	}}
}

// nativeOnly leaves out what only other machines have, which this machine's filter has no use for. A runtime reads each name several times at each start.
func nativeOnly(profile []specs.LinuxSyscall) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, r := range profile {
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), filter.Foreign)
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	return rules
}

// The numbers of ioctl by which a file system reserves space beyond a file's end, see <linux/falloc.h>: FS_IOC_RESVSP and FS_IOC_RESVSP64. They differ in
// reserveBit.
const (
	reserve    = 0x40305828
	reserveBit = 0x2
)

// reserveNothing takes from a profile what allocates blocks beyond a file's end. No limit of a file's size counts there, nor does its size tell, so that a
// function's log, a file of the host's disk, could take all of it. Such calls are told by the 32 bits that the kernel takes.
func reserveNothing(profile []specs.LinuxSyscall) []specs.LinuxSyscall {
	var rules []specs.LinuxSyscall
	for _, r := range profile {
		ours := func(name string) bool { return name == "fallocate" || name == "ioctl" }
		if r.Action == specs.ActAllow && len(r.Args) == 0 && slices.ContainsFunc(r.Names, ours) {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), ours)
		}
		if len(r.Names) > 0 {
			rules = append(rules, r)
		}
	}
	rules = append(rules, allowMasked("fallocate", 1, unix.FALLOC_FL_KEEP_SIZE, 0),
		allowMasked("fallocate", 1, 1<<32-1, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE))
	for bit := uint64(1); bit < 1<<32; bit <<= 1 { // some bit is another one
		if bit != reserveBit {
			rules = append(rules, allowMasked("ioctl", 1, bit, ^uint64(reserve)&bit))
		}
	}
	return rules
}

// socketFamilies is more than any kernel has, and a power of 2.
const socketFamilies = 64

// socketsOf32Bits are a profile's rules with those for socket written anew: the profile compares the family with all 64 bits of a register, but the kernel
// takes the lower 32 alone, so that what is refused would only want something in the upper half. Families that are allowed are told by their bits.
func socketsOf32Bits(profile []specs.LinuxSyscall) []specs.LinuxSyscall {
	isSocket := func(r specs.LinuxSyscall) bool {
		return slices.Equal(r.Names, []string{"socket"}) && r.Action == specs.ActAllow
	}
	allowed := make([]bool, socketFamilies)
	for _, r := range profile {
		for family := range allowed {
			allowed[family] = allowed[family] || isSocket(r) && !slices.ContainsFunc(r.Args, func(a specs.LinuxSeccompArg) bool { return !matches(a, uint64(family)) })
		}
	}
	rules := slices.DeleteFunc(slices.Clone(profile), isSocket)
	for first := 0; first < socketFamilies; {
		size := 1 // of the largest aligned block from first on that is allowed
		for first%(2*size) == 0 && first+2*size <= socketFamilies && !slices.Contains(allowed[first:first+2*size], false) {
			size *= 2
		}
		if allowed[first] {
			rules = append(rules, allowMasked("socket", 0, 1<<32-uint64(size), uint64(first)))
		}
		first += size
	}
	return rules
}

// matches tells whether a family is what a rule wants; what is not understood is not.
func matches(a specs.LinuxSeccompArg, family uint64) bool {
	if a.Index != 0 {
		return false
	}
	switch a.Op {
	case specs.OpEqualTo:
		return family == a.Value
	case specs.OpNotEqual:
		return family != a.Value
	case specs.OpLessThan:
		return family < a.Value
	case specs.OpLessEqual:
		return family <= a.Value
	case specs.OpGreaterThan:
		return family > a.Value
	case specs.OpGreaterEqual:
		return family >= a.Value
	}
	return false
}
