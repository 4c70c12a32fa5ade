package native

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/filter"
)

const (
	allow   = 0x7fff0000
	refuse  = 0x00050000 // with an errno
	noCall  = refuse | uint32(unix.ENOSYS)
	x32     = 0x40000000
	i386    = 0x40000003
	noPerms = refuse | uint32(unix.EPERM)
)

// expect reads the profile as the OCI specification has it: the first rule of a system call of which all conditions hold, else the default.
func expect(p *specs.LinuxSeccomp, name string, args [6]uint64) uint32 {
	verdict := func(a specs.LinuxSeccompAction, errno *uint) uint32 {
		switch {
		case a == specs.ActAllow:
			return allow
		case errno != nil:
			return refuse | uint32(*errno)
		}
		return noPerms
	}
	for _, rule := range p.Syscalls {
		if slices.Contains(rule.Names, name) && !slices.ContainsFunc(rule.Args, func(a specs.LinuxSeccompArg) bool { return !holds(a, args[a.Index]) }) {
			return verdict(rule.Action, rule.ErrnoRet)
		}
	}
	return verdict(p.DefaultAction, p.DefaultErrnoRet)
}

func holds(a specs.LinuxSeccompArg, v uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpNotEqual:
		return v != a.Value
	case specs.OpLessThan:
		return v < a.Value
	case specs.OpLessEqual:
		return v <= a.Value
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpGreaterEqual:
		return v >= a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	}
	panic(a.Op)
}

// machine runs a filter. The VM of package bpf reads words as a network has them.
type machine struct {
	*testing.T
	vm *bpf.VM
}

func newMachine(t *testing.T, raw []bpf.RawInstruction) machine {
	t.Helper()
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("it has instructions that are none")
	}
	vm, err := bpf.NewVM(program)
	must(t, err)
	return machine{t, vm}
}

func (m machine) run(audit, nr uint32, args [6]uint64) uint32 {
	m.Helper()
	data := binary.BigEndian.AppendUint32(nil, nr)
	data = binary.BigEndian.AppendUint32(data, audit)
	data = append(data, make([]byte, 8)...) // the instruction's address
	for _, a := range args {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	got, err := m.vm.Run(data)
	must(m.T, err)
	return uint32(got)
}

// interesting are values about which conditions may be wrong: those that rules compare with, numbers of system calls, and either in the upper half.
func interesting(p *specs.LinuxSeccomp, info *arch.Info) []uint64 {
	values := []uint64{0, 1, 38, 39, 40, 41, 44, 63, 64, 1 << 31, 1<<32 - 1, 1 << 32, 1<<64 - 1, unix.CLONE_NEWUSER, unix.CLONE_NEWNS | unix.CLONE_VM}
	for _, rule := range p.Syscalls {
		for _, a := range rule.Args {
			values = append(values, a.Value, a.Value-1, a.Value+1, a.ValueTwo)
		}
	}
	for nr := range info.SyscallNumbers {
		values = append(values, uint64(nr))
	}
	slices.Sort(values)
	values = slices.Compact(values)
	for _, v := range slices.Clone(values) {
		values = append(values, v<<32, v<<32|40, v<<32|0x40000)
	}
	return values
}

// The filter says of every system call, and of every argument that a rule looks at, what the profile says; of those of other machines it says no.
func TestTheFilterIsTheProfile(t *testing.T) {
	_, e, s := fresh(t)
	info, err := arch.GetInfo("")
	must(t, err)
	for _, caps := range [][]string{nil, {"CAP_NET_ADMIN", "CAP_NET_RAW"}, {"CAP_SYS_ADMIN"}, {"CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_PTRACE"}} {
		t.Run(fmt.Sprint(caps), func(t *testing.T) {
			s.Capabilities = caps
			config, err := e.Home.Config(kernel.Container{Spec: s, Root: s.Rootfs})
			must(t, err)
			profile := config.Linux.Seccomp
			code, err := filter.Compile(profile)
			must(t, err)
			var raw []bpf.RawInstruction
			for p := code; len(p) > 0; p = p[filter.Size:] {
				raw = append(raw, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(p), Jt: p[2], Jf: p[3], K: binary.NativeEndian.Uint32(p[4:])})
			}
			m := newMachine(t, raw)
			last := 0
			for nr, name := range info.SyscallNumbers {
				if slices.ContainsFunc(profile.Syscalls, func(r specs.LinuxSyscall) bool { return slices.Contains(r.Names, name) }) {
					last = max(last, nr)
				}
			}
			values := interesting(profile, info)
			wrong := 0
			check := func(audit, nr uint32, args [6]uint64, want uint32, name string) {
				if got := m.run(audit, nr, args); got != want && wrong < 20 {
					wrong++
					t.Errorf("%s (%#x) with %#x: %#x, want %#x", name, nr, args, got, want)
				}
			}
			for nr := range last + 1 {
				name := info.SyscallNumbers[nr]
				conditional := slices.ContainsFunc(profile.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Args) > 0 && slices.Contains(r.Names, name) })
				for i, v := range values {
					if !conditional && i%97 != 0 {
						continue
					}
					args := [6]uint64{v, rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()}
					check(uint32(info.ID), uint32(nr), args, expect(profile, name, args), name)
				}
				check(i386, uint32(nr), [6]uint64{}, noPerms, "of i386: "+name)
				check(uint32(info.ID), x32|uint32(nr), [6]uint64{}, noCall, "of x32: "+name)
			}
			for nr := last + 1; nr < last+2000; nr++ { // newer than the profile: programs ask whether they are there
				check(uint32(info.ID), uint32(nr), [6]uint64{}, noCall, "newer")
			}
			for _, nr := range []uint32{1 << 31, 1<<32 - 1, x32 - 1} {
				check(uint32(info.ID), nr, [6]uint64{}, noCall, "no number")
			}
			if len(raw) > 4096 {
				t.Errorf("%d instructions, the kernel takes 4096", len(raw))
			}
		})
	}
}

// A family that the profile refuses is refused whatever is in the half of the argument that the kernel does not look at.
func TestSocketFamiliesAreOf32Bits(t *testing.T) {
	_, e, s := fresh(t)
	config, err := e.Home.Config(kernel.Container{Spec: s, Root: s.Rootfs})
	must(t, err)
	for family := range uint64(64) {
		for _, upper := range []uint64{0, 1, 40, 1 << 31, 1<<32 - 1} {
			want := uint32(allow)
			if family == unix.AF_VSOCK || family == unix.AF_ALG {
				want = noPerms
			}
			if got := expect(config.Linux.Seccomp, "socket", [6]uint64{upper<<32 | family}); got != want {
				t.Errorf("family %d with %#x above: %#x, want %#x", family, upper, got, want)
			}
		}
	}
}
