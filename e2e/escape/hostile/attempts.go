package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes a system call by number.
func call(verdict string, number uintptr, args ...uintptr) (string, string) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return refused, errno.Error()
	}
	return verdict, fmt.Sprintf("system call %d gave %d", number, r)
}

func cstring(s string) uintptr { return uintptr(unsafe.Pointer(&append([]byte(s), 0)[0])) }

// attempts are all ways out that are tried, without what takes all (see abuse).
func attempts() []attempt {
	list := append(netlinkAttempts(), namespaceAttempts()...)
	list = append(list, mountAttempts()...)
	list = append(list, procAttempts()...)
	list = append(list, kernelAttempts()...)
	list = append(list, deviceAttempts()...)
	list = append(list, processAttempts()...)
	list = append(list, otherAttempts()...)
	return append(list, socketAttempts()...)
}

func namespaceAttempts() []attempt {
	return []attempt{
		{"setns-init", func() (string, string) {
			var tries []func() (string, string)
			for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts", "user", "cgroup"} {
				for pid := range 64 {
					path := fmt.Sprintf("/proc/%d/ns/%s", pid, ns)
					own, _ := os.Readlink("/proc/self/ns/" + ns)
					if other, err := os.Readlink(path); err != nil || other == own {
						continue
					}
					tries = append(tries, func() (string, string) { return enters(path) })
				}
			}
			if len(tries) == 0 {
				return refused, "no process of another namespace is to be seen"
			}
			return all(tries...)
		}},
		{"namespace-parent", func() (string, string) { // from our network namespace to its owner's
			var tries []func() (string, string)
			for _, ns := range []string{"net", "pid", "user"} {
				for name, op := range map[string]uint{"NS_GET_USERNS": 0xb701, "NS_GET_PARENT": 0xb702} {
					tries = append(tries, func() (string, string) {
						f, err := os.Open("/proc/self/ns/" + ns)
						if err != nil {
							return refused, err.Error()
						}
						defer f.Close()
						fd, err := unix.IoctlRetInt(int(f.Fd()), op)
						if err != nil {
							return refused, name + ": " + err.Error()
						}
						own, _ := os.Readlink("/proc/self/ns/" + ns)
						user, _ := os.Readlink("/proc/self/ns/user")
						got, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
						if got == own || got == user {
							return harmless, name + " of " + ns + ": its own"
						}
						return no(unix.Setns(fd, 0), escaped, "entered the namespace above "+ns)
					})
				}
			}
			return all(tries...)
		}},
		{"pidfd-setns", func() (string, string) {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return refused, err.Error()
			}
			return no(unix.Setns(fd, unix.CLONE_NEWNET|unix.CLONE_NEWNS), harmless, "entered the namespaces of PID 1, which are its own")
		}},
		{"unshare-user", func() (string, string) {
			return no(forked(unix.SYS_UNSHARE, unix.CLONE_NEWUSER), harmless, "a user namespace below its own")
		}},
		{"unshare-mount", func() (string, string) {
			return no(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), harmless, "a mount namespace of its own")
		}},
		{"unshare-net", func() (string, string) {
			return no(unix.Unshare(unix.CLONE_NEWNET), harmless, "a network namespace below its own")
		}},
		{"hostname", func() (string, string) {
			return no(unix.Sethostname([]byte("escaped")), harmless, "its own UTS namespace's name")
		}},
	}
}

