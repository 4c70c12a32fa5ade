package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

const quietly = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// rootFiles puts into the program's root what every container finds there.
func (m *machine) rootFiles() error {
	if !m.spec.ReadOnly {
		if err := m.writable(); err != nil {
			return err
		}
	}
	in := func(path string) string { return filepath.Join(m.root, path) }
	system := uintptr(quietly | unix.MS_RDONLY)
	if len(m.spec.Devices) > 0 { // their programs write to the files of their devices
		system = quietly
	}
	err := errors.Join(
		mount("proc", in("proc"), "proc", quietly, ""),
		mount("sysfs", in("sys"), "sysfs", system, ""),
		mount("tmpfs", in("dev"), "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"),
		mount("devpts", in("dev/pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"),
		mount("tmpfs", in("dev/shm"), "tmpfs", quietly, "mode=1777"),
		mount("tmpfs", in("run"), "tmpfs", quietly, "mode=755"),
		mount("tmpfs", in("tmp"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
	)
	for name, dev := range map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}} {
		path := in("dev/" + name)
		err = errors.Join(err, unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(dev[0], dev[1]))), os.Chmod(path, 0o666))
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		err = errors.Join(err, os.Symlink(target, in("dev/"+name)))
	}
	return err
}

// writable lays a layer in memory over the root.
func (m *machine) writable() error {
	const layer = "/layer"
	if err := mount("tmpfs", layer, "tmpfs", unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	lower := m.root
	m.root = layer + "/root"
	for _, d := range []string{"/upper", "/work"} {
		if err := os.Mkdir(layer+d, 0o755); err != nil {
			return err
		}
	}
	return mount("overlay", m.root, "overlay", unix.MS_NODEV|unix.MS_NOSUID, "lowerdir="+lower+",upperdir="+layer+"/upper,workdir="+layer+"/work")
}

// mounts shows the program the copies on the disk. Directories, and what the program may write to, are copied once more, to memory: there they can change.
func (m *machine) mounts() error {
	for i, one := range m.spec.Mounts {
		if err := m.mountCopy(i, one); err != nil {
			return wrap("mount "+one.Target, err)
		}
	}
	return nil
}

func (m *machine) mountCopy(i int, one channel.Mount) error {
	source := filepath.Join("/config", channel.MountsDir, strconv.Itoa(i))
	target, err := m.target(one)
	if err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if one.Dir || !one.ReadOnly {
		copied := copyOf(i)
		if err := copyTree(source, copied); err != nil {
			return err
		}
		source = copied
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if one.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

const copies = "/copies"

func copyOf(mount int) string { return filepath.Join(copies, strconv.Itoa(mount)) }

// target is where a mount goes, made if it has to be. The image's symbolic links lead nowhere outside of its root.
func (m *machine) target(one channel.Mount) (string, error) {
	root, err := os.OpenRoot(m.root)
	if err != nil {
		return "", err
	}
	defer root.Close()
	rel := filepath.Clean("/" + one.Target)[1:]
	if _, err := root.Stat(rel); errors.Is(err, fs.ErrNotExist) {
		if one.Dir {
			err = root.MkdirAll(rel, 0o755)
		} else if err = root.MkdirAll(filepath.Dir(rel), 0o755); err == nil {
			err = root.WriteFile(rel, nil, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	f, err := root.Open(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// copyTree copies files with their owners and modes.
func copyTree(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case info.IsDir():
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return errors.Join(os.Symlink(target, to), os.Lchown(to, int(st.Uid), int(st.Gid)))
	default:
		if err := copyFile(from, to); err != nil {
			return err
		}
	}
	return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), os.Chmod(to, info.Mode()))
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
