// Package api is what Weir's programs say to each other: the nouns (one struct each, spec and status apart), their
// validation, problems (RFC 9457), and the typed client. Everything is a client of the one REST API.
//
// Writers: whoever applies writes Spec; only the agent writes Status of functions, endpoints, policies and hosts; only the manager
// writes Meta and operations.
package api

import (
	"time"

	"weir.dev/weir/portkind"
)

// Kind names a noun in its singular, as in paths' plural form + "s" ("policy" -> "policies").
type Kind string

const (
	KindEndpoint  Kind = "endpoint"
	KindFunction  Kind = "function"
	KindChain     Kind = "chain"
	KindPolicy    Kind = "policy"
	KindHost      Kind = "host"
	KindEvent     Kind = "event"
	KindOperation Kind = "operation"
)

// Meta is common to all nouns.
type Meta struct {
	Name       string     `json:"name"`
	UID        string     `json:"uid,omitempty"`        // differs when an object is deleted and made anew
	Generation int64      `json:"generation,omitempty"` // grows by one with each change of the spec
	Revision   int64      `json:"revision,omitempty"`   // store revision of the last change, spec or status; the ETag
	Created    time.Time  `json:"created,omitzero"`
	Updated    time.Time  `json:"updated,omitzero"`
	Deleting   *time.Time `json:"deleting,omitempty"` // set: the agent is taking it down, then it disappears
}

// Metadata gives what all nouns have in common.
func (m *Meta) Metadata() *Meta { return m }

// Kinds are all nouns in the order in which they depend on each other.
func Kinds() []Kind {
	return []Kind{KindEndpoint, KindFunction, KindChain, KindPolicy, KindHost, KindSwitch, KindAssignment, KindEvent, KindOperation}
}

// Plural is the noun as it stands in paths: "policies".
func (k Kind) Plural() string {
	switch k {
	case KindPolicy:
		return "policies"
	case KindSwitch:
		return "switches"
	case KindAudit:
		return "audit"
	}
	return string(k) + "s"
}

// Endpoint is a switch port where users' traffic enters.
type Endpoint struct {
	Meta
	Spec      EndpointSpec   `json:"spec"`
	Placement *Placement     `json:"placement,omitempty"` // written by the manager; nil: a station of the fabric, or no host yet
	Status    EndpointStatus `json:"status"`
}

// EndpointSpec: with Netns, Weir makes a link into that network namespace (a name under /run/netns or a path) and calls it
// Interface there; without, Interface is an existing interface of the host that becomes a port. An endpoint without Interface is a
// station of the fabric: behind SwitchPort of Switch, or, without these, wherever the router sees its Address or MAC.
type EndpointSpec struct {
	Netns      string `json:"netns,omitempty"`
	Interface  string `json:"interface,omitempty"`
	Switch     string `json:"switch,omitempty"`      // a fabric switch's name
	SwitchPort string `json:"switch_port,omitempty"` // number or name of its port

	Address   string   `json:"address,omitempty"`   // CIDR set on the interface inside Netns, e.g. 10.9.0.1/24
	Addresses []string `json:"addresses,omitempty"` // further CIDRs set inside Netns
	MAC       string   `json:"mac,omitempty"`       // default: derived from the names, stable
	MTU       int      `json:"mtu,omitempty"`       // default 1500
	Host      string   `json:"host,omitempty"`      // where Interface or Netns is; may be left out while there is one host

	PortSecurity *PortSecurity `json:"port_security,omitempty"` // what may enter there; default: what is known of it
}

// EndpointStatus is what the agent found.
type EndpointStatus struct {
	ObservedGeneration int64         `json:"observed_generation,omitempty"`
	State              EndpointState `json:"state,omitempty"`
	Conditions         Conditions    `json:"conditions,omitempty"`
	Message            string        `json:"message,omitempty"`
	Port               uint32        `json:"port,omitempty"`
	Link               string        `json:"link,omitempty"` // the switch-side interface
	MAC                string        `json:"mac,omitempty"`
	Host               string        `json:"host,omitempty"`
}

