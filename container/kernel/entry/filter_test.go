package entry

import (
	"encoding/binary"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// judge runs a filter as the kernel does.
func judge(t *testing.T, program []byte, proc, number uint32, args ...uint64) uint32 {
	t.Helper()
	var raw []bpf.RawInstruction
	for p := program; len(p) > 0; p = p[8:] {
		raw = append(raw, bpf.RawInstruction{Op: binary.LittleEndian.Uint16(p), Jt: p[2], Jf: p[3], K: binary.LittleEndian.Uint32(p[4:])})
	}
	instructions, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter has instructions that nobody knows")
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	words := []uint32{number, proc, 0, 0} // the machine that runs it here reads network byte order
	for i := range 6 {
		a := uint64(0)
		if i < len(args) {
			a = args[i]
		}
		words = append(words, uint32(a), uint32(a>>32))
	}
	var data []byte
	for _, w := range words {
		data = binary.BigEndian.AppendUint32(data, w)
	}
	verdict, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(verdict)
}

func TestFilterDecidesAsItsProfileSays(t *testing.T) {
	info, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if err != nil {
		t.Fatal(err)
	}
	program, err := Compile(profile)
	if err != nil {
		t.Fatal(err)
	}
	const allow, eperm, enosys = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for name, c := range map[string]struct {
		call string
		args []uint64
		want uint32
	}{
		"a call without conditions":                       {"read", nil, allow},
		"a call of no rule":                               {"kexec_load", nil, eperm},
		"one that wants a capability":                     {"mount", nil, eperm},
		"one that is said to be missing":                  {"clone3", nil, enosys},
		"a family that is allowed":                        {"socket", []uint64{unix.AF_INET}, allow},
		"a family above":                                  {"socket", []uint64{unix.AF_XDP}, allow},
		"a family that is not":                            {"socket", []uint64{unix.AF_VSOCK}, eperm},
		"the same with bits above, which the kernel cuts": {"socket", []uint64{unix.AF_VSOCK | 1<<40}, allow},
		"flags that are allowed":                          {"clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, allow},
		"flags that are not":                              {"clone", []uint64{unix.CLONE_NEWUSER}, eperm},
		"one of many flags":                               {"clone", []uint64{unix.CLONE_VM | unix.CLONE_NEWNET}, eperm},
		"a personality":                                   {"personality", []uint64{8}, allow},
		"the last personality":                            {"personality", []uint64{0xffffffff}, allow},
		"no personality":                                  {"personality", []uint64{0x40000}, eperm},
		"an argument that is another call's number":       {"personality", []uint64{uint64(info.SyscallNames["clone"])}, eperm},
		"an argument that is a third call's number":       {"personality", []uint64{uint64(info.SyscallNames["socket"])}, eperm},
	} {
		t.Run(name, func(t *testing.T) {
			if got := judge(t, program, uint32(info.ID), uint32(info.SyscallNames[c.call]), c.args...); got != c.want {
				t.Errorf("%s%v: got %#x, want %#x", c.call, c.args, got, c.want)
			}
		})
	}
	if got := judge(t, program, uint32(info.ID), x32|uint32(info.SyscallNames["read"])); got != eperm {
		t.Errorf("the other interface: got %#x", got)
	}
	if got := judge(t, program, uint32(info.ID)+1, uint32(info.SyscallNames["read"])); got != eperm {
		t.Errorf("another processor: got %#x", got)
	}
}

func TestProfilesThatCannotBeCompiledAreRefused(t *testing.T) {
	for name, p := range map[string]specs.LinuxSeccomp{
		"an action":     {DefaultAction: specs.ActTrace},
		"a comparison":  {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Op: specs.OpNotEqual}}}}},
		"a rule's deed": {DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActNotify}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Compile(&p); err == nil {
				t.Error("it is taken")
			}
		})
	}
}
