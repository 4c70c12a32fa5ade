package api

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// KindSwitch and KindAssignment are written by the router only.
const (
	KindSwitch     Kind = "switch"
	KindAssignment Kind = "assignment"
)

// Switch is an OpenFlow switch of the fabric that has spoken to the router, by its name ("s1") or "of-" and its datapath id.
type Switch struct {
	Meta
	Status SwitchStatus `json:"status"`
}

// SwitchStatus is what the router found.
type SwitchStatus struct {
	State      SwitchState `json:"state,omitempty"`
	Message    string      `json:"message,omitempty"`
	DatapathID string      `json:"datapath_id,omitempty"` // 16 hexadecimal digits
	Address    string      `json:"address,omitempty"`     // of its connection
	Version    string      `json:"version,omitempty"`     // "OpenFlow 1.3"
	Product    string      `json:"product,omitempty"`     // as it describes itself
	Bundles    bool        `json:"bundles,omitempty"`     // several changes in one atomic step
	Since      time.Time   `json:"since,omitzero"`
	// Certificate is the ID of the one with which it is connected over TLS; "": without TLS, or not connected.
	Certificate        string        `json:"certificate,omitempty"`
	CertificateExpires time.Time     `json:"certificate_expires,omitzero"`
	Rules              int           `json:"rules"` // of Weir, installed and confirmed
	Ports              []SwitchPort  `json:"ports,omitempty"`
	Tables             []SwitchTable `json:"tables,omitempty"`
}

// SwitchPort is a port of a fabric switch and what stands behind it.
type SwitchPort struct {
	Number   uint32    `json:"number"`
	Name     string    `json:"name"`
	State    LinkState `json:"state"`
	Kind     string    `json:"kind"`               // edge (users' stations), link (another switch), host (a machine with an agent), unknown (down, or not found out yet)
	Peer     string    `json:"peer,omitempty"`     // "s2:3", "h1:eth0"
	Stations []string  `json:"stations,omitempty"` // "06:57:..:01 10.0.0.1", seen at an edge port
}

// SwitchTable is one flow table: Rules are Weir's, Size is what the switch says it holds (0 unknown). Where that is less than default
// forwarding needs, Needs is how many entries that is, and LeftOut of how many stations it lacks: frames to them are flooded.
type SwitchTable struct {
	ID      uint8  `json:"id"`
	Name    string `json:"name,omitempty"`
	Rules   int    `json:"rules"`
	Size    uint32 `json:"size,omitempty"`
	Needs   int    `json:"needs,omitempty"`
	LeftOut int    `json:"left_out,omitempty"`
}

// SwitchRule is one entry as read back from a switch, in the notation of ovs-ofctl.
type SwitchRule struct {
	Table    uint8   `json:"table"`
	Priority uint16  `json:"priority"`
	Cookie   string  `json:"cookie"` // hexadecimal
	Match    string  `json:"match"`
	Actions  string  `json:"actions"`
	Hits     Counter `json:"hits"`
	Policy   string  `json:"policy,omitempty"` // "" is default forwarding
	Note     string  `json:"note,omitempty"`
}

// SwitchRules is the answer of GET /v1/switches/NAME/rules: read live from the switch, not stored.
type SwitchRules struct {
	Switch  string        `json:"switch"`
	Message string        `json:"message,omitempty"` // which table is too small for default forwarding
	Tables  []SwitchTable `json:"tables"`
	Rules   []SwitchRule  `json:"rules"`
}

// SwitchCounters is the answer of GET /v1/switches/NAME/counters: read live from the switch, not stored.
type SwitchCounters struct {
	Switch string               `json:"switch"`
	Ports  []SwitchPortCounters `json:"ports"` // by number
}

// SwitchPortCounters are those of a port of a fabric switch, as the switch counts: all frames, Weir's own, too. Rx is what it receives there.
type SwitchPortCounters struct {
	Number  uint32  `json:"number"`
	Rx      Counter `json:"rx"`
	Tx      Counter `json:"tx"`
	Dropped uint64  `json:"dropped_packets"` // on the way in or out
	Errors  uint64  `json:"error_packets"`   // the same
}

// Assignment is what the router wants of one host's switch beyond the policies that are local to the host; it bears the host's name. Its
// generation grows with each change; the agent installs a whole generation in one commit.
type Assignment struct {
	Meta
	Spec   AssignmentSpec   `json:"spec"`
	Status AssignmentStatus `json:"status"`
}

