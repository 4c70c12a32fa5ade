package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Our tc filter on a link: told from foreign ones by all three.
const (
	filterName     = "weir"
	filterPriority = 0x5757
	filterHandle   = 1
)

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
	in := spot{pin + "-ingress", p.Index, false, s.programs.ingressTCX, s.programs.ingressCls, &p.Clsact}
	if p.kind() != portEndpoint {
		return []spot{in}
	}
	return []spot{in, {pin + "-egress", p.Index, true, s.programs.egressTCX, s.programs.egressCls, &p.Clsact}}
}

// inner spot of a wire's port, in the function's namespace.
func (s *Switch) inner(p *port) spot {
	pin := filepath.Join(s.linksDir(), fmt.Sprint(p.Slot))
	return spot{pin + "-wire", p.Inner, false, s.programs.wire, s.programs.wire, &p.InnerCl}
}

func (p *spot) attachType() ebpf.AttachType {
	if p.egress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

func (p *spot) parent() uint32 {
	if p.egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
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
	id, err := programID(p.tcx)
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

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("the kernel tells no program id (want 4.13)")
	}
	return id, nil
}

// attachTCX makes and pins the link. The thread must be in the interface's namespace.
func (p *spot) attachTCX() error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: int(p.index), Program: p.tcx, Attach: p.attachType()})
	if err != nil {
		return fmt.Errorf("attach tcx to interface %d: %w", p.index, err)
	}
	defer l.Close()
	if err := l.Pin(p.pin); err != nil {
		return fmt.Errorf("pin tcx link: %w", err)
	}
	return nil
}

// filters on one side of a link.
func (p *spot) filters(nl *netlink.Handle) ([]netlink.Filter, error) {
	var all []netlink.Filter
	err := retry(func() (err error) {
		all, err = nl.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(p.index)}}, p.parent())
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no clsact there
	}
	return all, err
}

func (p *spot) filter(nl *netlink.Handle) (*netlink.BpfFilter, error) {
	all, err := p.filters(nl)
	if err != nil {
		return nil, fmt.Errorf("list filters of interface %d: %w", p.index, err)
	}
	for _, f := range all {
		b, ok := f.(*netlink.BpfFilter)
		if ok && b.Priority == filterPriority && b.Handle == filterHandle && strings.HasPrefix(b.Name, filterName) {
			return b, nil
		}
	}
	return nil, nil
}

// addClsact makes the qdisc; false: there is one already.
func (p *spot) addClsact(nl *netlink.Handle) (made bool, err error) {
	err = nl.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(p.index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("add clsact to interface %d: %w", p.index, err)
	}
	return err == nil, nil
}

// attachCls makes or replaces the filter.
func (p *spot) attachCls(nl *netlink.Handle) error {
	fresh := false
	if !*p.made {
		var err error
		if fresh, err = p.addClsact(nl); err != nil {
			return err
		}
		*p.made = fresh
	}
	if !fresh { // there may be a filter
		have, err := p.filter(nl)
		if err != nil {
			return err
		}
		id, err := programID(p.cls)
		if err != nil {
			return err
		}
		if have != nil && ebpf.ProgramID(have.Id) == id {
			return nil
		}
	}
	replace := func() error {
		return nl.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: int(p.index), Parent: p.parent(), Handle: filterHandle, Protocol: unix.ETH_P_ALL, Priority: filterPriority},
			Fd:          p.cls.FD(), Name: filterName, DirectAction: true,
		})
	}
	err := replace()
	if errors.Is(err, unix.EINVAL) && !fresh { // recorded before it was made, and then the process died
		if _, err = p.addClsact(nl); err == nil {
			err = replace()
		}
	}
	if err != nil {
		return fmt.Errorf("attach filter to interface %d: %w", p.index, err)
	}
	return nil
}

// dropFilter takes our filter away.
func (p *spot) dropFilter(nl *netlink.Handle) error {
	have, err := p.filter(nl)
	if err != nil || have == nil {
		return err
	}
	have.LinkIndex, have.Parent = int(p.index), p.parent()
	if err := nl.FilterDel(have); err != nil && !gone(err) {
		return fmt.Errorf("remove filter from interface %d: %w", p.index, err)
	}
	return nil
}

// detachCls takes our filter away, and the qdisc if it is ours and nobody else uses it. Making or removing a clsact qdisc drops
// what the interface is transmitting just then (the kernel takes all its queues out of service for a moment).
func (p *spot) detachCls(nl *netlink.Handle) error {
	if err := p.dropFilter(nl); err != nil {
		return err
	}
	if !*p.made {
		return nil
	}
	for _, egress := range []bool{false, true} {
		side := spot{index: p.index, egress: egress}
		left, err := side.filters(nl)
		if err != nil || len(left) > 0 {
			return err
		}
	}
	err := nl.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(p.index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !gone(err) {
		return fmt.Errorf("remove clsact from interface %d: %w", p.index, err)
	}
	*p.made = false
	return nil
}

// gone: what was to be removed, or its interface, is not there any more.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO)
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
	return s.state.Hook == HookAuto, p.attachCls(nl)
}

// detach takes our program off a spot.
func (p *spot) detach(nl *netlink.Handle, wait bool) error {
	if err := p.unlink(wait); err != nil {
		return err
	}
	return p.detachCls(nl)
}

// unlink lets go of the tcx link. The kernel takes some 10 ms to detach it; without wait it does so by itself.
func (p *spot) unlink(wait bool) error {
	var l link.Link
	if wait {
		var err error
		if l, err = link.LoadPinnedLink(p.pin, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open link %s: %w", p.pin, err)
		}
	}
	err := os.Remove(p.pin)
	if l != nil {
		l.Close() // the last reference
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin link: %w", err)
	}
	return nil
}

// retry repeats an interrupted dump.
func retry(f func() error) error {
	var err error
	for range 10 {
		if err = f(); err == nil || !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}
