package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/api"
)

// used is what all functions that run here have used.
func (a *Agent) used() []api.FunctionUsage {
	a.mu.Lock()
	running := map[string]*function{}
	for name, f := range a.functions {
		running[name] = f
	}
	a.mu.Unlock()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	var out []api.FunctionUsage
	for name, f := range running {
		if u, ok := usage(f.view().status.PID, string(own)); ok {
			u.Name = name
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(x, y api.FunctionUsage) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// usage is what the control groups of a process have used: of a function's, whatever runtime runs it, all of its processes. Groups that are also this process's
// are none of its own. false: it has none, or has ended.
func usage(pid int, ours string) (u api.FunctionUsage, ok bool) {
	if pid <= 0 {
		return u, false
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return u, false
	}
	cpu, memory := false, false
	for line := range strings.Lines(string(groups)) {
		if strings.Contains(ours, line) {
			continue
		}
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if path == "" || path == "/" {
			continue
		}
		switch {
		case controllers == "": // version 2
			for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				dir := filepath.Join(top, path)
				if v, found := statOf(filepath.Join(dir, "cpu.stat"), "usage_usec"); found && !cpu {
					u.CPUNs, cpu = v*1000, true
				}
				if v, found := numberOf(filepath.Join(dir, "memory.current")); found && !memory {
					cached, _ := statOf(filepath.Join(dir, "memory.stat"), "inactive_file")
					u.MemoryBytes, memory = v-min(v, cached), true
				}
			}
		case has(controllers, "cpuacct"):
			if v, found := numberOf(filepath.Join("/sys/fs/cgroup/cpuacct", path, "cpuacct.usage")); found {
				u.CPUNs, cpu = v, true
			}
		case has(controllers, "memory"):
			dir := filepath.Join("/sys/fs/cgroup/memory", path)
			if v, found := numberOf(filepath.Join(dir, "memory.usage_in_bytes")); found {
				cached, _ := statOf(filepath.Join(dir, "memory.stat"), "total_inactive_file")
				u.MemoryBytes, memory = v-min(v, cached), true
			}
		}
	}
	return u, cpu || memory
}

func has(controllers, name string) bool {
	return controllers == name || strings.HasPrefix(controllers, name+",") || strings.HasSuffix(controllers, ","+name) || strings.Contains(controllers, ","+name+",")
}

func numberOf(file string) (uint64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return v, err == nil
}

// statOf a file with a name and a number in each line.
func statOf(file, name string) (uint64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
