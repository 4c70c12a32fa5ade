package testbed

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"weir.dev/weir/instance"
)

// Status of a testbed, as `weir testbed list -o json` shows it.
type Status struct {
	Name  string       `json:"name"`
	File  string       `json:"file,omitempty"`
	State string       `json:"state"` // up, degraded (something died), half-built
	Nodes []NodeStatus `json:"nodes"`
	Links []LinkStatus `json:"links"`
}

// NodeStatus is one node. A switch has no namespace of its own; its processes are Open vSwitch's.
type NodeStatus struct {
	Name       string   `json:"name"`
	Kind       string   `json:"kind"`            // manager, switch, agent, host
	State      string   `json:"state,omitempty"` // running, stopped; a host has none
	Netns      string   `json:"netns"`           // a path, for nsenter --net=
	PIDs       []int    `json:"pids,omitempty"`
	Address    string   `json:"address,omitempty"` // in the management network
	Addresses  []string `json:"addresses,omitempty"`
	MAC        string   `json:"mac,omitempty"`
	Instance   string   `json:"instance,omitempty"`    // of the Weir that runs there
	Root       string   `json:"root,omitempty"`        // its state directory
	Socket     string   `json:"socket,omitempty"`      // the manager's API; a switch's OpenFlow, for ovs-ofctl
	DatapathID string   `json:"datapath_id,omitempty"` // 16 hexadecimal digits
	Log        string   `json:"log,omitempty"`
}

// LinkStatus is one cable, with its interfaces.
type LinkStatus struct {
	A          string `json:"a"`
	B          string `json:"b"`
	InterfaceA string `json:"interface_a"`
	InterfaceB string `json:"interface_b"`
	State      string `json:"state"` // up, down
}

// List tells how a testbed is.
func List(name string) (Status, error) {
	r, err := readRecord(name)
	if err != nil {
		return Status{}, err
	}
	p := newPlan(r.Spec)
	procs, err := p.processes()
	if err != nil {
		return Status{}, err
	}
	s := Status{Name: name, File: r.File, State: "up", Nodes: p.nodes(procs)}
	for _, n := range s.Nodes {
		if n.State == "stopped" {
			s.State = "degraded"
		}
	}
	if !r.Ready {
		s.State = "half-built"
	}
	for _, c := range p.cables() {
		l := LinkStatus{A: c.a.String(), B: c.b.String(), InterfaceA: c.sides[0].Interface, InterfaceB: c.sides[1].Interface, State: "up"}
		if !p.isUp(c.sides[0]) || !p.isUp(c.sides[1]) {
			l.State = "down"
		}
		s.Links = append(s.Links, l)
	}
	return s, nil
}

// nodes in the order manager, switches, agents, hosts.
func (p plan) nodes(procs []process) []NodeStatus {
	daemons := map[string][]int{}
	here := map[string][]int{}
	for _, x := range procs {
		daemons[x.node] = append(daemons[x.node], x.pid)
		here[x.space] = append(here[x.space], x.pid)
	}
	state := func(names ...string) string {
		for _, n := range names {
			if len(daemons[n]) == 0 {
				return "stopped"
			}
		}
		return "running"
	}
	manager := NodeStatus{Name: NodeManager, Kind: "manager", Netns: p.netns(NodeManager), Address: managerAddress.String(), PIDs: daemons[NodeManager]}
	if p.Manager != nil {
		i, _ := instance.New(p.instance(NodeManager), p.root(NodeManager)) // the name was checked
		manager.State, manager.Instance, manager.Root = state(NodeManager), i.Name, i.Root
		manager.Socket, manager.Log = i.Socket(), p.log(NodeManager)
	}
	out := []NodeStatus{manager}
	ids := p.dpids()
	for _, n := range sorted(p.Switches) {
		out = append(out, NodeStatus{Name: n, Kind: "switch", State: state(ovsdbServer, ovsVswitchd), Netns: p.netns(NodeSwitches),
			PIDs: append(append([]int{}, daemons[ovsVswitchd]...), daemons[ovsdbServer]...), Address: switchesAddress.String(),
			Socket: p.ovsproc().Mgmt(n), DatapathID: fmt.Sprintf("%016x", ids[n]), Log: p.ovsDir() + "/ovs-vswitchd.log"})
	}
	for _, n := range sorted(p.Agents) {
		out = append(out, NodeStatus{Name: n, Kind: "agent", State: state(n), Netns: p.netns(n), PIDs: daemons[n],
			Address: p.address(n).String(), Instance: p.instance(n), Root: p.root(n), Log: p.log(n)})
	}
	macs := p.macs()
	for _, n := range sorted(p.Hosts) {
		h := NodeStatus{Name: n, Kind: "host", Netns: p.netns(n), PIDs: here[n]}
		if p.Hosts[n].Agent == "" {
			h.MAC = macs[n].String()
		}
		for _, a := range p.addresses(n) {
			h.Addresses = append(h.Addresses, a.String())
		}
		out = append(out, h)
	}
	return out
}

// Streams of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exec runs a command in a node's network namespace and gives its exit code; only the network namespace changes.
func Exec(ctx context.Context, name, node string, argv []string, s Streams) (int, error) {
	if os.Geteuid() != 0 {
		return 0, ErrForbidden
	}
	p, err := find(name)
	if err != nil {
		return 0, err
	}
	space := p.where(node)
	known := false
	for _, n := range p.namespaces() {
		known = known || n == space
	}
	if !known {
		return 0, fmt.Errorf("%w: testbed %s has no node %q", ErrNotFound, name, node)
	}
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + p.netns(space), "--"}, argv...)...)
	if space == NodeSwitches {
		c.Env = append(os.Environ(), "OVS_RUNDIR="+p.ovsDir())
	}
	c.Stdin, c.Stdout, c.Stderr = s.In, s.Out, s.Err
	if err := c.Run(); c.ProcessState == nil {
		return 0, fmt.Errorf("run %s at %s: %w", argv[0], node, err)
	}
	return c.ProcessState.ExitCode(), nil
}
