package launcher

import (
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// Calls are the names of the system calls that a program makes, in order of the alphabet.
func (p *Program) Calls() ([]string, error) {
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range p.steps {
		if s.number >= 0 {
			names = append(names, info.SyscallNumbers[int(s.number)])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
