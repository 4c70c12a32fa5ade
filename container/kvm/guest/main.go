// Guest is the first and only program of Weir's own in a virtual machine: process 1. It makes of a bare kernel what container.Spec promises, runs the
// program, and does what the driver asks for over a serial port. It is built into the driver: see container/kvm/DESIGN.md.
package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

func main() {
	switch {
	case filepath.Base(os.Args[0]) == "modprobe":
		if err := modprobe(os.Args[len(os.Args)-1]); err != nil {
			os.Exit(1)
		}
	case os.Getpid() == 1:
		debug.SetGCPercent(50)
		m := &machine{root: "/root", children: children{exits: map[int]chan unix.WaitStatus{}}}
		m.end(m.run())
	default:
		println("this is process 1 of a virtual machine of Weir, and nothing else")
		os.Exit(2)
	}
}

// machine is all state of it.
type machine struct {
	root string // where the program's root is mounted
	spec channel.Machine
	log  *os.File
	children
	*link
	program program
	copied  bool // it was a template once, and others are copies of that, too
}

// run comes back when the program has ended, or when something cannot be done.
func (m *machine) run() channel.Exit {
	if err := kernelFiles(); err != nil {
		return channel.Exit{Code: 125, Error: err.Error()}
	}
	text, _ := os.ReadFile("/proc/cmdline")
	words := strings.Fields(string(text))
	if err := timer(words); err != nil {
		return channel.Exit{Code: 125, Error: err.Error()}
	}
	switch {
	case slices.Contains(words, channel.Trial):
		return channel.Exit{}
	case slices.Contains(words, channel.Template):
		if err := m.beTemplate(); err != nil {
			return channel.Exit{Code: 125, Error: err.Error()}
		}
	}
	if err := m.prepare(); err != nil {
		return channel.Exit{Code: 125, Error: err.Error()}
	}
	go m.collect()
	problem := m.ready()
	return m.serve(problem)
}

func (m *machine) prepare() error {
	for _, f := range []func() error{m.bootModules, m.disks, m.own, m.hugepages, m.expected, m.rootFiles, m.devices, m.mounts, m.interfaces, m.forwards, m.limits, m.openPorts} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// wrap says what cannot be done.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(what + ": " + err.Error())
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil && !errors.Is(err, unix.EROFS) {
		return wrap("mount "+target, err)
	}
	return wrap("mount "+kind+" at "+target, unix.Mount(source, target, kind, flags, options))
}

func kernelFiles() error {
	return errors.Join(
		mount("proc", "/proc", "proc", 0, ""), mount("sysfs", "/sys", "sysfs", 0, ""), mount("devtmpfs", "/dev", "devtmpfs", 0, ""),
		mount("cgroup2", "/cgroup", "cgroup2", 0, ""),
	)
}

// patience with devices that the kernel is still finding.
const patience = 10 * time.Second

// await polls until f finds something.
func await(what string, f func() (string, bool)) (string, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if found, ok := f(); ok {
			return found, nil
		}
		if time.Now().After(deadline) {
			return "", errors.New(what + ": there is none")
		}
	}
}

func disk(serial string) (string, error) {
	return await("disk "+serial, func() (string, bool) {
		all, _ := filepath.Glob("/sys/block/vd*")
		for _, dir := range all {
			text, err := os.ReadFile(dir + "/serial")
			dev := "/dev/" + filepath.Base(dir)
			if _, there := os.Stat(dev); err == nil && there == nil && strings.TrimSpace(string(text)) == serial {
				return dev, true
			}
		}
		return "", false
	})
}

// disks mounts all three, and reads what the machine is to be.
func (m *machine) disks() error {
	for serial, at := range map[string]string{channel.DiskModules: "/modules", channel.DiskConfig: "/config", channel.DiskRoot: m.root} {
		dev, err := disk(serial)
		if err == nil {
			err = mount(dev, at, "erofs", unix.MS_RDONLY|unix.MS_NODEV, "")
		}
		if err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte("/modprobe"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return wrap("modules", err)
	}
	text, err := os.ReadFile("/config/" + channel.MachineFile)
	if err == nil {
		err = json.Unmarshal(text, &m.spec)
	}
	if err != nil {
		return wrap("configuration", err)
	}
	return wrap("host name", unix.Sethostname([]byte(m.spec.Hostname)))
}

// end writes what came of the program, and switches the machine off.
func (m *machine) end(e channel.Exit) {
	m.settle()
	if text, err := json.Marshal(e); err == nil {
		_ = tell(string(text))
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // with reboot=t the processor stops, and the machine with it
	select {}
}

// tell writes a line to who looks at the machine's last words, and waits until it has left the machine.
func tell(line string) error {
	f, err := os.OpenFile(channel.ExitLine, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	raw(f)
	if _, err := f.WriteString(line + "\n"); err != nil {
		return err
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // tcdrain
}

// settle waits until what was written to the log has left the machine. Writing does not wait for that; but a read of a disk is done by the same thread
// outside, behind what it was told to do before.
func (m *machine) settle() {
	fd, err := unix.Open("/dev/vda", unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		_, _ = unix.Pread(fd, page, 0)
	}
}

// raw has a serial line or a terminal carry bytes as they are.
func raw(f *os.File) {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	_ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}
