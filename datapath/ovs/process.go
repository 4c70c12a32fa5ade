package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/datapath/internal/record"
)

// liveness is whether functions are up, and whose processes are watched for it.
type liveness struct {
	gate   *lifecycle.Gate
	work   *lifecycle.Work
	home   *home.Home
	ports  *ports
	rules  *rules
	deaths map[string]*death // watched processes, by function
}

// SetState changes a function's liveness. With a process, this driver sets Down when that ends: at once while it runs, when it is
// opened again otherwise. A switch that is away takes the state over when it comes back.
func (s *Switch) SetState(ctx context.Context, name string, st datapath.State, pid int) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	fn := s.ports.fns[name]
	if fn == nil {
		leave()
		return fmt.Errorf("set state of function %s: %w", name, datapath.ErrNotFound)
	}
	if pid < 0 || st == datapath.Down {
		pid = 0
	}
	change, err := s.liveness.set(fn, st, pid)
	leave()
	if err == nil {
		err = s.rules.apply(ctx, change)
	}
	if err != nil {
		return fmt.Errorf("set state of function %s: %w", name, err)
	}
	return nil
}

// set notes a state. The change that it tells is to be applied.
func (s *liveness) set(fn *function, st datapath.State, pid int) (change uint64, err error) {
	s.unwatch(fn.F.Name)
	born := uint64(0)
	if pid > 0 {
		if born, err = s.watch(fn.F.Name, pid); errors.Is(err, unix.ESRCH) {
			st, pid = datapath.Down, 0
		} else if err != nil {
			return 0, fmt.Errorf("watch process %d: %w", pid, err)
		}
	}
	if fn.State == st && fn.Pid == pid && fn.Born == born {
		return s.rules.wanted, nil
	}
	change = s.rules.wanted
	if fn.State != st {
		change = s.rules.change()
	}
	fn.State, fn.Pid, fn.Born = st, pid, born
	return change, s.home.Store.Write(record.File("function", fn.F.Name), fn)
}

// death of a process that is being watched.
type death struct {
	pid  int
	file *os.File
}

func (d *death) stop() { d.file.Close() }

// stop watching all.
func (s *liveness) stop() {
	for _, d := range s.deaths {
		d.stop()
	}
}

func (s *liveness) unwatch(name string) {
	if d := s.deaths[name]; d != nil {
		d.stop()
		delete(s.deaths, name)
	}
}

// watch a process until it ends or unwatch. ESRCH: it has ended. It tells the process's start time.
func (s *liveness) watch(name string, pid int) (uint64, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // kernel 5.10
	if errors.Is(err, unix.EINVAL) {
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return 0, err
	}
	if ended(fd) {
		unix.Close(fd)
		return 0, unix.ESRCH
	}
	born, err := startTime(pid)
	if err != nil {
		unix.Close(fd)
		return 0, unix.ESRCH
	}
	d := &death{pid, os.NewFile(uintptr(fd), "process "+strconv.Itoa(pid))}
	raw, err := d.file.SyscallConn()
	if err != nil {
		d.stop()
		return 0, err
	}
	s.deaths[name] = d
	s.work.Go(func(ctx context.Context) {
		if raw.Read(func(fd uintptr) bool { return ended(int(fd)) }) == nil {
			s.died(ctx, name, d)
		}
	})
	return born, nil
}

func ended(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// died sets a function down whose process has ended, unless another one is watched by now.
func (s *liveness) died(ctx context.Context, name string, d *death) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.deaths[name] != d || s.gate.Closed() || s.ports.fns[name] == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.set(s.ports.fns[name], datapath.Down, 0)
	if err == nil && s.rules.connection.up() {
		err = s.rules.refresh(ctx)
	}
	if err != nil {
		s.home.Log.Error("a function whose process ended was not set down", "function", name, "error", err)
	}
}

// startTime of a process, in clock ticks since boot (proc(5)): with its id it tells it from any other.
func startTime(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	st, err := p.Stat()
	if st.State == "Z" || st.State == "X" {
		return 0, unix.ESRCH
	}
	return st.Starttime, err
}

// restore watches functions' processes again; those that ended meanwhile set their functions Down.
func (s *liveness) restore() error {
	for name, fn := range s.ports.fns {
		if fn.Pid == 0 {
			continue
		}
		born, err := s.watch(name, fn.Pid)
		if err == nil && born == fn.Born {
			continue
		}
		s.unwatch(name)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("watch process %d of function %s: %w", fn.Pid, name, err)
		}
		fn.State, fn.Pid, fn.Born = datapath.Down, 0, 0
		if err := s.home.Store.Write(record.File("function", name), fn); err != nil {
			return err
		}
	}
	return nil
}