func mountAttempts() []attempt {
	mount := func(source, target, kind string, flags uintptr, data, verdict string) (string, string) {
		_ = os.MkdirAll("/tmp/m", 0o700)
		return no(unix.Mount(source, target, kind, flags, data), verdict, fmt.Sprintf("mounted %s at %s", kind, target))
	}
	return []attempt{
		{"mount-tmpfs", func() (string, string) { return mount("t", "/tmp/m", "tmpfs", 0, "", harmless) }},
		{"mount-proc", func() (string, string) { return mount("proc", "/tmp/m", "proc", 0, "", harmless) }},
		{"mount-sysfs", func() (string, string) { return mount("sysfs", "/tmp/m", "sysfs", 0, "", harmless) }},
		{"mount-cgroup", func() (string, string) {
			return all(func() (string, string) { return mount("c", "/tmp/m", "cgroup2", 0, "", escaped) },
				func() (string, string) { return mount("c", "/tmp/m", "cgroup", 0, "memory", escaped) },
				func() (string, string) {
					return mount("c", "/tmp/m", "cgroup", 0, "release_agent=/x,none,name=esc", escaped)
				})
		}},
		{"mount-bpf", func() (string, string) { return mount("bpf", "/tmp/m", "bpf", 0, "", escaped) }},
		{"mount-debugfs", func() (string, string) {
			return all(func() (string, string) { return mount("d", "/tmp/m", "debugfs", 0, "", escaped) },
				func() (string, string) { return mount("d", "/tmp/m", "tracefs", 0, "", escaped) },
				func() (string, string) { return mount("d", "/tmp/m", "securityfs", 0, "", escaped) },
				func() (string, string) { return mount("d", "/tmp/m", "devtmpfs", 0, "", escaped) })
		}},
		{"mount-disk", func() (string, string) {
			return all(func() (string, string) { return mount("/dev/vda", "/tmp/m", "ext4", 0, "", escaped) },
				func() (string, string) { return mount("/dev/sda1", "/tmp/m", "ext4", 0, "", escaped) })
		}},
		{"mount-overlay", func() (string, string) {
			return mount("o", "/tmp/m", "overlay", 0, "lowerdir=/proc/1/root:/", harmless)
		}},
		{"remount-root", func() (string, string) {
			if v, d := mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "", escaped); v != refused {
				err := os.WriteFile("/written", nil, 0o600)
				return no(err, escaped, d+", wrote into the image")
			} else {
				return v, d
			}
		}},
		{"remount-proc-sys", func() (string, string) {
			return mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "", escaped)
		}},
		{"unmask", func() (string, string) {
			return all(func() (string, string) { return no(unix.Unmount("/proc/kcore", unix.MNT_DETACH), escaped, "unmasked") },
				func() (string, string) {
					return no(unix.Unmount("/etc/weir", unix.MNT_DETACH), escaped, "unmounted /etc/weir")
				},
				func() (string, string) { return no(unix.Unmount("/sys", unix.MNT_DETACH), escaped, "unmounted /sys") })
		}},
		{"open-tree", func() (string, string) {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
			if err != nil {
				return refused, err.Error()
			}
			return no(unix.MoveMount(fd, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH), harmless, "moved a copy of its own mount")
		}},
		{"fsopen", func() (string, string) {
			fd, err := unix.Fsopen("tmpfs", 0)
			if err == nil {
				unix.Close(fd)
			}
			return no(err, harmless, "a file system context")
		}},
		{"mount-setattr", func() (string, string) {
			return no(unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV}), escaped, "changed the root's attributes")
		}},
		{"pivot-root", func() (string, string) { return no(unix.PivotRoot("/tmp", "/tmp"), escaped, "moved the root") }},
		{"chroot-out", func() (string, string) { // the classic way out of a chroot
			_ = os.MkdirAll("/tmp/jail", 0o700)
			root, err := os.Open("/")
			if err != nil {
				return refused, err.Error()
			}
			defer root.Close()
			if err := unix.Chroot("/tmp/jail"); err != nil {
				return refused, err.Error()
			}
			_ = root.Chdir()
			for range 64 {
				_ = os.Chdir("..")
			}
			if err := unix.Chroot("."); err != nil {
				return refused, err.Error()
			}
			return looksLikeHost("chroot")
		}},
		{"open-by-handle", func() (string, string) { // "shocker": by the inode number of a file system's root
			f, err := os.Open("/etc/weir/config.json")
			if err != nil {
				return refused, err.Error()
			}
			defer f.Close()
			h := unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
			fd, err := unix.OpenByHandleAt(int(f.Fd()), h, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				return refused, err.Error()
			}
			_ = unix.Fchdir(fd)
			return looksLikeHost("handle")
		}},
	}
}

// looksLikeHost: the working directory shows files that only the host has.
func looksLikeHost(how string) (string, string) {
	for _, p := range []string{"etc/os-release", "var/lib/dpkg", "lib/systemd", "var/lib/weir"} {
		if _, err := os.Stat(p); err == nil {
			return escaped, how + " shows the host's " + p
		}
	}
	return harmless, how + " leads to nothing of the host"
}

