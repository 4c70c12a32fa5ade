package netns

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// Overruns is how many frames the kernel has dropped since boot because a processor's receive queue was full (net.core.netdev_max_backlog). All
// namespaces share these queues: who floods one veth pair makes others lose frames, too.
func Overruns() (uint64, error) {
	return softnet("overruns", func(s procfs.SoftnetStat) uint32 { return s.Dropped })
}

// Backlog is how many frames are in those queues now (Linux 5.10).
func Backlog() (uint64, error) {
	return softnet("backlog", func(s procfs.SoftnetStat) uint32 { return s.SoftnetBacklogLen })
}

// softnet sums a column of /proc/net/softnet_stat over all processors.
func softnet(what string, column func(procfs.SoftnetStat) uint32) (all uint64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	stats, err := fs.NetSoftnetStat()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	for _, s := range stats {
		all += uint64(column(s))
	}
	return all, nil
}
