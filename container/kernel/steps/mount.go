package steps

import (
	"os"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
)

var null = launcher.Int(0)

// text is the address of a string, or null for an empty one.
func (l *List) text(s string) launcher.Arg {
	if s == "" {
		return null
	}
	return l.String(s)
}

// Mount is mount(2).
func (l *List) Mount(source, target, fstype string, flags uintptr, data string) launcher.Step {
	return l.Call("mount "+target, unix.SYS_MOUNT, l.text(source), l.String(target), l.text(fstype), launcher.Int(flags), l.text(data))
}

// Attach puts a mount of Tree at a place.
func (l *List) Attach(what string, tree int, target string) {
	l.Call(what, unix.SYS_MOVE_MOUNT, launcher.Int(tree), l.String(""), launcher.Here(), l.String(target), launcher.Int(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// MountAs mounts what a configuration has, with more flags.
func (l *List) MountAs(m specs.Mount, more uintptr) {
	flags, data := kernel.MountOptions(m.Options)
	l.Mount(m.Source, m.Destination, m.Type, flags|more, data)
}

// MakeMount is MountAs at a place that may be missing, or takes what is mounted from the host.
func (l *List) MakeMount(m specs.Mount) {
	if m.Type == "bind" {
		l.bind(m)
		return
	}
	l.MakeDir(m.Destination)
	l.MountAs(m, 0)
}

// bind mounts a file or directory of the host, which is looked up here, at a place that is looked up by the process, with the flags that package kernel
// gives to every such mount.
func (l *List) bind(m specs.Mount) {
	set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if slices.Contains(m.Options, "ro") {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	tree := l.Tree(m.Source, set)
	if fi, err := os.Stat(m.Source); err == nil && fi.IsDir() {
		l.MakeDir(m.Destination)
	} else {
		l.MakeDir(path.Dir(m.Destination))
		l.MakeFile(m.Destination)
	}
	l.Attach("mount "+m.Destination, tree, m.Destination)
}

// MakeDir makes a directory and those above it where they are missing; on a root that is only read they are there, see kernel.
func (l *List) MakeDir(dir string) {
	for i := 1; i <= len(dir); i++ {
		if i == len(dir) || dir[i] == '/' {
			s := l.Call("make "+dir, unix.SYS_MKDIRAT, launcher.Here(), l.String(dir[:i]), launcher.Int(0o755))
			l.Spare(s, unix.EEXIST, unix.EROFS)
		}
	}
}

// MakeFile makes a file where it is missing. What the image has there is not opened: a pipe would hold us up.
func (l *List) MakeFile(name string) {
	s := l.Call("make "+name, unix.SYS_OPENAT, launcher.Here(), l.String(name), launcher.Int(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC), launcher.Int(0o666))
	l.Jump(l.Spare(s, unix.EEXIST, unix.EROFS), launcher.Refused)
	l.Call("close "+name, unix.SYS_CLOSE, launcher.Result(s))
	l.Land(s)
}

// strict is what proc is mounted with.
const strict = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Shield makes paths of /proc and /sys unwritable or invisible.
func (l *List) Shield(c *specs.Linux) {
	for _, p := range c.ReadonlyPaths {
		l.protect(p)
	}
	for _, p := range c.MaskedPaths {
		l.mask(p)
	}
}

// protect makes what is at a path unwritable; a path that this kernel lacks is left out. What is mounted below it is not to be seen any more: that may be
// writable.
func (l *List) protect(p string) {
	s := l.Jump(l.Spare(l.Mount(p, p, "", unix.MS_BIND, ""), unix.ENOENT), launcher.Refused)
	l.Mount(p, p, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|strict, "")
	l.Land(s)
}

// mask hides a file behind /dev/null, or a directory behind an empty one.
func (l *List) mask(p string) {
	file := l.Jump(l.Spare(l.Mount("/dev/null", p, "", unix.MS_BIND, ""), unix.ENOENT, unix.ENOTDIR), launcher.Zero)
	l.Cover(p)
	l.Land(file)
}

// Cover lets a directory show nothing, if it is there.
func (l *List) Cover(dir string) {
	l.Spare(l.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|strict, ""), unix.ENOENT)
}
