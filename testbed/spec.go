package testbed

import (
	_ "embed"
	"io"
	"slices"

	"weir.dev/weir/api/file"
)

// Spec is the file: nodes by their names, and cables between them.
type Spec struct {
	Name     string            `json:"name"`
	Manager  *Manager          `json:"manager,omitempty"`
	Switches map[string]Switch `json:"switches,omitempty"`
	Hosts    map[string]Host   `json:"hosts,omitempty"`
	Agents   map[string]Agent  `json:"agents,omitempty"`
	Links    []Link            `json:"links,omitempty"`
}

// Manager runs Weir's manager. Without it nothing of Weir runs, and the switches wait for somebody's controller at the same address.
type Manager struct {
	Placement string `json:"placement,omitempty"` // default most-available
	Underlay  string `json:"underlay,omitempty"`  // none (default), vxlan: tunnels between the agents over the management network
	OpenFlow  string `json:"openflow,omitempty"`  // tls (default), plain: switches connect without
	// DefaultForwarding is whether the router computes ordinary forwarding too; default true.
	DefaultForwarding *bool `json:"default_forwarding,omitempty"`
}

// Switch is an OpenFlow switch.
type Switch struct {
	DPID      int64 `json:"dpid,omitempty"`       // datapath id; default the lowest that is free, in the order of names
	TableSize int64 `json:"table_size,omitempty"` // entries that table 0 and table 1 hold; default what Open vSwitch says, 1,000,000
}

// Host is a station. It needs a cable to a switch, or an agent: then it is an empty namespace on that agent's machine, which an endpoint of the
// agent takes by its path and gives an address.
type Host struct {
	Address   string   `json:"address,omitempty"`   // CIDR on eth0
	Addresses []string `json:"addresses,omitempty"` // further ones
	MAC       string   `json:"mac,omitempty"`       // default 02:57:00:00:00:01 and so on, in the order of names
	Agent     string   `json:"agent,omitempty"`
}

// Agent is a machine that runs functions. Its uplink, eth1, is its cable to a switch, if it has one; eth0 is the management network.
type Agent struct {
	Switch string `json:"switch,omitempty"` // ebpf (default), ovs
}

// Link is a cable. An end is "SWITCH:PORT", or a station's or agent's name.
type Link struct {
	A     string `json:"a"`
	B     string `json:"b"`
	Rate  string `json:"rate,omitempty"`  // bits per second with an optional k, M or G; both directions
	Delay string `json:"delay,omitempty"` // of each frame, one way: 5ms
	Loss  string `json:"loss,omitempty"`  // of frames, each way: 1%
}

// File is a checked Spec with the places of its keys.
type File struct {
	Path string
	Spec Spec
}

//go:embed testbed.schema.json
var schema []byte

// Schema is the published JSON Schema (draft 2020-12) of the file. It checks form; Load checks the rest.
func Schema() []byte { return slices.Clone(schema) }

const wantTop = "want a mapping with name, switches, hosts, agents and links"

// Load reads a file ("-" is stdin) and checks it. What is wrong with it comes back as *file.Error, every problem with its line and column.
func Load(path string, stdin io.Reader) (File, error) {
	f := File{Path: path}
	places, err := file.LoadInto(path, stdin, wantTop, &f.Spec)
	if err != nil {
		return f, err
	}
	return f, places.Explain(f.Spec.Validate())
}
