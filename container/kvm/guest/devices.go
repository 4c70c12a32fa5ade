package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

const hugepages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

// hugepages sets memory apart, before it is in pieces.
func (m *machine) hugepages() error {
	want := m.spec.Hugepages
	if want == 0 {
		return nil
	}
	err := os.WriteFile(hugepages, []byte(strconv.Itoa(want)), 0)
	text, rerr := os.ReadFile(hugepages)
	if err = errors.Join(err, rerr); err != nil {
		return wrap("hugepages of 2 MiB (does this kernel have CONFIG_HUGETLBFS?)", err)
	}
	if have, _ := strconv.Atoi(strings.TrimSpace(string(text))); have < want {
		return errors.New("hugepages: the machine's memory has " + strconv.Itoa(have) + " of " + strconv.Itoa(want) + ": give the function more")
	}
	return nil
}

// devices leaves devices to the program: it finds each as a file, /dev/uioN.
func (m *machine) devices() error {
	if len(m.spec.Devices) == 0 {
		return nil
	}
	const drivers = "/sys/bus/pci/drivers/"
	err := modprobe(channel.DirectDriver)
	if _, serr := os.Stat(drivers + channel.DirectDriver); serr != nil {
		return wrap("devices for the program (does this kernel have CONFIG_UIO_PCI_GENERIC?)", errors.Join(err, serr))
	}
	for _, at := range m.spec.Devices {
		if err := m.device("/sys/bus/pci/devices/"+at, at); err != nil {
			return wrap("device "+at, err)
		}
	}
	return nil
}

func (m *machine) device(dir, at string) error {
	if _, err := await("a device on PCI", func() (string, bool) { _, err := os.Stat(dir); return "", err == nil }); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/driver_override", []byte(channel.DirectDriver), 0); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/driver/unbind", []byte(at), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(at), 0); err != nil {
		return err
	}
	node, err := await("the driver "+channel.DirectDriver+" on it", func() (string, bool) {
		all, _ := filepath.Glob(dir + "/uio/uio*")
		if len(all) == 0 {
			return "", false
		}
		return all[0], true
	})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(node + "/dev") // MAJOR:MINOR
	if err != nil {
		return err
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(string(text)), ":")
	a, aerr := strconv.Atoi(major)
	b, berr := strconv.Atoi(minor)
	if err := errors.Join(aerr, berr); err != nil {
		return err
	}
	path := filepath.Join(m.root, "dev", filepath.Base(node))
	return errors.Join(unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(a), uint32(b)))), os.Chown(path, int(m.spec.UID), int(m.spec.GID)))
}
