package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// With -socat each relay is a process of socat, which has sockets of the kernel. Its end of the namespace's only link of ours has addresses that are nobody's
// (240.0.0.0/4 is reserved): socat knows no others.
//
//	client 10.0.0.1 ── in ─┐            ┌─ 242.255.255.254 as client of all relays
//	                       │  loop ─ link ─ 241.0.0.1:20000, 20001 ... where socat receives, a port for each relay
//	target 10.0.0.2 ─ out ─┘            └─ 242.0.0.0:9, 242.0.0.1:9 ... where it sends to, an address for each relay
//
// The loop hands socat the payloads of what comes for a relay, and gives what socat sends its real addresses. So IPv6 needs no stack in the namespace, where there is
// none, and frames that are not for the function never meet the kernel's.
const (
	stackLink = "socat"   // of the kernel
	loopLink  = "socat-l" // of the loop
	stackMTU  = 65535     // socat gets whole datagrams, and sends whole ones

	receiveFrom = 20000 // the port of the first relay
	sendPort    = 9
	readyWithin = 20 * time.Second
	maxPayload  = 65507 // of UDP over IPv4
)

var (
	stackAddress  = netip.AddrFrom4([4]byte{241, 0, 0, 1})
	clientAddress = netip.AddrFrom4([4]byte{242, 255, 255, 254})
	targetNetwork = netip.PrefixFrom(netip.AddrFrom4([4]byte{242}), 8)
)

func targetAddress(relay int) netip.Addr { return netip.AddrFrom4([4]byte{242, 0, 0, byte(relay)}) } // there are maxRelays

// stack hands payloads to socat by the kernel's stack, and takes what it sends from there.
type stack struct {
	header []byte // of Ethernet, of frames to the kernel
	relays []*next
}

// openStack makes the link and its routes. From the function's ports the stack takes nothing.
func openStack(ports ...string) (*stack, error) {
	for _, p := range ports {
		if err := nf.StrictReversePath(p); err != nil {
			return nil, err
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	up, err := nf.StackLinks(h, stackLink, loopLink, stackMTU)
	if err != nil {
		return nil, err
	}
	own := up[stackLink]
	if err := h.AddrAdd(own, &netlink.Addr{IPNet: &net.IPNet{IP: stackAddress.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
		return nil, fmt.Errorf("address %s: %w", stackAddress, err)
	}
	to := &net.IPNet{IP: targetNetwork.Addr().AsSlice(), Mask: net.CIDRMask(targetNetwork.Bits(), 32)}
	if err := h.RouteAdd(&netlink.Route{Dst: to, LinkIndex: own.Attrs().Index, Scope: netlink.SCOPE_LINK}); err != nil {
		return nil, fmt.Errorf("route to %s: %w", to, err)
	}
	header := append(append([]byte(own.Attrs().HardwareAddr), 2, 0, 0, 0, 0, 1), 8, 0)
	return &stack{header: header}, nil
}

// give the datagrams of a frame to a relay.
func (s *stack) give(relay int, datagrams iter.Seq[[]byte], send func(nf.Dir, nf.Frame)) {
	for data := range datagrams {
		// MakeUDP makes an answer: from the destination to the source.
		p := nf.Packet{Type: nf.EtherIPv4, Network: len(s.header), Src: stackAddress, Dst: clientAddress, SrcPort: receiveFrom + uint16(relay), DstPort: receiveFrom}
		f := p.MakeUDP(s.header, data)
		copy(f.Data, s.header) // which exchanged both ends
		send(nf.Side, f)
	}
}

// sent tells which relay's socat has sent a frame, and its payload.
func (s *stack) sent(f nf.Frame) (to *next, data []byte) {
	p := nf.Decode(f.Data)
	if p.Bad != "" || p.Part != nf.Whole || p.Proto != nf.UDP || p.DstPort != sendPort || p.Payload == 0 || !targetNetwork.Contains(p.Dst) {
		return nil, nil
	}
	b := p.Dst.As4()
	relay := int(binary.BigEndian.Uint32(b[:]) & 0xffffff)
	if relay >= len(s.relays) {
		return nil, nil
	}
	return s.relays[relay], p.Data(f.Data)
}

// datagram to a relay's target, as the function sends it; mac is the next hop's, own that of the port.
func (to *next) datagram(mac, own [6]byte, data []byte) nf.Frame {
	header := append(append(own[:], mac[:]...), 8, 0) // MakeUDP makes an answer
	kind := uint16(nf.EtherIPv4)
	if to.to.Addr().Is6() {
		kind = nf.EtherIPv6
		binary.BigEndian.PutUint16(header[12:], kind)
	}
	p := nf.Packet{Type: kind, Network: len(header), Src: to.to.Addr(), Dst: to.from.Addr(), SrcPort: to.to.Port(), DstPort: to.from.Port()}
	return p.MakeUDP(header, data)
}

// startSocat starts a process for each relay and waits until all receive. ended tells of the first that has ended.
func startSocat(ctx context.Context, program string, relays int, log *slog.Logger) (all []*nf.Running, ended <-chan error, err error) {
	gone := make(chan error, relays)
	for i := range relays {
		c := nf.Child{
			Name: "socat", Log: log, Within: readyWithin,
			Args:  []string{program, "-d", "-d", "-u", "-b", fmt.Sprint(maxPayload), fmt.Sprintf("UDP4-RECV:%d,bind=%s", receiveFrom+i, stackAddress), fmt.Sprintf("UDP4-SENDTO:%s:%d", targetAddress(i), sendPort)},
			Ready: func(line string) bool { return strings.Contains(line, "starting data transfer loop") },
			Problem: func(line string) (string, bool) {
				for _, level := range []string{" E ", " F ", " W "} {
					if _, text, found := strings.Cut(line, level); found {
						return text, true
					}
				}
				return "", false
			},
		}
		r, err := c.Start(ctx)
		if err != nil {
			stopAll(all)
			return nil, nil, fmt.Errorf("relay %d: %w", i+1, err)
		}
		all = append(all, r)
		go func() {
			<-r.Ended
			gone <- fmt.Errorf("socat of relay %d has ended: %w", i+1, r.Err())
		}()
	}
	return all, gone, nil
}

func stopAll(all []*nf.Running) {
	for _, r := range all {
		r.Stop()
	}
}
