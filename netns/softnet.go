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
func Overruns() (uint64, error) {
	f, err := os.Open("/proc/net/softnet_stat")
	if err != nil {
		return 0, fmt.Errorf("read overruns: %w", err)
	}
	defer f.Close()
	var all uint64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			return 0, fmt.Errorf("read overruns: %q: want a line of hexadecimal numbers", lines.Text())
		}
		n, err := strconv.ParseUint(fields[1], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("read overruns: %w", err)
		}
		all += n
	}
	return all, lines.Err()
}
