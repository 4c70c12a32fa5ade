package kernel

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Usage is what the processes of some cgroups have used.
type Usage struct {
	CPU    time.Duration
	Memory uint64 // bytes now, without what the kernel can drop of files
}

// Meter reads what processes use, whatever runtime has put them into cgroups.
type Meter struct {
	trees []hierarchy
	own   []group // this process's
}

// NewMeter looks where cgroups are mounted.
func NewMeter() (*Meter, error) {
	trees, err := findHierarchies()
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return &Meter{trees, groupsIn(string(raw), trees)}, nil
}

// Usage of the cgroups of a process, but for those that are also this process's, or everybody's. false: it has none, or has ended.
func (m *Meter) Usage(pid int) (u Usage, ok bool) {
	if pid <= 0 {
		return u, false
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return u, false
	}
	for _, g := range groupsIn(string(raw), m.trees) {
		if g.dir == g.mount || slices.ContainsFunc(m.own, func(o group) bool { return o.dir == g.dir }) {
			continue
		}
		cpu, found := g.cpu()
		if found {
			u.CPU, ok = cpu, true
		}
		if memory, found := g.memory(); found {
			u.Memory, ok = memory, true
		}
	}
	return u, ok
}

func (g group) cpu() (time.Duration, bool) {
	if g.v2 {
		us, ok := g.keyed("cpu.stat", "usage_usec")
		return time.Duration(us) * time.Microsecond, ok
	}
	ns, ok := g.number("cpuacct.usage")
	return time.Duration(ns), ok
}

func (g group) memory() (uint64, bool) {
	file, inactive := "memory.usage_in_bytes", "total_inactive_file"
	if g.v2 {
		file, inactive = "memory.current", "inactive_file"
	}
	all, ok := g.number(file)
	if !ok {
		return 0, false
	}
	files, _ := g.keyed("memory.stat", inactive)
	return all - min(all, files), true
}

// number is the content of a file; false: the group has no such file.
func (g group) number(file string) (uint64, bool) {
	raw, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(raw)), 10, 64)
	return n, err == nil
}

// keyed is a value of a flat keyed file.
func (g group) keyed(file, key string) (uint64, bool) {
	raw, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, false
	}
	n, ok := keyed(string(raw), key)
	return uint64(n), ok
}
