package steps

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/filter"
	"weir.dev/weir/container/kernel/launcher"
)

func (l *List) prctl(what string, args ...launcher.Arg) launcher.Step {
	for len(args) < 5 {
		args = append(args, null)
	}
	return l.Call(what, unix.SYS_PRCTL, args...)
}

// Hide closes the process to others: nobody may look into it or its files by /proc while it has something of the host, and nothing of that is open for the
// container's program.
func (l *List) Hide() {
	l.undump()
	l.Call("close files at execve", unix.SYS_CLOSE_RANGE, launcher.Int(3), launcher.Int(^uint32(0)), launcher.Int(unix.CLOSE_RANGE_CLOEXEC))
	standard := l.Bytes(make([]byte, 32))
	for sig := range 64 { // an ignored signal stays ignored over execve: a daemon under nohup ignores SIGHUP
		if s := unix.Signal(sig + 1); s != unix.SIGKILL && s != unix.SIGSTOP {
			l.Call("reset signals", unix.SYS_RT_SIGACTION, launcher.Int(sig+1), standard, null, launcher.Int(8))
		}
	}
}

func (l *List) undump() { l.prctl("hide the process", launcher.Int(unix.PR_SET_DUMPABLE), null) }

// Write writes a text into a file that is there.
func (l *List) Write(what, file, text string) {
	f := l.Call(what, unix.SYS_OPENAT, launcher.Here(), l.String(file), launcher.Int(unix.O_WRONLY|unix.O_CLOEXEC), null)
	l.Call(what, unix.SYS_WRITE, launcher.Result(f), l.String(text), launcher.Int(len(text)))
	l.Call(what, unix.SYS_CLOSE, launcher.Result(f))
}

// Score sets how soon the process is killed for want of memory, as long as it has the right to: what follows cannot go below.
func (l *List) Score(p *specs.Process) {
	if p.OOMScoreAdj != nil {
		l.Write("set the OOM score", "/proc/self/oom_score_adj", strconv.Itoa(*p.OOMScoreAdj))
	}
}

// JoinAll enters the groups of version 1.
func (l *List) JoinAll(groups kernel.Groups) {
	for _, f := range groups.Tasks {
		l.JoinOpen(launcher.Int(l.Lend(f)))
	}
}

// Join enters a cgroup by one of its files, tasks or cgroup.procs.
func (l *List) Join(entrance string) { l.Write("join cgroup "+entrance, entrance, "0") }

// JoinOpen is Join by a descriptor.
func (l *List) JoinOpen(fd launcher.Arg) {
	l.Call("enter the cgroups", unix.SYS_WRITE, fd, l.String("0"), launcher.Int(1))
}

// Enter joins a container's namespaces that are there, as root of the user namespace if there is one.
func (l *List) Enter(c kernel.Container) {
	if c.Userns != "" {
		l.Call("enter the user namespace", unix.SYS_SETNS, launcher.Int(l.Open(c.Userns)), launcher.Int(unix.CLONE_NEWUSER))
	}
	if c.Netns != "" {
		l.Call("enter the network namespace", unix.SYS_SETNS, launcher.Int(l.Open(c.Netns)), launcher.Int(unix.CLONE_NEWNET))
	}
	l.become(0, 0)
}

// Unshare makes namespaces.
func (l *List) Unshare(flags uintptr) {
	l.Call("make namespaces", unix.SYS_UNSHARE, launcher.Int(flags))
}

// Hostname is sethostname(2).
func (l *List) Hostname(name string) {
	l.Call("set the host's name", unix.SYS_SETHOSTNAME, l.String(name), launcher.Int(len(name)))
}

// become is a user and its group, and no other group. The kernel may think that who changes its user has no secrets any more (sysctl fs.suid_dumpable).
func (l *List) become(uid, gid uint32) {
	l.Call("leave all groups", unix.SYS_SETGROUPS, null, null)
	l.Call("become the group", unix.SYS_SETRESGID, launcher.Int(gid), launcher.Int(gid), launcher.Int(gid))
	l.Call("become the user", unix.SYS_SETRESUID, launcher.Int(uid), launcher.Int(uid), launcher.Int(uid))
	l.undump()
}

// Outlive lets the end of the process's parent be no end of it.
func (l *List) Outlive() {
	l.prctl("outlive the parent", launcher.Int(unix.PR_SET_PDEATHSIG), null)
}

// follow lets the process die with the launcher.
func (l *List) follow() {
	l.prctl("die with the launcher", launcher.Int(unix.PR_SET_PDEATHSIG), launcher.Int(int(unix.SIGKILL)))
}

