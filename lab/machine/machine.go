// Package machine reads what the whole machine does, from /proc.
package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Sample is what the machine and this process have used since they began.
type Sample struct {
	At                 time.Time
	Steal, Idle, Total float64 // seconds of all CPUs
	Squeezed           float64 // softirq rounds that ran out of budget
	Own                time.Duration
}

// Take a sample.
func Take() (Sample, error) {
	s := Sample{At: time.Now()}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return s, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return s, err
	}
	c := stat.CPUTotal
	s.Steal, s.Idle = c.Steal, c.Idle+c.Iowait
	s.Total = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + s.Idle + s.Steal // guest is part of user
	soft, err := fs.NetSoftnetStat()
	if err != nil {
		return s, err
	}
	for _, cpu := range soft {
		s.Squeezed += float64(cpu.TimeSqueezed)
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return s, fmt.Errorf("getrusage: %w", err)
	}
	s.Own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return s, nil
}

// Busy seconds of all CPUs: neither idle nor with the hypervisor.
func (s Sample) Busy() float64 { return s.Total - s.Idle - s.Steal }

// Available is the memory that programs could have, in bytes.
func Available() (int64, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, err
	}
	if m.MemAvailable == nil {
		return 0, errors.New("/proc/meminfo has no MemAvailable")
	}
	return int64(*m.MemAvailable) << 10, nil
}

// FreeMemory is the share of memory that is available; 1 if the kernel does not say.
func FreeMemory() float64 {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 1
	}
	m, err := fs.Meminfo()
	if err != nil || m.MemTotal == nil || m.MemAvailable == nil || *m.MemTotal == 0 {
		return 1
	}
	return float64(*m.MemAvailable) / float64(*m.MemTotal)
}

// Sampler times a fixed piece of work, the canary: how much longer it takes than undisturbed tells what else the machine does.
type Sampler struct {
	Reference time.Duration // of the canary
}

// NewSampler finds how long the canary takes undisturbed: the shortest of many.
func NewSampler() *Sampler {
	s := &Sampler{Reference: time.Hour}
	for range 40 {
		s.Reference = min(s.Reference, Canary())
	}
	return s
}

const canaryRounds = 400_000

// Canary times a fixed piece of work, about a millisecond.
func Canary() time.Duration {
	begin := time.Now()
	x := uint64(88172645463325252)
	for range canaryRounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	runtime.KeepAlive(x)
	return time.Since(begin)
}

// Check is the canary as a factor: the best of three, so that one preemption alone voids nothing.
func (s *Sampler) Check() float64 {
	best := Canary()
	for range 2 {
		best = min(best, Canary())
	}
	return float64(best) / float64(s.Reference)
}

// Awake keeps the processors out of deep sleep where the machine lets one ask for that: else an idle path's delay is how long they take to
// wake up, the same for everybody.
func Awake() (release func()) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return func() {}
	}
	if _, err := f.Write(make([]byte, 4)); err != nil { // 0 us, until the file is closed
		_ = f.Close()
		return func() {}
	}
	return func() { _ = f.Close() }
}