// FunctionState as GLANF has it: create prepares, start runs, stop ends, delete removes.
type FunctionState string

const (
	FunctionCreated FunctionState = "created"
	FunctionStarted FunctionState = "started"
	FunctionStopped FunctionState = "stopped"
)

// OnFail is what happens to traffic while a function is down.
type OnFail string

const (
	OnFailDrop   OnFail = "drop"
	OnFailBypass OnFail = "bypass"
)

// Function is a running instance of a network function's image, with an ingress and an egress port, or one tap port.
type Function struct {
	Meta
	Spec      FunctionSpec      `json:"spec"`
	Placement *Placement        `json:"placement,omitempty"` // written by the manager; nil: no host yet
	Secrets   map[string]string `json:"secrets,omitempty"`   // written by the manager: which value of each secret is in force
	Status    FunctionStatus    `json:"status"`
}

type FunctionSpec struct {
	Image   string            `json:"image"`
	Config  Config            `json:"config,omitempty"`  // checked against the image's weir.config-schema
	OnFail  OnFail            `json:"on_fail,omitempty"` // default drop
	CPUs    string            `json:"cpus,omitempty"`    // cores, e.g. "0.5"
	CPUSet  string            `json:"cpuset,omitempty"`  // processors that it may run on, e.g. "0-3,5"; default all
	Memory  string            `json:"memory,omitempty"`  // bytes with an optional K, M or G (powers of 1024)
	Runtime string            `json:"runtime,omitempty"` // what runs it: one of Runtimes; default the host's
	Command []string          `json:"command,omitempty"` // replaces the image's entrypoint and arguments
	Env     map[string]string `json:"env,omitempty"`
	Allow   []string          `json:"allow,omitempty"`   // capabilities that the image asks for and that count only by the operator's word, e.g. CAP_SYS_NICE
	Secrets []string          `json:"secrets,omitempty"` // files in /run/secrets, or at a path: "db", "db:/run/db/password"; see ParseSecret
	Host    string            `json:"host,omitempty"`    // pins the function to a host; else the manager chooses
	State   FunctionState     `json:"state,omitempty"`   // desired; default started
	Restart int64             `json:"restart,omitempty"` // the agent restarts the function when this grows
}

// CheckedBy is how the health of a function is known.
type CheckedBy string

const (
	CheckedByProbe   CheckedBy = "probe"   // a frame goes through its ports each second, or each 10 s where the switch's own program forwards
	CheckedByProcess CheckedBy = "process" // it runs; its image declares no probe, or it is a tap
)

type FunctionStatus struct {
	ObservedGeneration int64         `json:"observed_generation,omitempty"`
	ObservedRestart    int64         `json:"observed_restart,omitempty"`
	State              FunctionState `json:"state,omitempty"` // created, started, stopped; also pending, failed, deleted
	Healthy            bool          `json:"healthy"`
	CheckedBy          CheckedBy     `json:"checked_by,omitempty"` // how Healthy is known
	Message            string        `json:"message,omitempty"`
	Conditions         Conditions    `json:"conditions,omitempty"`
	Host               string        `json:"host,omitempty"`
	PID                int           `json:"pid,omitempty"`
	Image              string        `json:"image,omitempty"` // digest in use
	Restarts           int           `json:"restarts,omitempty"`
	Started            time.Time     `json:"started,omitzero"`
	LastExit           string        `json:"last_exit,omitempty"`
	Runtime            string        `json:"runtime,omitempty"`      // that runs it
	RuntimeNote        string        `json:"runtime_note,omitempty"` // what its host says of that runtime, such as an emulated processor
	Limits             Limits        `json:"limits,omitzero"`
	RTTns              int64         `json:"rtt_ns,omitempty"` // of the last probe through the ports
	Ports              FunctionPorts `json:"ports,omitzero"`
	Rewrites           []string      `json:"rewrites,omitempty"` // its image's contract: header fields that it may change
}

