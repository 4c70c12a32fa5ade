// Package dockerd runs private Docker engines, for tests and measurements: sockets, data, configuration and containerd of their own, no bridge, no rule
// in the packet filter. An engine shares the host's process and mount namespaces, as that of a user does. It owns the directory that it is given and the
// cgroup that is named after it, and leaves neither.
package dockerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const patience = 30 * time.Second

// Options of an Engine.
type Options struct {
	Dir         string            // of its own; short, as the paths of sockets are limited. Its data are in "data"
	Name        string            // of its cgroup, below the top of every hierarchy
	Runtimes    map[string]string // paths by name
	LiveRestore bool              // containers outlive the engine
}

// Engine is one Docker engine.
type Engine struct {
	o      Options
	below  daemon // containerd, which goes on when dockerd ends, as it does where both are services
	daemon daemon
}

// daemon is a process of an Engine.
type daemon struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts an engine and waits until it answers. Where it does not, nothing is left.
func Start(ctx context.Context, o Options) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("dockerd: not root")
	}
	for _, program := range []string{"dockerd", "containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("dockerd: no program %s (make peers)", program)
		}
	}
	e := &Engine{o: o}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	err := e.configure()
	if err == nil {
		err = e.startBelow()
	}
	if err == nil {
		err = e.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// startBelow starts containerd.
func (e *Engine) startBelow() error {
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		e.path("below"), e.path("exec/below"), e.path("containerd.sock"))
	if err := os.WriteFile(e.path("containerd.toml"), []byte(text), 0o644); err != nil {
		return err
	}
	var err error
	e.below, err = e.launch("containerd", "--config", e.path("containerd.toml"))
	return err
}

// launch starts a program. Its output goes to the log.
func (e *Engine) launch(program string, args ...string) (daemon, error) {
	log, err := os.OpenFile(e.path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return daemon{}, err
	}
	defer log.Close()
	d := daemon{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return daemon{}, fmt.Errorf("%s: %w", program, err)
	}
	go func() { _ = d.cmd.Wait(); close(d.ended) }()
	return d, nil
}

// end is safe to call twice.
func (d daemon) end(s unix.Signal) error {
	if d.cmd == nil {
		return nil
	}
	_ = d.cmd.Process.Signal(s) // it may have ended
	select {
	case <-d.ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s does not end", d.cmd.Path)
	}
}

func (e *Engine) configure() error {
	runtimes := map[string]map[string]string{}
	for name, path := range e.o.Runtimes {
		runtimes[name] = map[string]string{"path": path}
	}
	raw, err := json.Marshal(map[string]any{"runtimes": runtimes, "live-restore": e.o.LiveRestore})
	if err != nil {
		return err
	}
	return os.WriteFile(e.path("daemon.json"), raw, 0o644)
}

func (e *Engine) path(name string) string { return filepath.Join(e.o.Dir, name) }

// Host is where it listens.
func (e *Engine) Host() string { return "unix://" + e.path("docker.sock") }

// PID of the engine's process.
func (e *Engine) PID() int { return e.daemon.cmd.Process.Pid }

// Register gives the engine other runtimes, as an operator does: without a restart.
func (e *Engine) Register(runtimes map[string]string) error {
	e.o.Runtimes = runtimes
	if err := e.configure(); err != nil {
		return err
	}
	return unix.Kill(e.PID(), unix.SIGHUP)
}

// Restart starts the engine after Kill or Stop.
func (e *Engine) Restart(ctx context.Context) error {
	_ = os.Remove(e.path("pid")) // a number that may be another's by now
	var err error
	e.daemon, err = e.launch("dockerd", "--config-file", e.path("daemon.json"), "--host", e.Host(), "--data-root", e.path("data"), "--exec-root", e.path("exec"),
		"--pidfile", e.path("pid"), "--containerd", e.path("containerd.sock"), "--cgroup-parent", "/"+e.o.Name, "--bridge=none", "--iptables=false",
		"--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--userland-proxy=false")
	if err != nil {
		return err
	}
	return e.answers(ctx)
}

func (e *Engine) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if ok(ctx, e.path("docker.sock")) {
			return nil
		}
		select {
		case <-e.daemon.ended:
			return fmt.Errorf("dockerd has ended: %s", e.tail())
		case <-ctx.Done():
			return fmt.Errorf("dockerd does not answer: %w: %s", ctx.Err(), e.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ok asks for the engine's version, which it tells when it has restored its containers.
func ok(ctx context.Context, socket string) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("GET /_ping HTTP/1.0\r\n\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 32)
	n, _ := c.Read(buf)
	return bytes.Contains(buf[:n], []byte(" 200 "))
}

func (e *Engine) tail() string {
	text, err := os.ReadFile(e.path("log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-800):]))
}

// Kill ends the engine at once. Its containers, and containerd, go on.
func (e *Engine) Kill() error { return e.daemon.end(unix.SIGKILL) }

// Stop ends the engine in order: it stops its containers, unless they outlive it.
func (e *Engine) Stop() error { return e.daemon.end(unix.SIGTERM) }

// Remove takes away what is left of an engine whose starter was killed.
func Remove(o Options) error { return (&Engine{o: o}).Close() }

// Close ends the engine, its containerd and all containers, and removes what it kept.
func (e *Engine) Close() error {
	err := errors.Join(e.Kill(), e.below.end(unix.SIGKILL))
	deadline := time.Now().Add(patience)
	for {
		cerr := errors.Join(e.killAll(), e.unmountAll(), RemoveCgroups(e.o.Name), os.RemoveAll(e.o.Dir))
		if cerr == nil || time.Now().After(deadline) {
			return errors.Join(err, cerr)
		}
		time.Sleep(20 * time.Millisecond) // the kernel still takes processes and mounts down
	}
}

// killAll kills the engine's containerd and shims, which name its directory, and all processes in its cgroup.
func (e *Engine) killAll() error {
	pids, err := e.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if len(pids) > 0 {
		return fmt.Errorf("processes %v of the engine go on", pids)
	}
	return nil
}

// Processes are the engine's: its own, containerd, the shims and what runs in containers under its cgroup.
func (e *Engine) Processes() ([]int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		if len(args) == 0 { // it has ended
			continue
		}
		groups, _ := os.ReadFile("/proc/" + d.Name() + "/cgroup")
		program, _, _ := bytes.Cut(args, []byte{0})
		named := bytes.Contains(args, []byte(e.o.Dir+"/")) && slices.Contains([]string{"dockerd", "containerd", "containerd-shim-runc-v2", "runc"}, filepath.Base(string(program)))
		if named || bytes.Contains(groups, []byte(":/"+e.o.Name+"/")) {
			out = append(out, pid)
		}
	}
	return out, nil
}

func (e *Engine) unmountAll() error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for _, line := range slices.Backward(lines) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], e.o.Dir+"/") {
			err = errors.Join(err, unix.Unmount(f[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return err
}

// RemoveCgroups takes a cgroup below the top, and all below it, away in every hierarchy. Processes in it are an error.
func RemoveCgroups(name string) error {
	tops, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	for _, top := range append(tops, "/sys/fs/cgroup/"+name) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, werr error) error {
			if werr == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if rerr := unix.Rmdir(dir); rerr != nil && !errors.Is(rerr, unix.ENOENT) {
				err = errors.Join(err, fmt.Errorf("cgroup %s: %w", dir, rerr))
			}
		}
	}
	return err
}