// followed is follow where the process may have forgotten that it is to. The kernel does at a change of user or capabilities, so there was a while in which the
// launcher, which is open as GoFD, may have ended unseen.
func (l *List) followed() {
	l.follow()
	poll := []byte{GoFD, 0, 0, 0, unix.POLLIN, 0, 0, 0}
	s := l.Call("see whether the launcher lives", unix.SYS_PPOLL, l.Bytes(poll), launcher.Int(1), l.Bytes(make([]byte, 16)), null, null)
	l.Jump(s, launcher.Zero)
	l.Exit(127)
	l.Land(s)
}

// LeaveKeyring parts the process from the daemon's keys.
func (l *List) LeaveKeyring() {
	l.Spare(l.Call("leave the session's keyring", unix.SYS_KEYCTL, launcher.Int(unix.KEYCTL_JOIN_SESSION_KEYRING), null), unix.ENOSYS)
}

// Shed closes all but the streams, the pipes and what the launcher itself has open.
func (l *List) Shed() {
	l.Call("close what is not needed any more", unix.SYS_CLOSE_RANGE, launcher.Int(MoreFD), launcher.Int(^uint32(0)), null)
}

// confine takes from the process what the container is not to have, the filter of system calls last. followed: it ends with the launcher.
func (l *List) confine(p *specs.Process, code []byte, followed bool) {
	for _, r := range p.Rlimits {
		n, err := kernel.Rlimit(r.Type)
		if err != nil {
			l.Fail(err)
		}
		limit := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, r.Soft), r.Hard)
		l.Call("limit "+r.Type, unix.SYS_PRLIMIT64, null, launcher.Int(n), l.Bytes(limit), null)
	}
	l.Call("set the mode of new files", unix.SYS_UMASK, launcher.Int(0o022))
	spared := binary.LittleEndian.AppendUint64(nil, 1<<(uint(unix.SIGXFSZ)-1)) // see kernel.StartSparing
	l.Call("block signals", unix.SYS_RT_SIGPROCMASK, launcher.Int(unix.SIG_SETMASK), l.Bytes(spared), null, launcher.Int(8))
	l.drop(p.Capabilities.Bounding)
	if p.User.UID != 0 {
		l.prctl("keep capabilities", launcher.Int(unix.PR_SET_KEEPCAPS), launcher.Int(1))
	}
	l.become(p.User.UID, p.User.GID)
	l.hold(p)
	if followed {
		l.followed()
	}
	l.prctl("gain no privileges", launcher.Int(unix.PR_SET_NO_NEW_PRIVS), launcher.Int(1))
	l.Call(fmt.Sprintf("enter working directory %q of the image", p.Cwd), unix.SYS_CHDIR, l.String(p.Cwd))
	if code != nil {
		l.Call("filter system calls", unix.SYS_SECCOMP, launcher.Int(unix.SECCOMP_SET_MODE_FILTER), null, l.Filter(len(code)/filter.Size, code))
	}
}

// drop takes all other capabilities out of the bounding set, those too that the kernel knows and we do not.
func (l *List) drop(keep []string) {
	kept := kernel.CapabilityBits(keep)
	for n := range 64 {
		if kept&(1<<n) == 0 {
			s := l.prctl(fmt.Sprint("drop capability ", n), launcher.Int(unix.PR_CAPBSET_DROP), launcher.Int(n))
			l.Spare(s, unix.EINVAL) // this kernel does not know it
		}
	}
}

// hold keeps exactly the capabilities of the configuration.
func (l *List) hold(p *specs.Process) {
	effective, permitted, inheritable := kernel.CapabilityBits(p.Capabilities.Effective), kernel.CapabilityBits(p.Capabilities.Permitted), kernel.CapabilityBits(p.Capabilities.Inheritable)
	header := []byte{0x22, 0x05, 0x08, 0x20, 0, 0, 0, 0} // _LINUX_CAPABILITY_VERSION_3
	var data []byte
	for shift := 0; shift < 64; shift += 32 {
		for _, set := range []uint64{effective, permitted, inheritable} {
			data = binary.LittleEndian.AppendUint32(data, uint32(set>>shift))
		}
	}
	l.Call("set capabilities", unix.SYS_CAPSET, l.Bytes(header), l.Bytes(data))
	l.prctl("clear ambient capabilities", launcher.Int(unix.PR_CAP_AMBIENT), launcher.Int(unix.PR_CAP_AMBIENT_CLEAR_ALL))
	ambient := kernel.CapabilityBits(p.Capabilities.Ambient)
	for n := range 64 {
		if ambient&(1<<n) != 0 {
			l.prctl("keep a capability over execve", launcher.Int(unix.PR_CAP_AMBIENT), launcher.Int(unix.PR_CAP_AMBIENT_RAISE), launcher.Int(n))
		}
	}
}

// Wait looks whether the command is there, says that all is ready, and waits for a byte.
func (l *List) Wait(p *specs.Process) {
	l.Look(p.Args, p.Env)
	l.SayReady()
	l.Call("wait for the start", unix.SYS_READ, launcher.Int(GoFD), l.Bytes(make([]byte, 8)), launcher.Int(1))
}
