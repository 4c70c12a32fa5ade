// Package netns owns network namespaces and the links in them: entering a namespace safely, namespaces that persist
// under a path, veth pairs as Weir needs them, link lists by ownership mark, offload profiles. It does not know
// what the links are for.
//
// A thread whose namespace cannot be restored is never given back to the Go runtime: it dies.
// Link dumps are repeated, a bounded number of times, when the kernel says that they were interrupted.
package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is where `ip netns` keeps its namespaces.
const Dir = "/run/netns"

// ErrNotFound says that there is no such namespace.
var ErrNotFound = errors.New("network namespace not found")

// Path turns a namespace as the user writes it, a bare name as in `ip netns` or a path, into a path.
func Path(nameOrPath string) string {
	if strings.Contains(nameOrPath, "/") {
		return nameOrPath
	}
	return filepath.Join(Dir, nameOrPath)
}

// Open opens a namespace: a bare name is one of `ip netns`, anything with a slash a path. A missing one is ErrNotFound, with the remedy.
func Open(nameOrPath string) (*os.File, error) {
	if nameOrPath == "" || nameOrPath == "." || nameOrPath == ".." {
		return nil, fmt.Errorf("network namespace %q: want a name under %s or a path: %w", nameOrPath, Dir, ErrNotFound)
	}
	path := Path(nameOrPath)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if filepath.Dir(path) == Dir {
			return nil, fmt.Errorf("%w: %s; make it with `ip netns add %s`", ErrNotFound, path, filepath.Base(path))
		}
		return nil, fmt.Errorf("%w: %s", ErrNotFound, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	if !isNamespace(f) {
		f.Close()
		return nil, fmt.Errorf("%s is no network namespace but an ordinary file (left over from before a reboot?)", path)
	}
	return f, nil
}

// Exists reports whether path is a live namespace, not just a file.
func Exists(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// Do runs f in the namespace, on a thread of its own. f must not start goroutines that are to run there, nor outlive the call.
func Do(nameOrPath string, f func() error) error {
	ns, err := Open(nameOrPath)
	if err != nil {
		return err
	}
	defer ns.Close()
	return do(ns, f)
}

// Options of a namespace that Weir makes.
type Options struct {
	// Quiet namespaces say nothing for themselves: no IPv6 autoconfiguration on any interface made there later.
	Quiet bool
}

// Create makes a namespace that persists at path until Delete or a reboot; its loopback is up. A live one that is there already is
// left as it is.
func Create(path string, o Options) error {
	if Exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	if filepath.Dir(path) == Dir {
		if err := shareDir(Dir); err != nil {
			return fmt.Errorf("create network namespace %s: %w", path, err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o444)
	if err != nil {
		return fmt.Errorf("create network namespace: %w", err)
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := settle(o); err != nil {
			return err
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind mount: %w", err)
		}
		return nil
	})
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("create network namespace %s: %w", path, err)
	}
	return nil
}

// settle makes the thread's new namespace as it should begin.
func settle(o Options) error {
	if err := setLoopbackUp(); err != nil {
		return err
	}
	if !o.Quiet {
		return nil
	}
	for _, conf := range []string{"default", "all"} {
		if err := DisableIPv6(conf); err != nil {
			return err
		}
	}
	return bridgePastIPTables()
}

// shareDir makes a folder of namespaces a shared mount, as the first `ip netns add` since boot does with [Dir]. Were it done only after a
// namespace's own mount, it would hide that mount for good: deleting the namespace would free neither its file nor itself.
func shareDir(dir string) error {
	share := func() error { return unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, "") }
	if err := share(); err == nil {
		return nil
	}
	lock, err := os.Open(dir) // as ip does: two at a time would stack two mounts
	if err != nil {
		return err
	}
	defer lock.Close()
	for wait := time.Millisecond; ; wait *= 2 {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			break
		}
		if wait > maxLockWait {
			return fmt.Errorf("lock %s, which another process has locked: %w", dir, err)
		}
		time.Sleep(wait)
	}
	err = share()
	if errors.Is(err, unix.EINVAL) { // no mount yet
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind mount %s: %w", dir, err)
		}
		err = share()
	}
	if err != nil {
		return fmt.Errorf("share the mount %s: %w", dir, err)
	}
	return nil
}

