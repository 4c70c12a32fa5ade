package native

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/steps"
)

// devices of every container.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// links of /dev.
var links = [][2]string{{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"},
	{"pts/ptmx", "/dev/ptmx"}}

// root makes the container's root the root of the process, with all that is mounted in it, and leaves the host's behind. What is of the host (the image's
// root, devices, bind mounts) are mounts that we took from the host's tree, with their flags set: the container's user could not even look them up.
// From pivot_root on every path is one of the image, where its symbolic links lead nowhere else; checkRoot has seen that mount points are none.
func root(l *steps.List, c kernel.Container, config *specs.Spec) {
	set := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if c.ReadOnly {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	tree := l.Tree(c.Root, set)
	l.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") // apart from the host's
	old := l.Call("open the host's root", unix.SYS_OPENAT, launcher.Here(), l.String("/"), launcher.Int(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC), launcher.Int(0))
	l.Attach("mount the root", tree, "/")
	l.Call("go to the root", unix.SYS_FCHDIR, launcher.Int(tree))
	l.Call("change the root", unix.SYS_PIVOT_ROOT, l.String("."), l.String("."))
	early := func(m specs.Mount) bool { return m.Destination == "/proc" || m.Destination == "/sys" }
	for _, m := range config.Mounts { // while the host's can be seen: a user namespace may mount no others
		if early(m) {
			l.MountAs(m, 0)
		}
	}
	l.Call("go to the host's root", unix.SYS_FCHDIR, launcher.Result(old))
	l.Call("leave the host's root", unix.SYS_UMOUNT2, l.String("."), launcher.Int(unix.MNT_DETACH))
	l.Call("go to the root", unix.SYS_CHDIR, l.String("/"))
	for _, m := range config.Mounts {
		if early(m) {
			continue
		}
		l.MakeMount(m)
		if m.Destination == "/dev" {
			makeDevices(l)
		}
	}
	l.Shield(config.Linux)
}

func makeDevices(l *steps.List) {
	for _, d := range devices {
		target := "/dev/" + d
		tree := l.Tree(target, steps.DeviceFlags)
		l.MakeFile(target)
		l.Attach("mount "+target, tree, target)
	}
	for _, link := range links {
		l.Call("make "+link[1], unix.SYS_SYMLINKAT, l.String(link[0]), launcher.Here(), l.String(link[1]))
	}
}
