package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const resultsSocket = "results.sock"

// results counts what nginx says of each request, by whether its answer was kept: HIT, MISS, EXPIRED, BYPASS ...; "-" is a request that nginx answers itself.
type results struct {
	mu              sync.Mutex
	requests, bytes map[string]uint64
}

// listen to nginx until the connection is closed. nginx does not wait: what is not read in time is not counted.
func (r *results) listen(dir string) (net.PacketConn, error) {
	path := filepath.Join(dir, resultsSocket)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		return nil, fmt.Errorf("socket of results: %w", err)
	}
	r.requests, r.bytes = map[string]uint64{}, map[string]uint64{}
	go func() {
		b := make([]byte, 4<<10)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			r.add(string(b[:n]))
		}
	}()
	return c, nil
}

// statuses that nginx knows; so the map is bounded.
var statuses = []string{"HIT", "MISS", "EXPIRED", "BYPASS", "REVALIDATED", "UPDATING", "STALE", "-"}

// add a line of syslog that ends with status and bytes.
func (r *results) add(line string) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return
	}
	status, length := words[len(words)-2], uint64(0)
	if _, err := fmt.Sscan(words[len(words)-1], &length); err != nil {
		return
	}
	for _, s := range statuses {
		if s == status {
			r.mu.Lock()
			r.requests[s]++
			r.bytes[s] += length
			r.mu.Unlock()
		}
	}
}

// list the counters as the log has them.
func (r *results) list() (fields []any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range statuses {
		if n := r.requests[s]; n > 0 {
			name := strings.ToLower(s)
			if s == "-" {
				name = "none"
			}
			fields = append(fields, name, n, name+" bytes", r.bytes[s])
		}
	}
	return fields
}
