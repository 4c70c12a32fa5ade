package entry

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
)

// Files are the descriptors that a process gets besides its standard streams.
type Files struct{ all []*os.File }

// Add gives a file to the process and takes it over; it returns the number that it has there.
func (f *Files) Add(file *os.File) int {
	f.all = append(f.all, file)
	return len(f.all) + 2
}

// Tree adds a mount that is a copy of what is mounted at a path, with those below it; flags such as unix.MOUNT_ATTR_RDONLY hold for all of them.
func (f *Files) Tree(path string, flags uint64) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return 0, fmt.Errorf("mount %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	attr := unix.MountAttr{Attr_set: flags, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		file.Close()
		return 0, fmt.Errorf("mount %s: %w", path, err)
	}
	return f.Add(file), nil
}

// Open adds a file by its path.
func (f *Files) Open(path string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	return f.Add(file), nil
}

// Close closes all, here.
func (f *Files) Close() {
	for _, file := range f.all {
		file.Close()
	}
}

// given are the mounts of a configuration that every engine's program makes: the steps here need them.
var given = []string{"/proc", "/sys"}

// mounts makes a configuration's mounts but those that are given or made already, its host name, and hides what is to be hidden.
func mounts(l *List, f *Files, config *specs.Spec, made []string) error {
	for _, m := range config.Mounts {
		switch {
		case m.Destination == "/dev": // it is there, but larger
			set, data := kernel.MountOptions(m.Options)
			l.Mount(m.Source, m.Destination, m.Type, set|unix.MS_REMOUNT, data)
		case slices.Contains(given, m.Destination) || slices.Contains(made, m.Destination):
		case m.Type == "bind":
			if err := bind(l, f, m); err != nil {
				return err
			}
		default:
			l.Directory(m.Destination, 0o755)
			set, data := kernel.MountOptions(m.Options)
			l.Mount(m.Source, m.Destination, m.Type, set, data)
		}
	}
	l.Hostname(config.Hostname)
	const own = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC // what proc is mounted with
	for _, p := range config.Linux.ReadonlyPaths {
		l.MountIfThere(p, p, "", unix.MS_BIND, "") // without what is mounted below it: that may be writable
		l.MountIfThere(p, p, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|own, "")
	}
	for _, p := range config.Linux.MaskedPaths {
		switch fi, err := os.Stat(p); {
		case err != nil: // this kernel has no such path
		case fi.IsDir():
			l.MountIfThere("tmpfs", p, "tmpfs", unix.MS_RDONLY|own, "size=0k,mode=755")
		default:
			l.MountIfThere("/dev/null", p, "", unix.MS_BIND, "")
		}
	}
	return nil
}

// null makes these streams the null device of the container. That of the host is not for a container: its root may be the host's, which may change it.
func null(l *List, spare int, streams ...int) {
	if len(streams) == 0 {
		return
	}
	l.Open(os.DevNull, unix.O_RDWR, spare)
	for _, fd := range streams {
		l.Dup(spare, fd)
	}
}

// bind mounts a file or directory of the host, which is looked up here, at a place that is looked up in the container.
func bind(l *List, f *Files, m specs.Mount) error {
	set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if slices.Contains(m.Options, "ro") {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	fi, err := os.Stat(m.Source)
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	fd, err := f.Tree(m.Source, set)
	if err != nil {
		return err
	}
	target := path.Clean(m.Destination)
	if fi.IsDir() {
		l.Path(target)
	} else {
		l.Path(path.Dir(target))
		l.Touch(target)
	}
	l.Move(m.Source, fd, target)
	return nil
}

// become makes the process what a configuration's process is, up to its program. extra are the variables that are set besides.
func become(l *List, p *specs.Process, args, extra []string, filter []byte) error {
	for _, r := range p.Rlimits {
		resource, err := kernel.Rlimit(r.Type)
		if err != nil {
			return err
		}
		l.Limit(r.Type, resource, r.Soft, r.Hard)
	}
	if p.OOMScoreAdj != nil {
		l.Write("/proc/self/oom_score_adj", strconv.Itoa(*p.OOMScoreAdj))
	}
	l.Change(p.Cwd)
	l.Identity(p.User.UID, p.User.GID, kernel.CapabilityBits(p.Capabilities.Bounding))
	l.Mask(1 << (uint(unix.SIGXFSZ) - 1)) // see kernel.StartSparing
	env := slices.Clone(p.Env)
	l.Words(args, append(env, extra...), "")
	l.Find()
	l.Seal()
	l.Filter(filter)
	return nil
}
