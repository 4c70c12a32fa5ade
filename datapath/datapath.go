// Package datapath is the contract of a host's switch and the conformance suite that every driver passes.
//
// A switch forwards ordinary traffic between endpoints as a learning Ethernet bridge does, and steers what rules select.
// Drivers: datapath/ebpf, datapath/ovs. The drivers install rules; they never compute them.
package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/portkind"
)

// Errors that callers tell apart.
var (
	ErrNotFound    = errors.New("not found")
	ErrUnsupported = errors.New("not supported by this kernel") // the text names feature, version and remedy
	ErrFull        = errors.New("switch table full")            // the text names the table, its size and the flag that raises it
	ErrTaken       = errors.New("taken by another")             // the text names what there can be one of only, and where there is room
)

// Endpoint is a port where users' traffic enters: the switch-side link exists already and is made a bridge port.
type Endpoint struct {
	Name string
	Link string // interface in the switch's namespace
	// Fabric: the port leads to other switches (an uplink, a tunnel), frames there may carry a fabric tag.
	Fabric bool
	// Isolated: ordinary switching never forwards between two such ports (tunnels of a full mesh: a flooded frame has reached all).
	Isolated bool
	// Held: the port gets its number, so that rules can name it, but nothing passes there until it is added again without Held. A port
	// that passes frames already is not held up.
	Held  bool
	Peer  flow.MAC // MAC of the only station behind a veth that Weir made; zero if unknown (a NIC): then no short cut is taken to it
	Netns string   // of that station, as netns.At takes it; empty if unknown
	// Guard is the port's security: what may enter there. A port into the fabric has none. It may change while the port is in use.
	Guard flow.Guard `json:",omitzero"`
}

// Equal compares all fields.
func (e Endpoint) Equal(o Endpoint) bool { return e.Guard.Equal(o.Guard) && e.EqualButGuard(o) }

// EqualButGuard compares all fields but Guard.
func (e Endpoint) EqualButGuard(o Endpoint) bool {
	return e.Name == o.Name && e.Link == o.Link && e.Fabric == o.Fabric && e.Isolated == o.Isolated && e.Held == o.Held && e.Peer == o.Peer && e.Netns == o.Netns
}

// Check says what no switch can take.
func (e Endpoint) Check() error {
	switch {
	case e.Name == "":
		return errors.New("a name is needed")
	case e.Fabric && e.Guard.On:
		return errors.New("a port into the fabric has no port security: others' frames enter there")
	}
	if err := e.Guard.Validate(); err != nil {
		return fmt.Errorf("port security: %w", err)
	}
	return nil
}

// State tells the data plane what to do with frames for a function.
type State uint8

const (
	Down State = iota // follow OnFail
	Up
)

// OnFail is what happens to a frame whose next function is Down.
type OnFail uint8

const (
	FailDrop OnFail = iota
	FailBypass
)

// Function is a network function's place in the switch: its namespace, its ports and how it forwards.
// The links exist already: In, Out (inline) or Tap. Of ports of kind veth they are the ends in the switch's namespace, and the other ends are in Netns. Of
// kind tap the function holds them open; it has no namespace, and MACs are needed.
type Function struct {
	Name      string
	Netns     string // path of the bind-mounted namespace
	In, Out   string // host-side links of an inline function
	Tap       string // host-side link of a tap function; then In and Out are empty
	InPeer    string // link names inside the namespace
	OutPeer   string
	Kind      portkind.Kind `json:",omitempty"` // of its ports; "" is portkind.Veth
	Forwarder string        // "" the function forwards by itself; else one of the switch's Abilities.Forwarders does, inside the namespace
	Speaks    bool          // contract: frames that the function's own interfaces originate may leave
	Settles   bool          `json:",omitempty"` // contract: it may settle flows, where the switch can (Settler)
	// Whole: every frame goes through its links' own queues, so that their features finish it (netns.Space.Finish); no shorter way into the namespace is taken.
	Whole  bool `json:",omitempty"`
	OnFail OnFail
	MACs   [flow.Sides]flow.MAC `json:",omitzero"` // of its own interfaces, where they are not links of this kernel
	// Probe: the addresses of the function's probe frames. Zero: the switch draws some, and keeps them.
	Probe ProbeAddresses `json:",omitzero"`
}

// ProbeAddresses are the two addresses of a function's probe frames: 80 random bits, a secret of the switch and the function. Frames with
// both of them and the probes' EtherType end at the function's ports. Every other frame of that type is as any frame.
type ProbeAddresses struct{ Dst, Src flow.MAC }

// Wire is the forwarder that hands each frame on to the other port as it is.
const Wire = "wire"

// Abilities are what a switch can do with functions. It names only what works.
type Abilities struct {
	Ports      []portkind.Kind // that it takes, the preferred ones first
	Forwarders []string        // programs of its own that can forward for a function whose image names one
	Settles    bool            // functions can settle flows: the switch is a Settler
}

// Check says what a switch cannot take.
func (a Abilities) Check(f Function) error {
	if kind := cmp.Or(f.Kind, portkind.Veth); !slices.Contains(a.Ports, kind) {
		return fmt.Errorf("ports of kind %s: want %s", kind, portkind.List(a.Ports))
	}
	if f.Forwarder != "" && !slices.Contains(a.Forwarders, f.Forwarder) {
		return fmt.Errorf("forwarder %q: want %s", f.Forwarder, strings.Join(append(slices.Clone(a.Forwarders), "none"), " or "))
	}
	return f.Check()
}

