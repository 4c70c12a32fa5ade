package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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
	// Bound keeps the files that a machine writes besides its log within bounds. List calls it, so what else is due now and then is done then.
	Bound(c Container) error
}

// End is how a process ended.
type End struct {
	Code, Signal int // 128+n: killed by signal n. -1: unknown
	OOM          bool
	Short        container.Shortage // with OOM
}

// StartIn starts a command in the cgroups of a container, with its limits: it is there from its first instruction on, so that nothing of it is left
// behind, whoever is killed when. It is in a network namespace, "" a new one, and SIGXFSZ is blocked for it, see StartSparing.
func (h *Home) StartIn(s container.Spec, netns string, cmd *exec.Cmd) error {
	groups, err := h.Groups(Container{Spec: s})
	if err != nil {
		return err
	}
	defer groups.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if netns == "" {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if groups.Unified != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(groups.Unified.Fd())
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with this goroutine
		done <- h.startAsThread(cmd, netns, groups)
	}()
	return <-done
}

// startAsThread starts a command from a thread that goes to where the command is to be: a process begins in the cgroups of the thread that forks it. Then
// the thread goes back, lest the groups be taken for some of this process.
func (h *Home) startAsThread(cmd *exec.Cmd, netns string, groups Groups) (err error) {
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
	for _, t := range h.cgroups {
		if t.v2 {
			continue
		}
		own := ownProcs(string(home), []hierarchy{t})
		if own == "" {
			return fmt.Errorf("cgroup: this process is in none of %s", t.mount)
		}
		defer func() {
			if berr := os.WriteFile(filepath.Join(filepath.Dir(own), "tasks"), []byte("0"), 0); berr != nil {
				err = errors.Join(err, fmt.Errorf("cgroup: go back: %w", berr))
			}
		}()
	}
	for _, tasks := range groups.Tasks {
		if _, err := tasks.WriteString("0"); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return StartSparing(cmd)
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
