// Package station is TCP/IP in a function's process (gVisor's stack): addresses of its own at one of its ports, which the kernel has not. What a function cannot
// have is a socket, since its frames pass through the loop of package nf.
package station

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"weir.dev/weir/catalogue/nf"
)

// Bounds of a stack.
const (
	NIC    = 1
	Queued = 512      // packets that wait to be sent; what does not fit is lost, and TCP sends it again
	MTU    = 1280     // what every path carries (RFC 8200): no packet of ours needs fragments
	Buffer = 32 << 10 // bytes of a connection, each way

	// What nobody acknowledges is given up after 4 repetitions, some 10 s.
	tcpRetries = 4
	tcpMaxRTO  = 4 * time.Second
	tcpLinger  = 5 * time.Second
	tcpQuiet   = 100 * time.Millisecond // TIME-WAIT: clients use their ports again at once
)

// NewStack over a link. network: it has addresses of its own, so it needs ARP, neighbour discovery and echo requests.
func NewStack(link stack.LinkEndpoint, network bool) (*stack.Stack, error) {
	o := stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	}
	if network {
		o.NetworkProtocols = append(o.NetworkProtocols, arp.NewProtocol)
		o.TransportProtocols = append(o.TransportProtocols, icmp.NewProtocol4, icmp.NewProtocol6)
	}
	s := stack.New(o)
	for _, option := range []tcpip.SettableTransportProtocolOption{
		new(tcpip.TCPSACKEnabled(true)), new(tcpip.TCPModerateReceiveBufferOption(false)),
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: Buffer, Max: Buffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: Buffer, Max: Buffer},
		new(tcpip.TCPMaxRetriesOption(tcpRetries)), new(tcpip.TCPSynRetriesOption(tcpRetries)), new(tcpip.TCPMaxRTOOption(tcpMaxRTO)),
		new(tcpip.TCPLingerTimeoutOption(tcpLinger)), new(tcpip.TCPTimeWaitTimeoutOption(tcpQuiet)),
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("TCP: option %T: %s", option, err)
		}
	}
	if err := s.CreateNIC(NIC, link); err != nil {
		return nil, fmt.Errorf("TCP/IP: %s", err)
	}
	return s, nil
}

// Inject gives bytes to a stack; they must not change any more.
func Inject(link *channel.Endpoint, protocol tcpip.NetworkProtocolNumber, b []byte) {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	link.InjectInbound(protocol, p)
	p.DecRef()
}

// Pump hands on what a stack sends, until ctx ends.
func Pump(ctx context.Context, link *channel.Endpoint, send func(b []byte)) {
	for {
		p := link.ReadContext(ctx)
		if p == nil {
			return
		}
		v := p.ToView()
		send(v.ToSlice())
		v.Release()
		p.DecRef()
	}
}

// Address as the stack has it.
func Address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// Protocol of an address.
func Protocol(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// Owner is the station that an address belongs to: one of IPv6 has a network of 64 bits to choose from.
func Owner(a netip.Addr) netip.Addr {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// Single tells whether an address is that of one station.
func Single(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Family of an address: 0 is IPv4, 1 is IPv6.
func Family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Full address of an end.
func Full(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: NIC, Addr: Address(a.Addr()), Port: a.Port()}
}

// Failure is an error of the stack as one of Go.
func Failure(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.String())
}

// Station has addresses at a port: it answers ARP, neighbour discovery and echo requests for them.
type Station struct {
	Stack     *stack.Stack
	link      *channel.Endpoint
	mac       net.HardwareAddr
	addresses []netip.Prefix
	gateways  []netip.Addr
}

const (
	macs        = 12
	etherLength = macs + 2
	etherARP    = 0x0806
)

// Open a station with the MAC address of its port. Gateways are the next hops to other networks.
func Open(mac net.HardwareAddr, addresses []netip.Prefix, gateways []netip.Addr) (*Station, error) {
	s := &Station{mac: mac, addresses: addresses, gateways: gateways, link: channel.New(Queued, MTU, tcpip.LinkAddress(mac))}
	var err error
	if s.Stack, err = NewStack(ethernet.New(s.link), true); err != nil {
		return nil, err
	}
	var routes []tcpip.Route
	for _, p := range addresses {
		a := tcpip.ProtocolAddress{Protocol: Protocol(p.Addr()), AddressWithPrefix: tcpip.AddressWithPrefix{Address: Address(p.Addr()), PrefixLen: p.Bits()}}
		if err := s.Stack.AddProtocolAddress(NIC, a, stack.AddressProperties{}); err != nil {
			return nil, fmt.Errorf("address %s: %s", p, err)
		}
		routes = append(routes, tcpip.Route{Destination: a.AddressWithPrefix.Subnet(), NIC: NIC})
	}
	for _, g := range gateways {
		everywhere := header.IPv4EmptySubnet
		if g.Is6() {
			everywhere = header.IPv6EmptySubnet
		}
		routes = append(routes, tcpip.Route{Destination: everywhere, Gateway: Address(g), NIC: NIC})
	}
	s.Stack.SetRouteTable(routes)
	return s, nil
}

// Everywhere has all networks on the link: the station answers whoever asks it, and opens nothing itself.
func (s *Station) Everywhere() {
	s.Stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: NIC}, {Destination: header.IPv6EmptySubnet, NIC: NIC}})
}

