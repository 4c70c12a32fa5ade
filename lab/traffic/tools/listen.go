package tools

import (
	"context"
	"fmt"
	"os"
	"strings"

	"weir.dev/weir/netns"
)

// Listening waits until somebody listens at a port of a namespace, for a while.
func Listening(ctx context.Context, space, network string, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pairsReady, fmt.Errorf("nobody listens at port %d after %s", port, pairsReady))
	defer cancel()
	for {
		up, err := listens(space, network, port)
		if up || err != nil {
			return err
		}
		if err := look(ctx); err != nil {
			return err
		}
	}
}

// listens tells whether somebody waits at a port of a namespace, without disturbing a server that takes one client only.
func listens(space, network string, port int) (up bool, err error) {
	err = netns.Do(space, func() error {
		for _, table := range []string{network, network + "6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				// sl local_address rem_address st: 0A listens, 07 is an unconnected UDP socket
				if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && (f[3] == "0A" || f[3] == "07") {
					up = true
				}
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read sockets: %w", err)
	}
	return up, nil
}
