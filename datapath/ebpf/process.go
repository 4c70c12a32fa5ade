package ebpf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
)

// SetState changes a function's liveness. With a process, the kernel itself sets Down when that ends.
func (s *Switch) SetState(ctx context.Context, name string, st datapath.State, pid int) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	fn := s.ports.fns[name]
	if fn == nil {
		return fmt.Errorf("set state of function %s: %w", name, datapath.ErrNotFound)
	}
	if err := s.liveness.set(fn, st, pid); err != nil {
		return fmt.Errorf("set state of function %s: %w", name, err)
	}
	return nil
}

// liveness is what the programs know of functions: whether they are up, and whose process is watched.
type liveness struct {
	tables *tables
	kernel *kernel
}

// add a function that is Down until set.
func (l *liveness) add(fn *function) error {
	var was bpf.SteerFunction
	if err := l.tables.maps.Functions.Lookup(uint32(fn.Slot), &was); err != nil {
		return fmt.Errorf("read function: %w", err)
	}
	v := bpf.SteerFunction{OnFail: uint32(fn.F.OnFail), Used: 1, Generation: was.Generation + 1}
	if err := l.tables.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
		return fmt.Errorf("write function: %w", err)
	}
	return nil
}

// remove a function.
func (l *liveness) remove(fn *function) error {
	if err := l.forget(fn); err != nil {
		return err
	}
	return l.change(fn, func(v *bpf.SteerFunction) { *v = bpf.SteerFunction{Generation: v.Generation + 1} })
}

// set a function's state. With a process, the kernel itself sets Down when that ends.
func (l *liveness) set(fn *function, st datapath.State, pid int) error {
	if pid < 0 || st == datapath.Down || !l.kernel.exit {
		pid = 0
	}
	if err := l.forget(fn); err != nil {
		return err
	}
	if pid > 0 {
		if err := l.tables.maps.Processes.Put(uint32(pid), uint32(fn.Slot)); err != nil {
			return fmt.Errorf("watch process %d: %w", pid, err)
		}
	}
	return l.change(fn, func(v *bpf.SteerFunction) {
		if v.State != uint32(st) || v.Pid != uint32(pid) { // another process, or one that was away, has settled nothing
			v.Generation++
		}
		v.State, v.Pid = uint32(st), uint32(pid)
	})
}

// change changes what the programs know of a function. They may set Down meanwhile, so a process that ended is looked for
// afterwards.
func (l *liveness) change(fn *function, change func(*bpf.SteerFunction)) error {
	var was bpf.SteerFunction
	if err := l.tables.maps.Functions.Lookup(uint32(fn.Slot), &was); err != nil {
		return fmt.Errorf("read function: %w", err)
	}
	v := was
	v.Used = 1
	change(&v)
	if v != was {
		if err := l.tables.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
			return fmt.Errorf("write function: %w", err)
		}
	}
	if v.Pid == 0 || v.State == uint32(datapath.Down) {
		return nil
	}
	// The program takes the process out of the table before it sets Down. If it is out, what was written above may have undone that; else Down is still to come.
	var slot uint32
	err := l.tables.maps.Processes.Lookup(v.Pid, &slot)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read watched process %d: %w", v.Pid, err)
	}
	if err == nil && slot == uint32(fn.Slot) && alive(int(v.Pid)) {
		return nil
	}
	v.State, v.Pid = uint32(datapath.Down), 0
	if err := l.tables.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
		return fmt.Errorf("write function: %w", err)
	}
	return nil
}

// alive: the process runs; one that ended and was not waited for does not.
func alive(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0) // kernel 5.3
	if err != nil {
		return !errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err != nil || n == 0
}

// forget the process that is watched.
func (l *liveness) forget(fn *function) error {
	var v bpf.SteerFunction
	if err := l.tables.maps.Functions.Lookup(uint32(fn.Slot), &v); err != nil {
		return fmt.Errorf("read function: %w", err)
	}
	if v.Pid == 0 {
		return nil
	}
	var slot uint32
	if err := l.tables.maps.Processes.Lookup(v.Pid, &slot); err != nil || slot != uint32(fn.Slot) {
		return nil // the process ended
	}
	if err := l.tables.maps.Processes.Delete(v.Pid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget process %d: %w", v.Pid, err)
	}
	return nil
}

// watch attaches the program that is told when a process ends, and takes an older build's away.
func (l *liveness) watch() error {
	if !l.kernel.exit {
		return nil
	}
	name := "exit-" + l.tables.state.ABI + "-" + l.tables.state.Build
	entries, err := os.ReadDir(l.tables.linksDir())
	if err != nil {
		return err
	}
	have := false
	for _, e := range entries {
		have = have || e.Name() == name
	}
	if !have {
		hook, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: l.tables.programs.ProcessExit})
		if err != nil {
			return fmt.Errorf("attach to tracepoint sched_process_exit: %w", err)
		}
		defer hook.Close()
		if err := hook.Pin(filepath.Join(l.tables.linksDir(), name)); err != nil {
			return fmt.Errorf("pin link to tracepoint: %w", err)
		}
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "exit-") && e.Name() != name {
			if err := os.Remove(filepath.Join(l.tables.linksDir(), e.Name())); err != nil {
				return fmt.Errorf("unpin link to tracepoint: %w", err)
			}
		}
	}
	return nil
}
