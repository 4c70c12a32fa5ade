// Package filter compiles profiles of system calls, as the OCI runtime specification has them, to what seccomp(2) takes, for engines that install filters
// themselves. Names and numbers are those of go-seccomp-bpf's tables; its assembler is not used, as it goes on to compare numbers after an argument is loaded.
package filter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Cache keeps what profiles compile to. The zero value is empty. Profiles are compared by their address: package kernel has one for each set of capabilities.
type Cache struct {
	mu   sync.Mutex
	made map[*specs.LinuxSeccomp][]byte
}

const mostKept = 64

// Of is Compile, once for each profile.
func (c *Cache) Of(profile *specs.LinuxSeccomp) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if made, ok := c.made[profile]; ok {
		return made, nil
	}
	code, err := Compile(profile)
	if err != nil {
		return nil, err
	}
	if c.made == nil || len(c.made) >= mostKept {
		c.made = map[*specs.LinuxSeccomp][]byte{}
	}
	c.made[profile] = code
	return code, nil
}

// Size of an instruction, struct sock_filter.
const Size = 8

// Compile gives a profile as instructions of struct sock_filter, one behind the other.
func Compile(profile *specs.LinuxSeccomp) ([]byte, error) {
	program, err := compile(profile)
	if err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if len(program) > mostInstructions {
		return nil, fmt.Errorf("seccomp profile: %d instructions, the kernel takes %d", len(program), mostInstructions)
	}
	code := make([]byte, 0, Size*len(program))
	for _, i := range program {
		code = binary.NativeEndian.AppendUint16(code, i.Op)
		code = binary.NativeEndian.AppendUint32(append(code, i.Jt, i.Jf), i.K)
	}
	return code, nil
}

const mostInstructions = 4096

// Foreign tells whether only other machines have a system call of that name. One that is newer than the tables is not foreign.
func Foreign(name string) bool {
	own, err := arch.GetInfo("")
	if err != nil {
		return false
	}
	if _, ours := own.SyscallNames[name]; ours {
		return false
	}
	return slices.ContainsFunc([]*arch.Info{arch.I386, arch.ARM, arch.X86_64, arch.AARCH64}, func(i *arch.Info) bool {
		_, theirs := i.SyscallNames[name]
		return theirs
	})
}

// Verdicts of a filter, see seccomp(2), and where struct seccomp_data has the number, the machine and the arguments.
const (
	retAllow = 0x7fff0000
	retErrno = 0x00050000

	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16
)

// compile looks for a system call's number by halves. What belongs to one number is one piece of code that ends with a verdict, so that nothing is compared
// with a number any more once an argument is loaded. Numbers beyond those of the profile, x32's included, are answered as by a kernel that lacks them:
// programs ask. Those of other machines get the default.
func compile(profile *specs.LinuxSeccomp) ([]bpf.RawInstruction, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	def, err := verdict(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	if def == retAllow {
		return nil, fmt.Errorf("default action %s: want a refusal", profile.DefaultAction)
	}
	pieces, err := piecesOf(profile, info, def)
	if err != nil {
		return nil, err
	}
	code := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: def},
		bpf.LoadAbsolute{Off: dataNumber, Size: 4},
	}
	return bpf.Assemble(append(code, search(pieces)...))
}

// piece is the code for numbers from first on, up to the next piece's.
type piece struct {
	first uint32
	code  []bpf.Instruction
}

func piecesOf(profile *specs.LinuxSeccomp, info *arch.Info, def uint32) ([]piece, error) {
	rules := map[int][]specs.LinuxSyscall{}
	last := -1
	for _, rule := range profile.Syscalls {
		for _, name := range rule.Names {
			if nr, known := info.SyscallNames[name]; known { // else of another machine, or newer than the table
				rules[nr] = append(rules[nr], rule)
				last = max(last, nr)
			}
		}
	}
	var pieces []piece
	for nr := range last + 1 {
		code, err := judge(rules[nr], def)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", info.SyscallNumbers[nr], err)
		}
		if len(pieces) == 0 || !slices.Equal(pieces[len(pieces)-1].code, code) {
			pieces = append(pieces, piece{uint32(nr), code})
		}
	}
	return append(pieces, piece{uint32(last + 1), []bpf.Instruction{bpf.RetConstant{Val: retErrno | uint32(unix.ENOSYS)}}}), nil
}

