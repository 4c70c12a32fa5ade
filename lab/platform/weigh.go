package platform

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/instance"
)

// A runtime puts its containers into one group at the top of the cpu controller's tree, which has one weight of its own choice beside the sender's group. Where
// processors are scarce, that weight would decide, and not the runtime. So the lab gives the group of n processors the weight of n processes, in each runtime,
// and processors that are no containers (bare) get groups like those of containers.

// weightOf a process that no group holds back, as cpu.shares counts.
const weightOf = 1024

// processGroup is the group at the top of an instance's processors that are no containers.
func processGroup(i instance.Instance) string { return "weir-" + i.Name + "-processes" }

// cpuTree is where the cpu controller is mounted.
type cpuTree struct {
	mount string
	v2    bool
}

// findCPU finds the tree; false: this machine has no cpu controller.
func findCPU() (t cpuTree, ok bool, err error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return t, false, err
	}
	for names, mount := range mounts {
		if slices.Contains(strings.Split(names, ","), "cpu") {
			return cpuTree{mount: mount}, true, nil
		}
	}
	mount, ok := mounts[""]
	if !ok {
		return t, false, nil
	}
	names, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return t, false, err
	}
	return cpuTree{mount: mount, v2: true}, slices.Contains(strings.Fields(string(names)), "cpu"), nil
}

// top is the first group below the mount on the way to what a process enters by; "": it is elsewhere, or at the mount itself.
func (t cpuTree) top(entrances []string) string {
	for _, e := range entrances {
		rest, ok := strings.CutPrefix(filepath.Dir(e), t.mount+"/")
		if ok {
			first, _, _ := strings.Cut(rest, "/")
			return filepath.Join(t.mount, first)
		}
	}
	return ""
}

// weight is the file and the text by which a group has that many shares. Both versions have a maximum.
func (t cpuTree) weight(shares int) (file, text string) {
	if t.v2 {
		return "cpu.weight", strconv.Itoa(min(shares*100/weightOf, 10000))
	}
	return "cpu.shares", strconv.Itoa(min(shares, 262144))
}

// weights of groups at the top that a platform has changed, and their former ones. The group of Weir's runtimes outlives a lab that is killed: its weight is set anew when
// a runtime is opened the next time (container/kernel).
type weights map[string][]byte

// give the group at the top that these entrances lead to the weight of n processes.
func (w weights) give(entrances []string, n int) error {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return err
	}
	top := t.top(entrances)
	if top == "" {
		return nil
	}
	name, text := t.weight(weightOf * n)
	file := filepath.Join(top, name)
	now, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("weight of processors: %w", err)
	}
	if _, ok := w[file]; !ok {
		w[file] = bytes.TrimSpace(now)
	}
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		return fmt.Errorf("weight %s of processors: %s: %w", text, file, err)
	}
	return nil
}

// restore what there was. A group that is gone needs nothing.
func (w weights) restore() error {
	var errs []error
	for file, was := range w {
		if err := os.WriteFile(file, was, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("weight %s of %s: %w", was, file, err))
		}
	}
	clear(w)
	return errors.Join(errs...)
}

// SettingWeight is what a function's process gets of a processor that others want, too.
const SettingWeight = "CPU weight"

// functionsGroup is the group at the top that all containers of Weir's runtimes are in.
const functionsGroup = "weir"

// weighed tells the weight of a group at the top beside a process that no group holds back; "" names no group. It says nothing on a machine without the controller.
func weighed(group string) (string, error) {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return "", err
	}
	name, whole := t.weight(weightOf)
	if group == "" {
		return whole + " of " + whole, nil
	}
	text, err := os.ReadFile(filepath.Join(t.mount, group, name))
	if err != nil {
		return "", fmt.Errorf("weight of functions: %w", err)
	}
	return strings.TrimSpace(string(text)) + " of " + whole, nil
}

// weighedOf a process is the weight of the group at the top that it is in.
func weighedOf(pid int) (string, error) {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return "", err
	}
	groups, err := groupsOf(pid)
	if err != nil {
		return "", err
	}
	top := t.top(groups)
	if top != "" {
		top = filepath.Base(top)
	}
	return weighed(top)
}

// weightIs the condition of that name; nothing is none.
func weightIs(weight string) map[string]string {
	if weight == "" {
		return nil
	}
	return map[string]string{SettingWeight: weight}
}

// weighedAs gives the group of processes in the place of functions the weight that all containers of Weir's runtimes have together, and names the file by which
// to enter it; "": this machine has no cpu controller.
func weighedAs(group string) (entrance string, err error) {
	entrances, err := ownGroup(group, "functions", 0)
	if err != nil || len(entrances) == 0 {
		return "", err
	}
	t, _, err := findCPU() // ownGroup has found it
	if err != nil {
		return "", err
	}
	file, text := t.weight(kernel.Weight)
	if err := os.WriteFile(filepath.Join(t.mount, group, file), []byte(text), 0); err != nil {
		return "", fmt.Errorf("weight of functions: %w", err)
	}
	return entrances[0], nil
}

// ownGroup makes a group for a processor that is no container, with a process that is there already; 0: with none yet. What it gives is as groupsOf has it.
func ownGroup(top, name string, pid int) ([]string, error) {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return nil, err
	}
	above := filepath.Join(t.mount, top)
	dir := filepath.Join(above, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("group of a processor: %w", err)
	}
	entrance := "tasks"
	if t.v2 {
		entrance = "cgroup.procs"
		for _, d := range []string{t.mount, above} {
			if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
				return nil, fmt.Errorf("group of a processor: %w", err)
			}
		}
	}
	if pid != 0 {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended: ill tells
			return nil, fmt.Errorf("group of a processor: %w", err)
		}
	}
	return []string{filepath.Join(dir, entrance)}, nil
}
