package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// probe tries a feature of the kernel.
type probe struct {
	name, purpose, since string
	try                  func() error
}

func kernelProbes() []probe {
	link := func(make func(netlink.LinkAttrs) netlink.Link) func() error {
		return func() error {
			return nowhere(func() error {
				a := netlink.NewLinkAttrs()
				a.Name = "probe"
				return netlink.LinkAdd(make(a))
			})
		}
	}
	return []probe{
		{"veth", "all platforms", "CONFIG_VETH", link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Veth{LinkAttrs: a, PeerName: "peer"} })},
		{"bridge", "platforms bridges and docker", "CONFIG_BRIDGE", link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} })},
		{"XDP live frames", "experiments with generated frames", "Linux 5.18", liveFrames},
		{"overlayfs", "roots of containers", "CONFIG_OVERLAY_FS", overlay},
		{"KVM", "platforms that are virtual machines", "a CPU with virtualization, CONFIG_KVM", kvm},
	}
}

// nowhere runs f in a network namespace that nobody else sees and that ends with it.
func nowhere(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here, and its namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// liveFrames sends one frame through a program that drops it.
func liveFrames() (err error) {
	p, err := cilium.NewProgram(&cilium.ProgramSpec{
		Name: "probe", Type: cilium.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // XDP_DROP
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	frame := make([]byte, 64)
	_, err = p.Run(&cilium.RunOptions{Data: frame, Repeat: 1, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
	return err
}

func overlay() error {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(text)) {
		if name == "overlay" {
			return nil
		}
	}
	return errors.New("not among /proc/filesystems")
}

func kvm() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}
