package native

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/steps"
)

// creation is the list that makes a container and is its first process.
func (e *Engine) creation(c kernel.Container, groups kernel.Groups, run bool) (*steps.List, error) {
	config, err := e.Home.Config(c)
	if err != nil {
		return nil, err
	}
	l := steps.New()
	own, first := uintptr(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS), uintptr(unix.CLONE_NEWPID)
	if e.Bare {
		own, first = unix.CLONE_NEWNS, 0
	}
	l.Hide()
	l.Score(config.Process)
	l.JoinAll(groups)
	l.Enter(c)
	if c.Netns == "" {
		own |= unix.CLONE_NEWNET
	}
	l.Unshare(own)
	if c.Netns == "" {
		loopback(l)
	}
	fork := l.Fork("make the first process", first|unix.CLONE_PARENT)
	l.Call("begin a session", unix.SYS_SETSID)
	root(l, c, config)
	if !e.Bare {
		l.Hostname(config.Hostname)
	}
	l.Shed()
	l.LeaveKeyring()
	e.Confine(l, config)
	if !run {
		l.Wait(config.Process)
	}
	l.Execute(config.Process.Args, config.Process.Env)
	l.Land(fork.Step)
	l.SayPID(fork)
	l.Exit(0)
	return l.Done()
}

// loopback takes up the link lo of a new network namespace: struct ifreq with its name and flags.
func loopback(l *steps.List) {
	ifreq := make([]byte, 40)
	copy(ifreq, "lo")
	ifreq[16] = unix.IFF_UP
	s := l.Call("open a socket", unix.SYS_SOCKET, launcher.Int(unix.AF_INET), launcher.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), launcher.Int(0))
	l.Call("take the loopback up", unix.SYS_IOCTL, launcher.Result(s), launcher.Int(unix.SIOCSIFFLAGS), l.Bytes(ifreq))
	l.Call("close the socket", unix.SYS_CLOSE, launcher.Result(s))
}

// checkRoot refuses a root whose mount points are symbolic links: what is mounted at them would be elsewhere.
func checkRoot(c kernel.Container) error {
	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	defer root.Close()
	targets := []string{"proc", "dev", "sys", "run", "tmp"}
	for _, m := range c.Mounts {
		targets = append(targets, strings.TrimPrefix(path.Clean(m.Target), "/"))
	}
	for _, t := range targets {
		for at := t; at != "." && at != "/"; at = path.Dir(at) {
			fi, err := root.Lstat(at)
			if err == nil && fi.Mode()&os.ModeSymlink != 0 {
				return fmt.Errorf("mount /%s: /%s of the image is a symbolic link: want a directory", t, at)
			}
		}
	}
	return nil
}
