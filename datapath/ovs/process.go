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
	"weir.dev/weir/datapath/internal/record"
)

// SetState changes a function's liveness. With a process, this driver sets Down when that ends: at once while it runs, when it is
// opened again otherwise. A switch that is away takes the state over when it comes back.
func (s *Switch) SetState(ctx context.Context, name string, st datapath.State, pid int) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	fn := s.fns[name]
	if fn == nil {
		leave()
		return fmt.Errorf("set state of function %s: %w", name, datapath.ErrNotFound)
	}
	if pid < 0 || st == datapath.Down {
		pid = 0
	}
	change, err := s.setState(fn, st, pid)
	leave()
	if err == nil {
		err = s.apply(ctx, change)
	}
	if err != nil {
		return fmt.Errorf("set state of function %s: %w", name, err)
	}
	return nil
}

// setState notes it. The change that it tells is to be applied.
func (s *Switch) setState(fn *function, st datapath.State, pid int) (change uint64, err error) {
	s.unwatch(fn.F.Name)
	born := uint64(0)
	if pid > 0 {
		if born, err = s.watchProcess(fn.F.Name, pid); errors.Is(err, unix.ESRCH) {
			st, pid = datapath.Down, 0
		} else if err != nil {
			return 0, fmt.Errorf("watch process %d: %w", pid, err)
		}
	}
	if fn.State == st && fn.Pid == pid && fn.Born == born {
		return s.wanted, nil
	}
	if fn.State != st {
		s.wanted++
	}
	fn.State, fn.Pid, fn.Born = st, pid, born
	return s.wanted, s.store.Write(record.File("function", fn.F.Name), fn)
}

// apply brings the entries up to a change of ports or states, together with all others that were noted by the time the lock is had. The lock
// must not be held.
func (s *Switch) apply(ctx context.Context, change uint64) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if s.applied >= change || s.of == nil || s.of.Err() != nil { // the next connection will see to it
		return nil
	}
	return s.refresh(ctx)
}

// death of a process that is being watched.
type death struct {
	pid  int
	file *os.File
}

func (d *death) stop() { d.file.Close() }

func (s *Switch) unwatch(name string) {
	if d := s.deaths[name]; d != nil {
		d.stop()
		delete(s.deaths, name)
	}
}

// watchProcess until it ends or unwatch. ESRCH: it has ended. It tells the process's start time.
func (s *Switch) watchProcess(name string, pid int) (uint64, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // kernel 5.10
	if errors.Is(err, unix.EINVAL) {
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return 0, err
	}
	ended := func(fd int) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
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
	s.done.Go(func() {
		if raw.Read(func(fd uintptr) bool { return ended(int(fd)) }) != nil {
			return // not watched any more
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.deaths[name] != d || s.closed || s.fns[name] == nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.work, patience)
		defer cancel()
		_, err := s.setState(s.fns[name], datapath.Down, 0)
		if err == nil && s.of != nil && s.of.Err() == nil {
			err = s.refresh(ctx)
		}
		if err != nil {
			s.log.Error("a function whose process ended was not set down", "function", name, "error", err)
		}
	})
	return born, nil
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

// restoreProcesses watches functions' processes again; those that ended meanwhile set their functions Down.
func (s *Switch) restoreProcesses() error {
	for name, fn := range s.fns {
		if fn.Pid == 0 {
			continue
		}
		born, err := s.watchProcess(name, fn.Pid)
		if err == nil && born == fn.Born {
			continue
		}
		s.unwatch(name)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("watch process %d of function %s: %w", fn.Pid, name, err)
		}
		fn.State, fn.Pid, fn.Born = datapath.Down, 0, 0
		if err := s.store.Write(record.File("function", name), fn); err != nil {
			return err
		}
	}
	return nil
}
