package kernel

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weir.dev/weir/container"
)

// outOfMemory tells whether the kernel has killed a process of a container for want of memory, and whose memory was short.
func (h *Home) outOfMemory(id string, limit int64) (bool, container.Shortage) {
	failures, ferr := os.ReadFile(h.FailuresFile(id)) // first: the group may be going
	raw, err := os.ReadFile(h.OOMFile(id))
	text := string(raw)
	if err != nil {
		raw, err = os.ReadFile(filepath.Join(h.Bundle(id), EndedFile))
		text = string(raw)
	} else if ferr == nil {
		text += "failcnt " + string(failures)
	}
	if kills, _ := keyed(text, "oom_kill"); err != nil || kills == 0 {
		return false, container.ShortUnknown
	}
	memory, _ := os.ReadFile("/proc/meminfo")
	return true, shortOf(text, limit, string(memory))
}

// OOMFile counts the kernel's kills for want of memory in a container's cgroup.
func (h *Home) OOMFile(id string) string {
	t, _ := h.hierarchyOf("memory")
	file := "memory.oom_control" // since Linux 4.13
	if t.v2 {
		file = "memory.events"
	}
	return filepath.Join(t.dir(h.CgroupPath(id)), file)
}

// FailuresFile counts in version 1 how often a container has reached its limit of memory. In version 2 there is none: OOMFile tells.
func (h *Home) FailuresFile(id string) string {
	t, _ := h.hierarchyOf("memory")
	return filepath.Join(t.dir(h.CgroupPath(id)), "memory.failcnt")
}

// shortOf tells whose memory was short, by the counters of a container's cgroup, its limit, and /proc/meminfo a moment later.
//
// Kills count alike whatever the reason. Version 2 counts beside them how often the container's own limit left no way but to kill (oom). Version 1 counts how
// often the limit was reached (failcnt), for which dropping cached files may have been enough. Where the host still has much more than the kill can have given
// back, the host was not short.
func shortOf(counters string, limit int64, meminfo string) container.Shortage {
	kills, _ := keyed(counters, "oom_kill")
	own, v2 := keyed(counters, "oom")
	reached, v1 := keyed(counters, "failcnt")
	switch {
	case limit == 0, v2 && own == 0, v1 && reached == 0:
		return container.ShortHost
	case v2 && own >= kills, v1 && plenty(meminfo, limit):
		return container.ShortLimit
	}
	return container.ShortUnknown
}

// spare is the part of its memory, 1/spare, that a host with plenty has left.
const spare = 10

// plenty tells whether the host has memory left beside that of a container which was killed, as /proc/meminfo tells.
func plenty(meminfo string, limit int64) bool {
	total, _ := keyed(meminfo, "MemTotal:")
	available, ok := keyed(meminfo, "MemAvailable:")
	return ok && available<<10 > limit+total<<10/spare
}

// keyed is a number behind its name, in a text that has one in each line.
func keyed(text, key string) (int64, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
