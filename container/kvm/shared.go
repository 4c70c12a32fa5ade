package kvm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/portkind"
)

const (
	// firstSlot on PCI of the devices of shared ports; the next have the next ones. Machines of all kinds have them free.
	firstSlot = 0x10
	// sharedMTU of a port that shares memory: its switch does not tell another.
	sharedMTU = 1500
	// ringSize of such a port. QEMU's own 256 hold too few frames for two sides that take turns on a processor.
	ringSize = 1024
	// directPages of 2 MiB are those of a program that drives its ports itself, and directMemory the least that its machine then needs.
	directPages  = 32
	directMemory = 192 << 20
	// joinedIn is how long a switch may take to connect to all ports of a machine, and to agree on what the two do. DPDK tries every second.
	joinedIn = 30 * time.Second
	// mostPath is how long the path of a unix socket may be.
	mostPath = 107
)

// DirectDriver is the driver of a machine's kernel by which a program drives its ports itself.
const DirectDriver = channel.DirectDriver

// Device is where on PCI a machine has its i-th shared port.
func Device(i int) string { return fmt.Sprintf("0000:00:%02x.0", firstSlot+i) }

var portPattern = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)

// checkShared finds what QEMU or the switch would say badly, of a machine with so much memory.
func checkShared(s *container.Shared, memory int64) error {
	if s == nil {
		return nil
	}
	what := fmt.Sprintf("ports of kind %s", portkind.VhostUser)
	if n := len(s.Ports); n == 0 || n > mostLinks {
		return fmt.Errorf("%s: %d: want 1 to %d", what, n, mostLinks)
	}
	for i, name := range s.Ports {
		switch {
		case !portPattern.MatchString(name) || slices.Contains(s.Ports[:i], name):
			return fmt.Errorf("%s: name %q: want up to 15 small letters and digits, a letter first, and each name once", what, name)
		case len(filepath.Join(s.Dir, name)) > mostPath:
			return fmt.Errorf("%s: socket %s: its path has more than %d bytes", what, filepath.Join(s.Dir, name), mostPath)
		}
	}
	if s.Direct && memory < directMemory {
		return fmt.Errorf("memory %dM: a machine whose program drives its ports itself wants at least %dM, %dM of it in hugepages", memory>>20, directMemory>>20, directPages*2)
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil || !filepath.IsAbs(s.Dir) {
		return errors.Join(fmt.Errorf("%s: %q: want the path of a directory for their sockets", what, s.Dir), err)
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || !slices.Contains(s.Ports, e.Name()) {
			return fmt.Errorf("%s: directory %s has %s in it: want one for nothing but their sockets, as it is given to the machine's user", what, s.Dir, e.Name())
		}
	}
	return nil
}

// socketDir is a directory, given to who QEMU is: it has to make the sockets itself, as it passes its memory only by those that it has opened by a name.
func socketDir(dir string, user uint32) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chown(int(user), int(user)), f.Chmod(0o700)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// share has a machine use its shared ports: by its kernel's driver, or by its program's.
func share(m *channel.Machine, c kernel.Container) {
	for i, name := range c.Shared.Ports {
		if c.Shared.Direct {
			m.Devices = append(m.Devices, Device(i))
		} else {
			m.Links = append(m.Links, channel.Link{MAC: sharedMAC(c.ID, name).String(), Name: name, MTU: sharedMTU})
		}
	}
	if c.Shared.Direct {
		m.Hugepages = directPages
	}
}

// sharedMAC is the address of a port: nobody else has said one.
func sharedMAC(id, name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(id + "/" + name))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// share gives the machine its shared ports, behind so many others. They are on PCI in machines of all kinds: there DPDK finds them. QEMU listens, and begins only when somebody has
// connected to each.
func (c *command) share(s shape, others int, of kernel.Container, dir *os.File) {
	if dir == nil {
		return
	}
	fd := c.fd(dir)
	for i, name := range of.Shared.Ports {
		id := "shared" + name
		c.add("-chardev", fmt.Sprintf("socket,id=%s,path=/proc/self/fd/%d/%s,server=on,wait=off", id, fd, name))
		device := fmt.Sprintf("virtio-net-pci,addr=0x%x,disable-legacy=on,rx_queue_size=%d,tx_queue_size=%d", firstSlot+i, ringSize, ringSize)
		if s.Accel == "tcg" { // whose interrupts are no messages to QEMU 7.2's vhost-user
			device += ",vectors=0"
		}
		c.interfaceOf(device, "vhost-user,chardev="+id, others+i, sharedMAC(of.ID, name), sharedMTU)
	}
}

// joined waits until a switch serves all shared ports: only then QEMU answers.
func (e *Engine) joined(ctx context.Context, c kernel.Container) error {
	wait, cancel := context.WithTimeout(ctx, e.joins)
	defer cancel()
	err := converse(wait, c.Bundle, nil, question{Execute: "query-status"})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case wait.Err() == nil:
		return e.explain(c, err)
	}
	port := c.Shared.Ports[0]
	said := tail(c.Bundle, wordsFile, 100)
	for _, name := range c.Shared.Ports {
		if strings.LastIndex(said, "/"+name+",") > strings.LastIndex(said, "/"+port+",") {
			port = name
		}
	}
	return e.explain(c, fmt.Errorf("port %s: no switch serves it within %v: a port of kind %s of the switch has to connect to %s", port, e.joins, portkind.VhostUser, filepath.Join(c.Shared.Dir, port)))
}
