package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

// beTemplate comes back in a copy of this machine: when it has disks. Until then no driver has seen a device, so a copy may have others, as long as they are of the
// same kinds in the same places.
func (m *machine) beTemplate() error {
	m.copied = true
	if found, _ := filepath.Glob(filepath.Join(channel.BootModules, "*-"+busMMIO+".ko")); len(found) == 0 {
		return errors.New("template: the kernel finds devices by itself: " + busMMIO + " is no module")
	}
	if err := drivers(); err != nil {
		return err
	}
	disks, err := rawDisks()
	if err != nil {
		return wrap("template", err)
	}
	if len(disks) == 0 {
		return errors.New("template: it has no disks")
	}
	if err := tell(channel.TemplateReady); err != nil {
		return wrap("template", err)
	}
	for !disks[0].larger() {
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// rawDisk are the registers of a virtio disk that no driver has: virtio 1.2, sections 4.2.2 and 5.2.4.
type rawDisk []byte

const (
	registers  = 0x200
	magicAt    = 0x000
	deviceAt   = 0x008
	capacityAt = 0x100 // its low half: sectors of 512 bytes
	magic      = 0x74726976
	block      = 2
)

func (d rawDisk) read(at int) uint32 {
	// As one access: a register is not memory.
	return *(*uint32)(unsafe.Pointer(&d[at]))
}

func (d rawDisk) larger() bool { return d.read(capacityAt) > 1 }

// rawDisks finds disks by where ACPI says that there are devices.
func rawDisks() (all []rawDisk, err error) {
	text, err := os.ReadFile("/proc/iomem")
	if err != nil {
		return nil, err
	}
	mem, err := os.OpenFile("/dev/mem", os.O_RDONLY|unix.O_SYNC, 0)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	for line := range strings.Lines(string(text)) {
		where, name, _ := strings.Cut(strings.TrimSpace(line), " : ")
		first, _, _ := strings.Cut(where, "-")
		at, err := strconv.ParseInt(first, 16, 64)
		if err != nil || !strings.HasPrefix(name, "LNRO0005:") {
			continue
		}
		page := at &^ int64(os.Getpagesize()-1)
		mapped, err := unix.Mmap(int(mem.Fd()), page, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		d := rawDisk(mapped[at-page:][:registers])
		if d.read(magicAt) == magic && d.read(deviceAt) == block {
			all = append(all, d)
		}
	}
	return all, nil
}

// own makes what a machine has of its template its own: random numbers, and the time.
func (m *machine) own() error {
	if len(m.spec.Seed) > 0 {
		if err := reseed(m.spec.Seed); err != nil {
			return wrap("random numbers", err)
		}
	}
	if m.spec.Now != 0 {
		now := unix.NsecToTimeval(max(m.spec.Now, clock()))
		return wrap("time", unix.Settimeofday(&now))
	}
	return nil
}

// clock is what the machine's hardware clock says, in nanoseconds since 1970 and whole seconds; 0: nothing. It goes on between a template and its copies.
func clock() int64 {
	f, err := os.Open("/dev/rtc0")
	if err != nil {
		return 0
	}
	defer f.Close()
	t, err := unix.IoctlGetRTCTime(int(f.Fd()))
	if err != nil {
		return 0
	}
	return time.Date(int(t.Year)+1900, time.Month(t.Mon+1), int(t.Mday), int(t.Hour), int(t.Min), int(t.Sec), 0, time.UTC).UnixNano()
}

// reseed gives the kernel entropy, and has it make all random numbers from that from now on.
func reseed(seed []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info := binary.NativeEndian.AppendUint32(nil, uint32(len(seed)*8)) // struct rand_pool_info
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	info = append(info, seed...)
	if err := ioctl(int(f.Fd()), unix.RNDADDENTROPY, &info[0]); err != nil {
		return err
	}
	const rndReseedCRNG = 0x5207
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), rndReseedCRNG, 0); errno != 0 {
		return errno
	}
	return nil
}
