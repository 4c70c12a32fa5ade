// Package fabric computes the rules of many switches from a topology and policies: default forwarding of the OpenFlow switches, and the
// steering of policies whose traffic or functions are not all on one host. It is pure: no I/O, no clock; the same input gives the same
// output. Policies that a host steers by itself are no part of it: package router compiles them there.
//
// A switch is an OpenFlow switch of the fabric or the switch of a host with an agent. Links join them: cables, or tunnels between hosts.
//
// A frame passes two stages, and at each the most important policy that steers takes it, the most important one that copies gets a copy:
// where its source is, if a policy's direction begins at an endpoint, and where its destination is, if it ends at one. A direction with
// neither is caught wherever frames enter; steering ones leave multicast alone then, which could not be kept from its sender behind the chain.
// There both directions of a policy may select a frame: NTP sends from port 123 to port 123. Forward takes it: its entries are higher,
// since OpenFlow does not say which of two entries of one priority a switch uses.
//
// Table 0 has, from the top: LLDP, users' frames that carry a fabric tag, legs with a tag, legs without and what is caught at its source.
// Table 1: what is caught on the way to its destination, stations, floods. Switches with one table have it all in that, in this order.
//
// A leg is the way of frames from where they are caught to a host of their chain, from there to the next, or home. Its entries match what
// the policy matches, at the port where frames come in, as long as no other frames may look the same there that have another way to go:
// those of the same policy that have been through the chain, those of another policy of higher priority for the same source. A hostile
// station's frames count, too: behind the chain they go to any destination MAC, whatever their IP address, even to their sender's own.
// Else the leg carries a tag, and switches look at nothing but that. Copies, legs behind a function that rewrites, and those to a
// destination's own port carry one always (but see toward.go). Behind the last function default forwarding takes frames on; hosts'
// endpoints get flooded frames back first, so that no bridge learns them at the wrong port.
//
// DESIGN.md has tables, floods, tags and the invariants.
package fabric

