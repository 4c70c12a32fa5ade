package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/store"
)

// Errors that the command line tells apart.
var (
	ErrRunning = errors.New("already running")
	ErrNotRoot = errors.New("root is needed")
	ErrAbroad  = errors.New("lives in another network namespace")
	ErrForeign = errors.New("no state directory of Weir")
	// ErrFile is about a file that an option names: it cannot be read, or what it holds cannot be used.
	ErrFile = errors.New("unusable file")
)

// homeFile is a bind mount of the network namespace in which the instance lives.
const homeFile = "home-netns"

// claim is the exclusive right to an instance's directories. The kernel releases it when the process dies.
type claim struct {
	files  []*os.File
	made   []string // files and directories that were not there before, in order
	before []string // what the state directory held
	ending bool     // a directory that cannot be written is locked all the same
}

// take locks the run and the state directory and records our process id. When it cannot, what it made is gone again.
func take(i instance.Instance) (*claim, error) { return (&claim{before: stateNames(i)}).take(i) }

func (c *claim) take(i instance.Instance) (*claim, error) {
	if err := CheckRoot(i); err != nil {
		return nil, err
	}
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{i.Run, 0o755}, {i.Root, 0o700}} {
		if err := c.lock(i, dir.path, dir.mode); err != nil {
			c.undo()
			return nil, err
		}
	}
	return c, nil
}

// stateNames are what a state directory holds.
func stateNames(i instance.Instance) (names []string) {
	entries, _ := os.ReadDir(i.Root) // not there: empty
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// CheckRoot refuses, with ErrForeign, a root directory in which a start would find other people's things. It changes nothing.
func CheckRoot(i instance.Instance) error {
	mayBe := func(name string) bool { return name == "token" } // somebody may choose it before the first start, which looks at it
	return checkState(i, slices.DeleteFunc(stateNames(i), mayBe))
}

// checkState refuses a state directory that never was Weir's (it has no lock) and holds other people's things under names that Weir uses and
// would remove. Logs of a start that came to nothing are Weir's, and an image layout may be put there before.
func checkState(i instance.Instance, names []string) error {
	if slices.Contains(names, instance.LockFile) {
		return nil
	}
	var foreign []string
	for _, name := range append([]string{"containers"}, stateEntries...) {
		if !slices.Contains(names, name) || strings.HasPrefix(name, "weir.log") {
			continue
		}
		if in, err := os.ReadDir(filepath.Join(i.Root, name)); name == "images" && err == nil && len(in) == 1 && in[0].Name() == "layout" {
			continue
		}
		foreign = append(foreign, name)
	}
	if len(foreign) == 0 {
		return nil
	}
	return fmt.Errorf("%s is %w, and holds %s: give another directory with --root (if it is a copy of one, make an empty file %s in it)",
		i.Root, ErrForeign, strings.Join(foreign, ", "), instance.LockFile)
}

// lock takes one directory.
func (c *claim) lock(i instance.Instance, dir string, mode os.FileMode) error {
	path := filepath.Join(dir, instance.LockFile)
	// What this claim makes is removed again if the first start fails.
	var made []string
	for _, p := range []string{filepath.Dir(i.Run), dir, path} {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			made = append(made, p)
		}
	}
	if err := instance.MakeDir(dir, mode); err != nil {
		return fmt.Errorf("directory of instance %s: %w: give a directory that can be made and written with --root", i.Name, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	// Removing an instance works on a read-only file system, too; running one does not.
	frozen := errors.Is(err, unix.EROFS)
	if frozen && c.ending {
		f, err = os.Open(path)
	} else if frozen {
		return fmt.Errorf("%w: %s is on a read-only file system: make it writable (what is in force goes on meanwhile), or choose another --root for instance %s", store.ErrReadOnly, dir, i.Name)
	}
	if err != nil {
		return fmt.Errorf("lock instance %s: %w: give a directory that can be written with --root", i.Name, err)
	}
	// The file stays where it is after a crash. The lock goes with the process.
	if err := lockLingering(f); err != nil {
		pid, _ := locker(f)
		f.Close()
		if dir == i.Root && len(c.files) > 0 {
			return fmt.Errorf("another instance that uses %s is %w (process %d): choose another --root for instance %s", i.Root, ErrRunning, pid, i.Name)
		}
		return fmt.Errorf("instance %s is %w (process %d holds %s): see `weir status`, or choose another --name and --root", i.Name, ErrRunning, pid, path)
	}
	c.files = append(c.files, f)
	c.made = append(c.made, made...)
	if frozen {
		return nil
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("lock instance %s: %w: free some space and try again, or choose another --root", i.Name, err)
		}
		return fmt.Errorf("lock instance %s: %w", i.Name, err)
	}
	return nil
}

// lingers bounds the wait for the lock of a process that is dead.
const lingers = 2 * time.Second

// lockLingering locks a file, or fails if a living process has the lock. A process that was killed can leave a child that it had just forked: the child
// has the lock until it begins its program, so the lock of a dead process is waited for.
func lockLingering(f *os.File) error {
	for end := time.Now().Add(lingers); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
		if pid, lerr := locker(f); lerr == nil && lives(pid) {
			return err
		}
	}
}

