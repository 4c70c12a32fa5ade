package native

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filters caches what profiles compile to.
type filters struct {
	mu   sync.Mutex
	made map[*specs.LinuxSeccomp]filter
}

type filter struct {
	n    int
	code []byte
}

// of is a profile as the kernel takes it: n instructions of struct sock_filter. Profiles are compared by their address: package kernel has one for each set
// of capabilities.
func (f *filters) of(profile *specs.LinuxSeccomp) (n int, code []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if made, ok := f.made[profile]; ok {
		return made.n, made.code, nil
	}
	program, err := compile(profile)
	if err != nil {
		return 0, nil, fmt.Errorf("seccomp profile: %w", err)
	}
	for _, i := range program {
		code = binary.NativeEndian.AppendUint16(code, i.Op)
		code = append(code, i.Jt, i.Jf)
		code = binary.NativeEndian.AppendUint32(code, i.K)
	}
	if f.made == nil || len(f.made) > 64 {
		f.made = map[*specs.LinuxSeccomp]filter{}
	}
	f.made[profile] = filter{len(program), code}
	return len(program), code, nil
}

func compile(profile *specs.LinuxSeccomp) ([]bpf.RawInstruction, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	def, err := action(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	if def != seccomp.ActionErrno {
		return nil, fmt.Errorf("default action %s: want an error", profile.DefaultAction)
	}
	policy := seccomp.Policy{DefaultAction: def}
	seen := map[string]bool{} // without conditions: the first rule of a system call counts
	for _, rule := range profile.Syscalls {
		group, err := groupOf(rule, info, seen)
		if err != nil {
			return nil, err
		}
		policy.Syscalls = append(policy.Syscalls, group)
	}
	program, err := policy.Assemble()
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(program)
}

func groupOf(rule specs.LinuxSyscall, info *arch.Info, seen map[string]bool) (g seccomp.SyscallGroup, err error) {
	if g.Action, err = action(rule.Action, rule.ErrnoRet); err != nil {
		return g, err
	}
	var conditions seccomp.ArgumentConditions
	for _, a := range rule.Args {
		c, err := condition(a)
		if err != nil {
			text, _ := json.Marshal(a)
			return g, fmt.Errorf("%v: argument %s: %w", rule.Names, text, err)
		}
		conditions = append(conditions, c)
	}
	for _, name := range rule.Names {
		if _, known := info.SyscallNames[name]; !known || seen[name] {
			continue // of another machine, or newer than the table: refused, as by default
		}
		if len(conditions) > 0 {
			g.NamesWithCondtions = append(g.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: conditions})
			continue
		}
		seen[name] = true
		g.Names = append(g.Names, name)
	}
	return g, nil
}

func action(a specs.LinuxSeccompAction, errno *uint) (seccomp.Action, error) {
	switch a {
	case specs.ActAllow:
		return seccomp.ActionAllow, nil
	case specs.ActErrno:
		if errno == nil || *errno == uint(unix.EPERM) {
			return seccomp.ActionErrno, nil
		}
		return seccomp.ActionErrno | seccomp.Action(*errno&0xffff), nil
	}
	return 0, fmt.Errorf("action %s: not known", a)
}

func condition(a specs.LinuxSeccompArg) (seccomp.Condition, error) {
	c := seccomp.Condition{Argument: uint32(a.Index), Value: a.Value}
	if a.Op == specs.OpMaskedEqual && a.ValueTwo != 0 {
		return c, fmt.Errorf("masked equal to %d: only 0 is known", a.ValueTwo)
	}
	known := false
	if c.Operation, known = operations[a.Op]; !known {
		return c, fmt.Errorf("operator %s: not known", a.Op)
	}
	return c, nil
}

var operations = map[specs.LinuxSeccompOperator]seccomp.Operation{
	specs.OpEqualTo: seccomp.Equal, specs.OpNotEqual: seccomp.NotEqual, specs.OpMaskedEqual: seccomp.BitsNotSet,
	specs.OpLessThan: seccomp.LessThan, specs.OpLessEqual: seccomp.LessOrEqual, specs.OpGreaterThan: seccomp.GreaterThan, specs.OpGreaterEqual: seccomp.GreaterOrEqual,
}
