package native

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/filter"
	"weir.dev/weir/container/native/launcher"
)

// Descriptors of the launcher's process.
const (
	saidFD = launcher.FirstFile
	goFD   = launcher.FirstFile + 1
	moreFD = launcher.FirstFile + 2
)

const execute = "execute the command"

// build is a program in the making, with the files that it wants to have open.
type build struct {
	program *launcher.Program
	config  *specs.Spec
	files   []*os.File // from descriptor first on
	first   int
	borrow  map[*os.File]bool // not ours to close
	// followed: the process has the launcher as its parent, open as goFD, and ends as soon as it does.
	followed bool
	err      error
}

func newBuild(config *specs.Spec, first int) *build {
	return &build{program: launcher.New(saidFD), config: config, first: first, borrow: map[*os.File]bool{}}
}

func (b *build) close() {
	for _, f := range b.files {
		if !b.borrow[f] {
			f.Close()
		}
	}
}

// file adds an open file, and is its descriptor in the launcher.
func (b *build) file(f *os.File) launcher.Arg {
	b.files = append(b.files, f)
	return launcher.Int(b.first + len(b.files) - 1)
}

// open is file for one that is to be opened; the first error is kept.
func (b *build) open(name string) launcher.Arg {
	f, err := os.Open(name)
	if err != nil {
		b.fail(err)
		return launcher.Int(-1)
	}
	return b.file(f)
}

func (b *build) fail(err error) { b.err = errors.Join(b.err, err) }

func (b *build) call(what string, number uintptr, args ...launcher.Arg) launcher.Step {
	return b.program.Call(what, number, args...)
}

func (b *build) str(s string) launcher.Arg { return b.program.String(s) }

var null = launcher.Int(0)

// creation is the program that makes a container and is its first process.
func (e *Engine) creation(c kernel.Container, groups kernel.Groups, run bool) (*build, error) {
	config, err := e.home.Config(c)
	if err != nil {
		return nil, err
	}
	b := newBuild(config, moreFD)
	own, first := uintptr(unix.CLONE_NEWNS|unix.CLONE_NEWIPC|unix.CLONE_NEWUTS), uintptr(unix.CLONE_NEWPID)
	if e.bare {
		own, first = unix.CLONE_NEWNS, 0
	}
	b.hide()
	b.score()
	b.join(groups)
	b.enter(c, own)
	fork := b.program.Fork("make the first process", first|unix.CLONE_PARENT)
	b.call("begin a session", unix.SYS_SETSID)
	b.root(c)
	if !e.bare {
		b.call("set the host's name", unix.SYS_SETHOSTNAME, b.str(config.Hostname), launcher.Int(len(config.Hostname)))
	}
	b.call("close what is not needed any more", unix.SYS_CLOSE_RANGE, launcher.Int(moreFD), launcher.Int(^uint32(0)), null)
	b.confine(e)
	b.begin(run)
	b.program.Land(fork.Step)
	b.program.SayPID(fork)
	b.program.Exit(0)
	if b.err != nil {
		b.close()
		return nil, b.err
	}
	return b, nil
}

// hide closes the process to others: nobody may look into it or its files by /proc while it has something of the host, and nothing of that is open for the
// container's program.
func (b *build) hide() {
	b.call("hide the process", unix.SYS_PRCTL, launcher.Int(unix.PR_SET_DUMPABLE), null, null, null, null)
	b.call("close files at execve", unix.SYS_CLOSE_RANGE, launcher.Int(3), launcher.Int(^uint32(0)), launcher.Int(unix.CLOSE_RANGE_CLOEXEC))
	for sig := range 64 { // an ignored signal stays ignored over execve: a daemon under nohup ignores SIGHUP
		if s := unix.Signal(sig + 1); s != unix.SIGKILL && s != unix.SIGSTOP {
			b.call("reset signals", unix.SYS_RT_SIGACTION, launcher.Int(sig+1), b.program.Bytes(make([]byte, 32)), null, launcher.Int(8))
		}
	}
}

// score sets how soon the process is killed for want of memory, as long as it has the right to: what follows cannot go below.
func (b *build) score() {
	if n := b.config.Process.OOMScoreAdj; n != nil {
		f := b.call("open the OOM score", unix.SYS_OPENAT, launcher.Here(), b.str("/proc/self/oom_score_adj"), launcher.Int(unix.O_WRONLY|unix.O_CLOEXEC), null)
		text := strconv.Itoa(*n)
		b.call("set the OOM score", unix.SYS_WRITE, launcher.Result(f), b.str(text), launcher.Int(len(text)))
		b.call("close the OOM score", unix.SYS_CLOSE, launcher.Result(f))
	}
}