// lives tells whether a process has not ended. One that has, and whose parent has not heard of it yet (Z), has closed its files.
func lives(pid int) bool {
	if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	st, err := p.Stat()
	return err != nil || st.State != "Z" && st.State != "X"
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func (c *claim) release() {
	for _, f := range c.files {
		_ = f.Close()
	}
	c.files = nil
}

// undo releases, and removes the files and directories that were made for it, where nothing else is in them.
func (c *claim) undo() {
	for _, path := range slices.Backward(c.made) {
		_ = os.Remove(path)
	}
	c.release()
}

// stop ends the process that holds the instance: SIGTERM, then SIGKILL after grace. Nobody there: nil.
func stop(ctx context.Context, i instance.Instance, grace time.Duration) error {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		pid, err := holder(i)
		if err != nil || pid == 0 {
			return err
		}
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop process %d of instance %s: %w", pid, i.Name, err)
		}
		_ = syscall.Kill(pid, syscall.SIGCONT) // a process that was stopped (Ctrl-Z) hears nothing else
		for deadline := time.Now().Add(grace); time.Now().Before(deadline); {
			if pid, err := holder(i); err != nil || pid == 0 {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return fmt.Errorf("the process of instance %s does not end", i.Name)
}

// holder is the process that holds the instance's lock now, 0 if none does.
func holder(i instance.Instance) (int, error) {
	f, err := os.Open(filepath.Join(i.Run, instance.LockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	free := func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil }
	if free() {
		return 0, nil
	}
	pid, err := locker(f)
	if err != nil && free() { // it has ended since the first look
		return 0, nil
	}
	return pid, err
}

// locker is the process that holds a file's lock, as the kernel has it: what stands in the file may be damaged, or of another time.
func locker(f *os.File) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, fmt.Errorf("who holds %s: %w", f.Name(), err)
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		w := strings.Fields(line) // "1: FLOCK ADVISORY WRITE 4711 fe:00:1234 0 EOF"; one that waits has "->" second
		if len(w) < 6 || w[1] != "FLOCK" || w[3] != "WRITE" || w[5] != inode {
			continue
		}
		if pid, err := strconv.Atoi(w[4]); err == nil && pid > 1 {
			return pid, nil
		}
	}
	b, err := os.ReadFile(f.Name()) // some file systems (btrfs) are called otherwise there
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s is locked by a process that cannot be seen from here, and holds no process id: %q", f.Name(), b)
	}
	return pid, nil
}

// settle records the network namespace that this process is in as the instance's home, or checks that it still is. It reports
// whether there was none: then nothing of the instance can be alive here (a first start, a reboot).
func settle(i instance.Instance) (fresh bool, err error) {
	path := filepath.Join(i.Run, homeFile)
	if same, known, err := atHome(i); err != nil {
		return false, err
	} else if known && !same {
		return false, fmt.Errorf("instance %s %w (%s): enter it (`nsenter --net=%s weir up`), or take the instance down there first (`weir down`)", i.Name, ErrAbroad, path, path)
	} else if known {
		return false, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return false, fmt.Errorf("record network namespace: %w", err)
	}
	_ = f.Close()
	if err := unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return false, fmt.Errorf("record network namespace at %s: %w", path, err)
	}
	return true, nil
}

// atHome compares this process's network namespace with the recorded one; known is false if none is recorded.
func atHome(i instance.Instance) (same, known bool, err error) {
	var home, own unix.Stat_t
	path := filepath.Join(i.Run, homeFile)
	if err := unix.Stat(path, &home); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, false, nil
		}
		return false, false, fmt.Errorf("%s: %w", path, err)
	}
	if err := unix.Stat("/proc/self/ns/net", &own); err != nil {
		return false, false, fmt.Errorf("own network namespace: %w", err)
	}
	var fsType unix.Statfs_t
	if err := unix.Statfs(path, &fsType); err != nil {
		return false, false, fmt.Errorf("%s: %w", path, err)
	}
	if fsType.Type != unix.NSFS_MAGIC { // a file without its mount: left over from before a reboot
		return false, false, nil
	}
	return home.Ino == own.Ino && home.Dev == own.Dev, true, nil
}

// LeaveIPNetnsExec re-executes the program in the mount namespace that it was called from if it was started by `ip netns exec`: that
// makes a mount namespace of its own whose /sys has no cgroups, and what is mounted in it vanishes with the last process in it.
func LeaveIPNetnsExec() error {
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.SYSFS_MAGIC {
		return nil
	}
	f, err := callersMounts()
	if err != nil || f == nil {
		return err // nil: nowhere else to go; what is missing is said where it is needed
	}
	defer f.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	return onLockedThread(func() error { // exec keeps the namespaces of the thread that calls it
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the mount namespace of `ip netns exec`: %w", err)
		}
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("leave the mount namespace of `ip netns exec`: %w", err)
		}
		_ = unix.Chdir(dir) // the working directory is the first one's root now
		return fmt.Errorf("re-execute %s: %w", self, syscall.Exec(self, os.Args, os.Environ()))
	})
}

// callersMounts opens the mount namespace of the nearest ancestor that is in another one, nil if there is none.
func callersMounts() (*os.File, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	const generations = 32
	pid := os.Getppid()
	for range generations {
		mounts := fmt.Sprintf("/proc/%d/ns/mnt", pid)
		there, err := os.Readlink(mounts)
		if err != nil {
			return nil, nil
		}
		if there != own {
			return os.Open(mounts)
		}
		p, err := procfs.NewProc(pid)
		if err != nil {
			return nil, nil
		}
		st, err := p.Stat()
		if err != nil {
			return nil, nil
		}
		pid = st.PPID
	}
	return nil, nil
}

// GoHome re-executes the program inside the instance's network namespace if it lives in another one, so that every thread is there.
func GoHome(i instance.Instance) error {
	same, known, err := atHome(i)
	if err != nil || !known || same {
		return err
	}
	path := filepath.Join(i.Run, homeFile)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return onLockedThread(func() error { // exec keeps the namespace of the thread that calls it
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return fmt.Errorf("re-execute %s: %w", self, syscall.Exec(self, os.Args, os.Environ()))
	})
}
