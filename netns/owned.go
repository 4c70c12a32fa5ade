package netns

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IDs is a range of user and group ids of the host that one user namespace has for itself: id 0 inside is First outside.
// The zero value is no range.
type IDs struct {
	First uint32 `json:"first,omitempty"`
	Count uint32 `json:"count,omitempty"`
}

// owner is to whom the user namespace belongs; 0 without a range.
func (i IDs) owner() uint32 {
	if i.Count == 0 {
		return 0
	}
	return i.First + i.Count - 1
}

// Ranges of ids lie where neither users, nor /etc/subuid, nor systemd's containers have theirs (systemd: UIDS-GIDS.md), each as large as
// images need (nobody is 65534). FirstID is the first of them.
const (
	FirstID   = 0x7000_0000
	idsEach   = 1 << 16
	idsRanges = 4096
)

// idsDir holds a symbolic link for each range that is taken, to the directory of its owner. All instances of the machine share it. A range
// whose owner's directory is gone is free.
const idsDir = "/run/weir/.ids"

// ErrNoUserns says that this host cannot make user namespaces, now or later.
var ErrNoUserns = errors.New("no user namespaces")

// CreateOwned makes a user namespace and a network namespace that it owns, and mounts them at paths. The ids of the user namespace are ids.
// Processes outside that have root's capabilities have all rights over both; root inside has none outside.
//
// The user namespace belongs to the last id of its range, which is nobody: the kernel counts what processes in it use (inotify instances, pending
// signals) for its owner, too, so an owner that is root could be left with none. And a process of the owner's id has all rights over it.
func CreateOwned(userPath, netPath string, ids IDs, o Options) error {
	for _, path := range []string{userPath, netPath} {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
		if err != nil {
			return fmt.Errorf("create namespaces: %w", err)
		}
		f.Close()
	}
	err := withNamespaces(ids, func(pid int) error {
		for name, path := range map[string]string{"user": userPath, "net": netPath} {
			source := filepath.Join("/proc", strconv.Itoa(pid), "ns", name)
			if err := unix.Mount(source, path, "none", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("bind mount %s: %w", path, err)
			}
		}
		return nil
	})
	if err == nil {
		err = Do(netPath, func() error { return settle(o) })
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create namespaces: %w", err), Delete(userPath), Delete(netPath))
	}
	return nil
}

// withNamespaces calls f with a process in new namespaces. A process with threads, as this one, cannot enter a user namespace itself, and a child
// that Go begins in one is a copy of all of this one's memory: each page that is written thereafter is copied, which costs more than the programs
// here. cat says that it is there, and ends when this process does.
func withNamespaces(ids IDs, f func(pid int) error) error {
	var problems bytes.Buffer
	c := exec.Command("unshare", "--user", "--net", "cat")
	c.Env = []string{"PATH=" + os.Getenv("PATH")}
	c.Stderr = &problems
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it

	// Where users may make no user namespaces, the owner may.
	if owner := ids.owner(); owner != 0 {
		c.SysProcAttr.Credential, c.SysProcAttr.AmbientCaps = &syscall.Credential{Uid: owner, Gid: owner}, []uintptr{unix.CAP_SYS_ADMIN}
	}
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%w (util-linux and coreutils have unshare and cat)", err)
	}
	ended := time.AfterFunc(entering, func() { _ = c.Process.Kill() })
	defer ended.Stop()
	err = enter(in, out)
	if err == nil {
		err = mapIDs(c.Process.Pid, ids)
	}
	if err == nil {
		err = f(c.Process.Pid)
	}
	in.Close()
	if werr := c.Wait(); werr == nil || err == nil {
		return err
	}
	text := strings.TrimSpace(problems.String())
	if why := reason(text); why != nil {
		return refusal(why)
	}
	return fmt.Errorf("%w: %s", err, text)
}

// reason is the kernel's answer in what unshare says, in English, since it got no LANG: util-linux's is "unshare: unshare failed: WHY", busybox's
// "unshare: unshare(FLAGS): WHY". It is nil where unshare says something else.
func reason(text string) error {
	said := strings.ToLower(text)
	for _, why := range []unix.Errno{unix.EINVAL, unix.EPERM, unix.ENOSPC} {
		if strings.HasPrefix(said, "unshare: unshare") && strings.HasSuffix(said, ": "+why.Error()) {
			return why
		}
	}
	return nil
}