// Limits are what a function gets at most on its host, by its spec or the host's defaults. Without a value there is no limit.
type Limits struct {
	CPUs          float64 `json:"cpus,omitempty"`   // cores
	CPUSet        string  `json:"cpuset,omitempty"` // processors
	MemoryBytes   int64   `json:"memory_bytes,omitempty"`
	Processes     int64   `json:"processes,omitempty"`
	DiskBytesPerS int64   `json:"disk_bytes_per_s,omitempty"` // of reading, and as much of writing
	DiskOpsPerS   int64   `json:"disk_ops_per_s,omitempty"`   // the same
	RingBytes     int64   `json:"ring_bytes,omitempty"`       // of the rings of its packet and AF_XDP sockets, and of queues that the kernel does not count, together, beside memory
	Missing       string  `json:"missing,omitempty"`          // what the host does not bound although it should by default, and why
}

// Further states that only a status has.
const (
	FunctionPending FunctionState = "pending"
	FunctionFailed  FunctionState = "failed"
	FunctionDeleted FunctionState = "deleted"
)

// FunctionPorts are switch port numbers.
type FunctionPorts struct {
	In  uint32 `json:"in,omitempty"`
	Out uint32 `json:"out,omitempty"`
	Tap uint32 `json:"tap,omitempty"`
}

// Chain is an ordered list of functions.
type Chain struct {
	Meta
	Spec   ChainSpec   `json:"spec"`
	Status ChainStatus `json:"status"`
}

// ChainSpec holds the path in one line: "fw | w1 | tap:mon". In a file the bare string will do. See ParsePath.
type ChainSpec struct {
	Path string `json:"path"`
}

type ChainStatus struct {
	ObservedGeneration int64      `json:"observed_generation,omitempty"`
	State              ChainState `json:"state,omitempty"`
	Message            string     `json:"message,omitempty"`
	Conditions         Conditions `json:"conditions,omitempty"`
}

// Mode says how a policy takes traffic.
type Mode string

const (
	ModeExhaustive Mode = "exhaustive" // all traffic from and to the endpoint, layer 2 included
	ModeSelective  Mode = "selective"  // the matched services
	ModeReplica    Mode = "replica"    // a copy; the original is untouched
)

// Policy says which traffic goes through which chain.
type Policy struct {
	Meta
	Placement *Placement   `json:"placement,omitempty"` // who steers it, written by the manager; nil: not decided, since no host has joined
	Spec      PolicySpec   `json:"spec"`
	Status    PolicyStatus `json:"status"`
}

// PolicySpec: From and To each take an endpoint's name, a CIDR or address, a MAC, or "any". Match is a list of
// proto/port, proto/first-last, tcp, udp, sctp, icmp (both families), arp, ip (both families), all.
type PolicySpec struct {
	From      string   `json:"from,omitempty"` // default any
	To        string   `json:"to,omitempty"`   // default any
	Match     []string `json:"match,omitempty"`
	Mode      Mode     `json:"mode,omitempty"` // default selective
	Chain     string   `json:"chain"`
	Symmetric *bool    `json:"symmetric,omitempty"` // default true: replies pass the chain in reverse order
	Priority  int      `json:"priority,omitempty"`  // 1 to 1000, default 100; higher wins
	MatchBy   MatchBy  `json:"match_by,omitempty"`  // in the fabric: ip or mac; default ip where addresses are known, mac for exhaustive
}

// MatchBy says by which address fabric switches recognise an endpoint's frames: their MAC tables are large, their tables for wildcards
// small.
type MatchBy string

const (
	MatchByIP  MatchBy = "ip"
	MatchByMAC MatchBy = "mac"
)

type PolicyStatus struct {
	ObservedGeneration int64       `json:"observed_generation,omitempty"`
	State              PolicyState `json:"state,omitempty"`
	Conditions         Conditions  `json:"conditions,omitempty"`
	Message            string      `json:"message,omitempty"`
	RenderedPath       []string    `json:"rendered_path,omitempty"` // ports a packet really meets, forward
	RenderedReverse    []string    `json:"rendered_reverse,omitempty"`
	Rules              int         `json:"rules,omitempty"`
	InForce            bool        `json:"in_force,omitempty"` // across hosts: it is, or was, in force; while nothing can pass its chain its frames are dropped
}

