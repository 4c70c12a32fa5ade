package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Bounds of a machine on which nothing else runs. The load is that of the last minute, and a figure of a second alone misses who pauses just then.
const (
	quietBusy     = 0.2 // of CPU time
	quietLoad     = 0.5 // runnable or waiting tasks, for each CPU
	quietPressure = 10  // % of the last 10 s in which a task waited for CPU time, disk or memory
)

// pressures are the resources of /proc/pressure (kernel 4.20).
var pressures = []string{"cpu", "io", "memory"}

// pressure is the share of the last 10 s in which at least one task waited for a resource, in %; false: the kernel does not tell.
func pressure(resource string) (percent float64, known bool, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false, err
	}
	p, err := proc.PSIStatsForResource(resource)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EOPNOTSUPP): // not built in, or switched off at boot
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case p.Some == nil:
		return 0, false, fmt.Errorf("/proc/pressure/%s: want a line \"some\"", resource)
	}
	return p.Some.Avg10, true, nil
}

// quiet judges how busy a machine is, and says what it goes by.
func quiet(busy, load float64, cpus int, waited map[string]float64) (ok bool, text string) {
	ok = busy < quietBusy && load < quietLoad*float64(cpus)
	text = fmt.Sprintf("%.0f %% of CPU time was busy in the last second, load %.1f on %d CPUs", busy*100, load, cpus)
	var parts []string
	for _, resource := range pressures {
		if percent, known := waited[resource]; known {
			ok = ok && percent < quietPressure
			parts = append(parts, fmt.Sprintf("%s %.0f %%", resource, percent))
		}
	}
	if len(parts) > 0 {
		text += "; tasks waited in the last 10 s: " + strings.Join(parts, ", ")
	}
	if !ok {
		return false, "the machine is busy: " + text + ": measure when nothing else runs"
	}
	return true, text
}
