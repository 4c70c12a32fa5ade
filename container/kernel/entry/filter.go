package entry

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Where struct seccomp_data has what a filter looks at.
const (
	dataNumber  = 0
	dataProc    = 4
	dataArgs    = 16
	mostFilter  = 4096
	x32         = 0x40000000 // the bit of system calls of x86-64's other interface
	mostSkipped = 255        // by one jump
)

// Compile makes a program for seccomp(2) from an OCI profile: what its rules name is allowed or refused with an error number, everything else is refused.
// System calls that this machine's processor does not have are left out, as by every engine. (The assembler of the library that the numbers are from
// is not used: behind a comparison of arguments that fails it goes on to compare the argument with the numbers of other system calls.)
func Compile(profile *specs.LinuxSeccomp) ([]byte, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	deny, err := verdict(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	always, sometimes, err := sortRules(profile.Syscalls, info.SyscallNames)
	if err != nil {
		return nil, err
	}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataProc, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: deny},
		bpf.LoadAbsolute{Off: dataNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32, SkipTrue: 1},
		bpf.RetConstant{Val: deny},
	}
	program = append(program, ranges(always)...)
	for _, n := range slices.Sorted(maps.Keys(sometimes)) {
		block := append(sets(sometimes[n]), bpf.RetConstant{Val: deny})
		if len(block) > mostSkipped {
			return nil, fmt.Errorf("seccomp: system call %d has too many rules", n)
		}
		program = append(append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: n, SkipTrue: uint8(len(block))}), block...)
	}
	return assemble(append(program, bpf.RetConstant{Val: deny}))
}

// rule allows a call, or refuses it, if all its conditions hold.
type rule struct {
	verdict uint32
	when    []specs.LinuxSeccompArg
}

// sortRules parts what holds for a system call always from what depends on its arguments. Of several rules for one call that holds always the one
// that allows counts, as with libseccomp.
func sortRules(all []specs.LinuxSyscall, numbers map[string]int) (always map[uint32]uint32, sometimes map[uint32][]rule, err error) {
	always, sometimes = map[uint32]uint32{}, map[uint32][]rule{}
	for _, r := range all {
		v, err := verdict(r.Action, r.ErrnoRet)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range r.Names {
			number, ok := numbers[name]
			n := uint32(number)
			if !ok {
				continue
			}
			if len(r.Args) > 0 {
				sometimes[n] = append(sometimes[n], rule{v, r.Args})
			} else if before, twice := always[n]; !twice || before != unix.SECCOMP_RET_ALLOW {
				always[n] = v
			}
		}
	}
	for n := range always {
		delete(sometimes, n)
	}
	for n, rules := range sometimes {
		for _, r := range rules {
			for _, a := range r.when {
				if _, ok := comparisons[a.Op]; !ok {
					return nil, nil, fmt.Errorf("seccomp: comparison %s of system call %d is not known here", a.Op, n)
				}
			}
		}
	}
	return always, sometimes, nil
}

func verdict(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch a {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		n := uint(unix.EPERM)
		if errno != nil {
			n = *errno
		}
		return unix.SECCOMP_RET_ERRNO | uint32(n&unix.SECCOMP_RET_DATA), nil
	}
	return 0, fmt.Errorf("seccomp: action %s is not known here", a)
}

// ranges decides by the number alone; neighbours with one verdict take one comparison.
func ranges(always map[uint32]uint32) (out []bpf.Instruction) {
	numbers := slices.Sorted(maps.Keys(always))
	for i := 0; i < len(numbers); {
		first, last, v := numbers[i], numbers[i], always[numbers[i]]
		for i++; i < len(numbers) && numbers[i] == last+1 && always[numbers[i]] == v; i++ {
			last = numbers[i]
		}
		out = append(out, bpf.JumpIf{Cond: bpf.JumpLessThan, Val: first, SkipTrue: 2}, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: last, SkipTrue: 1},
			bpf.RetConstant{Val: v})
	}
	return out
}

// sets are the rules for one system call, each of which falls through to the next where its conditions do not hold.
func sets(rules []rule) (out []bpf.Instruction) {
	for _, r := range rules {
		var one []bpf.Instruction
		for _, a := range slices.Backward(r.when) {
			one = append(comparisons[a.Op](a, uint8(len(one)+1)), one...)
		}
		out = append(append(out, one...), bpf.RetConstant{Val: r.verdict})
	}
	return out
}

// comparisons test one argument. Where it does not hold they skip what is behind them: rest instructions.
var comparisons = map[specs.LinuxSeccompOperator]func(a specs.LinuxSeccompArg, rest uint8) []bpf.Instruction{
	specs.OpEqualTo: func(a specs.LinuxSeccompArg, rest uint8) []bpf.Instruction {
		return []bpf.Instruction{high(a), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(a.Value >> 32), SkipTrue: rest + 2},
			low(a), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(a.Value), SkipTrue: rest}}
	},
	specs.OpMaskedEqual: func(a specs.LinuxSeccompArg, rest uint8) []bpf.Instruction { // Value is the mask
		return []bpf.Instruction{high(a), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value >> 32)},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(a.ValueTwo >> 32), SkipTrue: rest + 3},
			low(a), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value)}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(a.ValueTwo), SkipTrue: rest}}
	},
	specs.OpLessThan: func(a specs.LinuxSeccompArg, rest uint8) []bpf.Instruction {
		return ordered(a, bpf.JumpLessThan, bpf.JumpGreaterOrEqual, rest)
	},
	specs.OpGreaterThan: func(a specs.LinuxSeccompArg, rest uint8) []bpf.Instruction {
		return ordered(a, bpf.JumpGreaterThan, bpf.JumpLessOrEqual, rest)
	},
}

// ordered: the high halves decide unless they are equal; over ends it for good, fails is the opposite for the low halves.
func ordered(a specs.LinuxSeccompArg, over, fails bpf.JumpTest, rest uint8) []bpf.Instruction {
	top := uint32(a.Value >> 32)
	return []bpf.Instruction{high(a), bpf.JumpIf{Cond: over, Val: top, SkipTrue: 3}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: top, SkipTrue: rest + 2},
		low(a), bpf.JumpIf{Cond: fails, Val: uint32(a.Value), SkipTrue: rest}}
}

// Arguments are 64 bits wide; all processors here are little-endian.
func low(a specs.LinuxSeccompArg) bpf.Instruction {
	return bpf.LoadAbsolute{Off: dataArgs + 8*uint32(a.Index), Size: 4}
}

func high(a specs.LinuxSeccompArg) bpf.Instruction {
	return bpf.LoadAbsolute{Off: dataArgs + 8*uint32(a.Index) + 4, Size: 4}
}

// assemble gives a program as struct sock_filter has it.
func assemble(program []bpf.Instruction) ([]byte, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	if len(raw) > mostFilter {
		return nil, fmt.Errorf("seccomp: the filter has %d instructions, the kernel takes %d", len(raw), mostFilter)
	}
	out := make([]byte, 0, 8*len(raw))
	for _, i := range raw {
		out = binary.LittleEndian.AppendUint16(out, i.Op)
		out = binary.LittleEndian.AppendUint32(append(out, i.Jt, i.Jf), i.K)
	}
	return out, nil
}
