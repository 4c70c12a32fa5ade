package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// Machine is an Engine whose containers' processes here are virtual machines: the program is in there, and its end and its signals are told to the
// machine. Its writable layer is the machine's, too.
type Machine interface {
	Engine
	// Limits fills in what a container gets that has no limit, and tells the limits of the process here.
	Limits(l container.Limits) (inside, outside container.Limits)
	// Watch is called with each container whose process is there, once after it was made or taken over.
	Watch(c Container)
	// Terminate asks the program to end, as SIGTERM does.
	Terminate(ctx context.Context, c Container) error
	// Ended tells how the program has ended whose machine has ended like this.
	Ended(c Container, machine End) End
	// Close lets go of all machines, which run on.
	Close()
	// Bound keeps the files that a machine writes besides its log within bounds.
	Bound(c Container) error
}

// End is how a process ended.
type End struct {
	Code, Signal int // 128+n: killed by signal n. -1: unknown
	OOM          bool
}

// StartIn starts a command in the cgroups of a container, with its limits: it is there from its first instruction on, so that nothing of it is left
// behind, whoever is killed when. It is in a network namespace, "" a new one, and SIGXFSZ is blocked for it, see StartSparing.
func (h *Home) StartIn(s container.Spec, netns string, cmd *exec.Cmd) error {
	groups, err := h.makeGroups(s)
	if err != nil {
		return err
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if netns == "" {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if len(groups) == 1 && groups[0].v2 {
		unified, err := os.Open(groups[0].dir(h.CgroupPath(s.ID)))
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		defer unified.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(unified.Fd())
		groups = nil
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with this goroutine
		done <- startAsThread(cmd, netns, groups, h.CgroupPath(s.ID))
	}()
	return <-done
}

// startAsThread starts a command from a thread that goes to where the command is to be: a process begins in the cgroups of the thread that forks it. Then
// the thread goes back, lest the group be taken for one of this process.
func startAsThread(cmd *exec.Cmd, netns string, groups []hierarchy, path string) (err error) {
	if netns != "" {
		f, err := os.Open(netns)
		if err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", netns, err)
		}
	}
	home, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, t := range groups {
		back := ownProcs(string(home), []hierarchy{t})
		if back == "" {
			return fmt.Errorf("cgroup: this process is in none of %s", t.mount)
		}
		defer func() {
			if berr := moveThread(filepath.Dir(back)); berr != nil {
				err = errors.Join(err, fmt.Errorf("cgroup: go back: %w", berr))
			}
		}()
		if err := moveThread(t.dir(path)); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return StartSparing(cmd)
}

// moveThread moves this thread to a group of version 1.
func moveThread(group string) error {
	return os.WriteFile(filepath.Join(group, "tasks"), []byte("0"), 0)
}

// makeGroups makes a container's groups, those of version 1 where there are such, and writes its limits.
func (h *Home) makeGroups(s container.Spec) (made []hierarchy, err error) {
	needed := []string{"pids", "memory", "cpu", "cpuset", "blkio"}
	for _, t := range h.cgroups {
		if t.v2 && len(h.cgroups) > 1 {
			continue
		}
		if !t.v2 && !slices.ContainsFunc(t.controllers, func(c string) bool { return slices.Contains(needed, c) }) {
			continue
		}
		if err := makeGroup(t, h.CgroupPath(s.ID), needed); err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		made = append(made, t)
	}
	for _, c := range h.controls(s) {
		if err := os.WriteFile(h.controlFile(s.ID, c), []byte(c.want), 0); err != nil && c.own {
			return nil, fmt.Errorf("limit: %w", err)
		}
	}
	return made, nil
}

// makeGroup makes a group with those above it, and has them hand on their controllers.
func makeGroup(t hierarchy, path string, controllers []string) error {
	above := t.mount
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if t.v2 {
			for _, c := range controllers { // one that the kernel does not have is no error here: see checkLimits
				_ = os.WriteFile(filepath.Join(above, "cgroup.subtree_control"), []byte("+"+c), 0)
			}
			_ = os.WriteFile(filepath.Join(above, "cgroup.subtree_control"), []byte("+io"), 0)
		}
		dir := filepath.Join(above, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if !t.v2 { // a group of cpuset is empty at first, and takes nobody
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(filepath.Join(above, file), filepath.Join(dir, file)); err != nil {
					return err
				}
			}
		}
		above = dir
	}
	return nil
}

func inherit(from, to string) error {
	have, err := os.ReadFile(to)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(have)) != "" {
		return nil
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0)
}

// Bounded is a command whose files are bounded, see maxLog, and which dumps no core: the program prlimit sets the limits on itself, as to set them on
// another user's process takes a capability.
func Bounded(program string, args ...string) []string {
	fsize := strconv.Itoa(maxLog)
	return append([]string{"prlimit", "--fsize=" + fsize + ":" + fsize, "--core=0:0", program}, args...)
}

// LimitsOf is what a container gets at most, by its Spec or the host's default.
func (h *Home) LimitsOf(s container.Spec) container.Limits {
	l := h.limitsOf(s)
	if h.machine != nil {
		l, _ = h.machine.Limits(l)
	}
	return l
}

// bounds are the limits of a container's process here.
func (h *Home) bounds(s container.Spec) container.Limits {
	l := h.limitsOf(s)
	if h.machine != nil {
		_, l = h.machine.Limits(l)
	}
	return l
}

// EndIn ends all that StartIn started for a container, and removes its groups.
func (h *Home) EndIn(ctx context.Context, id string) error {
	if err := h.killCgroup(ctx, id); err != nil {
		return err
	}
	return h.removeCgroup(ctx, id)
}

// Root is the engine's directory for what outlives a reboot. Everything directly in it but "logs" and "containers" is the engine's own.
func (h *Home) Root() string { return h.root() }
