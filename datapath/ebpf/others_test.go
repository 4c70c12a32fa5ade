package ebpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/datapath/suite"
)

// A BPF program at netfilter's hooks sees bridged packets as a table's chain does: where they are shown to its family, and not at the hooks of what the
// host itself receives.
func TestProgramsAtNetfilterSeeBridgedFrames(t *testing.T) {
	h := newHost(t, Options{})
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}}) // accepts
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	attach := func(family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) (l link.Link) {
		t.Helper()
		if err := h.Host.Do(func() (err error) {
			l, err = link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: family, Hook: hook, Priority: 1})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	past := func(want bool) {
		t.Helper()
		if err := h.Switch.(*Switch).lookAgain(); err != nil {
			t.Fatal(err)
		}
		if got := h.past(); got != want {
			t.Errorf("frames pass the bridge by: %v, want %v", got, want)
		}
	}
	// gone waits until a link that is closed is gone from the kernel's list, a grace period later.
	gone := func(l link.Link) {
		t.Helper()
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		suite.Until(t, "the link to be gone", func() bool {
			again, err := link.NewFromID(info.ID)
			if err == nil {
				again.Close()
			}
			return err != nil
		})
	}
	h.shown(t, false)
	l := attach(link.NetfilterProtoIPv4, link.NetfilterInetForward)
	past(true) // it is shown nothing
	h.shown(t, true)
	past(false)
	past(false)
	gone(l)
	past(true)
	l = attach(link.NetfilterProtoIPv4, link.NetfilterInetLocalIn)
	past(true)
	gone(l)
	l = attach(link.NetfilterProtoIPv6, link.NetfilterInetForward)
	past(true) // only IPv4 is shown
	second := attach(link.NetfilterProtoIPv4, link.NetfilterInetPreRouting)
	past(false)
	gone(l)
	past(false)
	gone(second)
	past(true)
}
