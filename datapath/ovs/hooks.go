package ovs

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/tcfilter"
	"weir.dev/weir/netns"
)

// hooks are what is done to links themselves while they are ports: programs at tc ingress, and what a user-space switch needs.
type hooks struct {
	home       *home.Home
	state      *state
	wire, drop *ebpf.Program // the forwarder "wire", and one that drops
}

const tcActShot = 2 // linux/pkt_cls.h: TC_ACT_SHOT

// load the programs. close follows, also after an error.
func (h *hooks) load() error {
	spec, err := bpf.LoadWire()
	if err != nil {
		return fmt.Errorf("load wire program: %w", err)
	}
	if h.wire, err = ebpf.NewProgram(spec.Programs["wire"]); err != nil {
		return fmt.Errorf("load wire program (want kernel 5.10): %w", err)
	}
	h.drop, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weir_hush", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcActShot), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load program: %w", err)
	}
	return nil
}

func (h *hooks) close() {
	for _, q := range []*ebpf.Program{h.wire, h.drop} {
		if q != nil {
			q.Close()
		}
	}
}

// tagLen is what a fabric tag adds to a frame. A packet socket, by which a user-space switch sends, takes one more than the MTU tells for
// 802.1Q tags only.
const tagLen = 4

func (p *port) inner() tcfilter.Spot { return tcfilter.Spot{Index: uint32(p.Inner), Made: &p.InnerCl} }
func (p *port) outer() tcfilter.Spot { return tcfilter.Spot{Index: uint32(p.Index), Made: &p.Clsact} }

// wantsOffload: a user-space switch would see, and pass on, unfinished checksums and segments of any size.
func (h *hooks) wantsOffload(p *port) bool {
	return h.state.Datapath == netdev && p.E.Netns != "" && netns.Exists(netns.Path(p.E.Netns))
}

// offloads switches those of a veth's other end on or off. One that is gone needs nothing.
func (h *hooks) offloads(path string, l netlink.Link, on bool) error {
	if !netns.Exists(netns.Path(path)) {
		return nil
	}
	space, err := netns.At(path)
	if err != nil {
		return err
	}
	defer space.Close()
	inside, err := space.Links("")
	if err != nil {
		return err
	}
	if in, ok := hostlink.Inside(l, inside); ok {
		return space.Offloads(in.Name, on)
	}
	return nil
}

// adapt a link to a user-space switch: room for a fabric tag, and received frames one by one if it joins them. The port's record says already what is to
// be undone.
func (h *hooks) adapt(p *port, l netlink.Link, joins bool) {
	if p.MTU > 0 && l.Attrs().MTU == p.MTU {
		if err := h.home.NL.LinkSetMTU(l, p.MTU+tagLen); err != nil {
			h.home.Log.Warn("full-size frames with a fabric tag will not pass: raise the MTU of this link", "link", p.Link, "mtu", p.MTU, "error", err)
		}
	}
	if joins {
		if err := h.home.Space.SetCoalescing(p.Link, false); err != nil {
			h.home.Log.Warn("received frames that this link joins will be lost: switch GRO and LRO off", "link", p.Link, "error", err)
		}
	}
}

// hush keeps the host's own network stack from what enters at a port of a user-space switch, which reads a copy.
func (h *hooks) hush(p *port) error {
	if h.state.Datapath != netdev {
		return nil
	}
	if ok, err := h.hushed(p); err != nil || ok {
		return err
	}
	return p.outer().Attach(h.home.NL, h.drop)
}

func (h *hooks) hushed(p *port) (bool, error) {
	if h.state.Datapath != netdev {
		return true, nil
	}
	return p.outer().Attached(h.home.NL)
}

func (h *hooks) unhush(p *port) error { return p.outer().Detach(h.home.NL) }

// attached: filters are as they should be.
func (h *hooks) attached(fn *function, space *netns.Space) bool {
	for _, p := range fn.Ports {
		if ok, err := h.hushed(p); err != nil || !ok {
			return false
		}
	}
	if fn.F.Forwarder == "" {
		return true
	}
	nl, err := hostlink.Handle(space)
	if err != nil {
		return false
	}
	defer nl.Close()
	for _, p := range fn.Ports {
		if ok, err := p.inner().Attached(nl); err != nil || !ok {
			return false
		}
	}
	return true
}

// forwarder puts the switch's own forwarder inside, or takes it away.
func (h *hooks) forwarder(fn *function, space *netns.Space) error {
	if fn.F.Forwarder == "" && !fn.Ports[0].InnerCl {
		return nil
	}
	nl, err := hostlink.Handle(space)
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, p := range fn.Ports {
		if fn.F.Forwarder == "" {
			err = p.inner().Detach(nl)
		} else {
			err = p.inner().Attach(nl, h.wire)
		}
		if err != nil {
			return fmt.Errorf("in %s: %w", space, err)
		}
	}
	return nil
}

// giveBack undoes what was done to a link itself. One that is gone needs nothing.
func (h *hooks) giveBack(p *port) error {
	l, err := hostlink.ByIndex(h.home.NL, p.Index, p.Link)
	if err != nil || l == nil {
		return err
	}
	if err := h.unhush(p); err != nil {
		return err
	}
	if p.Offload {
		if err := h.offloads(p.E.Netns, l, true); err != nil {
			return err
		}
	}
	if p.Joins {
		if err := h.home.Space.SetCoalescing(p.Link, true); err != nil {
			h.home.Log.Warn("GRO and LRO stay off", "link", p.Link, "error", err)
		}
	}
	if p.MTU > 0 && l.Attrs().MTU == p.MTU+tagLen {
		if err := h.home.NL.LinkSetMTU(l, p.MTU); err != nil && !hostlink.Gone(err) {
			return fmt.Errorf("set MTU of %s back to %d: %w", p.Link, p.MTU, err)
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(h.home.NL, l)
	}
	return nil
}

// giveBackFunction undoes what was done to the links of a function, at both ends. What is gone needs nothing.
func (h *hooks) giveBackFunction(fn *function) error {
	for _, p := range fn.Ports {
		l, err := hostlink.ByIndex(h.home.NL, p.Index, p.Link)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if err := h.unhush(p); err != nil {
			return err
		}
		if p.Offload {
			if err := h.offloads(fn.F.Netns, l, true); err != nil {
				return err
			}
		}
		if !p.WasUp {
			if err := hostlink.SetDown(h.home.NL, l); err != nil {
				return err
			}
		}
	}
	if fn.F.Forwarder == "" || !netns.Exists(fn.F.Netns) {
		return nil
	}
	var inside []tcfilter.Spot
	for _, p := range fn.Ports {
		inside = append(inside, p.inner())
	}
	return tcfilter.DetachIn(fn.F.Netns, inside)
}
