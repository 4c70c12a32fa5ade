package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// A stack is TCP/IP in this process: frames of the ports go in and out, and the kernel has no part in it.

const (
	nic       = 1
	queued    = 512  // packets that wait to be sent; what does not fit is lost, and TCP sends it again
	stackMTU  = 1280 // what every path carries (RFC 8200): no packet of ours needs fragments
	tcpBuffer = 32 << 10

	// What nobody acknowledges is given up after 4 repetitions, some 10 s.
	tcpRetries = 4
	tcpMaxRTO  = 4 * time.Second
	tcpLinger  = 5 * time.Second
	tcpQuiet   = 100 * time.Millisecond // TIME-WAIT: clients use their ports again at once
)

// newStack over a link. network: it has addresses of its own, so it needs ARP, neighbour discovery and echo requests.
func newStack(link stack.LinkEndpoint, network bool) (*stack.Stack, error) {
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
		&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: tcpBuffer, Max: tcpBuffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: tcpBuffer, Max: tcpBuffer},
		new(tcpip.TCPMaxRetriesOption(tcpRetries)), new(tcpip.TCPSynRetriesOption(tcpRetries)), new(tcpip.TCPMaxRTOOption(tcpMaxRTO)),
		new(tcpip.TCPLingerTimeoutOption(tcpLinger)), new(tcpip.TCPTimeWaitTimeoutOption(tcpQuiet)),
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return nil, fmt.Errorf("TCP: option %T: %s", option, err)
		}
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("TCP/IP: %s", err)
	}
	return s, nil
}

// inject gives bytes to a stack; they must not change any more.
func inject(link *channel.Endpoint, protocol tcpip.NetworkProtocolNumber, b []byte) {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	link.InjectInbound(protocol, p)
	p.DecRef()
}

// pump hands on what a stack sends, until ctx ends.
func pump(ctx context.Context, link *channel.Endpoint, send func(b []byte)) {
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

func address(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}