// join enters the container's cgroups of version 1.
func (b *build) join(groups kernel.Groups) {
	for _, f := range groups.Tasks {
		b.borrow[f] = true
		b.call("enter the cgroups", unix.SYS_WRITE, b.file(f), b.str("0"), launcher.Int(1))
	}
}

// enter joins the namespaces that are there, as root of the user namespace if there is one, and makes those of flags.
func (b *build) enter(c kernel.Container, flags uintptr) {
	if c.Userns != "" {
		b.call("enter the user namespace", unix.SYS_SETNS, b.open(c.Userns), launcher.Int(unix.CLONE_NEWUSER))
	}
	if c.Netns != "" {
		b.call("enter the network namespace", unix.SYS_SETNS, b.open(c.Netns), launcher.Int(unix.CLONE_NEWNET))
	}
	b.become(0, 0)
	if c.Netns == "" {
		flags |= unix.CLONE_NEWNET
	}
	b.call("make namespaces", unix.SYS_UNSHARE, launcher.Int(flags))
	if c.Netns == "" {
		b.loopback()
	}
}

// become is a user and its group, and no other group. The kernel may think that who changes its user has no secrets any more (sysctl fs.suid_dumpable).
func (b *build) become(uid, gid uint32) {
	b.call("leave all groups", unix.SYS_SETGROUPS, null, null)
	b.call("become the group", unix.SYS_SETRESGID, launcher.Int(gid), launcher.Int(gid), launcher.Int(gid))
	b.call("become the user", unix.SYS_SETRESUID, launcher.Int(uid), launcher.Int(uid), launcher.Int(uid))
	b.call("hide the process", unix.SYS_PRCTL, launcher.Int(unix.PR_SET_DUMPABLE), null, null, null, null)
}

// follow lets the process die with the launcher. The kernel forgets that at a change of user or capabilities, so there was a while in which the launcher
// may have ended unseen.
func (b *build) follow() {
	b.call("die with the launcher", unix.SYS_PRCTL, launcher.Int(unix.PR_SET_PDEATHSIG), launcher.Int(int(unix.SIGKILL)), null, null, null)
	poll := []byte{goFD, 0, 0, 0, unix.POLLIN, 0, 0, 0}
	s := b.call("see whether the launcher lives", unix.SYS_PPOLL, b.program.Bytes(poll), launcher.Int(1), b.program.Bytes(make([]byte, 16)), null, null)
	b.program.Jump(s, launcher.Zero)
	b.program.Exit(127)
	b.program.Land(s)
}

// loopback takes up the link lo of a new network namespace: struct ifreq with its name and flags.
func (b *build) loopback() {
	ifreq := make([]byte, 40)
	copy(ifreq, "lo")
	ifreq[16] = unix.IFF_UP
	s := b.call("open a socket", unix.SYS_SOCKET, launcher.Int(unix.AF_INET), launcher.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), null)
	b.call("take the loopback up", unix.SYS_IOCTL, launcher.Result(s), launcher.Int(unix.SIOCSIFFLAGS), b.program.Bytes(ifreq))
	b.call("close the socket", unix.SYS_CLOSE, launcher.Result(s))
}

// confine takes from the process what the container is not to have, the filter of system calls last.
func (b *build) confine(e *Engine) {
	p := b.config.Process
	none := b.call("leave the session's keyring", unix.SYS_KEYCTL, launcher.Int(unix.KEYCTL_JOIN_SESSION_KEYRING), null)
	b.program.Spare(none, unix.ENOSYS)
	for _, l := range p.Rlimits {
		n, err := kernel.Rlimit(l.Type)
		if err != nil {
			b.fail(err)
		}
		b.call("limit "+l.Type, unix.SYS_PRLIMIT64, null, launcher.Int(n), b.program.Bytes(pair(l.Soft, l.Hard)), null)
	}
	b.call("set the mode of new files", unix.SYS_UMASK, launcher.Int(0o022))
	b.drop(p.Capabilities.Bounding)
	if p.User.UID != 0 {
		b.call("keep capabilities", unix.SYS_PRCTL, launcher.Int(unix.PR_SET_KEEPCAPS), launcher.Int(1), null, null, null)
	}
	b.become(p.User.UID, p.User.GID)
	b.hold(p)
	if b.followed {
		b.follow()
	}
	b.call("gain no privileges", unix.SYS_PRCTL, launcher.Int(unix.PR_SET_NO_NEW_PRIVS), launcher.Int(1), null, null, null)
	b.call("go to the working directory", unix.SYS_CHDIR, b.str(p.Cwd))
	if e.bare {
		return
	}
	code, err := e.filters.Of(b.config.Linux.Seccomp)
	if err != nil {
		b.fail(err)
		return
	}
	b.call("filter system calls", unix.SYS_SECCOMP, launcher.Int(unix.SECCOMP_SET_MODE_FILTER), null, b.program.Filter(len(code)/filter.Size, code))
}