// AssignmentSpec: rules name ports, since only the host knows its numbers: "endpoint/alice", "function/fw/in", "uplink/eth1" (the link
// into the fabric), "tunnel/h2" (to another host).
type AssignmentSpec struct {
	Rules   []HostRule `json:"rules,omitempty"`
	Tunnels []Tunnel   `json:"tunnels,omitempty"`
	Known   int64      `json:"known,omitempty"` // the last Placement.Decision about a policy of this host's frames that the rules follow
	Taken   int64      `json:"taken,omitempty"` // the last of these up to which the router has taken over all policies that this host steered
}

// Policies are those of which there are rules, sorted.
func (s *AssignmentSpec) Policies() []string {
	var all []string
	for i := range s.Rules {
		if name := s.Rules[i].Policy; name != "" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Catches tells a rule that selects frames of a policy from one that leads them on.
func (r *HostRule) Catches() bool {
	return strings.HasPrefix(r.Stage, "egress") || r.Match.InPort == "" || strings.HasPrefix(r.Match.InPort, "endpoint/")
}

// AssignmentStatus is the agent's answer. A rule whose port is not there yet is missing, all others are installed.
type AssignmentStatus struct {
	ObservedGeneration int64           `json:"observed_generation,omitempty"`
	State              AssignmentState `json:"state,omitempty"`
	Missing            []string        `json:"missing,omitempty"` // cookies of rules whose ports are not there
	Message            string          `json:"message,omitempty"`
}

// Tunnel is a VXLAN tunnel to another host (RFC 7348).
type Tunnel struct {
	Host   string `json:"host"`
	Remote string `json:"remote"` // the other host's underlay address
	VNI    uint32 `json:"vni"`
	Port   uint16 `json:"port"` // UDP
	// Key is the other host's public key (base64), if packets between the two are encrypted: VXLAN then goes through WireGuard between
	// the TunnelAddresses of both.
	Key string `json:"key,omitempty"`
}

// FeatureSealed is the name of the feature by which hosts tell whether they can encrypt tunnels.
const FeatureSealed = "encrypted tunnels"

// TunnelUDP is the UDP port of WireGuard.
const TunnelUDP = 51820

// TunnelAddress is a host's address inside encrypted tunnels: a unique local one (RFC 4193) that follows from its name.
func TunnelAddress(host string) netip.Addr {
	sum := sha256.Sum256([]byte("weir tunnel\x00" + host))
	var b [16]byte
	copy(b[:], []byte{0xfd, 0x57, 0x77, 0x65, 0x69, 0x72})
	copy(b[8:], sum[:8])
	return netip.AddrFrom16(b)
}

// HostRule is a flow.Rule with named ports.
type HostRule struct {
	Cookie   string     `json:"cookie"` // 16 hexadecimal digits
	Priority uint16     `json:"priority"`
	Stage    string     `json:"stage"` // ingress, egress; of a match with Unread: UnreadStage of it
	Match    HostMatch  `json:"match"`
	Action   HostAction `json:"action"`
	Policy   string     `json:"policy,omitempty"`
	Entry    string     `json:"entry,omitempty"` // forward or reverse: frames of the policy's direction meet this rule first; "": later on their way
	Note     string     `json:"note,omitempty"`
}

// HostMatch is a flow.Match with named ports; an empty field matches anything.
type HostMatch struct {
	InPort    string `json:"in_port,omitempty"`
	OutPort   string `json:"out_port,omitempty"`
	Tag       uint16 `json:"tag,omitempty"`     // the fabric tag; 0: frames without one
	SrcMAC    string `json:"src_mac,omitempty"` // "MAC" or "MAC/MASK"
	DstMAC    string `json:"dst_mac,omitempty"`
	VLAN      uint16 `json:"vlan,omitempty"`
	EtherType uint16 `json:"ethertype,omitempty"`
	Src       string `json:"src,omitempty"` // CIDR
	Dst       string `json:"dst,omitempty"`
	Proto     uint8  `json:"proto,omitempty"`
	SrcPorts  string `json:"src_ports,omitempty"` // "80" or "80-90"
	DstPorts  string `json:"dst_ports,omitempty"`
	Unread    string `json:"unread,omitempty"` // a flow.Unread; "": any frame
}

// UnreadStage is the stage of a rule for frames that cannot be read to the end, by the stage of any other. An agent that does not know
// HostMatch.Unread knows no such stage: it leaves the rule out and says so, instead of taking it for a rule for all frames.
func UnreadStage(stage string) string { return stage + " unread" }

// HostAction is a flow.Action with named ports.
type HostAction struct {
	Clones []HostClone `json:"clones,omitempty"`
	Op     string      `json:"op"` // normal, drop, output, resume
	Port   string      `json:"port,omitempty"`
	Pop    bool        `json:"pop,omitempty"`  // takes the fabric tag off first
	Push   uint16      `json:"push,omitempty"` // then puts this one on; for output only
}

// Same tells that two actions do the same.
func (a *HostAction) Same(b *HostAction) bool {
	return a.Op == b.Op && a.Port == b.Port && a.Pop == b.Pop && a.Push == b.Push && slices.Equal(a.Clones, b.Clones)
}

// HostClone is a flow.Clone with a named port. Its text is the port, "function/mon/tap", and the fabric tag that the copy gets, if any:
// "uplink/eth1 push:3600".
type HostClone struct {
	Port string
	Push uint16
}

const pushes = " push:"

func (c HostClone) String() string {
	if c.Push == 0 {
		return c.Port
	}
	return c.Port + pushes + strconv.Itoa(int(c.Push))
}

func (c HostClone) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *HostClone) UnmarshalText(b []byte) error {
	port, tag, tagged := strings.Cut(string(b), pushes)
	*c = HostClone{Port: port}
	if !tagged {
		return nil
	}
	n, err := strconv.ParseUint(tag, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("clone %q: want a port, or such as %q", b, "uplink/eth1"+pushes+"3600")
	}
	c.Push = uint16(n)
	return nil
}

// Placement is the manager's decision about where a function runs, or who steers a policy: a host by itself, or the router. It changes when a
// host is lost, and with what a policy depends on.
type Placement struct {
	Host   string    `json:"host,omitempty"`
	Router bool      `json:"router,omitempty"` // of policies: the router, not a host
	Reason string    `json:"reason,omitempty"` // "most-available: 3.6 of 4 cores free", "pinned by spec.host", "h1 is lost"
	Since  time.Time `json:"since,omitzero"`
	Stays  string    `json:"stays,omitempty"` // of functions: why this one does not leave its host, which is being drained

	// Of policies, so that host and router hand frames over to each other (see AssignmentSpec): the number of the decision, which is greater
	// than those of all earlier ones, and who steered the policy before. Of functions FormerHost
	// is where it was up last, and has its state; it is there until the function is up where it is now. It is Host itself
	// where a function comes back before it was up elsewhere.
	Decision     int64  `json:"decision,omitempty"`
	FormerHost   string `json:"former_host,omitempty"`
	FormerRouter bool   `json:"former_router,omitempty"`
}

// Routed tells of a policy's placement that no host steers it by itself. Where nobody has decided there is no host.
func (p *Placement) Routed() bool { return p == nil || p.Router }

// Uplink is a host's interface into the fabric.
type Uplink struct {
	Interface string    `json:"interface"`
	MAC       string    `json:"mac"`
	State     LinkState `json:"state"`
}

// AgentConfig is the answer of GET /v1/agent/config, for agents only: what all hosts of one Weir have in common, and the asking host's key.
type AgentConfig struct {
	Time     time.Time `json:"time"`     // the manager's clock
	Underlay string    `json:"underlay"` // none, vxlan
	LLDPKey  []byte    `json:"lldp_key"` // signs this host's link discovery frames, so that no station and no other host can forge a link
	TagFirst uint16    `json:"tag_first"`
	TagLast  uint16    `json:"tag_last"`
}

// FabricReport is the body of POST /v1/fabric: the router's news, in one transaction. A switch or assignment that is absent stays as it
// is; Gone are switches that nobody needs to know any more.
type FabricReport struct {
	Switches    map[string]SwitchStatus   `json:"switches,omitempty"`
	Gone        []string                  `json:"gone,omitempty"`
	Assignments map[string]AssignmentSpec `json:"assignments,omitempty"`
	Policies    map[string]PolicyStatus   `json:"policies,omitempty"`  // of policies that cross hosts or the fabric
	Endpoints   map[string]EndpointStatus `json:"endpoints,omitempty"` // of endpoints that are not at a host
	Events      []Event                   `json:"events,omitempty"`
}
