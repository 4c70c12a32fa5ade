package stall

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

// A Watch ticks once a Period. A CPU is stalled between two ticks that are more than Period + Limit apart. The queue in front of a CPU holds
// net.core.netdev_max_backlog frames (1,000): at 0.7 million frames a second it is full after such a time, and a shorter stall loses nothing. A tick
// that the kernel leaves out (it does while it writes a BPF map on that CPU) is no stall.
const (
	Period = 500 * time.Microsecond
	Limit  = time.Millisecond
)

// MostCPUs of a watch.
const MostCPUs = 2

// What a stall is.
const (
	late = 1 // the CPU did not take interrupts: a hypervisor had given it to others, or the kernel had interrupts off
	away = 2 // the CPU ran, but the thread that was to be on it did not: other programs did
)

// Watch watches over CPUs. It is not safe for concurrent use.
type Watch struct {
	maps   stallObjects
	cpus   []int
	events []int
	awake  []*awake
}

// New makes a watch over one or two CPUs (perf software clocks with a BPF program, Linux 4.9; bpf_get_ns_current_pid_tgid, Linux 5.7).
func New(cpus ...int) (*Watch, error) {
	cpus = slices.Compact(slices.Sorted(slices.Values(cpus)))
	if len(cpus) < 1 || len(cpus) > MostCPUs {
		return nil, fmt.Errorf("a watch over %d CPUs: want 1 to %d", len(cpus), MostCPUs)
	}
	w := &Watch{cpus: cpus}
	if err := loadStallObjects(&w.maps, nil); err != nil {
		return nil, fmt.Errorf("load the watch over CPUs: %w", err)
	}
	for i, cpu := range cpus {
		fd, err := clock(cpu, Period, []*ebpf.Program{w.maps.Tick0, w.maps.Tick1}[i])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch over CPU %d: %w", cpu, err), w.Close())
		}
		w.events = append(w.events, fd)
		a, err := keepAwake(cpu)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		w.awake = append(w.awake, a)
	}
	return w, nil
}

// clock has a program run on a CPU once a period, in hard interrupts, while it is enabled.
func clock(cpu int, period time.Duration, p *ebpf.Program) (fd int, err error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: uint64(period), Bits: unix.PerfBitDisabled}
	attr.Size = uint32(unix.PERF_ATTR_SIZE_VER0)
	if fd, err = unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC); err != nil {
		return -1, fmt.Errorf("a software clock (CONFIG_PERF_EVENTS): %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, p.FD()); err != nil {
		return -1, errors.Join(fmt.Errorf("a program for a software clock (CONFIG_BPF_EVENTS): %w", err), unix.Close(fd))
	}
	return fd, nil
}

// Begin forgets what was seen and ticks until Read. If thread is not 0, the watch also sees when that thread of this process, which is to have the CPU named
// for itself, does not have it.
func (w *Watch) Begin(thread, cpu int) error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return fmt.Errorf("PID namespace: %w", err)
	}
	for i, c := range w.cpus {
		v := stallWatch{Period: uint64(Period), Limit: uint64(Limit), Cpu: uint32(c), Dev: st.Dev, Ino: st.Ino}
		var err error
		if thread != 0 && c == cpu { // it keeps its CPU awake, and the kernel would give a share of that to a program that waits
			v.Thread = uint32(thread)
		} else {
			err = w.awake[i].signal(unix.SIGCONT)
		}
		if err == nil {
			err = w.maps.Watches.Put(uint32(i), &v)
		}
		if err == nil {
			err = unix.IoctlSetInt(w.events[i], unix.PERF_EVENT_IOC_ENABLE, 0)
		}
		if err != nil {
			return fmt.Errorf("begin the watch over CPU %d: %w", c, err)
		}
	}
	return nil
}

// Read ends the ticks and gives the stalls since Begin that began before end, those of both CPUs in the order in which they began. A thread that is
// away since end or later is not missed: it is done.
func (w *Watch) Read(end time.Duration) (traffic.Stalls, error) {
	for i, c := range w.cpus {
		err := errors.Join(unix.IoctlSetInt(w.events[i], unix.PERF_EVENT_IOC_DISABLE, 0), w.awake[i].signal(unix.SIGSTOP))
		if err != nil {
			return traffic.Stalls{}, fmt.Errorf("end the watch over CPU %d: %w", c, err)
		}
	}
	return w.stalls(end)
}

// Peek gives the stalls since Begin that are over. The ticks go on.
func (w *Watch) Peek() (traffic.Stalls, error) { return w.stalls(math.MaxInt64) }

// stalls that began before end. Where that is still to come, nothing is known of a stall that has not ended.
func (w *Watch) stalls(end time.Duration) (all traffic.Stalls, err error) {
	for i, c := range w.cpus {
		var v stallWatch
		if err := w.maps.Watches.Lookup(uint32(i), &v); err != nil {
			return all, fmt.Errorf("read the watch over CPU %d: %w", c, err)
		}
		if v.Ticks == 0 {
			return all, fmt.Errorf("the watch over CPU %d never ticked", c)
		}
		all.Unlisted += v.Unlisted
		for _, s := range v.List[:v.N] {
			x := traffic.Stall{CPU: c, Begin: time.Duration(s.Begin), End: time.Duration(s.End), Thread: s.What == away}
			if x.Begin < end && !(x.Thread && x.Begin+Period >= end) {
				all.List = append(all.List, x)
			}
		}
		if since := time.Duration(v.Away); since != 0 && since < end && end != math.MaxInt64 { // it has not come back
			all.List = append(all.List, traffic.Stall{CPU: c, Begin: since - Period, End: max(end, time.Duration(v.Last)), Thread: true})
		}
	}
	slices.SortFunc(all.List, func(a, b traffic.Stall) int { return int(a.Begin - b.Begin) })
	return all, nil
}

// Close ends the watch.
func (w *Watch) Close() error {
	var errs []error
	for _, fd := range w.events {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	for _, a := range w.awake {
		errs = append(errs, a.close())
	}
	w.events, w.awake = nil, nil
	return errors.Join(append(errs, w.maps.Close())...)
}
