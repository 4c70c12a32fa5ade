package kvm

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"weir.dev/weir/container/kvm/channel"
)

// shape is how a host's QEMU can have a machine: found by trials, see trial.go.
type shape struct {
	Accel   string // kvm, tcg
	Machine string // microvm, q35, pc
}

func (s shape) String() string { return s.Machine + ", " + s.Accel }

// device is QEMU's name of a virtio device: by the bus that the machine has.
func (s shape) device(kind string) string {
	if s.Machine == "microvm" {
		return "virtio-" + kind + "-device"
	}
	return "virtio-" + kind + "-pci"
}

// command collects QEMU's arguments and the files that it is given: it opens none itself that are ours.
type command struct {
	args   []string
	files  []*os.File
	sets   int
	ram    int     // its number
	pci    bool    // the machine has that bus, whatever its kind
	filler *filler // of a machine's memory, before QEMU; nil: it begins empty
}

const firstFD = 3 // that a process has besides its standard ones

func (c *command) add(args ...string) { c.args = append(c.args, args...) }

// fd hands over a file, and is its number there.
func (c *command) fd(f *os.File) int {
	c.files = append(c.files, f)
	return firstFD + len(c.files) - 1
}

// set hands over a file, and is a path by which QEMU opens it.
func (c *command) set(f *os.File) string {
	c.sets++
	c.add("-add-fd", fmt.Sprintf("fd=%d,set=%d", c.fd(f), c.sets))
	return "/dev/fdset/" + strconv.Itoa(c.sets)
}

// reopen hands over a file that QEMU opens by its number: for files of which any user may read.
func (c *command) reopen(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(c.fd(f)) }

// written is a character device all of whose output goes to a file, up to the limit of files, and then nowhere: it holds up nobody.
func (c *command) written(id string, f *os.File) {
	c.add("-chardev", "file,id="+id+",path=/dev/null,logfile="+c.set(f)+",logappend=on")
}

// basis is what a trial and a machine have in common.
func (c *command) basis(s shape, memory int64, cpus int, ram *os.File) {
	machine, accel, cpu := s.Machine, s.Accel, "host"
	if machine == "microvm" {
		machine += ",x-option-roms=off,rtc=on,isa-serial=on,acpi=on,auto-kernel-cmdline=off"
		if c.pci {
			machine += ",pcie=on"
		}
	}
	if accel == "tcg" {
		accel, cpu = "tcg,tb-size="+strconv.Itoa(translated), "max"
	}
	if ram != nil {
		machine += ",memory-backend=ram"
		c.add("-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,share=on,prealloc=off,mem-path=%s", memory, c.reopen(ram)))
		c.ram = firstFD + len(c.files) - 1
	}
	c.add("-machine", machine, "-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(cpus), "-m", strconv.FormatInt(memory>>20, 10)+"M",
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-global", "virtio-mmio.force-legacy=false",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
}

// translated is how many MiB of translated code an emulated processor keeps. With 16 it translates most code of a start several times: a machine then takes a third
// longer to be there.
const translated = 32

// boots has the machine begin with a system's kernel, its console in one file and its exit in another.
func (c *command) boots(s shape, kernel, initrd, console, exit *os.File, extra ...string) {
	c.written("console", console)
	c.written("exit", exit)
	line := words(s.Accel)
	c.add("-serial", "chardev:console", "-device", "isa-serial,chardev=exit,index=1", "-kernel", c.reopen(kernel), "-initrd", c.reopen(initrd),
		"-append", strings.Join(append([]string{line}, extra...), " "))
}

// words are those of the kernel's command line.
func words(accel string) string {
	line := "console=ttyS0 loglevel=4 panic=-1 reboot=t random.trust_cpu=on cryptomgr.notests apparmor=0 lsm=capability audit=0 init_on_alloc=0 initcall_blacklist=tracer_init_tracefs 8250.nr_uarts=2"
	if accel == "tcg" { // a guest on a busy host measures its clock wrongly, and hangs
		line += fmt.Sprintf(" mitigations=off tsc=reliable tsc_early_khz=%d", clockRate())
	}
	return line
}

// disk is a file system that is only read.
func (c *command) disk(s shape, serial string, f *os.File) {
	c.add("-blockdev", "driver=raw,node-name="+serial+",read-only=on,file.driver=file,file.filename="+c.set(f)+",file.locking=off,file.read-only=on",
		"-device", s.device("blk")+",drive="+serial+",serial="+serial)
}

// netdev is an interface of the machine.
func (c *command) netdev(s shape, i int, p *port) {
	backend := "tap,fd=" + strconv.Itoa(c.fd(p.tap))
	if p.vhost != nil && s.Accel == "kvm" {
		backend += ",vhost=on,vhostfd=" + strconv.Itoa(c.fd(p.vhost))
	}
	for _, f := range p.hold {
		c.fd(f)
	}
	c.interfaceOf(s.device("net"), backend, i, p.mac, p.mtu)
}

// devices are those that every machine has besides its interfaces.
func (c *command) devices(s shape, modules, root, config, control, qmp, log *os.File) {
	c.disk(s, channel.DiskModules, modules)
	c.disk(s, channel.DiskRoot, root)
	c.disk(s, channel.DiskConfig, config)
	c.lines(s, control, qmp, log)
	c.add("-device", s.device("balloon")+",free-page-reporting=on,deflate-on-oom=on")
}

// interfaceOf a machine, at a backend of QEMU's.
func (c *command) interfaceOf(device, backend string, i int, mac net.HardwareAddr, mtu int) {
	id := "net" + strconv.Itoa(i)
	// No filter of VLANs: a function sees what a veth would show it. No word of the link's state: it is up from the beginning. A kernel that has to ask for it takes the
	// interface to be down at first, up to a second long, and a bridge in the machine does not forward meanwhile.
	c.add("-netdev", backend+",id="+id, "-device", fmt.Sprintf("%s,netdev=%s,mac=%s,host_mtu=%d,ctrl_vlan=off,status=off", device, id, mac, mtu))
}

// lines are those between the machine and us.
func (c *command) lines(s shape, control, qmp, log *os.File) {
	c.add("-chardev", fmt.Sprintf("socket,id=control,fd=%d,server=on,wait=off", c.fd(control)),
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", c.fd(qmp)), "-mon", "chardev=qmp,mode=control")
	c.written("log", log)
	c.add("-device", s.device("serial"), "-device", "virtserialport,chardev=control,name="+channel.PortControl, "-device", "virtserialport,chardev=log,name="+channel.PortLog)
}
