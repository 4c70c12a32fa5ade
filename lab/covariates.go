package lab

import (
	"fmt"

	"github.com/prometheus/procfs"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/machine"
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
		fmt.Sprintf("in a search: more than %.0f %% of the frames were due near a stall of the sender's or the path's CPU, which is measured apart from what is lost", experiment.MostStalled*100),
		"packets in mode cost: a frame was lost, so that it was no closed loop",
		"packets: what is compared did not enter in batches of one size within a block",
		"values that contradict the raw counts of frames in the journal",
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

// covariates of the time between two samples.
func covariates(a, b machine.Sample, canary float64, m experiment.Measurement) map[string]float64 {
	c := map[string]float64{covCanary: canary, covOwnRSS: residentMiB()}
	seconds := b.At.Sub(a.At).Seconds()
	if total := b.Total - a.Total; total > 0 {
		c[covSteal] = max(0, b.Steal-a.Steal) / total
		c[covBusy] = 1 - min(1, max(0, b.Idle-a.Idle)/total)
	}
	if seconds > 0 {
		c[covSqueeze] = max(0, b.Squeezed-a.Squeezed) / seconds
		c[covOwnCPU] = max(0, (b.Own-a.Own-m.Sending).Seconds()) / seconds
	}
	if m.Offered > 0 {
		c[covOffered] = m.Offered
	}
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if load, err := fs.LoadAvg(); err == nil {
			c[covLoad] = load.Load1
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
