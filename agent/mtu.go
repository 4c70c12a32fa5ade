package agent

import "weir.dev/weir/api"

// Ports of functions carry whatever an endpoint can send: the largest MTU of all endpoints. A chain may come to serve others at any time, and
// a port that could carry more than is sent costs nothing.

// maxMTU is the most that a veth takes.
const maxMTU = 65535

// widen finds what functions' ports have to carry, and has the functions adapt theirs if that is not what they did.
func (a *Agent) widen(want share) {
	mtu := tunnelMTU(want)
	for _, e := range want.endpoints {
		if e.Spec.Netns == "" { // a network card, whose owner says what it carries
			if l, err := a.Kernel.Link("", e.Spec.Interface); err == nil {
				mtu = max(mtu, min(l.MTU, maxMTU))
			}
		}
	}
	if int(a.mtu.Swap(int64(mtu))) == mtu {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.functions {
		f.poke()
	}
}

// tunnelMTU is what all endpoints of the whole Weir need.
func tunnelMTU(want share) int {
	mtu := api.DefaultMTU
	for _, e := range want.all.endpoints {
		mtu = max(mtu, e.Spec.MTU)
	}
	return mtu
}

// portMTU of functions.
func (a *Agent) portMTU() int { return max(int(a.mtu.Load()), api.DefaultMTU) }

// xdpMTU is what ports carry at most whose frames a program of XDP leads into sockets: a frame and what belongs to it has to fit into one page (a veth takes 3506 on
// amd64). Longer frames are dropped before the function, and counted.
const xdpMTU = 3400

// portMTU of the function, if it is joined so.
func (f *function) portMTU(how attachment) int {
	if how.xdp {
		return min(f.a.portMTU(), xdpMTU)
	}
	return f.a.portMTU()
}

// resize makes the function's ports carry what they have to, on both sides, while they are in use.
func (f *function) resize() error {
	mtu := f.portMTU(f.attached)
	if !f.attached.done || f.mtu == mtu {
		return nil
	}
	if err := f.a.boxes.Resize(f.box, f.attached.tap, mtu); err != nil {
		return err
	}
	f.mtu = mtu
	return nil
}