// PolicyPath is the answer of GET /v1/policies/NAME/path: the ports that a packet really meets, with live counters.
type PolicyPath struct {
	Policy  string      `json:"policy"`
	State   PolicyState `json:"state,omitempty"`
	Message string      `json:"message,omitempty"`
	Forward []Hop       `json:"forward"`
	Reverse []Hop       `json:"reverse,omitempty"`
}

// Hop is one port on the way. Live is false where the switch does not know the port now; then the counters are zero.
type Hop struct {
	Port    string    `json:"port"` // endpoint/alice, function/fw/in
	Host    string    `json:"host,omitempty"`
	Link    string    `json:"link,omitempty"`
	State   LinkState `json:"state,omitempty"`
	Live    bool      `json:"live"`
	Rx      Counter   `json:"rx"`
	Tx      Counter   `json:"tx"`
	Dropped Counter   `json:"dropped"`
	Settles bool      `json:"settles,omitempty"` // its function may settle flows (label weir.settles)
	Settled Counter   `json:"settled,omitzero"`  // did not enter the function here, since it had settled their flow
}

// TraceQuery describes a packet, and the reply to it.
type TraceQuery struct {
	From, To            string // endpoints
	Match               string // tcp/80, udp/53, sctp/5000, icmp (the default) or arp
	Source, Destination string // addresses; default the endpoints' first ones of one family
	SourcePort          int    // default 49152
	VLAN                int    // 0: untagged
}

// Trace is the answer of GET /v1/trace: what becomes of a packet and of the reply to it by the policies as they are declared now, with the present health
// of the functions, which are taken to hand on what they get.
type Trace struct {
	From    string   `json:"from"`
	To      string   `json:"to"`
	Request TraceWay `json:"request"`
	Reply   TraceWay `json:"reply"`
}

// TraceWay is one packet's.
type TraceWay struct {
	Packet    string        `json:"packet"`    // for people
	Delivered bool          `json:"delivered"` // at its destination
	Policies  []TracePolicy `json:"policies"`  // that have to do with its ends, those that decide first
	Steps     []TraceStep   `json:"steps"`
}

// TraceVerdict says what a policy means for a packet.
type TraceVerdict string

const (
	TraceDecides   TraceVerdict = "decides"
	TraceOutranked TraceVerdict = "outranked" // selects it, too, with a lower priority
	TraceOthers    TraceVerdict = "others"    // selects other packets between the same ends
)

// TracePolicy is a policy and what it means for a packet. State and Message are the policy's: one that is not active is not in force as the trace has it.
type TracePolicy struct {
	Policy   string       `json:"policy"`
	Verdict  TraceVerdict `json:"verdict"`
	Reply    bool         `json:"reply,omitempty"` // it takes the packet for a reply
	Priority int          `json:"priority"`
	Mode     Mode         `json:"mode"`
	Chain    string       `json:"chain"`
	Match    []string     `json:"match,omitempty"`
	State    PolicyState  `json:"state,omitempty"`
	Message  string       `json:"message,omitempty"`
}

// TraceStep is a port that the packet, or a copy of it, meets, with the port's live counters.
type TraceStep struct {
	Event  string `json:"event"`            // entered, steered, bypassed, emerged, copied, resumed, delivered, dropped
	Branch int    `json:"branch,omitempty"` // 0 the packet itself; each copy has a number of its own
	Why    string `json:"why,omitempty"`    // of a drop
	Hop
}

// Host is a machine with an agent.
type Host struct {
	Meta
	Spec   HostSpec   `json:"spec"`
	Status HostStatus `json:"status"`
}

// HostBeat is how often an agent reports its host. The state is "starting" until the agent has looked at everything since it or
// the manager started: statuses are from before then. It is "lost" when three reports are missing.
const HostBeat = 10 * time.Second

