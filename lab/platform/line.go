package platform

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Line is a cable of a given rate between what is measured and a peer, each in a network namespace of its own. It is a veth pair with a shaper (tbf) at both
// ends. Without a node the measured namespace has one end, as a host has its network card. With one, a Linux bridge in a namespace between them has it,
// and the measured namespace is a port of that bridge, as containers and machines are of a host's.
type Line struct {
	Guest, Peer, Node string // namespaces; Node "": there is none
	mbits             int
	dir               string
}

// LineOptions of one.
type LineOptions struct {
	Mbits  int    // what the cable carries in a second, 1 to mostMbits: frames with preamble, check sequence and gap, as Ethernet's rate is meant
	Node   bool   // a bridge is between
	Silent bool   // the measured namespace has no address: what is behind it has
	Guest  string // namespace of what is measured; "": one is made
}

const mostMbits = 100_000

// Addresses of what is measured and of its peer.
func LineAddresses() (guest, peer netip.Prefix) { return sourceAddress, targetAddress }

// Ethernet's bytes: a full frame without its check sequence, and what a cable carries beside each frame.
const (
	fullFrame  = 1514
	besides    = 24
	shaperTime = 10 // milliseconds that a shaper queues
	shaperRest = 64 << 10
)

// NewLine makes the line `name` of an instance.
func NewLine(i instance.Instance, name string, o LineOptions) (*Line, error) {
	if o.Mbits < 1 || o.Mbits > mostMbits {
		return nil, fmt.Errorf("a line of %d Mb/s: want 1 to %d", o.Mbits, mostMbits)
	}
	l := &Line{Guest: o.Guest, mbits: o.Mbits, dir: filepath.Join(i.NetnsDir(), name)}
	if err := l.build(o); err != nil {
		return nil, errors.Join(fmt.Errorf("line %s: %w", name, err), l.Close())
	}
	return l, nil
}

// Names of a node's interfaces.
const (
	nodeBridge = "br"
	nodeUp     = "up"
	nodePort   = "port"
)

func (l *Line) build(o LineOptions) (err error) {
	s := &spaces{dir: l.dir}
	if l.Guest == "" {
		if l.Guest, err = s.add("guest", o.Silent); err != nil {
			return err
		}
	}
	if l.Peer, err = s.add("peer", false); err != nil {
		return err
	}
	end := place{space: l.Guest, link: Station, address: sourceAddress}
	if o.Silent {
		end.address = netip.Prefix{}
	}
	peer := place{space: l.Peer, link: Station, address: targetAddress}
	if !o.Node {
		return errors.Join(join(end, peer), l.shape(end, peer))
	}
	if l.Node, err = s.add("node", true); err != nil {
		return err
	}
	up := place{space: l.Node, link: nodeUp}
	if err := errors.Join(join(up, peer), join(place{space: l.Node, link: nodePort}, end)); err != nil {
		return err
	}
	err = netns.Do(l.Node, func() error {
		if err := makeBridge(nodeBridge, mark+nodeBridge); err != nil {
			return err
		}
		return errors.Join(moveTo(nodeBridge, nodeUp), moveTo(nodeBridge, nodePort))
	})
	return errors.Join(err, l.shape(up, peer))
}

// shape both ends of the cable. Its bytes are those of frames, so its rate is what is left of the cable's when frames are full.
func (l *Line) shape(ends ...place) error {
	rate := uint64(l.mbits) * 1e6 / 8 * fullFrame / (fullFrame + besides)
	for _, e := range ends {
		err := netns.Do(e.space, func() error {
			link, err := netlink.LinkByName(e.link)
			if err != nil {
				return err
			}
			burst := uint32(max(rate/1000, shaperRest)) // a millisecond, and a segment that is whole
			return netlink.QdiscReplace(&netlink.Tbf{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
				Rate:       rate, Buffer: netlink.Xmittime(rate, burst), Limit: uint32(rate*shaperTime/1000) + burst,
			})
		})
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("shaper: this kernel has no tbf queue (CONFIG_NET_SCH_TBF): %w", err)
		}
		if err != nil {
			return fmt.Errorf("shaper of %s in %s: %w", e.link, e.space, err)
		}
	}
	return nil
}

// Carried is what the cable has carried until now, in both directions, as bits with all that belongs to a frame: towards the peer, and from it.
func (l *Line) Carried() (there, back uint64, err error) {
	near, link := l.Guest, Station
	if l.Node != "" {
		near, link = l.Node, nodeUp
	}
	if there, err = shaped(near, link); err != nil {
		return 0, 0, err
	}
	back, err = shaped(l.Peer, Station)
	return there, back, err
}

// shaped bits of an end.
func shaped(space, name string) (bits uint64, err error) {
	err = netns.Do(space, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		all, err := netlink.QdiscList(link)
		if err != nil {
			return err
		}
		for _, q := range all {
			if s := q.Attrs().Statistics; q.Type() == "tbf" && s != nil && s.Basic != nil {
				bits = 8 * (s.Basic.Bytes + besides*uint64(s.Basic.Packets))
				return nil
			}
		}
		return errors.New("the shaper is gone")
	})
	if err != nil {
		return 0, fmt.Errorf("shaper of %s in %s: %w", name, space, err)
	}
	return bits, nil
}

// Close takes its namespaces away, and all links with them. A namespace that was there before stays, without its end of the pair.
func (l *Line) Close() error { return removeSpaces(l.dir) }