func procAttempts() []attempt {
	return []attempt{
		{"proc-write", func() (string, string) {
			return writes(escaped, "|/x", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
				"/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/domainname")
		}},
		{"proc-net-sysctl", func() (string, string) {
			return writes(escaped, "1", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding", "/proc/sys/net/core/somaxconn", "/proc/sys/net/core/bpf_jit_enable")
		}},
		{"proc-secrets", func() (string, string) {
			return opens(os.O_RDONLY, escaped, "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware/acpi/tables/DSDT", "/dev/kmsg", "/proc/kmsg")
		}},
		{"kernel-addresses", func() (string, string) {
			b, err := os.ReadFile("/proc/kallsyms")
			if err != nil {
				return refused, err.Error()
			}
			for line := range strings.Lines(string(b)) {
				if !strings.HasPrefix(line, "0000000000000000") {
					return escaped, "the kernel's addresses: " + line
				}
			}
			return refused, "all addresses are 0"
		}},
		{"runtime-overwrite", func() (string, string) { // CVE-2019-5736
			return opens(os.O_WRONLY, escaped, "/proc/self/exe", "/proc/1/exe")
		}},
		{"leaked-descriptors", func() (string, string) { // CVE-2024-21626
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return refused, err.Error()
			}
			for _, e := range entries {
				to, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err == nil && strings.HasPrefix(to, "/") && os.Chdir("/proc/self/fd/"+e.Name()) == nil && to != "/proc/self/fd" && !strings.HasPrefix(to, "/proc/") {
					return escaped, "descriptor " + e.Name() + " is the directory " + to
				}
			}
			for n := range 64 { // of PID 1, which the runtime started
				if to, err := os.Readlink(fmt.Sprintf("/proc/1/fd/%d", n)); err == nil && strings.Contains(to, "cgroup") {
					return escaped, "PID 1 has " + to
				}
			}
			return refused, "no directory of the host is open"
		}},
		{"proc-root", func() (string, string) {
			for pid := range 64 {
				if err := os.Chdir(fmt.Sprintf("/proc/%d/root", pid)); err == nil {
					if v, d := looksLikeHost(fmt.Sprintf("/proc/%d/root", pid)); v == escaped {
						return v, d
					}
				}
			}
			return refused, "every root that can be reached is its own"
		}},
		{"oom-immunity", func() (string, string) { return writes(escaped, "-1000", "/proc/self/oom_score_adj") }},
		{"cgroup-write", func() (string, string) {
			var paths []string
			for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
				found, _ := filepath.Glob(pattern)
				for _, p := range found {
					for _, name := range []string{"cgroup.procs", "release_agent", "notify_on_release", "memory.limit_in_bytes", "memory.max", "pids.max", "cpu.max"} {
						if filepath.Base(p) == name {
							paths = append(paths, p)
						}
					}
				}
			}
			if len(paths) == 0 {
				return refused, "no cgroup file is to be seen"
			}
			return writes(escaped, "max", paths...)
		}},
		{"image-write", func() (string, string) {
			var tries []func() (string, string)
			for _, p := range []string{"/usr/bin/hostile", "/etc/passwd", "/etc/weir/config.json", "/run/weir/x", "/x"} {
				tries = append(tries, func() (string, string) {
					f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE, 0o600)
					if err == nil {
						f.Close()
					}
					return no(err, escaped, "opened "+p+" for writing")
				})
			}
			return all(tries...)
		}},
		{"others-files", func() (string, string) {
			return opens(os.O_RDONLY, escaped, "/etc/shadow", "/var/lib/weir", "/run/weir/functions", "/run/weir/../../var/lib/weir/0/token", "/proc/1/environ/../../../run/weir/0/api.sock")
		}},
		{"host-ids", func() (string, string) { // root here is nobody outside
			b, err := os.ReadFile("/proc/self/uid_map")
			if err != nil {
				return refused, err.Error()
			}
			f := strings.Fields(string(b))
			if len(f) < 3 || f[1] == "0" {
				return escaped, "uid_map " + strings.Join(f, " ") + ": root here is root of the host"
			}
			return refused, "uid_map " + strings.Join(f, " ")
		}},
	}
}

