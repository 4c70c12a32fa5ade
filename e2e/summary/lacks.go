package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue"
	"weir.dev/weir/cpuset"
	"weir.dev/weir/netns"
)

// lacks are what a machine may lack: how the reason of a test that is skipped for it begins, and whether this machine truly does. A test's own word is not
// enough: it may take another failure for it.
var lacks = []struct {
	reason string
	truly  func(rest string) bool // of what follows in the reason
}{
	{"kernel lacks WireGuard", func(string) bool {
		return errors.Is(netns.ProbeWireGuard(), netns.ErrNoWireGuard) && !module("wireguard")
	}},
	{"kernel lacks the netem queue", func(string) bool { return !queue("netem") && !module("sch_netem") }},
	{"kernel lacks Open vSwitch's datapath", func(string) bool {
		_, err := netlink.GenlFamilyGet("ovs_datapath")
		return errors.Is(err, unix.ENOENT) && !module("openvswitch")
	}},
	{"kernel lacks programs at its functions", func(string) bool { return lacksTracing(ebpf.AttachTraceFEntry, "bpf_fentry_test1") }},
	{"kernel lacks iterators over what sockets have", func(string) bool { return lacksTracing(ebpf.AttachTraceIter, "bpf_sk_storage_map") }},
	{"kernel lacks sockets of family, type and protocol ", func(rest string) bool {
		var family, kind, protocol int
		if _, err := fmt.Sscan(rest, &family, &kind, &protocol); err != nil {
			return false
		}
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT)
	}},
	{"machine lacks queues of sockets that are longer than usual", func(string) bool {
		raw, err := os.ReadFile("/proc/sys/net/core/rmem_max")
		most, err2 := strconv.Atoi(strings.TrimSpace(string(raw)))
		return err == nil && err2 == nil && most <= 212992
	}},
	{"kernel lacks hugepages of 2 MiB", func(string) bool {
		_, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB")
		return errors.Is(err, fs.ErrNotExist)
	}},
	{"machine lacks KVM", func(string) bool { return !virtualizes() }},
	{"machine lacks emulated machines", func(string) bool { return virtualizes() }}, // those that it starts have its own processor
	{"machine lacks the tools of the catalogue's list of digests", func(string) bool { // tests run in a clone
		hold, err := catalogue.HoldHere(context.Background(), ".")
		return err == nil && !hold
	}},
	{"machine lacks system calls of i386", func(string) bool { return runtime.GOARCH != "amd64" }},
	{"machine lacks rkt", func(string) bool { _, err := exec.LookPath("rkt"); return errors.Is(err, exec.ErrNotFound) }},
	{"machine lacks processors: want ", func(rest string) bool {
		word, _, _ := strings.Cut(rest, " ")
		want, err := strconv.Atoi(strings.TrimRight(word, ":,"))
		all, err2 := cpuset.Online()
		return err == nil && err2 == nil && len(all) < want
	}},
}

// excused tells whether this machine truly lacks what a reason names.
func excused(reason string) bool {
	reason = strings.TrimPrefix(reason, "this ")
	for _, l := range lacks {
		if rest, ok := strings.CutPrefix(reason, l.reason); ok {
			return l.truly(rest)
		}
	}
	return false
}

// lacksTracing tells whether the kernel takes no program of such a kind, or refuses it to its own root.
func lacksTracing(at ebpf.AttachType, to string) bool {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: at, AttachTo: to, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err == nil {
		p.Close()
	}
	return errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported)
}

// module tells whether the kernel could load a module, or has it in itself.
func module(name string) bool {
	return exec.Command("modprobe", "--dry-run", "--quiet", name).Run() == nil
}

// queue tells whether the kernel knows a queueing discipline.
func queue(name string) bool {
	out, err := exec.Command("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", name).CombinedOutput()
	return err == nil || !strings.Contains(string(out), "qdisc kind is unknown")
}

// virtualizes tells whether machines can have this one's processor: it says so itself, and its device opens. (A device alone may be one in software, which
// starts no usual kernel.)
func virtualizes() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return true // nothing is excused
	}
	fields := strings.Fields(string(text))
	has := func(flag string) bool {
		for _, f := range fields {
			if f == flag {
				return true
			}
		}
		return false
	}
	if !has("vmx") && !has("svm") {
		return false
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}
