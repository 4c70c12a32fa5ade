// Package fabric describes networks of many switches, the policies that cross them, and the rules that switches and hosts are to hold for these:
// [Input] and [Output]. It also compares inputs. Packages below compute the rules; all is pure: no I/O, no clock.
//
//	graph       links, shortest ways, broadcast trees
//	tags        which fabric tag means what, on which link
//	switches    what one switch is to hold, changed in steps
//	forwarding  default forwarding: stations, floods, tables that are too small
//	steering    policies to entries and hosts' rules: Compile and Update
//
// Each imports those above it only. DESIGN.md has the flow, tables, floods, tags and the invariants.
package fabric

import (
	"cmp"
	"errors"
	"net/netip"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// SwitchID is "of:" and 16 hexadecimal digits of the datapath id, or "host:" and the host's name, as in link discovery (openflow/lldp).
type SwitchID string

const hostPrefix = "host:"

// HostID is a host's switch.
func HostID(name string) SwitchID { return SwitchID(hostPrefix + name) }

// Host is the name of the host whose switch this is; ok is false for OpenFlow switches.
func (s SwitchID) Host() (name string, ok bool) {
	if name, ok = strings.CutPrefix(string(s), hostPrefix); !ok || name == "" {
		return "", false
	}
	return name, true
}

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

// Compare is the order of the entries of an Output: by table, descending priority, identity.
func (e *Entry) Compare(other *Entry) int {
	switch {
	case e.Table != other.Table:
		return int(e.Table) - int(other.Table)
	case e.Priority != other.Priority:
		return int(other.Priority) - int(e.Priority)
	}
	return cmp.Compare(e.Cookie, other.Cookie)
}

// Catching is the highest hop of what catches frames, FirstLeg that of the way to a chain's first host.
const (
	Catching = MaxHops
	FirstLeg = 2 * MaxHops
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
	Entries map[SwitchID][]*Entry        // of OpenFlow switches, in the order of Entry.Compare
	Hosts   map[SwitchID][]*api.HostRule // of hosts, in the order of cookies
	Paths   *Paths                       // of the policies
	Errors  map[string]error
	Short   map[SwitchID][]Short // tables that do not hold the entries of default forwarding
	// Clash tells that rules of a former form in Input.Changing would take frames of a coming one: it must not come before they are gone.
	Clash bool
}

// ErrNoPath says that the network has no way between two places.
var ErrNoPath = errors.New("no path")

// ErrFull says that a switch's table cannot take the policy's entries.
var ErrFull = errors.New("table full")

// ErrTags says that every fabric tag is taken on some link of the policy's way.
var ErrTags = errors.New("no fabric tag left")

// Lingering is a rule that acts on a tag somewhere although the last output does not have it, or that an earlier life of the router has left.
type Lingering struct {
	At     At // where it takes frames in
	Tag    uint16
	Cookie uint64 // without the controller's bits; of a host rule, its number
}

// maxHops of a leg can be told apart by their numbers.
const MaxHops = 16

// StationPriority is that of the entries for known stations, which may be left out: without them frames are flooded.
const StationPriority = 900
