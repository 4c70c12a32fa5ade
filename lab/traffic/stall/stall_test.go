package stall

import (
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// cpu that this process may use: the first.
func firstCPU(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			return i
		}
	}
	t.Fatal("no CPU")
	return 0
}

func watch(t *testing.T, cpus ...int) *Watch {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test loads BPF programs: run it as root")
	}
	w, err := New(cpus...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// hold takes a CPU away and waits until the watch has ticked again.
func hold(t *testing.T, cpu int, length time.Duration) traffic.Span {
	t.Helper()
	h, err := Hold(cpu, length)
	if err != nil {
		t.Fatal(err)
	}
	for monotonic(t) < h.End+2*Period {
	}
	return h
}

// within tells whether a stall has the length of a span, to a tick at each end.
func within(s traffic.Stall, h traffic.Span) bool {
	const slack = Period + Period/2
	return s.Begin <= h.Begin && s.End >= h.End && s.Begin >= h.Begin-slack && s.End <= h.End+slack
}

// TestHeldCPUIsSeen: a CPU that takes no interrupts for some milliseconds is a stall of that length, to a tick. It is tried again where the machine
// takes the CPU away by itself just then.
func TestHeldCPUIsSeen(t *testing.T) {
	cpu := firstCPU(t)
	w := watch(t, cpu)
	for _, length := range []time.Duration{2 * time.Millisecond, 5 * time.Millisecond, 30 * time.Millisecond} {
		seen := false
		for range 10 {
			if err := w.Begin(0, -1); err != nil {
				t.Fatal(err)
			}
			h := hold(t, cpu, length)
			s, err := w.Read(monotonic(t))
			if err != nil {
				t.Fatal(err)
			}
			if took := h.End - h.Begin; took < length {
				t.Fatalf("held for %s: want %s", took, length)
			}
			i := slices.IndexFunc(s.List, func(x traffic.Stall) bool { return x.Begin < h.End && x.End > h.Begin })
			if i < 0 {
				t.Fatalf("held for %s: no stall was seen: %+v", length, s)
			}
			if s.List[i].CPU != cpu || s.List[i].Thread {
				t.Fatalf("held for %s: %+v", length, s.List[i])
			}
			if seen = within(s.List[i], h); seen {
				t.Logf("held for %s: seen %s", h.End-h.Begin, s.List[i].End-s.List[i].Begin)
				break
			}
		}
		if !seen {
			t.Errorf("held for %s: never seen with its length", length)
		}
	}
	// What is too short to fill a queue is none.
	none := false
	for range 10 {
		if err := w.Begin(0, -1); err != nil {
			t.Fatal(err)
		}
		h := hold(t, cpu, Limit/2)
		s, err := w.Read(monotonic(t))
		if err != nil {
			t.Fatal(err)
		}
		if none = !slices.ContainsFunc(s.List, func(x traffic.Stall) bool { return x.Begin < h.End && x.End > h.Begin }); none {
			break
		}
	}
	if !none {
		t.Errorf("%s are a stall", Limit/2)
	}
}

// TestBusyCPUIsNoStall: programs keep a CPU busy, also ones that no other program may interrupt. It takes interrupts meanwhile. What the hypervisor
// takes away is allowed for by a comparison with steal, which the kernel counts, too.
func TestBusyCPUIsNoStall(t *testing.T) {
	cpu := firstCPU(t)
	w := watch(t, cpu)
	const length = 300 * time.Millisecond
	best := 1.0
	for range 5 {
		if err := w.Begin(0, -1); err != nil {
			t.Fatal(err)
		}
		end := onCPU(t, cpu, length, nil)
		s, err := w.Read(end)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, s.Time().Seconds()/length.Seconds())
	}
	t.Logf("stalled for %.1f %% of the time at best", best*100)
	if best > 0.05 {
		t.Errorf("a busy CPU is stalled for %.0f %% of the time", best*100)
	}
}

// onCPU runs on a thread of real-time priority until a time has passed; f is told the thread's number. It gives the time when it was over.
func onCPU(t *testing.T, cpu int, length time.Duration, f func(thread int)) (end time.Duration) {
	t.Helper()
	done := make(chan time.Duration)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
			t.Error(err)
		}
		if f != nil {
			f(unix.Gettid())
		}
		var ts unix.Timespec
		for begin := time.Now(); time.Since(begin) < length; {
			_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		}
		done <- time.Duration(ts.Nano())
	}()
	return <-done
}

// TestThreadThatIsAway: a thread has the CPU for itself; another of higher priority takes it for 20 ms. A thread that has ended is not away.
func TestThreadThatIsAway(t *testing.T) {
	cpu := firstCPU(t)
	w := watch(t, cpu)
	var from, to atomic.Int64
	begun := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := <-begun; err != nil {
			t.Error(err)
			return
		}
		runtime.LockOSThread() // never unlocked
		var one unix.CPUSet
		one.Set(cpu)
		err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 2}, 0)
		if err == nil {
			err = unix.SchedSetaffinity(0, &one)
		}
		if err != nil {
			t.Error(err)
		}
		begin := time.Now()
		from.Store(int64(monotonic(t)))
		for time.Since(begin) < 20*time.Millisecond {
		}
		to.Store(int64(monotonic(t)))
	}()
	end := onCPU(t, cpu, 100*time.Millisecond, func(thread int) { begun <- w.Begin(thread, cpu) })
	<-over
	s, err := w.Read(end)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range s.List {
		if x.Thread && x.Begin < time.Duration(to.Load()) && x.End > time.Duration(from.Load()) {
			found = true
			if length := x.End - x.Begin; length < 18*time.Millisecond {
				t.Errorf("away for %s: want 20ms", length)
			}
		}
		if x.Thread && x.Begin > end-Period {
			t.Errorf("the thread's end is a stall: %+v", x)
		}
	}
	if !found {
		t.Errorf("the thread was not missed from %s to %s: %+v", time.Duration(from.Load()), time.Duration(to.Load()), s)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := Hold(0, 2*MaxHold); err == nil {
		t.Error("a CPU can be held for ever")
	}
	for _, cpus := range [][]int{{}, {0, 1, 2}, {99999}} {
		if w, err := New(cpus...); err == nil {
			t.Errorf("a watch over CPUs %v", cpus)
			_ = w.Close()
		}
	}
}
