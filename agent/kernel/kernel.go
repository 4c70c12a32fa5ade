// Package kernel is what the agent uses of this machine's kernel beside switch and container runtime: network namespaces and links. Consumers (agent,
// agent/sandbox, agent/tunnel) say in interfaces of their own what they need of it. kernel/fake is the same in memory.
package kernel

import (
	"context"
	"errors"
	"net/netip"

	"weir.dev/weir/bpf/xsk"
	"weir.dev/weir/netns"
)

// Host is the kernel of this machine, seen from the calling thread's network namespace.
type Host struct{}

// Create makes a network namespace at path; see netns.Create.
func (Host) Create(path string) error { return netns.Create(path, netns.Options{Quiet: true}) }

// CreateOwned makes a network namespace that a new user namespace owns. A kernel without user namespaces: netns.ErrNoUserns.
func (Host) CreateOwned(user, net string, ids netns.IDs) error {
	return netns.CreateOwned(user, net, ids, netns.Options{Quiet: true})
}

// Exists tells whether a live namespace is at path.
func (Host) Exists(path string) bool { return netns.Exists(path) }

// Delete removes a namespace, or a symbolic link to one. None: nil.
func (Host) Delete(path string) error { return netns.Delete(path) }

// Empty removes the links of a namespace, if there are many; see netns.Empty.
func (Host) Empty(ctx context.Context, path string, told func(done, all int)) error {
	return netns.Empty(ctx, path, told)
}

// Check tells why there is no namespace to work in.
func (Host) Check(space string) error { return at(space, func(*netns.Space) error { return nil }) }

// Veth makes pairs between the host's namespace and another, and tells whether one had to be made; see netns.Space.Veth.
func (Host) Veth(space string, pairs ...netns.VethOptions) (made bool, err error) {
	err = between(space, func(host, inside *netns.Space) error {
		for _, o := range pairs {
			p, err := host.Veth(inside, o)
			if err != nil {
				return err
			}
			made = made || p.Made
		}
		return nil
	})
	return made, err
}

// Links lists the host's links whose alias begins with prefix.
func (Host) Links(prefix string) ([]netns.Link, error) { return netns.Links(prefix) }

// Link reads a link of a namespace, "" the host's. None: netns.ErrNoLink.
func (Host) Link(space, name string) (l netns.Link, err error) {
	err = at(space, func(s *netns.Space) error {
		l, err = s.Link(name)
		return err
	})
	return l, err
}

// DeleteLinks removes links of the host. Those that are not there: nil.
func (Host) DeleteLinks(names ...string) error {
	return at("", func(host *netns.Space) (err error) {
		for _, name := range names {
			err = errors.Join(err, host.Delete(name))
		}
		return err
	})
}

// DeleteMarked removes the links that carry the mark of an object or of a part of it.
func (h Host) DeleteMarked(alias string) error {
	links, err := netns.Links(alias)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Marked(alias) {
			err = errors.Join(err, h.DeleteLinks(l.Name))
		}
	}
	return err
}

// SetMTU of both ends of pairs, while they are up: host end -> end in the other namespace.
func (Host) SetMTU(space string, mtu int, pairs map[string]string) error {
	return between(space, func(host, inside *netns.Space) error {
		for out, in := range pairs {
			if err := host.SetMTU(out, mtu); err != nil {
				return err
			}
			if err := inside.SetMTU(in, mtu); err != nil {
				return err
			}
		}
		return nil
	})
}

// Finish has the kernel finish each frame before a link of the host sends it; see netns.Space.Finish.
func (Host) Finish(link string) error {
	return at("", func(host *netns.Space) error { return host.Finish(link) })
}

// ProbeXDP tells why functions can have no AF_XDP sockets; nil: they can.
func (Host) ProbeXDP() error { return xsk.Supported() }

// Received counts the packets that came in by a link of the host.
func (Host) Received(link string) (n uint64, err error) {
	err = at("", func(host *netns.Space) error {
		n, err = host.Received(link)
		return err
	})
	return n, err
}

// LearningBridge is the bridge that joins two links of a namespace and learns addresses; "" none.
func (Host) LearningBridge(space, one, other string) (bridge string, err error) {
	err = at(space, func(s *netns.Space) error {
		bridge, err = s.LearningBridge(one, other)
		return err
	})
	return bridge, err
}

// WatchLinks calls f with what happens to the host's links until ctx ends; see netns.Space.WatchLinks.
func (Host) WatchLinks(ctx context.Context, f func(netns.LinkEvent)) error {
	return at("", func(host *netns.Space) error { return host.WatchLinks(ctx, f) })
}

// LinkWith is the host's link that has an address.
func (Host) LinkWith(a netip.Addr) (l netns.Link, err error) {
	err = at("", func(host *netns.Space) error {
		l, err = host.LinkWith(a)
		return err
	})
	return l, err
}

// VXLAN makes a tunnel's link in the host. Its sockets are in another namespace; "" in the host, too.
func (Host) VXLAN(sockets string, o netns.VXLANOptions) error {
	return between(sockets, func(host, inside *netns.Space) (err error) {
		if sockets == "" {
			_, err = host.VXLAN(o)
		} else {
			_, err = host.VXLANThrough(inside, o)
		}
		return err
	})
}

// WireGuard makes the namespace at path if it is not there, and in it a WireGuard interface whose encrypted packets leave by the host.
func (Host) WireGuard(path string, o netns.WireGuardOptions) error {
	if err := netns.Create(path, netns.Options{}); err != nil {
		return err
	}
	return between(path, func(host, inside *netns.Space) error { return host.WireGuard(inside, o) })
}

// ProbeWireGuard tells why there is no WireGuard; nil: there is.
func (Host) ProbeWireGuard() error { return netns.ProbeWireGuard() }

func at(space string, f func(*netns.Space) error) error {
	s, err := netns.At(space)
	if err != nil {
		return err
	}
	defer s.Close()
	return f(s)
}

func between(space string, f func(host, inside *netns.Space) error) error {
	return at("", func(host *netns.Space) error {
		return at(space, func(inside *netns.Space) error { return f(host, inside) })
	})
}
