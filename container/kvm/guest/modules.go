package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

// Buses by which a machine may have its devices: modules whose devices are found as soon as they are loaded.
const (
	busMMIO = "virtio_mmio"
	busPCI  = "virtio_pci"
)

// bootModules loads what finds the disks and the ports. What a template has loaded is there.
func (m *machine) bootModules() error {
	if !m.copied {
		if err := drivers(); err != nil {
			return err
		}
	}
	return buses()
}

// drivers loads what knows the devices, but finds none.
func drivers() error {
	err := eachBoot(func(name string) bool { return name != busMMIO && name != busPCI })
	// Free memory is given back in pieces of 16 KiB, not of 2 MiB as the kernel would have it: a small machine has few of those. A kernel that cannot
	// gives back less.
	_ = os.WriteFile("/sys/module/page_reporting/parameters/page_reporting_order", []byte("2"), 0)
	return err
}

// buses loads what finds the devices.
func buses() error {
	pci, _ := os.ReadDir("/sys/bus/pci/devices")
	return eachBoot(func(name string) bool { return name == busMMIO || name == busPCI && len(pci) > 0 })
}

// eachBoot loads those of the modules in the initial file system that are wanted, in order.
func eachBoot(wanted func(name string) bool) error {
	all, err := os.ReadDir(channel.BootModules)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return wrap("modules", err)
	}
	for _, e := range all {
		_, file, _ := strings.Cut(e.Name(), "-") // NN-NAME.ko
		if !wanted(strings.TrimSuffix(file, ".ko")) {
			continue
		}
		if err := load(filepath.Join(channel.BootModules, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func load(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("module "+path, err)
	}
	defer unix.Close(fd)
	if err := unix.FinitModule(fd, "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return wrap("module "+path, err)
	}
	return nil
}

// expected loads what the program will probably ask for. Asked by the kernel, each costs a process of its own, while the program waits.
func (m *machine) expected() error {
	for _, name := range m.spec.Modules {
		_ = modprobe(name) // the kernel may have it built in, or not at all: the program will see
	}
	return nil
}

// modprobe loads what the kernel asks for by one of a module's names.
func modprobe(name string) error {
	text, err := os.ReadFile("/modules/" + channel.IndexFile)
	if err != nil {
		return err
	}
	name = strings.ReplaceAll(name, "-", "_")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != name {
			continue
		}
		for _, file := range f[1:] {
			if err := load("/modules/" + file); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New(name + ": no such module")
}