// maxLockWait bounds the last of the waits for the lock of a folder, each twice the former.
const maxLockWait = time.Second

// maxStacked bounds how many mounts Delete takes off one path.
const maxStacked = 16

// Delete takes the namespace's name away: it ends when nothing runs in it any more. Unknown: nil.
func Delete(path string) error {
	for range maxStacked {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not or no longer a mount point
		}
		if err != nil {
			return fmt.Errorf("delete network namespace %s: unmount: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	return nil
}

// fewLinks that a namespace ends with are not worth the care of Empty.
const fewLinks = 32

// Empty removes the links of a namespace before it is deleted, one after another, if there are many. The kernel removes those of a namespace that ends all
// at once, and nobody can change a link, an address or a route on the whole machine meanwhile: 16 ms for each bridge, 80 s for 5,000 (Linux 6.18). In
// between of single ones everybody else has a turn; it takes twice as long. No namespace: nil. told, unless nil, hears how many are gone, of how many.
func Empty(ctx context.Context, path string, told func(done, all int)) error {
	if !Exists(path) {
		return nil
	}
	s, err := At(path)
	if err != nil {
		return err
	}
	defer s.Close()
	links, err := s.Links("")
	if err != nil || len(links) <= fewLinks {
		return err
	}
	for i, l := range links {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("network namespace %s: %d of its %d links are left: %w", path, len(links)-i, len(links), err)
		}
		if told != nil {
			told(i, len(links))
		}
		_ = s.Delete(l.Name) // lo and the like cannot be removed: they go with the namespace
	}
	return nil
}

func isNamespace(f *os.File) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &s) == nil && s.Type == unix.NSFS_MAGIC
}

// do runs f on a locked thread inside ns.
func do(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
		}
		return f()
	})
}

// onThread runs f on a thread that may change its network namespace. Afterwards the thread goes back to where it was; one that
// cannot go back is left locked when its goroutine ends, which makes the runtime end the thread.
func onThread(f func() error) error {
	type result struct {
		err   error
		panic any
	}
	done := make(chan result, 1)
	go func() {
		var r result
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- result{err: fmt.Errorf("open own network namespace: %w", err)}
			return
		}
		defer func() {
			r.panic = recover()
			if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
			done <- r
		}()
		r.err = f()
	}()
	r := <-done
	if r.panic != nil {
		panic(r.panic)
	}
	return r.err
}

// DisableIPv6 stops IPv6 on one interface ("default", "all": those to come, and all) of the thread's namespace. A kernel
// without IPv6 has nothing to stop.
func DisableIPv6(conf string) error {
	return setSysctl(filepath.Join("ipv6/conf", conf, "disable_ipv6"), "1")
}

// reserveARP has an interface in the thread's namespace answer and ask by ARP with its own addresses only. By default it does so with those of all interfaces
// (arp_ignore, arp_announce of Documentation/networking/ip-sysctl.rst).
func reserveARP(conf string) error {
	return errors.Join(setSysctl(filepath.Join("ipv4/conf", conf, "arp_ignore"), "1"), setSysctl(filepath.Join("ipv4/conf", conf, "arp_announce"), "2"))
}

// bridgePastIPTables lets a bridge in the thread's namespace forward without asking iptables, whatever the host's default is.
func bridgePastIPTables() error {
	var errs []error
	for _, table := range []string{"iptables", "ip6tables", "arptables"} {
		errs = append(errs, setSysctl("bridge/bridge-nf-call-"+table, "0"))
	}
	return errors.Join(errs...)
}

// setSysctl writes a value under /proc/sys/net in the thread's namespace. What the kernel lacks needs no setting.
func setSysctl(name, value string) error {
	f, err := os.OpenFile(filepath.Join("/proc/sys/net", name), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("set sysctl net/%s: %w", name, err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("set sysctl net/%s: %w", name, err)
	}
	return nil
}

// setLoopbackUp by ioctl: cheaper than a netlink socket of its own.
func setLoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}