func kernelAttempts() []attempt {
	none := make([]byte, 256)
	zero := uintptr(unsafe.Pointer(&none[0]))
	return []attempt{
		{"bpf-program", func() (string, string) {
			attr := make([]byte, 128)
			code := []byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}
			licence := []byte("GPL\x00")
			attr[0], attr[4] = 1, 2 // socket filter, two instructions
			*(*uint64)(unsafe.Pointer(&attr[8])) = uint64(uintptr(unsafe.Pointer(&code[0])))
			*(*uint64)(unsafe.Pointer(&attr[16])) = uint64(uintptr(unsafe.Pointer(&licence[0])))
			return call(escaped, unix.SYS_BPF, 5, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
		}},
		{"bpf-maps", func() (string, string) { // of others: by id
			var tries []func() (string, string)
			for _, command := range []uintptr{11, 12, 13, 14, 19} { // next program, next map, descriptors by id, BTF
				attr := make([]byte, 128)
				attr[0] = 1
				tries = append(tries, func() (string, string) {
					return call(escaped, unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr[0])), 128)
				})
			}
			return all(tries...)
		}},
		{"perf", func() (string, string) {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK}
			_, err := unix.PerfEventOpen(&attr, -1, 0, -1, 0)
			return no(err, escaped, "events of the whole machine")
		}},
		{"io-uring", func() (string, string) { return call(escaped, unix.SYS_IO_URING_SETUP, 1, zero) }},
		{"userfaultfd", func() (string, string) { return call(escaped, unix.SYS_USERFAULTFD, 0) }},
		{"modules", func() (string, string) {
			return all(func() (string, string) { return call(escaped, unix.SYS_INIT_MODULE, zero, 256, cstring("")) },
				func() (string, string) { return call(escaped, unix.SYS_FINIT_MODULE, 0, cstring(""), 0) },
				func() (string, string) { return call(escaped, unix.SYS_DELETE_MODULE, cstring("veth"), 0) })
		}},
		{"kexec", func() (string, string) { return call(escaped, unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) }},
		{"reboot", func() (string, string) {
			return no(unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF), escaped, "Ctrl-Alt-Del is off")
		}},
		{"clock", func() (string, string) {
			var now unix.Timespec
			_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
			return all(func() (string, string) {
				return no(unix.ClockSettime(unix.CLOCK_REALTIME, &now), escaped, "set the clock")
			},
				func() (string, string) {
					_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{Modes: 2, Freq: 0})
					return no(err, escaped, "tuned the clock")
				})
		}},
		{"swap-quota-acct", func() (string, string) {
			return all(func() (string, string) { return call(escaped, unix.SYS_SWAPON, cstring("/tmp/x"), 0) },
				func() (string, string) { return call(escaped, unix.SYS_ACCT, 0) },
				func() (string, string) { return call(escaped, unix.SYS_QUOTACTL, 0x800002<<8, 0, 0, 0) })
		}},
		{"kernel-log", func() (string, string) {
			_, err := unix.Klogctl(3, none)
			return no(err, escaped, "read the kernel's log")
		}},
		{"keyrings", func() (string, string) {
			var tries []func() (string, string)
			for name, ring := range map[string]int{"session": unix.KEY_SPEC_SESSION_KEYRING, "user": unix.KEY_SPEC_USER_KEYRING, "user session": unix.KEY_SPEC_USER_SESSION_KEYRING} {
				tries = append(tries, func() (string, string) {
					_, err := unix.KeyctlGetKeyringID(ring, true)
					return no(err, escaped, "the "+name+" keyring")
				}, func() (string, string) {
					key, err := unix.AddKey("user", "escape", []byte("x"), ring)
					if err == nil {
						_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, key, ring, 0, 0)
					}
					return no(err, escaped, "a key in the "+name+" keyring")
				})
			}
			return all(tries...)
		}},
		{"privileged-io", func() (string, string) {
			return all(func() (string, string) { return call(escaped, unix.SYS_IOPL, 3) }, func() (string, string) { return call(escaped, unix.SYS_IOPERM, 0x70, 2, 1) })
		}},
		{"personality", func() (string, string) { return call(harmless, unix.SYS_PERSONALITY, 0x0040000) }},
		{"filter-upper-half", func() (string, string) { // the kernel takes 32 bits of these arguments, the filter sees 64: every number that a filter may mistake them for
			var tries []func() (string, string)
			for nr := range uintptr(512) {
				tries = append(tries, func() (string, string) { return call(escaped, unix.SYS_PERSONALITY, (nr+1)<<32|0x0040000) },
					func() (string, string) {
						return call(escaped, unix.SYS_SOCKET, (nr+1)<<32|unix.AF_VSOCK, unix.SOCK_STREAM, 0)
					},
					func() (string, string) {
						return call(escaped, unix.SYS_SOCKET, (nr+1)<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
					},
					func() (string, string) {
						return clones(escaped, unix.SYS_CLONE, (nr+1)<<32|unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
					})
			}
			return anyOf(tries...)
		}},
		{"other-machines-calls", func() (string, string) { // x32
			var numbers []uintptr
			for nr := range uintptr(600) {
				if nr != 15 && nr != 58 { // they do not return
					numbers = append(numbers, 0x40000000|nr)
				}
			}
			tries := []func() (string, string){func() (string, string) {
				return childCalls(escaped, []uintptr{0x40000000 | unix.SYS_CLONE}, uintptr(unix.SIGCHLD))
			}}
			for some := range slices.Chunk(numbers, 50) {
				tries = append(tries, func() (string, string) { return childCalls(escaped, some, 1<<63, 1<<63, 1<<63, 1<<63) })
			}
			return anyOf(tries...)
		}},
	}
}

