package agent

import (
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// Ports of functions carry whatever an endpoint can send: the largest MTU of all endpoints. A chain may come to serve others at any time, and
// a port that could carry more than is sent costs nothing.

// maxMTU is the most that a veth takes.
const maxMTU = 65535

// widen finds what functions' ports have to carry, and has the functions adapt theirs if that is not what they did.
func (a *Agent) widen(want share) {
	mtu := tunnelMTU(want)
	for _, e := range want.endpoints {
		if e.Spec.Netns == "" { // a network card, whose owner says what it carries
			if l, err := a.link(e.Spec.Interface); err == nil {
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

func (a *Agent) link(name string) (netns.Link, error) {
	host, err := netns.At("")
	if err != nil {
		return netns.Link{}, err
	}
	defer host.Close()
	return host.Link(name)
}

// portMTU of functions.
func (a *Agent) portMTU() int { return max(int(a.mtu.Load()), defaultMTU) }

// resize makes the function's ports carry what they have to, on both sides, while they are in use.
func (f *function) resize() error {
	mtu := f.a.portMTU()
	if !f.attached.done || f.mtu == mtu {
		return nil
	}
	host, err := netns.At("")
	if err != nil {
		return err
	}
	defer host.Close()
	inside, err := netns.At(f.box.net())
	if err != nil {
		return err
	}
	defer inside.Close()
	for _, side := range flow.SidesOf(f.attached.tap) {
		for _, end := range []struct {
			space *netns.Space
			link  string
		}{{host, f.a.linkName(f.box, side)}, {inside, side.String()}} {
			if err := end.space.SetMTU(end.link, mtu); err != nil {
				return err
			}
		}
	}
	f.mtu = mtu
	return nil
}
