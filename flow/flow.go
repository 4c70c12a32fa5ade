// Package flow is the one rule language of Weir and its meaning.
//
// It owns Match, Action and Rule, the decoding of a frame into the fields that a Match can name, a reference
// switch in plain Go that executes rules in memory, and the analysis of rules (overlap with a witness frame).
// It does no I/O. Switch drivers (datapath/) install the same rules into kernels; the router compiles
// policies into them.
package flow

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// Port is a switch port number. 0 is "any" in a match and "learned" in an action.
// In the ebpf switch it is the interface index in the switch's network namespace.
type Port uint32

// Stage is the point at which a rule applies. A frame passes Ingress once at the port where it enters and Egress
// once per port through which ordinary switching (the bridge) is about to send it. At each stage the matching rule
// of the highest priority wins; without one the frame goes on as if Weir were not there.
// Ports of functions have an Ingress stage only.
type Stage uint8

const (
	Ingress Stage = iota
	Egress
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Multicast reports the group bit (broadcast included).
func (m MAC) Multicast() bool { return m[0]&1 == 1 }

// PortRange is an inclusive range of L4 ports; the zero value matches any packet, with or without ports.
type PortRange struct{ First, Last uint16 }

// Any reports whether the range is the zero value.
func (r PortRange) Any() bool { return r == PortRange{} }

// VLAN matching: 0 any, VLANNone untagged only, otherwise the outermost tag's VLAN id.
const VLANNone uint16 = 0xffff

// A fabric tag is an outermost IEEE 802.1ad tag (TPID 0x88a8) with a VLAN id from TagFirst to TagLast on a frame that crosses a port into
// the fabric. It tells apart two visits of one frame to one link, and is taken off before any function or endpoint. At other ports
// such a tag is the user's own: an unknown EtherType.
const (
	TagFirst uint16 = 3585
	TagLast  uint16 = 4094
)

// Match selects frames. Zero fields match anything. EtherType is the one behind at most two VLAN tags.
// Src and Dst match IPv4 or IPv6 addresses (a v4 prefix implies EtherType IPv4, a v6 prefix IPv6) and, for ARP,
// nothing: ARP has no IP header. Proto is the IPv4 protocol or the IPv6 upper-layer protocol behind at
// most 6 extension headers. SrcPorts and DstPorts need Proto 6 (TCP), 17 (UDP) or 132 (SCTP); a fragment other than the first has
// no ports and matches no rule that names ports.
type Match struct {
	InPort  Port // Ingress: where it entered, 0 any endpoint's port (never a function's); Egress: where it had entered, 0 any
	OutPort Port // Egress only: where it is about to leave, 0 any

	SrcMAC, SrcMACMask MAC // matches when frame&Mask == MAC; Mask zero is any
	DstMAC, DstMACMask MAC
	Tag                uint16 // 0: frames without a fabric tag (see TagFirst)
	VLAN               uint16
	EtherType          uint16
	Src, Dst           netip.Prefix
	Proto              uint8
	SrcPorts, DstPorts PortRange
	Unread             Unread // 0: any frame; else those alone of which that much could not be read
}

// Op is what finally happens to a frame.
type Op uint8

const (
	// Normal leaves the frame to ordinary switching.
	Normal Op = iota
	// Drop discards the frame and counts it.
	Drop
	// Output sends the frame out of Action.Port: into a function, or to an endpoint, whose Egress stage it then
	// skips. Port 0 is the endpoint port through which the chain's entry rule had met frames of this destination MAC.
	Output
	// Resume hands the frame to ordinary switching as if it had just arrived at Action.Port, whose Ingress stage it
	// skips. Port 0 is the endpoint port at which the chain's entry rule had met frames of this source MAC.
	Resume
)

// MaxClones bounds the taps at one place in a chain.
const MaxClones = 4

// Action is what a rule does: first a copy to each of Clones, then Op.
type Action struct {
	Clones []Clone
	Op     Op
	Port   Port
	Pop    bool   // takes the fabric tag off first, for clones too
	Push   uint16 // then puts this one on, not for clones; with Output to a port into the fabric only
}

// Clone is a copy's way: into a tap function, or a chain of copies.
type Clone struct {
	Port Port
	Push uint16 // puts this fabric tag on the copy alone; to a port into the fabric only
}

// Clones are copies without a fabric tag.
func Clones(ports ...Port) []Clone {
	all := make([]Clone, len(ports))
	for i, p := range ports {
		all[i].Port = p
	}
	return all
}

// UnmarshalJSON reads the port alone, too: rules kept by versions that could not push a tag on copies.
func (c *Clone) UnmarshalJSON(b []byte) error {
	*c = Clone{}
	if err := json.Unmarshal(b, &c.Port); err == nil {
		return nil
	}
	type plain Clone
	if err := json.Unmarshal(b, (*plain)(c)); err != nil {
		return fmt.Errorf("clone: want a port, or a port and the tag to push: %w", err)
	}
	return nil
}

// Rule is one entry of a switch. Cookie identifies it across commits and restarts: counters follow the cookie. Two rules of one
// commit never share a cookie. Of two rules with equal priority that match the same frame, the lower cookie wins
// (the router refuses such policies; the tie-break only keeps every switch alike).
type Rule struct {
	Cookie   uint64
	Priority uint16
	Stage    Stage
	Match    Match
	Action   Action
	// Learn makes the switch remember the port for the chain's exit: Ingress rules learn (source MAC, VLAN) -> InPort for Resume 0,
	// Egress rules learn (destination MAC, VLAN) -> OutPort for Output 0. An address of many is nobody's place: it is not learned.
	Learn bool
	Note  string // for people: "policy guests: fw.out -> w1.in"
}

// Topology is the ports that a rule set names.
type Topology struct {
	Endpoints []Port
	Fabric    []Port // those of Endpoints that lead into the fabric
	Functions []FunctionPorts
}

// FunctionPorts are In and Out of an inline function, or Tap.
type FunctionPorts struct {
	Name         string
	In, Out, Tap Port
}

func (o Op) String() string { return [...]string{"normal", "drop", "output", "resume"}[o] }

func (s Stage) String() string { return [...]string{"ingress", "egress"}[s] }

func (a Action) String() string {
	var b strings.Builder
	if a.Pop {
		b.WriteString("pop ")
	}
	for _, c := range a.Clones {
		fmt.Fprintf(&b, "clone:%d ", c.Port)
		if c.Push != 0 {
			fmt.Fprintf(&b, "with:%d ", c.Push)
		}
	}
	if a.Push != 0 {
		fmt.Fprintf(&b, "push:%d ", a.Push)
	}
	b.WriteString(a.Op.String())
	if a.Op == Output || a.Op == Resume {
		fmt.Fprintf(&b, ":%d", a.Port)
	}
	return b.String()
}
