// Package tcfilter attaches one BPF program as a tc filter to one side of an interface, and takes it off again, without touching
// filters and qdiscs of others.
package tcfilter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/netns"
)

// Our tc filter on a link: told from foreign ones by all three.
const (
	name     = "weir"
	priority = 0x5757
	handle   = 1
)

// Spot is a side of an interface. Made says that its clsact qdisc is ours; Attach and Detach keep it true.
type Spot struct {
	Index  uint32
	Egress bool
	Made   *bool
}

func (p Spot) parent() uint32 {
	if p.Egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// filters on this side of the link.
func (p Spot) filters(nl *netlink.Handle) ([]netlink.Filter, error) {
	var all []netlink.Filter
	err := hostlink.Retry(func() (err error) {
		all, err = nl.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(p.Index)}}, p.parent())
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // no clsact there
	}
	return all, err
}

func (p Spot) filter(nl *netlink.Handle) (*netlink.BpfFilter, error) {
	all, err := p.filters(nl)
	if err != nil {
		return nil, fmt.Errorf("list filters of interface %d: %w", p.Index, err)
	}
	for _, f := range all {
		b, ok := f.(*netlink.BpfFilter)
		if ok && b.Priority == priority && b.Handle == handle && strings.HasPrefix(b.Name, name) {
			return b, nil
		}
	}
	return nil, nil
}

// addClsact makes the qdisc; false: there is one already.
func (p Spot) addClsact(nl *netlink.Handle) (made bool, err error) {
	err = nl.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(p.Index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("add clsact to interface %d: %w", p.Index, err)
	}
	return err == nil, nil
}

// Attach makes or replaces the filter. One with the same program stays.
func (p Spot) Attach(nl *netlink.Handle, program *ebpf.Program) error {
	fresh := false
	if !*p.Made {
		var err error
		if fresh, err = p.addClsact(nl); err != nil {
			return err
		}
		*p.Made = fresh
	}
	if !fresh { // there may be a filter
		have, err := p.filter(nl)
		if err != nil {
			return err
		}
		id, err := ProgramID(program)
		if err != nil {
			return err
		}
		if have != nil && ebpf.ProgramID(have.Id) == id {
			return nil
		}
	}
	replace := func() error {
		return nl.FilterReplace(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: int(p.Index), Parent: p.parent(), Handle: handle, Protocol: unix.ETH_P_ALL, Priority: priority},
			Fd:          program.FD(), Name: name, DirectAction: true,
		})
	}
	err := replace()
	if errors.Is(err, unix.EINVAL) && !fresh { // recorded before it was made, and then the process died
		if _, err = p.addClsact(nl); err == nil {
			err = replace()
		}
	}
	if err != nil {
		return fmt.Errorf("attach filter to interface %d: %w", p.Index, err)
	}
	return nil
}

// Attached: our filter is there, with whatever program.
func (p Spot) Attached(nl *netlink.Handle) (bool, error) {
	f, err := p.filter(nl)
	return f != nil, err
}

// Drop takes our filter away and leaves the qdisc.
func (p Spot) Drop(nl *netlink.Handle) error {
	have, err := p.filter(nl)
	if err != nil || have == nil {
		return err
	}
	have.LinkIndex, have.Parent = int(p.Index), p.parent()
	if err := nl.FilterDel(have); err != nil && !hostlink.Gone(err) {
		return fmt.Errorf("remove filter from interface %d: %w", p.Index, err)
	}
	return nil
}

// Detach takes our filter away, and the qdisc if it is ours and nobody else uses it. Making or removing a clsact qdisc drops
// what the interface is transmitting just then (the kernel takes all its queues out of service for a moment).
func (p Spot) Detach(nl *netlink.Handle) error {
	if err := p.Drop(nl); err != nil {
		return err
	}
	if !*p.Made {
		return nil
	}
	for _, egress := range []bool{false, true} {
		left, err := Spot{Index: p.Index, Egress: egress}.filters(nl)
		if err != nil || len(left) > 0 {
			return err
		}
	}
	err := nl.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: int(p.Index), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !hostlink.Gone(err) {
		return fmt.Errorf("remove clsact from interface %d: %w", p.Index, err)
	}
	*p.Made = false
	return nil
}

// DetachIn is Detach for sides of interfaces in another namespace, by its path.
func DetachIn(path string, all []Spot) error {
	return hostlink.In(path, func(_ *netns.Space, nl *netlink.Handle) error {
		for _, p := range all {
			if err := p.Detach(nl); err != nil {
				return err
			}
		}
		return nil
	})
}

// ProgramID of a loaded program.
func ProgramID(p *ebpf.Program) (ebpf.ProgramID, error) {
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