// HostSpec: CPUs and Memory are what the host has by an operator's word. Without them counts what its agent claimed first, up to 64 cores
// and 256 GiB if it has joined.
type HostSpec struct {
	Unschedulable bool   `json:"unschedulable,omitempty"` // nothing new is placed here; what is here stays
	Drain         bool   `json:"drain,omitempty"`         // nothing new is placed here, and what can run on another host moves; see HostDrain
	CPUs          string `json:"cpus,omitempty"`          // whole cores, e.g. "8"
	Memory        string `json:"memory,omitempty"`        // bytes with an optional K, M or G (powers of 1024)
}

// Takes tells whether new functions may be placed on the host.
func (s HostSpec) Takes() bool { return !s.Unschedulable && !s.Drain }

// HostDrain says how far the drain of a host is (HostSpec.Drain). A function that moves goes on at its former host until frames are steered to the new
// one. Endpoints are ports of their host and stay.
type HostDrain struct {
	Stays   int `json:"stays"`   // functions that no other host can have; each one's placement says why
	Leaving int `json:"leaving"` // functions that have another host now and still run here
}

// Done tells that no function is left on the host.
func (d HostDrain) Done() bool { return d.Stays == 0 && d.Leaving == 0 }

// DrainRequest asks to drain a host.
type DrainRequest struct {
	Plan bool `json:"plan,omitempty"` // only say what would happen
}

// DrainResult is what the drain of a host does, or with Plan would do.
type DrainResult struct {
	Host     string      `json:"host"`
	Moves    []DrainMove `json:"moves,omitempty"`
	Stays    []DrainStay `json:"stays,omitempty"`
	Policies []string    `json:"policies,omitempty"` // whose chains have functions that move, sorted
}

// DrainMove is a function that gets another host.
type DrainMove struct {
	Function string `json:"function"`
	Chain    string `json:"chain,omitempty"`
	To       string `json:"to"`
	Reason   string `json:"reason,omitempty"`
}

// DrainStay is a function or an endpoint that stays on the host.
type DrainStay struct {
	Kind   Kind   `json:"kind"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// HostCapacity is what a host has to give.
type HostCapacity struct {
	Cores  int   `json:"cores"`
	Memory int64 `json:"memory_bytes"`
}

type HostStatus struct {
	State      HostState     `json:"state,omitempty"`      // see HostBeat
	Conditions Conditions    `json:"conditions,omitempty"` // by the manager
	Heartbeat  time.Time     `json:"heartbeat,omitzero"`
	Version    string        `json:"version,omitempty"`
	Kernel     string        `json:"kernel,omitempty"`
	BootID     string        `json:"boot_id,omitempty"` // of the running kernel: hosts with the same one are one machine
	Cores      int           `json:"cores,omitempty"`   // that count; see HostSpec
	Memory     int64         `json:"memory_bytes,omitempty"`
	Claims     *HostCapacity `json:"claims,omitempty"`   // by the manager: what the agent says that it has, where that is more than what counts
	Accepted   *HostCapacity `json:"accepted,omitempty"` // by the manager: what counts without a word of an operator
	Switch     string        `json:"switch,omitempty"`
	Runtime    string        `json:"runtime,omitempty"`  // of functions that name none
	Runtimes   []HostRuntime `json:"runtimes,omitempty"` // all that the agent's program knows; none: not known yet, or an older agent; see RuntimeOf
	// Functions run where their runtime gives a kind of ports that the switch takes; RuntimePorts are the default runtime's. A host that names none is an
	// older one: both are veth.
	RuntimePorts []portkind.Kind `json:"runtime_ports,omitempty"`
	SwitchPorts  []portkind.Kind `json:"switch_ports,omitempty"`
	Forwarders   []string        `json:"forwarders,omitempty"` // programs of the switch that an image may name as its function's forwarder
	Bridge       string          `json:"bridge,omitempty"`
	Address      string          `json:"address,omitempty"`    // in the underlay, where tunnels end
	TunnelKey    string          `json:"tunnel_key,omitempty"` // public key of its encrypted tunnels (base64); "": it has none, see Features
	Uplinks      []Uplink        `json:"uplinks,omitempty"`
	Load         float64         `json:"load,omitempty"`          // average of the last minute
	Free         int64           `json:"free_bytes,omitempty"`    // memory available
	Skew         int64           `json:"clock_skew_ns,omitempty"` // the host's clock against the manager's
	Features     []Feature       `json:"features,omitempty"`
	Images       []string        `json:"images,omitempty"`
	Functions    int             `json:"functions,omitempty"` // that run here or are stopped here, those included that have another host now and have not left yet
	Drain        *HostDrain      `json:"drain,omitempty"`     // by the manager, while the host is drained
}

// Feature is something that the host's kernel has or has not.
type Feature struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required,omitempty"` // nothing goes without it
	Detail   string `json:"detail,omitempty"`
}