// Check says what no switch can take.
func (f Function) Check() error {
	switch {
	case f.Name == "":
		return errors.New("a name is needed")
	case f.Tap == "" && (f.In == "" || f.Out == "") || f.Tap != "" && f.In+f.Out != "":
		return errors.New("want the links in and out, or tap alone")
	case f.Forwarder != "" && f.Tap != "":
		return errors.New("a tap forwards nothing: want no forwarder")
	case f.Kind == portkind.Tap:
		return f.checkTap()
	case f.Netns == "":
		return errors.New("a namespace is needed")
	}
	return nil
}

func (f Function) checkTap() error {
	if f.Netns != "" || f.Forwarder != "" {
		return errors.New("ports of kind tap: the function has no network namespace, and no forwarder in it")
	}
	for _, side := range flow.SidesOf(f.Tap != "") {
		if f.MACs[side] == (flow.MAC{}) {
			return fmt.Errorf("ports of kind tap: the MAC of its interface %s is needed", side)
		}
	}
	return nil
}

// Ports are the numbers that the switch gave to a function's links.
type Ports struct{ In, Out, Tap flow.Port }

// At is the number of one of them.
func (p *Ports) At(s flow.Side) *flow.Port { return [...]*flow.Port{&p.In, &p.Out, &p.Tap}[s] }

// Numbered gives a function's ports these numbers: in and out, or tap.
func (f *Function) Numbered(numbers ...flow.Port) (p Ports) {
	for i, side := range flow.SidesOf(f.Tap != "") {
		*p.At(side) = numbers[i]
	}
	return p
}

// Counter counts since the port or rule was first installed; it never goes back, whatever restarts.
// Packets counts wire packets (a GSO packet counts as its segments), Bytes the bytes of the buffers.
type Counter struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// PortStatus is a port as the switch has it.
type PortStatus struct {
	Port     flow.Port
	Name     string // "endpoint/alice", "function/fw/in"
	Link     string
	Rx, Tx   Counter               // Rx: entered the switch here; Tx: left here, steered or by ordinary switching
	Dropped  Counter               // by rule, by a function that is down, by a missing exit, by port security
	Refused  [flow.Refusals]uint64 // packets dropped by port security, by reason
	Settles  bool                  // of a function's port: the function can settle flows here
	Settled  Counter               // did not enter the function here, since it had settled their flow. Those that it has dropped are in Dropped, too; none is in Tx
	Function string
	State    State
}

// RuleStatus is a rule as read back from the switch, with its counter.
type RuleStatus struct {
	Cookie uint64
	Note   string
	Hits   Counter
}

// Commit tells what a commit did.
type Commit struct {
	Added, Changed, Removed, Unchanged int
	Version                            uint32 // the version of the rule set now in force
}

// Probe is the outcome of a frame sent through a function.
type Probe struct{ RTT time.Duration }

// Feature is something that the kernel has or has not, for `weir check` and host status.
type Feature struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required,omitempty"` // nothing goes without it
	Detail   string `json:"detail,omitempty"`   // what it is for, since which kernel, what is done without it
}

// Switch is a host's switch. Every method is safe to call twice and from several goroutines. What it made stays in
// force when the process dies; a new process that opens the same instance finds it and goes on.
type Switch interface {
	// Abilities tells what kinds of functions AddFunction takes.
	Abilities() Abilities
	// AddEndpoint makes a link a port. Known and unchanged: returns its number and touches nothing.
	AddEndpoint(ctx context.Context, e Endpoint) (flow.Port, error)
	// CheckEndpoint tells why AddEndpoint would refuse a link. It changes nothing.
	CheckEndpoint(ctx context.Context, e Endpoint) error
	// AddFunction makes a function's links ports, in state Down until SetState. Adding it again after its links were
	// made anew moves the ports.
	AddFunction(ctx context.Context, f Function) (Ports, error)
	// Remove takes "endpoint/NAME" or "function/NAME" out of the switch and leaves its links as they were before. Unknown: nil.
	Remove(ctx context.Context, object string) error
	// Commit puts exactly these rules in force, in one atomic step: a frame meets the old set or the new one.
	// An equal set writes nothing. On error the old set stays in force.
	Commit(ctx context.Context, rules []flow.Rule) (Commit, error)
	// Fits tells, without changing anything, why Commit would refuse rules of this topology for want of room (ErrFull), on whatever is in force.
	Fits(rules []flow.Rule, t flow.Topology) error
	// SetState changes a function's liveness. With pid > 0 the data plane itself sets Down when that process dies,
	// where the kernel can.
	SetState(ctx context.Context, function string, s State, pid int) error
	// Probe sends a frame in at one port of an inline function and waits for it at the other. No other frame counts: neither one that a
	// station made, nor an earlier probe.
	Probe(ctx context.Context, function string) (Probe, error)
	// ProbeAll probes many functions at once, until all frames have come out or ctx ends, and returns those whose frame did. Others, and names
	// that are no inline function's, are missing.
	ProbeAll(ctx context.Context, functions []string) (map[string]Probe, error)
	// Ports reads the ports back with their counters.
	Ports(ctx context.Context) ([]PortStatus, error)
	// Status reads ports and rules back with their counters.
	Status(ctx context.Context) ([]PortStatus, []RuleStatus, error)
	// Close lets go and leaves everything forwarding.
	Close() error
	// Destroy removes all that the switch made, and nothing else. Works after any crash.
	Destroy(ctx context.Context) error
}
