package platform

import (
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// wire hands each frame on, unchanged, by Weir's BPF program. A switch of Weir's puts it in place itself.
func wire() function {
	return function{name: wireFunction, about: "Weir's wire (a BPF program)", forwarder: datapath.Wire, inside: func() (io.Closer, error) { return bpf.AttachWire(flow.In.String(), flow.Out.String()) }}
}

// check tells why the function cannot be had here; empty: it can. namespace: it is to run without a container.
func (f function) check(o Options, namespace bool) string {
	if f.program == nil {
		return ""
	}
	for _, p := range f.all() {
		if why := checkImage(o, p.image, builtBy); why != "" {
			return why
		}
	}
	if !namespace {
		return ""
	}
	if f.program.host == nil {
		return "function " + f.name + " needs containers: want another runtime than " + bare
	}
	if _, err := f.program.host(""); err != nil {
		return fmt.Sprintf("%s (%s)", err, builtBy)
	}
	return ""
}

// inherits are the settings that a platform of the function cannot have otherwise, beside those of its network.
func (f function) inherits(network map[string]string) map[string]string {
	if f.program == nil {
		return network
	}
	out := maps.Clone(f.program.inherent)
	maps.Copy(out, network)
	return out
}

// bridgeFunction is a Linux bridge between a function's two links.
func bridgeFunction() function {
	return function{name: byBridges, about: "a Linux bridge", inside: func() (io.Closer, error) {
		if err := makeBridge("br0", mark+"br0"); err != nil {
			return nil, err
		}
		return nil, errors.Join(moveTo("br0", flow.In.String()), moveTo("br0", flow.Out.String()))
	}}
}

// mark of what the lab makes inside namespaces, and that belongs to no instance.
const mark = "weir-lab:"

// makeBridge in the thread's namespace, up. It asks nobody for multicast members.
func makeBridge(name, alias string) error {
	a := netlink.NewLinkAttrs()
	a.Name, a.Alias = name, alias
	snooping := false
	br := &netlink.Bridge{LinkAttrs: a, MulticastSnooping: &snooping}
	err := netlink.LinkAdd(br)
	if err == nil {
		err = netlink.LinkSetUp(br)
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	return nil
}

// moveTo makes a link of the thread's namespace a port of a bridge, or of none.
func moveTo(bridge, name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if bridge == "" {
		err = netlink.LinkSetNoMaster(l)
	} else {
		var br netlink.Link
		if br, err = netlink.LinkByName(bridge); err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
	}
	if err != nil {
		return fmt.Errorf("link %s to bridge %q: %w", name, bridge, err)
	}
	return nil
}
