package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const resultsPipe = "results"

// results counts what nginx says of each request, by whether its answer was kept: HIT, MISS, EXPIRED, BYPASS ...; "-" is a request that nginx answers itself.
type results struct {
	mu              sync.Mutex
	requests, bytes map[string]uint64
}

// listen to nginx until the pipe is closed. nginx writes many lines at once, and waits if they are not read.
func (r *results) listen(dir string) (io.Closer, error) {
	path := filepath.Join(dir, resultsPipe)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("pipe of results: %w", err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // both ways: nginx finds a reader, and the reader no end
	if err != nil {
		return nil, fmt.Errorf("pipe of results: %w", err)
	}
	r.requests, r.bytes = map[string]uint64{}, map[string]uint64{}
	go func() {
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			r.add(lines.Text())
		}
	}()
	return pipe, nil
}

// statuses that nginx knows; so the map is bounded.
var statuses = []string{"HIT", "MISS", "EXPIRED", "BYPASS", "REVALIDATED", "UPDATING", "STALE", "-"}

// add a line, of status and bytes.
func (r *results) add(line string) {
	status, rest, _ := strings.Cut(line, " ")
	length, err := strconv.ParseUint(rest, 10, 64)
	if err != nil {
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