// drop takes all other capabilities out of the bounding set, those too that the kernel knows and we do not.
func (b *build) drop(keep []string) {
	for n := range 64 {
		if kernel.CapabilityBits(keep)&(1<<n) == 0 {
			s := b.call(fmt.Sprint("drop capability ", n), unix.SYS_PRCTL, launcher.Int(unix.PR_CAPBSET_DROP), launcher.Int(n), null, null, null)
			b.program.Spare(s, unix.EINVAL) // this kernel does not know it
		}
	}
}

// hold keeps exactly the capabilities of the configuration.
func (b *build) hold(p *specs.Process) {
	effective, permitted, inheritable := kernel.CapabilityBits(p.Capabilities.Effective), kernel.CapabilityBits(p.Capabilities.Permitted), kernel.CapabilityBits(p.Capabilities.Inheritable)
	header := []byte{0x22, 0x05, 0x08, 0x20, 0, 0, 0, 0} // _LINUX_CAPABILITY_VERSION_3
	var data []byte
	for shift := 0; shift < 64; shift += 32 {
		for _, set := range []uint64{effective, permitted, inheritable} {
			data = append(data, byte(set>>shift), byte(set>>(shift+8)), byte(set>>(shift+16)), byte(set>>(shift+24)))
		}
	}
	b.call("set capabilities", unix.SYS_CAPSET, b.program.Bytes(header), b.program.Bytes(data))
	b.call("clear ambient capabilities", unix.SYS_PRCTL, launcher.Int(unix.PR_CAP_AMBIENT), launcher.Int(unix.PR_CAP_AMBIENT_CLEAR_ALL), null, null, null)
	for n := range 64 {
		if kernel.CapabilityBits(p.Capabilities.Ambient)&(1<<n) != 0 {
			b.call("keep a capability over execve", unix.SYS_PRCTL, launcher.Int(unix.PR_CAP_AMBIENT), launcher.Int(unix.PR_CAP_AMBIENT_RAISE), launcher.Int(n), null, null)
		}
	}
}

func pair(a, b uint64) []byte {
	out := make([]byte, 16)
	for i := range 8 {
		out[i], out[8+i] = byte(a>>(8*i)), byte(b>>(8*i))
	}
	return out
}

// begin says that all is done, waits for the word to go unless it is to run at once, and executes the command.
func (b *build) begin(run bool) {
	if !run {
		b.look(b.config.Process.Args, b.config.Process.Env)
		b.program.SayReady()
		b.call("wait for the start", unix.SYS_READ, launcher.Int(goFD), b.program.Bytes(make([]byte, 8)), launcher.Int(1))
	}
	b.exec(b.config.Process.Args, b.config.Process.Env)
}

// places are where a command may be, as execvp(3) looks for it.
func places(args, env []string) []string {
	if strings.Contains(args[0], "/") {
		return args[:1]
	}
	var all []string
	for dir := range strings.SplitSeq(value(env, "PATH"), ":") {
		all = append(all, path.Join("/", dir, args[0]))
	}
	return all
}

// look fails where exec would find nothing: whoever waits for a start is to know before.
func (b *build) look(args, env []string) {
	var found []launcher.Step
	all := places(args, env)
	for i, place := range all {
		s := b.call(execute, unix.SYS_FACCESSAT, launcher.Here(), b.str(place), launcher.Int(unix.X_OK))
		if i < len(all)-1 {
			b.program.Spare(s, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		}
		found = append(found, b.program.Jump(s, launcher.Zero))
	}
	b.program.Land(found...)
}

// exec tries a command's places one after another.
func (b *build) exec(args, env []string) {
	argv, envp := b.program.Strings(args), b.program.Strings(env)
	all := places(args, env)
	for i, place := range all {
		s := b.call(execute, unix.SYS_EXECVE, b.str(place), argv, envp)
		if i < len(all)-1 {
			b.program.Spare(s, unix.ENOENT, unix.ENOTDIR, unix.EACCES)
		}
	}
}

func value(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
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
