package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/cpuset"
)

const (
	cpuPeriod   = 100_000 // microseconds
	defaultPIDs = 512
	diskOpBytes = 64 << 10 // a disk limit of N bytes a second is one of N / diskOpBytes operations, too
)

// control is one file of a container's cgroup that holds a limit.
type control struct {
	controller, v1, v2 string
	own                bool                                                // the Spec's, not the host's default
	want               string                                              // text in the file
	drop               func(l *container.Limits)                           // makes it no limit
	set                func(res *specs.LinuxResources, l container.Limits) // asks the runtime for it, if it is own
}

// setDefaults finds out what bounds a container whose Spec names no limit.
func (h *Home) setDefaults(o Options) {
	h.defaults = container.Limits{PIDs: defaultPIDs}
	var missing []string
	bound := func(controller, what string, wanted bool) bool {
		_, ok := h.hierarchyOf(controller)
		if wanted && !ok {
			missing = append(missing, what+": the kernel has no cgroup controller "+strconv.Quote(controller))
		}
		return wanted && ok
	}
	if bound("memory", "memory", o.Memory > 0) {
		h.defaults.Memory = o.Memory
	}
	if bound("cpu", "cpus", o.CPUs > 0) {
		h.defaults.CPUs = o.CPUs
	}
	if o.DiskBytes > 0 {
		controller := "io"
		if _, ok := h.hierarchyOf("blkio"); ok {
			controller = "blkio"
		}
		if bound(controller, "disk", true) {
			var err error
			if h.disk, err = diskOf(h.inst.Root); err != nil {
				missing = append(missing, "disk: "+err.Error())
			} else {
				h.defaults.DiskBytes, h.defaults.DiskOps = o.DiskBytes, max(1, o.DiskBytes/diskOpBytes)
			}
		}
	}
	h.defaults.Missing = strings.Join(missing, "; ")
}

// disk is a block device's number.
type disk struct{ major, minor uint32 }

func (d disk) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

// diskOf is the disk that holds a directory, the nearest that is there.
func diskOf(dir string) (disk, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	for ; errors.Is(err, unix.ENOENT) && dir != "/"; err = unix.Stat(dir, &st) {
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return disk{}, fmt.Errorf("%s: %w", dir, err)
	}
	d := disk{unix.Major(st.Dev), unix.Minor(st.Dev)}
	sys, err := filepath.EvalSymlinks("/sys/dev/block/" + d.String())
	if d.major == 0 || err != nil {
		return disk{}, fmt.Errorf("the file system of %s is on no one disk", dir)
	}
	if _, err := os.Stat(filepath.Join(sys, "partition")); err != nil {
		return d, nil
	}
	whole, err := os.ReadFile(filepath.Join(filepath.Dir(sys), "dev")) // the kernel bounds disks, not partitions
	if err == nil {
		_, err = fmt.Sscanf(string(whole), "%d:%d", &d.major, &d.minor)
	}
	if err != nil {
		return disk{}, fmt.Errorf("the disk of partition %s: %w", d, err)
	}
	return d, nil
}

// limitsOf is what a container is to get at most.
func (h *Home) limitsOf(s container.Spec) container.Limits {
	l := h.defaults
	l.CPUSet = s.CPUSet
	l.CPUs, l.Memory, l.PIDs = cmp.Or(s.CPUs, l.CPUs), cmp.Or(s.Memory, l.Memory), cmp.Or(s.PIDs, l.PIDs)
	return l
}

// socketLimit is a file of version 1. It counts sockets that are made when it has been written.
const socketLimit = "memory.kmem.tcp.limit_in_bytes"