func deviceAttempts() []attempt {
	return []attempt{
		{"device-modes", func() (string, string) { // of the host's nodes, to what they are: root without a user namespace owns them
			var tries []func() (string, string)
			for _, path := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/proc/self/fd/0"} {
				tries = append(tries, func() (string, string) {
					var fs unix.Statfs_t
					fi, err := os.Stat(path)
					if err == nil {
						err = unix.Statfs(path, &fs)
					}
					if err != nil || fi.Mode()&os.ModeCharDevice == 0 {
						return refused, path + " is no device"
					}
					verdict := escaped
					if fs.Bavail*uint64(fs.Bsize) <= 64<<10 { // the tmpfs of its own /dev, see package kernel
						verdict = harmless
					}
					return no(os.Chmod(path, fi.Mode().Perm()), verdict, "changed the mode of "+path)
				})
			}
			return all(tries...)
		}},
		{"device-files", func() (string, string) {
			return opens(os.O_RDWR, escaped, "/dev/mem", "/dev/kmem", "/dev/port", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/fuse", "/dev/loop0", "/dev/loop-control", "/dev/net/tun", "/dev/kmsg", "/dev/vhost-net")
		}},
		{"device-nodes", func() (string, string) {
			var tries []func() (string, string)
			for name, d := range map[string]struct {
				mode uint32
				dev  uint64
			}{"disk": {unix.S_IFBLK, unix.Mkdev(254, 0)}, "mem": {unix.S_IFCHR, unix.Mkdev(1, 1)}, "kmsg": {unix.S_IFCHR, unix.Mkdev(1, 11)}, "tun": {unix.S_IFCHR, unix.Mkdev(10, 200)}} {
				tries = append(tries, func() (string, string) {
					path := "/tmp/" + name
					if err := unix.Mknod(path, d.mode|0o600, int(d.dev)); err != nil {
						return refused, err.Error()
					}
					f, err := os.OpenFile(path, os.O_RDWR, 0)
					if err == nil {
						f.Close()
					}
					return no(err, escaped, "opened the device "+name)
				})
			}
			return all(tries...)
		}},
	}
}

