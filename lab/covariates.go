package lab

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Names of covariates. Shares are of all CPUs and of the trial's time.
const (
	covSteal   = "steal"        // share of CPU time that the hypervisor gave to others
	covBusy    = "busy"         // share of CPU time that was not idle
	covCanary  = "canary"       // how much longer a fixed piece of work took than it does undisturbed, the worse of before and behind
	covSqueeze = "time_squeeze" // softirq rounds that ran out of budget, a second
	covLoad    = "load"         // of one minute
	covOffered = "offered"      // share of the intended load that was offered on time
	covOwnCPU  = "lab_cpu"      // cores that the lab itself used, without the making of traffic
	covOwnRSS  = "lab_rss_mb"
)

// VoidRules say when a trial does not count. They are fixed before a run and know nothing of its result.
type VoidRules struct {
	Steal   float64 // more than this share
	Canary  float64 // more than this factor
	Squeeze float64 // more than this a second, in trials that leave the machine idle
	Offered float64 // less than this share
}

// Rules of every run.
func Rules() VoidRules { return VoidRules{Steal: 0.10, Canary: 2, Squeeze: 50, Offered: 0.995} }

// Text of the rules, one a line.
func (r VoidRules) Text() []string {
	return []string{
		fmt.Sprintf("steal above %.0f %% of all CPU time during the trial", r.Steal*100),
		fmt.Sprintf("a fixed piece of work just before or behind the trial took more than %g times as long as undisturbed", r.Canary),
		fmt.Sprintf("more than %g softirq rounds a second out of budget (time_squeeze) in a trial that leaves the machine idle", r.Squeeze),
		fmt.Sprintf("less than %.1f %% of the intended load was offered on time", r.Offered*100),
		fmt.Sprintf("in a search: others than generator and path had the CPU while most of the frames were due with which the generator was late (%d times in a row at most)", mostHeld),
		"frames that do not balance (sent is not received and lost), or none sent",
		"the trial failed: the reason is told",
	}
}

// void tells why a trial with these covariates does not count; empty: it does.
func (r VoidRules) void(c map[string]float64, idle bool) string {
	offered, paced := c[covOffered]
	switch {
	case c[covSteal] > r.Steal:
		return fmt.Sprintf("steal %.0f %%", c[covSteal]*100)
	case c[covCanary] > r.Canary:
		return fmt.Sprintf("canary %.1f times as slow", c[covCanary])
	case idle && c[covSqueeze] > r.Squeeze:
		return fmt.Sprintf("time_squeeze %.0f a second", c[covSqueeze])
	case paced && offered < r.Offered:
		return fmt.Sprintf("offered %.1f %% of the load", offered*100)
	}
	return ""
}

// sampler reads what the covariates are made of.
type sampler struct {
	reference time.Duration // of the canary
}

type sample struct {
	at                 time.Time
	steal, idle, total float64 // ticks of all CPUs
	squeezed           float64
	own                time.Duration
}

// newSampler finds how long the canary takes undisturbed: the shortest of many.
func newSampler() *sampler {
	s := &sampler{reference: time.Hour}
	for range 40 {
		s.reference = min(s.reference, canary())
	}
	return s
}

const canaryRounds = 400_000

// canary times a fixed piece of work, about a millisecond.
func canary() time.Duration {
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

// check is the canary as a factor: the best of three, so that one preemption alone voids nothing.
func (s *sampler) check() float64 {
	best := canary()
	for range 2 {
		best = min(best, canary())
	}
	return float64(best) / float64(s.reference)
}

func takeSample() (sample, error) {
	s := sample{at: time.Now()}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return s, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal guest guest_nice
	if len(f) < 9 || f[0] != "cpu" {
		return s, fmt.Errorf("/proc/stat: %q: want the sums of all CPUs", line)
	}
	for i, text := range f[1:9] { // guest is part of user
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return s, fmt.Errorf("/proc/stat: %w", err)
		}
		s.total += v
		switch i {
		case 3, 4:
			s.idle += v
		case 7:
			s.steal = v
		}
	}
	soft, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(soft)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		v, err := strconv.ParseUint(f[2], 16, 32)
		if err != nil {
			return s, fmt.Errorf("/proc/net/softnet_stat: %w", err)
		}
		s.squeezed += float64(v)
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return s, fmt.Errorf("getrusage: %w", err)
	}
	s.own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return s, nil
}

// covariates of the time between two samples.
func covariates(a, b sample, canary float64, m Measurement) map[string]float64 {
	c := map[string]float64{covCanary: canary, covOwnRSS: residentMiB()}
	seconds := b.at.Sub(a.at).Seconds()
	if total := b.total - a.total; total > 0 {
		c[covSteal] = max(0, b.steal-a.steal) / total
		c[covBusy] = 1 - min(1, max(0, b.idle-a.idle)/total)
	}
	if seconds > 0 {
		c[covSqueeze] = max(0, b.squeezed-a.squeezed) / seconds
		c[covOwnCPU] = max(0, (b.own-a.own-m.Sending).Seconds()) / seconds
	}
	if m.Offered > 0 {
		c[covOffered] = m.Offered
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if v, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64); err == nil {
			c[covLoad] = v
		}
	}
	return c
}

func residentMiB() float64 {
	p, err := procfs.Self()
	if err != nil {
		return 0
	}
	st, err := p.Stat()
	if err != nil {
		return 0
	}
	return float64(st.ResidentMemory()) / (1 << 20)
}
