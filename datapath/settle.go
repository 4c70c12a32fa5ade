package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Errors about settled flows that callers tell apart.
var (
	// ErrNotGiven: a function can settle only what it has been given.
	ErrNotGiven = errors.New("the function has not been given this flow within the last minute")
	// ErrEarly: the verdict may still be about the former connection of the same ports, or about the time before its end: one has just begun or ended, or
	// the switch was busy.
	ErrEarly = errors.New("a connection began or ended less than 0.2 s ago, or the switch was busy: say it again")
	// ErrSettlesNothing: its image has no label weir.settles.
	ErrSettlesNothing = errors.New("the function settles no flows")
)

// Settler is a switch on which functions can settle flows: one whose Abilities say Settles.
type Settler interface {
	// SettleFlow carries out what a function says of a flow that the switch has given to it: its frames pass the function by, as they are or rewritten, are
	// dropped before it, or are given to it again. It returns how many entries have the verdict now, one a direction and port where the flow was met.
	// Errors: ErrNotFound (no such function), ErrSettlesNothing, ErrNotGiven, ErrEarly, ErrFull.
	//
	// A verdict holds until the flow is idle for a minute or the verdict is 5 minutes old; until a TCP connection begins or ends, in both directions;
	// until the function's state or process changes, its links are made anew or a rule changes that leads to it or out of it.
	// Frames without a Flow, and those between other MAC addresses than the frame that was given, are always given to the function.
	SettleFlow(ctx context.Context, function string, s Settlement) (int, error)
	// UnsettleFlows takes all verdicts of a function back.
	UnsettleFlows(ctx context.Context, function string) error
	// SettledFlows reads the flows for which a verdict of the function holds now. It takes a while where there are many, during which the function is heard.
	// Errors: ErrNotFound, ErrSettlesNothing, ErrFull.
	SettledFlows(ctx context.Context, function string, q SettledQuery) (SettledFlows, error)
}

// SettledQuery selects from the flows that a function has settled.
type SettledQuery struct {
	Limit  int  // so many at most; at least 1
	Newest bool // those that were settled last, instead of those with most bytes
}

// SettledFlows are those that were asked for, first that which was settled last, or has most bytes.
type SettledFlows struct {
	Total int // of the function now, each direction and port for itself
	Flows []SettledFlow
}

// SettledFlow is one direction of a flow that a function has settled, at the port where its frames would enter the function.
type SettledFlow struct {
	Flow       Flow
	Reply      bool   // of ICMP echo: these are the replies
	At         string // in, out or tap
	Verdict    Verdict
	Rewrite    *Rewrite      // of Pass; nil: its frames pass as they are
	Age        time.Duration // of the verdict
	Idle       time.Duration // since its last frame; half a second of it may be missing
	Missed     Counter       // frames that did not enter the function since the verdict
	Generation uint32        // of the function's verdicts: all of former ones have ended
}

// Verdict is what a function says of a flow.
type Verdict uint8

const (
	Judge   Verdict = iota // give its frames to the function
	Pass                   // hand them on as if they had gone through the function
	Discard                // drop them before the function
)

// Rewrite is how a flow's frames come out of the function: with another address and port at one end. Checksums are adjusted, not computed.
type Rewrite struct {
	Target bool // the destination's; else the source's
	To     netip.AddrPort
	MAC    [6]byte // of the destination from now on; zero: as it was
}

// Settlement is a function's word about a flow.
type Settlement struct {
	Verdict Verdict
	Flow    Flow
	OneWay  bool // not the flow's reverse
	// At is the function's port, "in" or "out", at which frames have to enter it for the verdict to hold for them. Empty: any port.
	At string
	// Rewrite of frames that pass: of a flow of TCP or UDP, OneWay. nil: they pass as they are.
	Rewrite *Rewrite
	// Heard is when it was said. One that is carried out later than SettleWithin after that is refused with ErrEarly, as it may be about a former connection of
	// the same ports. Zero: whenever.
	Heard time.Time
}

// SettleWithin is how long after it was said a verdict is carried out. With the time before, a function's, it is less than the 0.2 s after a SYN, FIN or RST in which none is.
const SettleWithin = 50 * time.Millisecond

// Late tells whether it is too late to carry it out. Taking back is never late.
func (s Settlement) Late(now time.Time) bool {
	return s.Verdict != Judge && !s.Heard.IsZero() && now.Sub(s.Heard) > SettleWithin
}

// Flow is TCP, UDP or ICMP echo between two addresses. Frames with IP options, extension headers, fragments, more than one VLAN tag or an 802.1ad tag,
// and all other frames, belong to none.
type Flow struct {
	Protocol uint8 // unix.IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6
	// Src and Dst have the ports. Of ICMP echo both ports are the id; Src sends the requests.
	Src, Dst netip.AddrPort
	VLAN     uint16 // id of the tag; NoVLAN: none. 0 is the same: a tag with id 0 gives a priority alone.
}

// NoVLAN is the VLAN of untagged frames.
const NoVLAN = 0xffff

// Check says what no flow can have, and what no switch carries out.
func (s Settlement) Check() error {
	r := s.Rewrite
	switch {
	case r == nil:
	case s.Verdict != Pass || !s.OneWay:
		return errors.New("a rewrite belongs to pass, and to one direction")
	case s.Flow.Protocol != unix.IPPROTO_TCP && s.Flow.Protocol != unix.IPPROTO_UDP:
		return errors.New("a rewrite: want a flow of tcp or udp")
	case !r.To.IsValid() || r.To.Addr().Zone() != "" || r.To.Addr().Is4() != s.Flow.Src.Addr().Is4() || r.To.Addr().Is4In6():
		return errors.New("a rewrite: want an address of the flow's family, and a port")
	case r.MAC[0]&1 != 0:
		return errors.New("a rewrite: want the MAC address of one station")
	}
	return s.Flow.Check()
}

// Check says what no frame can have.
func (f Flow) Check() error {
	src, dst := f.Src.Addr(), f.Dst.Addr()
	switch {
	case !src.IsValid() || !dst.IsValid() || src.Zone()+dst.Zone() != "" || src.Is4In6() || dst.Is4In6():
		return errors.New("want two addresses, such as 10.9.0.1 or fd57::1")
	case src.Is4() != dst.Is4():
		return errors.New("want two addresses of one family")
	case f.VLAN >= 4096 && f.VLAN != NoVLAN:
		return errors.New("VLAN id: want 0 to 4095")
	}
	switch f.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		return nil
	case unix.IPPROTO_ICMP:
		if src.Is4() && f.Src.Port() == f.Dst.Port() {
			return nil
		}
		return errors.New("ICMP echo: want IPv4 addresses and one id")
	case unix.IPPROTO_ICMPV6:
		if src.Is6() && f.Src.Port() == f.Dst.Port() {
			return nil
		}
		return errors.New("ICMPv6 echo: want IPv6 addresses and one id")
	}
	return fmt.Errorf("protocol %d: want tcp, udp or icmp", f.Protocol)
}