// controls are the files that hold a container's limits.
func (h *Home) controls(s container.Spec) []control {
	l := h.bounds(s)
	cs := []control{{"pids", "pids.max", "pids.max", true, strconv.FormatInt(l.PIDs, 10), nil, func(res *specs.LinuxResources, l container.Limits) {
		res.Pids = &specs.LinuxPids{Limit: &l.PIDs}
	}}}
	if l.Memory > 0 {
		page := int64(os.Getpagesize())
		want := strconv.FormatInt(l.Memory/page*page, 10) // the kernel rounds down
		cs = append(cs, control{"memory", "memory.limit_in_bytes", "memory.max", true, want, nil, func(res *specs.LinuxResources, l container.Limits) {
			res.Memory = &specs.LinuxMemory{Limit: &l.Memory}
		}})
		// Version 1 counts what waits in sockets of TCP and UDP only if there is a limit for it, beside the other one. No runtime sets it.
		if t, ok := h.hierarchyOf("memory"); ok && !t.v2 {
			if _, err := os.Lstat(filepath.Join(t.dir("/"), socketLimit)); err == nil {
				cs = append(cs, control{"memory", socketLimit, "", false, want, func(*container.Limits) {}, nil})
			}
		}
	}
	if l.CPUs > 0 {
		quota, period := max(1000, int64(math.Round(l.CPUs*cpuPeriod))), uint64(cpuPeriod) // the kernel's least is 1 ms
		cs = append(cs, control{"cpu", "cpu.cfs_quota_us", "cpu.max", s.CPUs > 0, strconv.FormatInt(quota, 10), func(l *container.Limits) { l.CPUs = 0 },
			func(res *specs.LinuxResources, _ container.Limits) {
				cpu(res).Quota, cpu(res).Period = &quota, &period
			}})
	}
	if l.CPUSet != "" {
		// Version 2 has what was asked for in cpuset.cpus, and what the kernel gives, of what the cgroups above have, here.
		cs = append(cs, control{"cpuset", "cpuset.cpus", "cpuset.cpus.effective", true, l.CPUSet, nil, func(res *specs.LinuxResources, l container.Limits) {
			cpu(res).Cpus = l.CPUSet
		}})
	}
	if l.DiskBytes > 0 {
		cs = append(cs, h.diskControls(l)...)
	}
	return cs
}

func cpu(res *specs.LinuxResources) *specs.LinuxCPU {
	if res.CPU == nil {
		res.CPU = &specs.LinuxCPU{}
	}
	return res.CPU
}

func (h *Home) diskControls(l container.Limits) (cs []control) {
	drop := func(l *container.Limits) { l.DiskBytes, l.DiskOps = 0, 0 }
	if _, v1 := h.hierarchyOf("blkio"); !v1 {
		want := fmt.Sprintf("%s rbps=%d wbps=%d riops=%d wiops=%d", h.disk, l.DiskBytes, l.DiskBytes, l.DiskOps, l.DiskOps)
		return []control{{"io", "", "io.max", false, want, drop, nil}}
	}
	for file, rate := range map[string]int64{"read_bps": l.DiskBytes, "write_bps": l.DiskBytes, "read_iops": l.DiskOps, "write_iops": l.DiskOps} {
		cs = append(cs, control{"blkio", "blkio.throttle." + file + "_device", "", false, fmt.Sprintf("%s %d", h.disk, rate), drop, nil})
	}
	return cs
}

// resources asks the runtime for a container's limits.
func (h *Home) resources(s container.Spec) *specs.LinuxResources {
	res := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	for _, c := range h.controls(s) {
		if c.own {
			c.set(res, h.limitsOf(s))
		}
	}
	return res
}

// Setting is one file of a cgroup that an engine sets.
type Setting struct {
	Controller, File, Value string
}

// devices of cgroups of version 1: a container may make any node, and use these.
var devices = []Setting{
	{"devices", "devices.deny", "a"}, {"devices", "devices.allow", "c *:* m"}, {"devices", "devices.allow", "b *:* m"},
	{"devices", "devices.allow", "c 1:3 rwm"}, {"devices", "devices.allow", "c 1:5 rwm"}, {"devices", "devices.allow", "c 1:7 rwm"},
	{"devices", "devices.allow", "c 1:8 rwm"}, {"devices", "devices.allow", "c 1:9 rwm"}, {"devices", "devices.allow", "c 5:0 rwm"},
	{"devices", "devices.allow", "c 5:2 rwm"}, {"devices", "devices.allow", "c 136:* rwm"},
}