// search is the code that finds a number's piece.
func search(pieces []piece) []bpf.Instruction {
	if len(pieces) == 1 {
		return pieces[0].code
	}
	half := len(pieces) / 2
	low, high := search(pieces[:half]), search(pieces[half:])
	code := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: pieces[half].first, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(low))},
	}
	return append(append(code, low...), high...)
}

// judge is the code for one system call: the first rule counts of which all conditions hold.
func judge(rules []specs.LinuxSyscall, def uint32) ([]bpf.Instruction, error) {
	var code []bpf.Instruction
	for _, rule := range rules {
		v, err := verdict(rule.Action, rule.ErrnoRet)
		if err != nil {
			return nil, err
		}
		tail := []bpf.Instruction{bpf.RetConstant{Val: v}}
		for _, a := range slices.Backward(rule.Args) {
			if tail, err = condition(a, tail); err != nil {
				text, _ := json.Marshal(a)
				return nil, fmt.Errorf("argument %s: %w", text, err)
			}
		}
		code = append(code, tail...)
		if len(rule.Args) == 0 {
			return code, nil
		}
	}
	return append(code, bpf.RetConstant{Val: def}), nil
}

// condition is then, if an argument is as wanted, else what comes behind it.
func condition(a specs.LinuxSeccompArg, then []bpf.Instruction) ([]bpf.Instruction, error) {
	if a.Index > 5 || len(then) > 200 {
		return nil, errors.New("want an argument of 0 to 5, and few conditions")
	}
	high, low := bpf.LoadAbsolute{Off: dataArgument + 8*uint32(a.Index) + 4, Size: 4}, bpf.LoadAbsolute{Off: dataArgument + 8*uint32(a.Index), Size: 4}
	h, l, end := uint32(a.Value>>32), uint32(a.Value), uint8(len(then))
	// Each is: the upper half decides unless it is equal; if it is, the lower one does.
	var code []bpf.Instruction
	switch a.Op {
	case specs.OpEqualTo:
		code = []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpEqual, Val: h, SkipFalse: 2 + end}, low, bpf.JumpIf{Cond: bpf.JumpEqual, Val: l, SkipFalse: end}}
	case specs.OpNotEqual:
		code = []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpEqual, Val: h, SkipFalse: 2}, low, bpf.JumpIf{Cond: bpf.JumpEqual, Val: l, SkipTrue: end}}
	case specs.OpMaskedEqual:
		wh, wl := uint32(a.ValueTwo>>32), uint32(a.ValueTwo)
		code = []bpf.Instruction{high, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: h}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: wh, SkipFalse: 3 + end},
			low, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: l}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: wl, SkipFalse: end}}
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		cond := map[specs.LinuxSeccompOperator]bpf.JumpTest{specs.OpGreaterThan: bpf.JumpGreaterThan, specs.OpGreaterEqual: bpf.JumpGreaterOrEqual}[a.Op]
		code = []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: h, SkipTrue: 3}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: h, SkipFalse: 2 + end},
			low, bpf.JumpIf{Cond: cond, Val: l, SkipFalse: end}}
	case specs.OpLessThan, specs.OpLessEqual:
		cond := map[specs.LinuxSeccompOperator]bpf.JumpTest{specs.OpLessThan: bpf.JumpGreaterOrEqual, specs.OpLessEqual: bpf.JumpGreaterThan}[a.Op]
		code = []bpf.Instruction{high, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: h, SkipTrue: 3 + end}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: h, SkipFalse: 2},
			low, bpf.JumpIf{Cond: cond, Val: l, SkipTrue: end}}
	default:
		return nil, fmt.Errorf("operator %s: not known", a.Op)
	}
	return append(code, then...), nil
}

func verdict(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch {
	case a == specs.ActAllow:
		return retAllow, nil
	case a == specs.ActErrno && errno == nil:
		return retErrno | uint32(unix.EPERM), nil
	case a == specs.ActErrno && *errno < 4096:
		return retErrno | uint32(*errno), nil
	}
	return 0, fmt.Errorf("action %s: not known", a)
}
