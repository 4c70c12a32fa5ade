package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// hostCapabilities are what a daemon with an agent keeps of root's capabilities; it drops all others when it starts, and its children never
// get them back. A function gets its capabilities in a user namespace of its own.
var hostCapabilities = []capability.Cap{
	capability.CAP_SYS_ADMIN,                                    // mounts, namespaces
	capability.CAP_BPF,                                          // programs and maps
	capability.CAP_PERFMON,                                      // programs that read kernel memory (BTF)
	capability.CAP_NET_ADMIN,                                    // links, tc, bridge
	capability.CAP_NET_RAW,                                      // packet sockets: link discovery, probes
	capability.CAP_NET_BIND_SERVICE,                             // a listen address with a port below 1024
	capability.CAP_SYS_PTRACE,                                   // namespaces of other processes
	capability.CAP_SYS_RESOURCE,                                 // limits of BPF memory, of functions' files
	capability.CAP_SYS_NICE,                                     // cpusets of processes in a user namespace that belongs to nobody (LXC)
	capability.CAP_SYS_CHROOT,                                   // the OCI runtime enters a root
	capability.CAP_SETUID,                                       // and becomes the function's user
	capability.CAP_SETGID,                                       //
	capability.CAP_SETPCAP,                                      // and drops capabilities
	capability.CAP_KILL,                                         // functions' processes belong to other users
	capability.CAP_CHOWN,                                        // image layers: files of any owner
	capability.CAP_FOWNER,                                       //
	capability.CAP_FSETID,                                       //
	capability.CAP_SETFCAP,                                      //
	capability.CAP_MKNOD,                                        //
	capability.CAP_DAC_OVERRIDE, capability.CAP_DAC_READ_SEARCH, // and of any mode
}

// managerCapabilities are what a daemon without an agent keeps.
var managerCapabilities = []capability.Cap{
	capability.CAP_NET_BIND_SERVICE,
	capability.CAP_DAC_READ_SEARCH, // key files of another user
}

// keptCapabilities are the capabilities that a daemon keeps.
func keptCapabilities(host bool) []capability.Cap {
	if host {
		return hostCapabilities
	}
	return managerCapabilities
}

// umask is the daemon's, whoever starts it: files say their own modes, and functions, which are nobody on the host, have to read some of them.
const umask = 0o022

// Settle makes the process what a daemon is, whatever started it: its umask, and its capabilities (DropCapabilities).
func Settle(host bool) error {
	unix.Umask(umask)
	return DropCapabilities(host)
}

// DropCapabilities gives up, in all threads and for ever, every capability that a daemon does not need; host says whether it has an agent. A process
// that is not root has none to drop.
func DropCapabilities(host bool) error {
	last, err := capability.LastCap()
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has, keeps [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if has[0].Permitted|has[1].Permitted == 0 {
		return nil
	}
	for _, c := range keptCapabilities(host) {
		keeps[c/32].Permitted |= 1 << (c % 32)
	}
	for c := capability.Cap(0); c <= last; c++ { // the bounding set first: it needs CAP_SETPCAP
		if slices.Contains(keptCapabilities(host), c) {
			continue
		}
		if has, err := capability.GetBound(c); err == nil && !has { // a unit took it away already
			continue
		}
		if err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c)); err != nil {
			return fmt.Errorf("drop %s: %w", capabilityName(c), err)
		}
	}
	more := false
	for i := range keeps {
		more = more || has[i].Permitted&^keeps[i].Permitted != 0
		keeps[i].Permitted &= has[i].Permitted
		keeps[i].Effective = keeps[i].Permitted
	}
	if !more { // a unit may refuse the system call itself
		return nil
	}
	if err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&keeps[0]))); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// allThreads makes a system call in every thread of the process; threads to come inherit what it changed.
func allThreads(trap, a, b uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall(trap, a, b, 0)
	switch {
	case errno == syscall.ENOTSUP:
		return errors.New("this program was built with cgo: build it with CGO_ENABLED=0 (make build)")
	case errno != 0:
		return errno
	}
	return nil
}

func capabilityNames(list []capability.Cap) string {
	var names []string
	for _, c := range list {
		names = append(names, capabilityName(c))
	}
	return strings.Join(names, " ")
}

func capabilityName(c capability.Cap) string { return "CAP_" + strings.ToUpper(c.String()) }
