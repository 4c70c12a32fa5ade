package escape

import (
	"maps"
	"os/exec"
	"slices"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// runtime is one runtime driver by which functions run, and what of this package it is tried with. What does not depend on the runtime (the limits that
// package kernel sets for all of them, the switch's frames) is tried with one.
type runtime struct {
	name string
	// args gives the arguments of `weir up` that choose it, and what its environment has besides.
	args func(t *testing.T) (args, env []string)
	// grants are what the hostile function is given, one after another, and tried with.
	grants []grant
	// passes are the attempts that reach more than what is the function's own, each with the reason why that is no defect of the driver.
	passes map[string]string
	// free: what an attempt does to the kernel that the function sees is not the host's affair.
	free bool
	// abuses that it is tried with.
	abuses []string
	// switches on which frames are forged.
	switches []string
}

// grant is what a function may have.
type grant struct {
	name, capabilities, allow string
	unshared                  bool     // the host has no user namespaces
	mayPass                   []string // without touching anything but the function's own; "*" whatever there is
}

// others are what an operator may give besides (image/contract.go).
const others = "CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_IPC_LOCK, CAP_KILL, CAP_NET_BIND_SERVICE, CAP_NET_BROADCAST, CAP_SETFCAP, CAP_SETGID, " +
	"CAP_SETPCAP, CAP_SETUID, CAP_SYS_CHROOT, CAP_SYS_NICE, CAP_SYS_RESOURCE"

var (
	ordinary = []string{"device-modes", "namespace-parent", "personality", "ptrace"}

	nothing  = grant{name: "without a capability", mayPass: ordinary}
	unshared = grant{name: "without a capability and a user namespace", unshared: true, mayPass: ordinary}
	asked    = grant{name: "with what an image may ask for", capabilities: "CAP_NET_ADMIN, CAP_NET_RAW", mayPass: append(slices.Clone(ordinary), "veth-into-host")}
	allowed  = grant{name: "with the operator's word", capabilities: "CAP_NET_ADMIN, CAP_NET_RAW, " + others, allow: others, mayPass: []string{"*"}}

	every = []grant{nothing, unshared, asked, allowed}
	most  = []grant{nothing, unshared, allowed} // which capabilities a container has, container/suite tests
)

// everyAbuse is of what bounds each function; ownAbuses is of what each runtime sets or makes itself.
var (
	ownAbuses  = []string{"log", "fork-bomb", "memory", "disk", "inodes", "watches", "signals", "sockets", "rings", "kept"} // log first: others leave processes and files, and so no room for the pages of a log
	everyAbuse = append(slices.Clone(ownAbuses), "descriptors", "events", "connections", "cpu", "links")
)

func chosen(args ...string) func(t *testing.T) (args, env []string) {
	return func(*testing.T) ([]string, []string) { return args, nil }
}

// Machines take longest, where they are emulated: they begin first, beside the others.
var runtimes = []runtime{
	{name: "kvm", args: byMachines, grants: []grant{allowed}, free: true, passes: inMachines, switches: []string{"ebpf"},
		abuses: slices.Concat(ownAbuses, []string{"events", "connections", "cpu"})},
	{name: "native", args: chosen("--runtime", "native"), grants: every, abuses: everyAbuse, switches: []string{"ebpf", "ovs"}},
	{name: "oci", args: chosen("--runtime", "oci"), grants: most, abuses: ownAbuses},
	{name: "crun", args: byCrun, grants: []grant{unshared, allowed}, abuses: ownAbuses},
	{name: "docker", args: byDocker, grants: most, abuses: ownAbuses},
	{name: "lxc", args: chosen("--runtime", "lxc"), grants: most, abuses: ownAbuses},
	{name: "nspawn", args: chosen("--runtime", "nspawn"), grants: most, abuses: ownAbuses},
	{name: "bare", args: chosen("--runtime", "bare", "--allow-bare"), grants: []grant{nothing}, free: true, passes: onTheHost,
		abuses: slices.DeleteFunc(slices.Clone(ownAbuses), func(a string) bool { return onTheHost[a] != "" })},
}

// byCrun is the runtime oci with another program.
func byCrun(t *testing.T) (args, env []string) {
	if _, err := exec.LookPath("crun"); err != nil {
		t.Skip("crun is not installed: apt-get install crun (make setup)")
	}
	return []string{"--runtime", "crun"}, nil
}

func byDocker(t *testing.T) (args, env []string) {
	return []string{"--runtime", "docker"}, []string{"DOCKER_HOST=" + rig.DockerEngine(t)}
}

func byMachines(t *testing.T) (args, env []string) {
	return []string{"--runtime", "kvm", "--kvm-kernel", rig.MachineKernel(t)}, nil
}

// of is a runtime by its name.
func of(name string) runtime {
	return runtimes[slices.IndexFunc(runtimes, func(rt runtime) bool { return rt.name == name })]
}

const (
	guests     = "reaches the machine's own kernel, which is nobody else's"
	hostsRoot  = "the function is a process of the host's root, without capabilities: processes that are the same are in its reach"
	unfiltered = "no filter of system calls: it is what filters are measured against"
	counted    = "counted for the host's root, who the function is. Not tried: this machine would have none left"
)

// inMachines are what a function reaches in its machine.
var inMachines = because(guests, "proc-write", "proc-net-sysctl", "proc-secrets", "oom-immunity", "host-ids", "io-uring", "keyrings", "filter-upper-half", "priority",
	"seccomp-off", "foreign-processes", "signal-others")

// onTheHost are what a bare function reaches.
var onTheHost = func() map[string]string {
	all := because(hostsRoot, "host-ids", "foreign-processes", "signal-others", "enter-others", "look-into-others", "trace-others", "shared-memory")
	maps.Copy(all, because(unfiltered, "seccomp-off", "io-uring", "keyrings", "filter-upper-half", "clone3", "odd-sockets"))
	maps.Copy(all, because(counted, "watches", "signals"))
	return all
}()

// because gives several attempts one reason.
func because(why string, names ...string) map[string]string {
	out := map[string]string{}
	for _, n := range names {
		out[n] = why
	}
	return out
}
