package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Marks of the processes that a testbed runs, in their environment: they are found by them whatever started or restarted them.
const (
	markTestbed = "WEIR_TESTBED"
	markNode    = "WEIR_TESTBED_NODE"
)

// killWait bounds how long a killed process may take to be gone.
const killWait = 10 * time.Second

// environment is ours without any WEIR_ variable, with the marks.
func (p plan) environment(node string) []string {
	var out []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "WEIR_") && !strings.HasPrefix(e, "OVS_") {
			out = append(out, e)
		}
	}
	if images := os.Getenv("WEIR_IMAGES"); images != "" {
		out = append(out, "WEIR_IMAGES="+images)
	}
	return append(out, markTestbed+"="+p.Name, markNode+"="+node, "WEIR_YES=true", "NO_COLOR=1")
}

// command is a command in a node's namespace; only the network namespace changes.
func (p plan) command(ctx context.Context, node, space string, argv ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + p.netns(space), "--"}, argv...)...)
	c.Env = p.environment(node)
	return c
}

// run runs a command to its end; its errors carry what it printed.
func run(c *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(c.Args[min(3, len(c.Args)):], " "), err, strings.TrimSpace(errs.String()+out.String()))
	}
	return out.String(), nil
}

// start runs a node's process in the background, in a session of its own, its output in the node's log.
func (p plan) start(node string, argv ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.log(node), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", node, err)
	}
	defer log.Close()
	c := p.command(context.Background(), node, node, argv...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", node, err)
	}
	return c, nil
}

// process is one that runs.
type process struct {
	pid     int
	node    string // by its mark
	space   string // the node whose network namespace it is in
	command string
}

// processes lists what bears the testbed's mark, or is in one of its namespaces.
func (p plan) processes() ([]process, error) {
	spaces := map[uint64]string{}
	entries, err := os.ReadDir(filepath.Join(p.Run, "netns"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, e := range entries {
		if path := p.netns(e.Name()); netns.Exists(path) {
			spaces[inode(path)] = e.Name()
		}
	}
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	nodes := map[int]string{p.ovsproc().ServerPID(): ovsdbServer, p.ovsproc().SwitchPID(): ovsVswitchd}
	var out []process
	for _, dir := range found {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		x := process{pid: pid, node: nodes[pid], space: spaces[inode(dir+"/ns/net")]}
		env, _ := os.ReadFile(dir + "/environ") // ended meanwhile: empty
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if len(cmdline) == 0 {
			continue // a zombie
		}
		marks := strings.Split(string(env), "\x00")
		ours := slices.Contains(marks, markTestbed+"="+p.Name)
		argv := strings.Split(string(cmdline), "\x00")
		if ours && len(argv) > 1 && (argv[1] == "manager" || argv[1] == "agent") { // not what it has started
			for _, e := range marks {
				if node, ok := strings.CutPrefix(e, markNode+"="); ok {
					x.node = node
				}
			}
		}
		if !ours && x.node == "" && x.space == "" {
			continue
		}
		x.command = strings.TrimSpace(strings.Join(argv, " "))
		out = append(out, x)
	}
	return out, nil
}

// inode of a namespace; 0 is none.
func inode(path string) uint64 {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0
	}
	return s.Ino
}

// killAll ends every process of the testbed but the commands that are taking it down.
func (p plan) killAll(ctx context.Context) error {
	deadline := time.Now().Add(killWait)
	for {
		left, err := p.processes()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, x := range left {
			if err := syscall.Kill(x.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d (%s): %w", x.pid, x.command, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d (%s) does not end", left[0].pid, left[0].command)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// killDaemons ends managers and agents, so that nothing changes any more while what they made is taken down.
func (p plan) killDaemons(ctx context.Context) error {
	return await(ctx, killWait, "end managers and agents", func() (bool, error) {
		list, err := p.processes()
		left := false
		for _, x := range list {
			if x.node == "" || x.node == ovsdbServer || x.node == ovsVswitchd {
				continue
			}
			left = true
			if err := syscall.Kill(x.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return true, fmt.Errorf("end process %d (%s): %w", x.pid, x.command, err)
			}
		}
		return !left && err == nil, err
	})
}

// pause waits for a moment.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// await polls until ok says so, its error is permanent, or the time is up; what says what was waited for.
func await(ctx context.Context, most time.Duration, what string, ok func() (bool, error)) error {
	deadline := time.Now().Add(most)
	for {
		done, err := ok()
		if done {
			return err
		}
		if time.Now().After(deadline) {
			if err == nil {
				return fmt.Errorf("%s: not after %s", what, most)
			}
			return fmt.Errorf("%s: not after %s: %w", what, most, err)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// tail is the end of a node's log, for errors.
func (p plan) tail(node string) string {
	b, err := os.ReadFile(p.log(node))
	if err != nil {
		return ""
	}
	const most = 4096
	b = b[max(0, len(b)-most):]
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}
