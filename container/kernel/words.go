package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// What words of an OCI configuration are to the kernel, for engines that make system calls of it.

// mountFlags are options of a mount that are flags of mount(2).
var mountFlags = map[string]uintptr{
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "ro": unix.MS_RDONLY, "strictatime": unix.MS_STRICTATIME,
}

// MountOptions parts options into flags and what is the file system's own.
func MountOptions(options []string) (flags uintptr, data string) {
	var own []string
	for _, o := range options {
		if flag, ok := mountFlags[o]; ok {
			flags |= flag
		} else {
			own = append(own, o)
		}
	}
	return flags, strings.Join(own, ",")
}

var rlimits = map[string]int{"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE}

// Rlimit is the number of a limit that Config sets.
func Rlimit(name string) (int, error) {
	n, ok := rlimits[name]
	if !ok {
		return 0, fmt.Errorf("limit %s is not known here", name)
	}
	return n, nil
}

// CapabilityName is a capability as configurations have it, such as CAP_NET_ADMIN.
func CapabilityName(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }

// CapabilityBits is a set of capabilities as capset(2) has it. Names that nobody knows check has refused.
func CapabilityBits(names []string) (set uint64) {
	for _, c := range capability.ListKnown() {
		if slices.Contains(names, CapabilityName(c)) {
			set |= 1 << uint(c)
		}
	}
	return set
}