// Settings are a container's own limits, those of Config's resources, file by file; and in cgroups of version 1 the devices that it may use.
func (h *Home) Settings(s container.Spec) (out []Setting) {
	for _, c := range h.controls(s) {
		t, ok := h.hierarchyOf(c.controller)
		if !c.own && c.v1 != socketLimit || !ok {
			continue
		}
		file := c.v1
		if t.v2 {
			file = strings.TrimSuffix(c.v2, ".effective") // what is asked for, not what is given
		}
		out = append(out, Setting{c.controller, file, c.want})
	}
	if t, ok := h.hierarchyOf("devices"); ok && !t.v2 {
		out = append(out, devices...)
	}
	return out
}

// setHostDefaults writes the host's defaults for processors and disks, and what no runtime sets, when the container is there. A runtime that was asked for one that the kernel cannot
// do would not start the container; what is refused here readLimits finds.
func (h *Home) setHostDefaults(s container.Spec) {
	for _, c := range h.controls(s) {
		if c.own {
			continue
		}
		if f, err := os.OpenFile(h.controlFile(s.ID, c), os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString(c.want)
			f.Close()
		}
	}
}

// ControlFile is a control file of a container's cgroup, by its name in cgroups of version 1 or 2; false: the kernel has no such controller.
func (h *Home) ControlFile(id, controller, v1, v2 string) (string, bool) {
	t, ok := h.hierarchyOf(controller)
	if t.v2 {
		v1 = v2
	}
	return filepath.Join(t.dir(h.CgroupPath(id)), v1), ok
}

func (h *Home) controlFile(id string, c control) string {
	file, _ := h.ControlFile(id, c.controller, c.v1, c.v2)
	return file
}

// checkLimits refuses a limit that this host cannot keep.
func (h *Home) checkLimits(s container.Spec) error {
	need := []struct {
		controller, field string
		wanted            bool
	}{{"cpu", "cpus", s.CPUs > 0}, {"memory", "memory", s.Memory > 0}, {"pids", "pids", true}, {"cpuset", "cpuset", s.CPUSet != ""}}
	for _, n := range need {
		if _, ok := h.hierarchyOf(n.controller); n.wanted && !ok {
			return fmt.Errorf("%s: the kernel has no cgroup controller %q (boot with cgroup_enable=%s, or leave the limit out)", n.field, n.controller, n.controller)
		}
	}
	return checkCPUSet(s.CPUSet)
}

// checkCPUSet refuses processors that this host does not have.
func checkCPUSet(text string) error {
	want, err := cpuset.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("cpuset: %w", err)
	case want.String() != text:
		return fmt.Errorf("cpuset %q: want it as the kernel writes it, %q", text, want)
	case text == "":
		return nil
	}
	online, err := cpuset.Online()
	if err != nil {
		return fmt.Errorf("cpuset: %w", err)
	}
	if lacks := want.Without(online); len(lacks) > 0 {
		return fmt.Errorf("cpuset %s: this host has no processor %s, it has %s", text, lacks, online)
	}
	return nil
}

// readLimits reads a container's limits back. One that silently is not there would be no limit: an error, or where it is the host's default for processors
// or disks, which not every runtime and kernel can do, a word in Missing.
func (h *Home) readLimits(s container.Spec) (container.Limits, error) {
	l := h.LimitsOf(s)
	for _, c := range h.controls(s) {
		err := h.readLimit(s.ID, c)
		if err == nil {
			continue
		}
		if c.own {
			return l, err
		}
		c.drop(&l)
		if !strings.Contains(l.Missing, c.controller+": ") {
			l.Missing = strings.TrimPrefix(l.Missing+"; "+c.controller+": "+err.Error(), "; ")
		}
	}
	return l, nil
}

func (h *Home) readLimit(id string, c control) error {
	file := h.controlFile(id, c)
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read limit back: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	if strings.Contains(c.want, ":") { // a line for each device
		if slices.Contains(strings.Split(text, "\n"), c.want) {
			return nil
		}
	} else if text, _, _ = strings.Cut(text, " "); text == c.want { // cpu.max has the period behind
		return nil
	}
	return fmt.Errorf("limit %s is %s, want %s: it is not in force", file, text, c.want)
}