// Take a frame that came to the port. It does not block. mine: it is for this function alone; otherwise it goes on.
func (s *Station) Take(frame []byte, incomplete bool) (mine bool) {
	if len(frame) < etherLength {
		return false
	}
	mine = bytes.Equal(frame[:6], s.mac)
	kind := binary.BigEndian.Uint16(frame[macs:])
	switch {
	case mine && (kind == nf.EtherIPv4 || kind == nf.EtherIPv6 || kind == etherARP):
	case kind == etherARP && frame[0] == 0xff, kind == nf.EtherIPv6 && s.solicits(frame):
	default:
		return mine
	}
	s.inject(bytes.Clone(frame), incomplete)
	return mine
}

// Accept a frame that is for one of the station's addresses, whatever MAC address it is for: its sender may know that of a former instance.
func (s *Station) Accept(frame []byte, incomplete bool) {
	b := bytes.Clone(frame)
	copy(b, s.mac)
	s.inject(b, incomplete)
}

func (s *Station) inject(frame []byte, incomplete bool) {
	if p := nf.Decode(frame); incomplete && p.Bad == "" && p.Payload > 0 {
		p.Complete(frame)
	}
	Inject(s.link, 0, frame)
}

// solicits tells whether a frame goes to the group of an address of ours (RFC 4291, 2.7.1).
func (s *Station) solicits(frame []byte) bool {
	for _, p := range s.addresses {
		if a := p.Addr(); a.Is6() {
			b := a.As16()
			if bytes.Equal(frame[:6], []byte{0x33, 0x33, 0xff, b[13], b[14], b[15]}) {
				return true
			}
		}
	}
	return false
}

// Has tells whether an address is the station's own.
func (s *Station) Has(a netip.Addr) bool {
	return slices.ContainsFunc(s.addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// hop is the next one to an address: itself, or a gateway. The zero address: there is none.
func (s *Station) hop(to netip.Addr) netip.Addr {
	for _, p := range s.addresses {
		if p.Contains(to) {
			return to
		}
	}
	for _, g := range s.gateways {
		if g.Is4() == to.Is4() {
			return g
		}
	}
	return netip.Addr{}
}

// Find the MAC address of the next hop to an address. It does not block: found is called when the address is known, at once or by another goroutine, or never. What is
// known the stack keeps up to date (RFC 4861), so ask now and then.
func (s *Station) Find(to netip.Addr, found func(mac [6]byte)) {
	hop := s.hop(to)
	if !hop.IsValid() {
		return
	}
	_ = s.Stack.GetLinkAddress(NIC, Address(hop), tcpip.Address{}, Protocol(hop), func(r stack.LinkResolutionResult) {
		if r.Err == nil && len(r.LinkAddress) == 6 {
			found([6]byte([]byte(r.LinkAddress)))
		}
	})
}

// Run hands on what the station sends, until ctx ends.
func (s *Station) Run(ctx context.Context, send func(frame []byte)) { Pump(ctx, s.link, send) }

// Close ends it. Not while Run runs.
func (s *Station) Close() {
	s.link.Close()
	s.Stack.Close()
}
