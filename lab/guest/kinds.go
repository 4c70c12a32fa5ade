package guest

import (
	"cmp"
	"maps"
	"os"
	"slices"

	containers "weir.dev/weir/container/drivers"
	"weir.dev/weir/container/kvm"
	"weir.dev/weir/container/native"
	"weir.dev/weir/lab/platform"
)

// Host kinds beside the container runtimes of this program, which have their own names.
const (
	BareMetal = "bare-metal"  // a process of the host
	Compute   = "compute"     // the same, beside a Weir that runs
	DockerRun = "docker-run"  // a container as a user has Docker make it
	VM        = "vm"          // a virtual machine on the processor's own virtualization
	Emulated  = "vm-emulated" // a virtual machine whose processor is emulated
)

// Kinds of hosts, in the order in which they are listed.
func Kinds() []string {
	drivers := containers.All()
	for _, name := range []string{kvm.Name, native.Bare} {
		delete(drivers, name)
	}
	return slices.Concat([]string{BareMetal, Compute, DockerRun}, slices.Sorted(maps.Keys(drivers)), []string{VM, Emulated})
}

// driver that runs a kind's guests; those of DockerRun are made by Docker's command line.
func driver(kind string) string {
	switch kind {
	case BareMetal, Compute:
		return native.Bare
	case VM, Emulated:
		return kvm.Name
	}
	return kind
}

// machine tells whether guests of a kind have a kernel of their own.
func machine(kind string) bool { return driver(kind) == kvm.Name }

// OnHost tells whether guests of a kind are processes of the host, without a limit and with its network card.
func OnHost(kind string) bool { return driver(kind) == native.Bare }

// Check tells why this machine has no guests of a kind; empty: it has. Whether a machine's processor is emulated only its start tells: see ErrOther.
func Check(kind string, o platform.Options) string {
	if len(probe) == 0 {
		return "the lab's program inside guests is not built for this processor: want amd64 or arm64"
	}
	switch kind {
	case Compute:
		return cmp.Or(platform.CheckRuntime(driver(kind), o), checkServices(o))
	case DockerRun:
		return platform.CheckEngine(o)
	case VM:
		if _, err := os.Stat("/dev/kvm"); err != nil {
			return "no /dev/kvm: a machine's processor would be emulated, which is the level " + Emulated
		}
	}
	return platform.CheckRuntime(driver(kind), o)
}

// NoDisk tells why guests of a kind have nothing to write to but their memory; empty: they have.
func NoDisk(kind string) string {
	if machine(kind) {
		return "the runtime " + kvm.Name + " gives a machine no disk to write to: its files are in its memory"
	}
	return ""
}

func checkServices(o platform.Options) string {
	k, _ := platform.Find(platform.PlatformDaemon)
	return k.Check(o)
}
