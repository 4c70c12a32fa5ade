package native

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/native/launcher"
)

// devices of every container.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// links of /dev.
var links = [][2]string{{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"},
	{"pts/ptmx", "/dev/ptmx"}}

// root makes the container's root the root of the process, with all that is mounted in it, and leaves the host's behind. What is of the host (the image's
// root, devices, bind mounts) are mounts that we took from the host's tree, with their flags set: the container's user could not even look them up.
// From pivot_root on every path is one of the image, where its symbolic links lead nowhere else; checkRoot has seen that mount points are none.
func (b *build) root(c kernel.Container) {
	set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if c.ReadOnly {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	tree := b.tree(c.Root, set)
	flag := launcher.Int(unix.MS_REC | unix.MS_PRIVATE)
	b.call("part mounts from the host's", unix.SYS_MOUNT, null, b.str("/"), null, flag, null)
	old := b.call("open the host's root", unix.SYS_OPENAT, launcher.Here(), b.str("/"), launcher.Int(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), null)
	b.attach("mount the root", tree, "/")
	b.call("go to the root", unix.SYS_FCHDIR, tree)
	b.call("change the root", unix.SYS_PIVOT_ROOT, b.str("."), b.str("."))
	for _, m := range b.config.Mounts { // proc and sys while the host's can be seen: a user namespace may mount no others
		if m.Destination == "/proc" || m.Destination == "/sys" {
			b.mount(m)
		}
	}
	b.call("go to the host's root", unix.SYS_FCHDIR, launcher.Result(old))
	b.call("leave the host's root", unix.SYS_UMOUNT2, b.str("."), launcher.Int(unix.MNT_DETACH))
	b.call("go to the root", unix.SYS_CHDIR, b.str("/"))
	for _, m := range b.config.Mounts {
		if m.Destination != "/proc" && m.Destination != "/sys" {
			b.mount(m)
		}
		if m.Destination == "/dev" {
			b.devices()
		}
	}
	for _, p := range b.config.Linux.ReadonlyPaths {
		b.readOnly(p)
	}
	for _, p := range b.config.Linux.MaskedPaths {
		b.mask(p)
	}
}

// tree takes a directory or file with all mounts below it from the host's tree, and sets flags of these mounts.
func (b *build) tree(source string, set uint64) launcher.Arg {
	f, err := takeTree(source, set)
	if err != nil {
		b.fail(err)
		return launcher.Int(-1)
	}
	return b.file(f)
}

func takeTree(source string, set uint64) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fmt.Errorf("take %s: %w", source, err)
	}
	f := os.NewFile(uintptr(fd), source)
	attr := unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("mount flags of %s: %w", source, err), f.Close())
	}
	return f, nil
}

// openNull opens the null device on a mount of its own that is only read: it stands for streams that are not there, and what has it open could change the
// host's device else.
func openNull() (*os.File, error) {
	tree, err := takeTree(os.DevNull, deviceFlags)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

func (b *build) attach(what string, tree launcher.Arg, target string) {
	b.call(what, unix.SYS_MOVE_MOUNT, tree, b.str(""), launcher.Here(), b.str(target), launcher.Int(unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func (b *build) mount(m specs.Mount) {
	if m.Type == "bind" {
		b.bind(m)
		return
	}
	flags, data := kernel.MountOptions(m.Options)
	if m.Destination != "/proc" && m.Destination != "/sys" {
		b.makeDir(m.Destination)
	}
	b.call("mount "+m.Destination, unix.SYS_MOUNT, b.str(m.Source), b.str(m.Destination), b.str(m.Type), launcher.Int(flags), b.str(data))
}

// bind mounts what the configuration names, with the flags that package kernel gives to every such mount.
func (b *build) bind(m specs.Mount) {
	set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if slices.Contains(m.Options, "ro") {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	tree := b.tree(m.Source, set)
	if fi, err := os.Stat(m.Source); err == nil && fi.IsDir() {
		b.makeDir(m.Destination)
	} else {
		b.makeDir(path.Dir(m.Destination))
		b.makeFile(m.Destination)
	}
	b.attach("mount "+m.Destination, tree, m.Destination)
}

// makeDir makes a directory and those above it where they are missing; on a root that is only read they are there, see kernel.
func (b *build) makeDir(dir string) {
	for i := 1; i <= len(dir); i++ {
		if i == len(dir) || dir[i] == '/' {
			s := b.call("make "+dir, unix.SYS_MKDIRAT, launcher.Here(), b.str(dir[:i]), launcher.Int(0o755))
			b.program.Spare(s, unix.EEXIST, unix.EROFS)
		}
	}
}

// makeFile makes a file where it is missing. What the image has there is not opened: a pipe would hold us up.
func (b *build) makeFile(name string) {
	s := b.call("make "+name, unix.SYS_OPENAT, launcher.Here(), b.str(name), launcher.Int(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC), launcher.Int(0o666))
	b.program.Jump(b.program.Spare(s, unix.EEXIST, unix.EROFS), launcher.Refused)
	b.call("close "+name, unix.SYS_CLOSE, launcher.Result(s))
	b.program.Land(s)
}

// deviceFlags let devices be used, and not be changed: without a user namespace the container's root owns them, the host's.
const deviceFlags = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_RDONLY

func (b *build) devices() {
	for _, d := range devices {
		target := "/dev/" + d
		tree := b.tree(target, deviceFlags)
		b.makeFile(target)
		b.attach("mount "+target, tree, target)
	}
	for _, l := range links {
		b.call("make "+l[1], unix.SYS_SYMLINKAT, b.str(l[0]), launcher.Here(), b.str(l[1]))
	}
}

// readOnly makes what is below a path unwritable; a path that this kernel lacks is left out.
func (b *build) readOnly(p string) {
	s := b.call("cover "+p, unix.SYS_MOUNT, b.str(p), b.str(p), null, launcher.Int(unix.MS_BIND|unix.MS_REC), null)
	b.program.Jump(b.program.Spare(s, unix.ENOENT), launcher.Refused)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	b.call("cover "+p, unix.SYS_MOUNT_SETATTR, launcher.Here(), b.str(p), launcher.Int(unix.AT_RECURSIVE), b.program.Bytes(raw), launcher.Int(len(raw)))
	b.program.Land(s)
}

// mask hides a file behind /dev/null, or a directory behind an empty one.
func (b *build) mask(p string) {
	file := b.call("hide "+p, unix.SYS_MOUNT, b.str("/dev/null"), b.str(p), null, launcher.Int(unix.MS_BIND), null)
	b.program.Jump(b.program.Spare(file, unix.ENOENT, unix.ENOTDIR), launcher.Zero)
	dir := b.call("hide "+p, unix.SYS_MOUNT, b.str("tmpfs"), b.str(p), b.str("tmpfs"), launcher.Int(unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC), null)
	b.program.Spare(dir, unix.ENOENT) // this kernel lacks it
	b.program.Land(file)
}
