package platform

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"

	"golang.org/x/sys/unix"

	"weir.dev/weir/cpuset"
)

// Resting is a platform that may keep processors busy without frames, since it polls. It is stopped by Rest, and wakes at its next Path. What else is measured
// in the same block would share its processors with it.
type Resting interface{ Rest() error }

// Rest stops what polls.
func (m *made) Rest() error { return errors.Join(m.pollers.rest(), m.switching.rest()) }

func (m *made) wake() error { return errors.Join(m.pollers.wake(), m.switching.wake()) }

// restToGrow stops what polls while functions are made. A switch with which machines share their memory goes on: they come up only when it has answered them.
func (m *made) restToGrow() error {
	if n, ok := m.net.(*flows); ok && n.shares() && m.fn.machine {
		return errors.Join(m.pollers.rest(), m.switching.wake())
	}
	return m.Rest()
}

// pollers are processes that never wait.
type pollers struct {
	mu      sync.Mutex
	pidfds  []int // so that no id comes to mean another process
	resting bool
}

func (p *pollers) add(pid int) error {
	if pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pidfds = append(p.pidfds, fd)
	return nil
}

func (p *pollers) rest() error {
	if p.resting || len(p.pidfds) == 0 {
		return nil
	}
	p.resting = true
	return p.signal(unix.SIGSTOP)
}

func (p *pollers) wake() error {
	if !p.resting {
		return nil
	}
	p.resting = false
	return p.signal(unix.SIGCONT)
}

func (p *pollers) signal(s unix.Signal) error {
	var errs []error
	for _, fd := range p.pidfds {
		if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *pollers) close() {
	for _, fd := range p.pidfds {
		_ = unix.Close(fd)
	}
	p.pidfds = nil
}

// processors that this process may use.
func processors() []int {
	if own, err := cpuset.Allowed(); err == nil {
		return own
	}
	all := make([]int, goruntime.NumCPU())
	for i := range all {
		all[i] = i
	}
	return all
}

// shareOut says which processors the polling threads of a switch have, and which its polling functions, in turns. The first one sends: it is left alone as long
// as there are others. Where there are too few, functions share those of the switch.
func shareOut(all []int, threads int) (switches, functions []int) {
	threads = min(threads, len(all))
	switches = all[len(all)-threads:]
	functions = all[:len(all)-threads]
	switch {
	case len(functions) > 1:
		functions = functions[1:]
	case len(functions) == 0:
		functions = all
	}
	return switches, functions
}
