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

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
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

// hooks are where the programs are attached: at the switch's side of every port, and inside functions for the forwarder.
type hooks struct {
	home    *home.Home
	tables  *tables
	bridge  *bridge
	waiting *waiting
}

// outer spots of a port, in the switch's namespace.
func (h *hooks) outer(p *port) []spot {
	pin := filepath.Join(h.tables.linksDir(), fmt.Sprint(p.Slot))
	in := spot{pin + "-ingress", p.Index, false, h.tables.programs.IngressTcx, h.tables.programs.IngressCls, &p.Clsact}
	if p.kind() != portEndpoint {
		return []spot{in}
	}
	return []spot{in, {pin + "-egress", p.Index, true, h.tables.programs.EgressTcx, h.tables.programs.EgressCls, &p.Clsact}}
}

// inner spot of a wire's port, in the function's namespace.
func (h *hooks) inner(p *port) spot {
	pin := filepath.Join(h.tables.linksDir(), fmt.Sprint(p.Slot))
	return spot{pin + "-wire", p.Inner, false, h.tables.programs.Wire, h.tables.programs.Wire, &p.InnerCl}
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
func (h *hooks) attach(space *netns.Space, nl *netlink.Handle, p spot, busy bool) (later bool, err error) {
	if h.tables.state.Hook != HookClsact {
		linked, err := p.linked()
		if err != nil {
			return false, err
		}
		if linked {
			return false, nil
		}
		if h.tables.state.Hook == HookTCX || busy {
			return false, space.Do(p.attachTCX)
		}
	}
	return h.tables.state.Hook == HookAuto, p.side().Attach(nl, p.cls)
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

// attachOuter puts the programs at the switch's side of a port.
func (h *hooks) attachOuter(p *port, busy bool) error {
	made := p.Clsact
	for _, at := range h.outer(p) {
		later, err := h.attach(h.home.Space, h.home.NL, at, busy)
		if err != nil {
			return err
		}
		if later {
			h.waiting.add(p.Slot)
		}
	}
	if made != p.Clsact && p.kind() == portEndpoint {
		return h.home.Store.Write(record.File("endpoint", p.E.Name), p)
	}
	return nil
}

// releaseLink gives an endpoint's link back as it was. A link that is gone needs nothing.
func (h *hooks) releaseLink(p *port) error {
	l, err := hostlink.ByIndex(h.home.NL, int(p.Index), p.Link)
	if err != nil {
		return err
	}
	if l == nil {
		for _, at := range h.outer(p) {
			if err := at.unlink(false); err != nil {
				return err
			}
		}
		return nil
	}
	if l.Attrs().MasterIndex == h.bridge.index {
		if err := h.home.NL.LinkSetNoMaster(l); err != nil && !hostlink.Gone(err) {
			return fmt.Errorf("take %s out of %s: %w", p.Link, h.home.Instance.Bridge(), err)
		}
	}
	for _, at := range h.outer(p) {
		if err := at.detach(h.home.NL, !h.home.Made(l)); err != nil {
			return err
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(h.home.NL, l)
	}
	return nil
}

// leaveLinks lets go of the tcx links of a port that moves: an interface of the same index may be in its new namespace.
func (h *hooks) leaveLinks(p *port) error {
	for _, at := range append(h.outer(p), h.inner(p)) {
		if err := at.unlink(false); err != nil {
			return err
		}
	}
	return nil
}

// attachFunction puts the programs at a function's ports: outside, and inside for a forwarder of ours.
func (h *hooks) attachFunction(fn *function, space *netns.Space) error {
	before := fn.written
	for _, p := range fn.Ports {
		if err := h.attachOuter(p, false); err != nil {
			return err
		}
	}
	if err := h.attachInner(fn, space); err != nil {
		return err
	}
	if before != fn.qdiscs() {
		fn.written = fn.qdiscs()
		return h.home.Store.Write(record.File("function", fn.F.Name), fn)
	}
	return nil
}

// attachInner puts the forwarder inside, or takes away one that was there before.
func (h *hooks) attachInner(fn *function, space *netns.Space) error {
	var nl *netlink.Handle
	for _, p := range fn.Ports {
		at := h.inner(p)
		if fn.F.Forwarder == "" {
			if err := at.unlink(false); err != nil { // it had one before
				return err
			}
			if !p.InnerCl {
				continue
			}
		}
		if nl == nil {
			var err error
			if nl, err = hostlink.Handle(space); err != nil {
				return err
			}
			defer nl.Close()
		}
		if fn.F.Forwarder == "" {
			if err := at.side().Detach(nl); err != nil {
				return err
			}
			continue
		}
		later, err := h.attach(space, nl, at, false)
		if err != nil {
			return fmt.Errorf("in %s: %w", space, err)
		}
		if later {
			h.waiting.add(p.Slot)
		}
	}
	return nil
}

// releasePort takes the program off the switch's side of a function's port.
func (h *hooks) releasePort(p *port) error {
	for _, at := range h.outer(p) {
		if err := at.unlink(false); err != nil {
			return err
		}
	}
	l, err := hostlink.ByIndex(h.home.NL, int(p.Index), p.Link)
	if err != nil || l == nil {
		return err
	}
	for _, at := range h.outer(p) {
		if err := at.side().Detach(h.home.NL); err != nil {
			return err
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(h.home.NL, l)
	}
	return nil
}

// releaseInner takes the forwarder away. A namespace that is gone took it along.
func (h *hooks) releaseInner(fn *function) error {
	left, inside := false, []tcfilter.Spot{}
	for _, p := range fn.Ports {
		at := h.inner(p)
		if err := at.unlink(false); err != nil {
			return err
		}
		left, inside = left || p.InnerCl, append(inside, at.side())
	}
	if !left || !netns.Exists(fn.F.Netns) {
		return nil
	}
	return tcfilter.DetachIn(fn.F.Netns, inside)
}