// entering is how long a process may take to be in its namespaces and have them named; it takes milliseconds.
const entering = 10 * time.Second

// enter returns when cat answers.
func enter(in io.Writer, out io.Reader) error {
	b := []byte{'\n'}
	if _, err := in.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(out, b)
	return err
}

func mapIDs(pid int, ids IDs) error {
	text := fmt.Appendf(nil, "0 %d %d", ids.First, ids.Count)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), file), text, 0); err != nil {
			return fmt.Errorf("map ids: %w", err)
		}
	}
	return nil
}

// refusal says why the kernel makes no user namespace, and what helps. It is ErrNoUserns where waiting does not help.
func refusal(err error) error {
	const file = "/proc/sys/user/max_user_namespaces"
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: this kernel is built without them (CONFIG_USER_NS): %w", ErrNoUserns, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: a security module or a filter of system calls forbids them: %w", ErrNoUserns, err)
	case errors.Is(err, unix.ENOSPC):
		most, readErr := os.ReadFile(file)
		if readErr == nil && string(bytes.TrimSpace(most)) == "0" {
			return fmt.Errorf("%w: sysctl user.max_user_namespaces is 0: set it to 65536, for example, and start Weir again: %w", ErrNoUserns, err)
		}
		return fmt.Errorf("all user namespaces (or network namespaces) of this machine are in use: raise sysctl user.max_user_namespaces (%s) or user.max_net_namespaces: %w", bytes.TrimSpace(most), err)
	}
	return err
}

// TakeIDs takes a free range of ids for what lives in a directory, which is there.
func TakeIDs(dir string) (ids IDs, err error) {
	h := fnv.New32a()
	h.Write([]byte(dir))
	first := h.Sum32() % idsRanges
	err = withIDs(func() error {
		for i := range uint32(idsRanges) {
			n := (first + i) % idsRanges
			if owner, err := os.Readlink(idsLink(n)); err == nil {
				if _, err := os.Lstat(owner); !errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err := os.Remove(idsLink(n)); err != nil {
					return err
				}
			}
			ids = IDs{First: FirstID + n*idsEach, Count: idsEach}
			return os.Symlink(dir, idsLink(n))
		}
		return fmt.Errorf("all %d ranges are taken (%s)", idsRanges, idsDir)
	})
	if err != nil {
		return IDs{}, fmt.Errorf("take a range of ids for %s: %w", dir, err)
	}
	return ids, nil
}

// GiveIDsBack frees a range that a directory's owner has taken. Another's, or none: nil.
func GiveIDsBack(dir string, ids IDs) error {
	if ids.First < FirstID {
		return nil
	}
	n := (ids.First - FirstID) / idsEach
	err := withIDs(func() error {
		if owner, err := os.Readlink(idsLink(n)); err != nil || owner != dir {
			return nil
		}
		return os.Remove(idsLink(n))
	})
	if err != nil {
		return fmt.Errorf("give ids back: %w", err)
	}
	_ = os.Remove(idsDir) // if it was the last
	return nil
}

func idsLink(n uint32) string { return filepath.Join(idsDir, strconv.FormatUint(uint64(n), 16)) }

// idsMu: here one waits for the other; only other processes are asked again and again.
var idsMu sync.Mutex

// withIDs runs f while nobody else changes who has which ids.
func withIDs(f func() error) error {
	idsMu.Lock()
	defer idsMu.Unlock()
	var err error
	for wait := time.Millisecond; wait <= maxLockWait; wait *= 2 {
		var lock *os.File
		if lock, err = lockIDs(); err == nil {
			defer lock.Close()
			return f()
		}
		time.Sleep(wait)
	}
	return fmt.Errorf("lock %s: %w", idsDir, err)
}

func lockIDs() (*os.File, error) {
	if err := os.MkdirAll(idsDir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(idsDir, 0o700); err != nil { // who can open it can lock it; earlier versions let all users
		return nil, err
	}
	lock, err := os.Open(idsDir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && !same(lock, idsDir) { // who gave the last range back has removed it
		err = fs.ErrNotExist
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func same(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Lstat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// OwnIDs is the range that begins with first, as TakeIDs gave it.
func OwnIDs(first uint32) IDs { return IDs{First: first, Count: idsEach} }