// Severity of an event.
type Severity string

const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Event is something worth telling. Events are kept up to a bound, the oldest go first. One that happens again within ten minutes takes the place of
// the former, under a new name, and counts, for an hour at most.
type Event struct {
	Meta
	Time     time.Time `json:"time"`            // the last time; message and outage_ns are of then, too
	Count    int       `json:"count,omitempty"` // how often, where that is more than once
	First    time.Time `json:"first,omitzero"`  // the first of these times
	Severity Severity  `json:"severity"`
	Reason   string    `json:"reason"` // one word in CamelCase, stable: FunctionDied, Restarted, BypassActive ...
	Kind     Kind      `json:"kind,omitempty"`
	Object   string    `json:"object,omitempty"` // the object's name
	Message  string    `json:"message"`
	Host     string    `json:"host,omitempty"`
	Source   string    `json:"source,omitempty"`    // who raised it: manager, router, host/NAME or function/NAME; the manager writes it
	OutageNs int64     `json:"outage_ns,omitempty"` // where the event is about one
}

// OperationState as in ETSI SOL003.
type OperationState string

const (
	OpStarting   OperationState = "STARTING"
	OpProcessing OperationState = "PROCESSING"
	OpCompleted  OperationState = "COMPLETED"
	OpFailedTemp OperationState = "FAILED_TEMP"
	OpFailed     OperationState = "FAILED"
	OpRolledBack OperationState = "ROLLED_BACK"
)

// Operation is a long action on one object.
type Operation struct {
	Meta
	Verb     string         `json:"verb"` // create, start, stop, restart, delete, apply
	Kind     Kind           `json:"kind"`
	Object   string         `json:"object"`
	State    OperationState `json:"state"`
	Message  string         `json:"message,omitempty"`
	Started  time.Time      `json:"started"`
	Finished time.Time      `json:"finished,omitzero"`
	Target   int64          `json:"target_generation,omitempty"` // done when the object's observed_generation reaches it
}

// Document is the declarative file: maps of name to spec.
type Document struct {
	Endpoints map[string]EndpointSpec `json:"endpoints,omitempty"`
	Functions map[string]FunctionSpec `json:"functions,omitempty"`
	Chains    map[string]ChainSpec    `json:"chains,omitempty"`
	Policies  map[string]PolicySpec   `json:"policies,omitempty"`
}

// ApplyRequest is the body of POST /v1/apply. The whole document is checked, then committed in one step or not at all.
type ApplyRequest struct {
	Document Document `json:"document,omitzero"`
	Plan     bool     `json:"plan,omitempty"`  // only say what would change
	Prune    bool     `json:"prune,omitempty"` // delete objects that the document does not name
	// Secrets are made, or get new values, in the same step. With Prune, those that are not named are deleted, unless this is left out.
	Secrets map[string]SecretRequest `json:"secrets,omitzero"`
}

// DeleteRequest is the body of POST /v1/delete: names of objects, by kind. They are deleted in one step, or none is. A name that does not
// exist is ignored.
type DeleteRequest struct {
	Endpoints []string `json:"endpoints,omitempty"`
	Functions []string `json:"functions,omitempty"`
	Chains    []string `json:"chains,omitempty"`
	Policies  []string `json:"policies,omitempty"`
	Secrets   []string `json:"secrets,omitempty"`
}

// DeleteResult lists what is deleted, or being deleted: an endpoint, function or policy is gone when its agent has taken it down.
type DeleteResult struct {
	Changes  []Change `json:"changes"`
	Revision int64    `json:"revision"`
}