func processAttempts() []attempt {
	return []attempt{
		{"ptrace", func() (string, string) {
			return all(func() (string, string) { return no(unix.PtraceSeize(os.Getppid()), harmless, "traces its own parent") },
				func() (string, string) {
					b := make([]byte, 8)
					local := []unix.Iovec{{Base: &b[0], Len: 8}}
					_, err := unix.ProcessVMReadv(2, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
					return no(err, harmless, "read memory of a process of its own")
				})
		}},
		{"signals", func() (string, string) { // PIDs of the host that certainly exist
			var tries []func() (string, string)
			for _, pid := range []int{2, 300, 1000, 5000, 30000} {
				tries = append(tries, func() (string, string) {
					if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
						return refused, "its own"
					}
					return no(unix.Kill(pid, 0), escaped, fmt.Sprintf("may signal %d", pid))
				})
			}
			return all(tries...)
		}},
		{"priority", func() (string, string) {
			return all(func() (string, string) {
				return no(unix.Setpriority(unix.PRIO_PROCESS, 0, -20), escaped, "runs at nice -20")
			},
				func() (string, string) {
					param := int32(50)
					return call(escaped, unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&param)))
				},
				func() (string, string) {
					return call(escaped, unix.SYS_IOPRIO_SET, 1, 0, 1<<13)
				})
		}},
		{"limits", func() (string, string) {
			return no(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30}), escaped, "a billion descriptors")
		}},
		{"capabilities", func() (string, string) {
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			full := [2]unix.CapUserData{{Effective: 1<<32 - 1, Permitted: 1<<32 - 1}, {Effective: 0x1ff, Permitted: 0x1ff}}
			return no(unix.Capset(&h, &full[0]), escaped, "gave itself every capability")
		}},
		{"new-privileges", func() (string, string) {
			n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			if err == nil && n != 1 {
				return escaped, "set-user-ID programs give it privileges"
			}
			return refused, "no_new_privs is set"
		}},
		{"seccomp-off", func() (string, string) {
			b, _ := os.ReadFile("/proc/self/status")
			if !bytes.Contains(b, []byte("Seccomp:\t2")) {
				return escaped, "no seccomp filter"
			}
			return refused, "a filter is in force"
		}},
	}
}

func socketAttempts() []attempt {
	socket := func(verdict string, family, kind, proto int) func() (string, string) {
		return func() (string, string) {
			fd, err := unix.Socket(family, kind, proto)
			if err == nil {
				unix.Close(fd)
			}
			return no(err, verdict, fmt.Sprintf("a socket of family %d", family))
		}
	}
	return []attempt{
		{"odd-sockets", func() (string, string) {
			return all(socket(escaped, unix.AF_VSOCK, unix.SOCK_STREAM, 0), socket(escaped, unix.AF_ALG, unix.SOCK_SEQPACKET, 0), socket(escaped, unix.AF_BLUETOOTH, unix.SOCK_RAW, 1),
				socket(escaped, unix.AF_RDS, unix.SOCK_SEQPACKET, 0), socket(escaped, unix.AF_KCM, unix.SOCK_DGRAM, 0))
		}},
		{"audit", func() (string, string) {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)
			if err != nil {
				return refused, err.Error()
			}
			defer unix.Close(fd)
			return no(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}), escaped, "reads the audit log")
		}},
		{"abstract-sockets", func() (string, string) { // of the host: they belong to its network namespace
			b, err := os.ReadFile("/proc/net/unix")
			if err != nil {
				return refused, err.Error()
			}
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) > 7 && strings.HasPrefix(f[7], "@") {
					return escaped, "sees " + f[7]
				}
			}
			return refused, "none to be seen"
		}},
		{"host-services", func() (string, string) {
			var tries []func() (string, string)
			for _, address := range []string{"127.0.0.1:7411", "127.0.0.1:2379", "127.0.0.1:2380", "169.254.169.254:80"} {
				tries = append(tries, func() (string, string) {
					c, err := net.DialTimeout("tcp", address, 300e6)
					if err == nil {
						c.Close()
					}
					return no(err, escaped, "connected to "+address)
				})
			}
			return all(tries...)
		}},
		{"manager-socket", func() (string, string) {
			var tries []func() (string, string)
			for _, path := range []string{"/run/weir/api.sock", "/run/weir/0/api.sock", "/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"} {
				tries = append(tries, func() (string, string) {
					c, err := net.DialTimeout("unix", path, 300e6)
					if err == nil {
						c.Close()
					}
					return no(err, escaped, "connected to "+path)
				})
			}
			return all(tries...)
		}},
	}
}