import (
	"cmp"
	"net/netip"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// SwitchID is "of:" and 16 hexadecimal digits of the datapath id, or "host:" and the host's name.
type SwitchID string

// Port is a port of a switch: Number at an OpenFlow switch, Name at a host ("uplink/eth1", "tunnel/h2", "endpoint/alice", "function/fw/in").
type Port struct {
	Number flow.Port
	Name   string
}

// At is a port of a certain switch.
type At struct {
	Switch SwitchID
	Port   Port
}

// Compare orders ports by switch, number and name.
func (a At) Compare(b At) int {
	return cmp.Or(cmp.Compare(a.Switch, b.Switch), cmp.Compare(a.Port.Number, b.Port.Number), cmp.Compare(a.Port.Name, b.Port.Name))
}

// Switch as far as paths and rules depend on it.
type Switch struct {
	Name   string   // for people: "s1", "h1"
	Host   bool     // a host's switch: it forwards by itself and takes api.HostRules
	Ports  []Port   // that are up
	Tables []uint32 // sizes by table id, 0 unknown; empty: one table of unknown size
	// OneTree: it cannot match a bit of a sender's MAC, so that floods of its island follow one tree.
	OneTree bool
	// Fragments: it tells first fragments from later ones, and reads the ports of the former (Open vSwitch).
	Fragments bool
}

// Link joins two ports; it is used in both directions. Only links that are up are in a topology.
type Link struct {
	A, B At
	Cost uint32 // 0 is 1
}

// Station is where an address is: seen at an edge port, or said by an endpoint.
type Station struct {
	MAC      flow.MAC
	IPs      []netip.Addr
	At       At
	Endpoint string // "" none
}

// Topology is the network as it is now.
type Topology struct {
	Switches map[SwitchID]Switch
	Links    []Link
	Stations []Station
}

// Endpoint is an endpoint with its place; a zero At: not found yet.
type Endpoint struct {
	At       At
	MACs     []flow.MAC
	Prefixes []netip.Prefix // its addresses, /32 or /128 for a single one; empty: unknown
}

// Function is a function with its place. Ready: its container has been up since it was placed there.
type Function struct {
	Host     SwitchID
	Tap      bool
	Rewrites bool // its contract: frames may leave with other addresses than they came with
	Ready    bool
	OnFail   api.OnFail
}

// Input is everything that the rules depend on.
type Input struct {
	Topology
	Endpoints map[string]Endpoint
	Functions map[string]Function
	Chains    map[string]api.ChainSpec
	Policies  map[string]api.PolicySpec
	// Before, if not nil, says that Policies differ from these in the policies Edited only, and that neither map is changed any more.
	Before map[string]api.PolicySpec
	Edited []string
	// InForce are policies that were in force before. While a policy cannot be in force, its frames are dropped where they are caught. One
	// that never was in force, and all of whose functions say bypass, waits: its frames go on as without it.
	InForce map[string]bool
	// Lingering are rules for tags that are in force although they are not of the last output. While they are there their tags lead nowhere else.
	Lingering []Lingering
	// Changing are policies that other rules are in force of than this input's, or soon will be: see Between.
	Changing map[string][]Variant
	// Reserve is how many entries of each table are left to others than Weir.
	Reserve uint32
	// Beside: something else forwards in the OpenFlow network, and learns from what it sees (see beside.go). Default forwarding is left out.
	Beside bool
}

// Out is one copy of a frame on its way out of an OpenFlow switch.
type Out struct {
	Port flow.Port // a number, or one of the reserved ones below
	Pop  bool      // the fabric tag is taken off first
	Push uint16    // then this one put on
}

// Reserved ports of Out.
const (
	Normally     flow.Port = 0xfffffffa // whatever the switch does by itself
	ToController flow.Port = 0xfffffffd
	BackOut      flow.Port = 0xfffffff8 // the port where the frame came in
)

// Entry is one entry of an OpenFlow switch. No Outs and no Goto drops. A match that names ports or a protocol names its EtherType, too.
type Entry struct {
	Cookie   uint64 // identity by names, upper 16 bits zero: the controller puts the round there
	Table    uint8
	Priority uint16
	Match    flow.Match // its InPort is the switch's number; Tag 0 does not look at tags, unlike at hosts
	Tagged   bool       // with Match.Tag 0: frames with any fabric tag
	Tiny     bool       // only first fragments that hold too little of their upper layer's header to tell its ports
	Outs     []Out      // copies, each made from the frame as it came
	Goto     uint8      // 0 none; what goes on is the frame as it came
	// Resume: the frame's tag is taken off, and it goes on in table Goto as if it had just come in by this port. OpenFlow 1.3 cannot say that,
	// Open vSwitch can.
	Resume flow.Port
	// Hop orders a policy's entries along its way: 0 catches frames where they are found, a higher one is met after all lower ones. The
	// controller installs the highest first and hop 0 last, when all that is behind it is in force, hosts' rules included. Those up to
	// Catching go the lowest first and before all others, and so do, when the policy is gone, those without a tag up to FirstLeg, which
	// catch frames in the middle of their way.
	Hop    uint8
	Policy string
	Note   string
}

// Catching is the highest hop of what catches frames, FirstLeg that of the way to a chain's first host.
const (
	Catching = maxHops
	FirstLeg = 2 * maxHops
)

// Path is what a policy's frames meet.
type Path struct {
	Forward, Reverse []string // "endpoint/vm1", "s1:2", "s1:1", "s2:1", "s2:3", "h1:uplink/eth0", "function/fw/in" ...
	Switches         []SwitchID
	Tags             []uint16
	Rules            int
}

// Output is the whole rule set, never to be changed: outputs share what is the same in them. A policy in Errors is not in force.
type Output struct {
	Entries map[SwitchID][]*Entry        // of OpenFlow switches, in the order of table, descending priority, cookie
	Hosts   map[SwitchID][]*api.HostRule // of hosts, in the order of cookies
	Paths   *Paths                       // of the policies
	Errors  map[string]error
	Short   map[SwitchID][]Short // tables that do not hold the entries of default forwarding
	// Clash tells that rules of a former form in Input.Changing would take frames of a coming one: it must not come before they are gone.
	Clash bool
}
