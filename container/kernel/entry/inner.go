package entry

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/steps"
)

// given are the mounts of a configuration that every engine's program makes: the steps here need them.
var given = []string{"/proc", "/sys"}

// inner is the list of the container's first process.
func (t *Tool) inner(x *Launch, c kernel.Container) (*steps.List, error) {
	config, err := t.Home.Config(c)
	if err != nil {
		return nil, err
	}
	l := x.Inside()
	l.Program.Anyone = true
	l.Outlive() // the program: it does not end the container by its own end
	said, start := launcher.Descriptor(steps.SaidFD), launcher.Descriptor(steps.GoFD)
	if x.Apart != (Apart{}) {
		said, start = filepath.Join(x.Apart.Inside, steps.SaidFile), filepath.Join(x.Apart.Inside, steps.GoFile)
	}
	reopen(l, said, unix.O_RDWR, steps.SaidFD, unix.O_CLOEXEC) // the process can say something when nobody hears it
	reopen(l, start, unix.O_RDWR, steps.GoFD, unix.O_CLOEXEC)
	l.Score(config.Process)
	l.Hide()
	session(l)
	x.enter(l)
	l.SayHere()
	if x.Apart != (Apart{}) {
		reopen(l, x.Apart.Log, unix.O_WRONLY|unix.O_APPEND, 1, 0)
	} else {
		x.inside(l, config)
	}
	dup(l, launcher.Int(1), 2, 0) // the program's own words go elsewhere
	l.Shed()
	t.Confine(l, config)
	l.Wait(config.Process)
	l.Execute(config.Process.Args, config.Process.Env)
	return l, l.Err()
}

// enter puts the process into its container's cgroups. Where it is then shall be the root of what it sees of them.
func (x *Launch) enter(l *steps.List) {
	if x.entrances == 0 {
		return
	}
	for _, fd := range l.Receive("receive its cgroups", x.gate, x.entrances) {
		l.JoinOpen(fd)
	}
	l.Unshare(unix.CLONE_NEWCGROUP)
}

// inside makes of what the program has made what the configuration says.
func (x *Launch) inside(l *steps.List, config *specs.Spec) {
	for _, dir := range x.Cover {
		l.Cover(dir)
	}
	for _, m := range config.Mounts {
		switch {
		case m.Destination == "/dev": // it is there, but larger
			l.MountAs(m, unix.MS_REMOUNT)
		case !slices.Contains(given, m.Destination) && !slices.Contains(x.Made, m.Destination):
			l.MakeMount(m)
		}
	}
	l.Hostname(config.Hostname)
	l.Shield(config.Linux)
	reopen(l, os.DevNull, unix.O_RDWR, 0, 0) // that of the host is not for a container: its root may be the host's, which may change it
}

// reopen opens a file as a descriptor.
func reopen(l *steps.List, path string, flags, fd, cloexec int) {
	s := l.Call("open "+path, unix.SYS_OPENAT, launcher.Here(), l.String(path), launcher.Int(flags|unix.O_CLOEXEC), launcher.Int(0))
	dup(l, launcher.Result(s), fd, cloexec)
}

func dup(l *steps.List, from launcher.Arg, fd, cloexec int) {
	s := l.Call("copy a descriptor", unix.SYS_DUP3, from, launcher.Int(fd), launcher.Int(cloexec))
	l.Spare(s, unix.EINVAL) // it is that already
}

// session makes one of the process's own, and a process group: a signal to that must reach nobody outside. It may lead one already.
func session(l *steps.List) {
	l.Spare(l.Call("make a session", unix.SYS_SETSID), unix.EPERM)
	leader, own := l.Call("find its session", unix.SYS_GETSID, launcher.Int(0)), l.Call("find its number", unix.SYS_GETPID)
	l.Call("see whether it leads its session", unix.SYS_TGKILL, launcher.Result(leader), launcher.Result(own), launcher.Int(0))
}

// mostProcesses bounds how many processes of an engine's program are looked at.
const mostProcesses = 64

// first finds the container's first process: that below the program's which executes the launcher. With move it is put into the container's cgroups.
func (t *Tool) first(monitor int, c kernel.Container, move bool) (int, error) {
	for queue := []int{monitor}; len(queue) > 0 && len(queue) < mostProcesses; queue = queue[1:] {
		if waits(queue[0]) {
			return queue[0], t.own(queue[0], c.ID, move)
		}
		tasks := fmt.Sprintf("/proc/%d/task", queue[0])
		threads, _ := os.ReadDir(tasks) // it may have ended
		for _, thread := range threads {
			raw, _ := os.ReadFile(filepath.Join(tasks, thread.Name(), "children"))
			for f := range bytes.FieldsSeq(raw) {
				if pid, err := strconv.Atoi(string(f)); err == nil {
					queue = append(queue, pid)
				}
			}
		}
	}
	return 0, errors.New("the container's process has ended")
}

// waits tells whether a process executes the launcher, from memory or a file.
func waits(pid int) bool {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	exe = strings.TrimSuffix(exe, " (deleted)")
	return err == nil && (exe == "/memfd:"+launcher.Name || path.Base(exe) == launcher.Name)
}

// own makes sure that a process is in its container's cgroups.
func (t *Tool) own(pid int, id string, move bool) error {
	for _, entrance := range t.Home.Entrances(id) {
		if !move {
			break
		}
		if err := os.WriteFile(entrance, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	if !t.Home.Member(pid, id) {
		return fmt.Errorf("process %d is not in cgroup %s", pid, t.Home.CgroupPath(id))
	}
	return nil
}