// Change is one line of a plan.
type Change struct {
	Action  string   `json:"action"` // create, update, delete, unchanged
	Kind    Kind     `json:"kind"`
	Name    string   `json:"name"`
	Fields  []string `json:"fields,omitempty"`  // "memory: 64M -> 128M"
	Affects []string `json:"affects,omitempty"` // peers that notice: "policy/guests", "function/w1"
}

// ApplyResult lists every object of the document, and what was or would be deleted.
type ApplyResult struct {
	Changes  []Change `json:"changes"`
	Revision int64    `json:"revision"`
	Warnings []string `json:"warnings,omitempty"` // of hosts that did not answer what they have against it: their objects' status will tell
}

// StatusReport is the body of POST /v1/status: an agent's news of many objects in one transaction. Unknown names are ignored (the object is gone).
// A function, endpoint or policy that is Deleting and whose state is "deleted" is removed.
type StatusReport struct {
	Host      string                    `json:"host"`
	Endpoints map[string]EndpointStatus `json:"endpoints,omitempty"`
	Functions map[string]FunctionStatus `json:"functions,omitempty"`
	Chains    map[string]ChainStatus    `json:"chains,omitempty"`
	Policies  map[string]PolicyStatus   `json:"policies,omitempty"`
	HostState *HostStatus               `json:"host_status,omitempty"`
	Assigned  *AssignmentStatus         `json:"assignment_status,omitempty"` // of the assignment that bears Host's name
	Events    []Event                   `json:"events,omitempty"`
}

// Counter of packets and bytes.
type Counter struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// PortCounters of one switch port.
type PortCounters struct {
	Port    uint32    `json:"port"`
	Name    string    `json:"name"` // endpoint/alice, function/fw/in
	Link    string    `json:"link"`
	Rx      Counter   `json:"rx"`
	Tx      Counter   `json:"tx"`
	Dropped Counter   `json:"dropped"`
	Settles bool      `json:"settles,omitempty"` // of a function's port: the function may settle flows (label weir.settles)
	Settled Counter   `json:"settled,omitzero"`  // of a function's port: did not enter the function, since it had settled their flow
	State   LinkState `json:"state,omitempty"`   // of a function's port
	// Refused are the packets that port security dropped, by reason: mac, source, arp, nd, ra, dhcp, unreadable. They are in Dropped, too.
	Refused map[string]uint64 `json:"refused,omitempty"`
}

// RuleCounters of one installed rule.
type RuleCounters struct {
	Cookie string  `json:"cookie"` // hexadecimal
	Policy string  `json:"policy,omitempty"`
	Chain  string  `json:"chain,omitempty"`
	Note   string  `json:"note"`
	Hits   Counter `json:"hits"`
	// Catches are the policies whose frames meet this rule first: a frame counts once in a policy's direction. None for rules further on the way.
	Catches []Caught `json:"catches,omitempty"`
}

// Caught names a policy and one of its directions.
type Caught struct {
	Policy    string `json:"policy"`
	Direction string `json:"direction"` // forward, or reverse: replies
}

// Counters is the answer of GET /v1/hosts/NAME/counters: read live from the switch, not stored.
type Counters struct {
	Host    string         `json:"host"`
	Version uint32         `json:"version"`
	Ports   []PortCounters `json:"ports"`
	Rules   []RuleCounters `json:"rules"`
	// Functions that run, and have control groups of their own.
	Functions []FunctionUsage `json:"functions,omitempty"`
}

// FunctionUsage is what all processes of a function have used.
type FunctionUsage struct {
	Name        string `json:"name"`
	CPUNs       uint64 `json:"cpu_ns"`       // processor time of this instance; it begins anew with the next one
	MemoryBytes uint64 `json:"memory_bytes"` // now, without what the kernel can drop of its files
}

// ID tells one life of an object from another: a name may be used again, a UID is not.
func (m Meta) ID() (name, uid string, generation int64, deleting bool) {
	return m.Name, m.UID, m.Generation, m.Deleting != nil
}
