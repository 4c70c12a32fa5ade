package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath/internal/tcfilter"
	"weir.dev/weir/netns"
)

// letGo bounds the wait for a link that was unpinned: an RCU grace period and a work queue of the kernel.
const letGo = 2 * time.Second

// spot is a place where one program is attached.
type spot struct {
	pin    string // of the tcx link
	index  uint32
	egress bool
	tcx    *ebpf.Program
	cls    *ebpf.Program
	made   *bool // the clsact qdisc is ours
}

// outer spots of a port, in the switch's namespace.
func (s *Switch) outer(p *port) []spot {
	pin := filepath.Join(s.linksDir(), fmt.Sprint(p.Slot))
	in := spot{pin + "-ingress", p.Index, false, s.programs.IngressTcx, s.programs.IngressCls, &p.Clsact}
	if p.kind() != portEndpoint {
		return []spot{in}
	}
	return []spot{in, {pin + "-egress", p.Index, true, s.programs.EgressTcx, s.programs.EgressCls, &p.Clsact}}
}

// inner spot of a wire's port, in the function's namespace.
func (s *Switch) inner(p *port) spot {
	pin := filepath.Join(s.linksDir(), fmt.Sprint(p.Slot))
	return spot{pin + "-wire", p.Inner, false, s.programs.Wire, s.programs.Wire, &p.InnerCl}
}

func (p *spot) attachType() ebpf.AttachType {
	if p.egress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

// side is the spot as a place for a tc filter.
func (p *spot) side() tcfilter.Spot {
	return tcfilter.Spot{Index: p.index, Egress: p.egress, Made: p.made}
}

// linked brings the spot's tcx link up to this build's program. False: there is none.
func (p *spot) linked() (bool, error) {
	l, err := link.LoadPinnedLink(p.pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open link %s: %w", p.pin, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("open link %s: %w", p.pin, err)
	}
	if at := info.TCX(); at == nil || at.Ifindex != p.index { // of an interface that is gone
		return false, os.Remove(p.pin)
	}
	id, err := tcfilter.ProgramID(p.tcx)
	if err != nil {
		return false, err
	}
	if info.Program == id {
		return true, nil
	}
	if err := l.Update(p.tcx); err != nil {
		return false, fmt.Errorf("replace program of tcx link: %w", err)
	}
	return true, nil
}

// attachTCX makes and pins the link. The thread must be in the interface's namespace. The kernel refuses a program that is attached
// there already: that is a link of ours which was let go of and is not gone yet.
func (p *spot) attachTCX() error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: int(p.index), Program: p.tcx, Attach: p.attachType()})
	for end := time.Now().Add(letGo); errors.Is(err, fs.ErrExist) && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
		l, err = link.AttachTCX(link.TCXOptions{Interface: int(p.index), Program: p.tcx, Attach: p.attachType()})
	}
	if err != nil {
		return fmt.Errorf("attach tcx to interface %d: %w", p.index, err)
	}
	defer l.Close()
	if err := l.Pin(p.pin); err != nil {
		return fmt.Errorf("pin tcx link: %w", err)
	}
	return nil
}

// attach makes sure of a spot by the hook in use; at once when the link may be busy already. True: a tcx link may take over from the
// filter later.
func (s *Switch) attach(space *netns.Space, nl *netlink.Handle, p spot, busy bool) (later bool, err error) {
	if s.state.Hook != HookClsact {
		linked, err := p.linked()
		if err != nil {
			return false, err
		}
		if linked {
			return false, nil
		}
		if s.state.Hook == HookTCX || busy {
			return false, space.Do(p.attachTCX)
		}
	}
	return s.state.Hook == HookAuto, p.side().Attach(nl, p.cls)
}

// detach takes our program off a spot.
func (p *spot) detach(nl *netlink.Handle, wait bool) error {
	if err := p.unlink(wait); err != nil {
		return err
	}
	return p.side().Detach(nl)
}

// unlink lets go of the tcx link. The kernel takes some 10 ms to detach it; without wait it does so by itself, later: a pin's inode
// is freed after an RCU grace period.
func (p *spot) unlink(wait bool) error {
	if wait {
		if err := p.cut(); err != nil {
			return err
		}
	}
	if err := os.Remove(p.pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin link: %w", err)
	}
	return nil
}

// cut detaches the pinned link, if there is one.
func (p *spot) cut() error {
	l, err := link.LoadPinnedLink(p.pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open link %s: %w", p.pin, err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		return fmt.Errorf("detach link %s: %w", p.pin, err)
	}
	return nil
}
