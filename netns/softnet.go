package netns

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Overruns is how many frames the kernel has dropped since boot because a processor's receive queue was full (net.core.netdev_max_backlog; the
// second column of /proc/net/softnet_stat). All namespaces share these queues: who floods one veth pair makes others lose frames, too.
func Overruns() (uint64, error) { return softnet("overruns", 1) }

// Backlog is how many frames are in those queues now (the twelfth column, Linux 5.10).
func Backlog() (uint64, error) { return softnet("backlog", 11) }

// softnet sums a column of all processors.
func softnet(what string, column int) (uint64, error) {
	f, err := os.Open("/proc/net/softnet_stat")
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	defer f.Close()
	var all uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= column {
			return 0, fmt.Errorf("read %s: %q: want a line of more than %d hexadecimal numbers", what, lines.Text(), column)
		}
		n, err := strconv.ParseUint(fields[column], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", what, err)
		}
		all += n
	}
	return all, lines.Err()
}
