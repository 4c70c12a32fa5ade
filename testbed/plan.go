package testbed

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// management is the network that joins manager, agents and switches, inside the testbed only.
var management = netip.MustParsePrefix("100.64.0.0/16")

var (
	managerAddress  = netip.MustParseAddr("100.64.0.1")
	switchesAddress = netip.MustParseAddr("100.64.0.2")
)

// Ports of the manager in the management network.
const (
	openflowPort = 6653 // IANA
	agentsPort   = 7443
)

// Directories of all testbeds.
const (
	runBase   = "/run/weir-testbed"
	stateBase = "/var/lib/weir-testbed"
)

// plan derives every name, address and path from a spec. It is pure.
type plan struct {
	Spec
	Run   string // volatile: namespaces, sockets, logs, the record
	State string // root directories of manager and agents
}

func newPlan(s Spec) plan {
	return plan{Spec: s, Run: filepath.Join(runBase, s.Name), State: filepath.Join(stateBase, s.Name)}
}

func (p plan) netns(node string) string { return filepath.Join(p.Run, "netns", node) }
func (p plan) log(node string) string   { return filepath.Join(p.Run, "log", node+".log") }
func (p plan) root(node string) string  { return filepath.Join(p.State, node) }
func (p plan) alias(what string) string { return "weir-testbed:" + p.Name + ":" + what }
func (p plan) token(node string) string { return filepath.Join(p.Run, node+".token") }

// switchCert is the directory of the switches' key and certificate.
func (p plan) switchCert() string { return filepath.Join(p.Run, "switches") }

// namespaces lists the nodes that have one.
func (p plan) namespaces() []string {
	nodes := []string{NodeManager}
	if len(p.Switches) > 0 {
		nodes = append(nodes, NodeSwitches)
	}
	return append(append(nodes, sorted(p.Agents)...), sorted(p.Hosts)...)
}

// where is the namespace in which a node's end of a cable is.
func (p plan) where(node string) string {
	if _, ok := p.Switches[node]; ok {
		return NodeSwitches
	}
	return node
}

// instance is the name of the Weir that runs at a node: the manager's is the testbed's.
func (p plan) instance(node string) string {
	if node == NodeManager {
		return p.Name
	}
	sum := sha256.Sum256([]byte(p.Name + "\x00" + node))
	return "tb" + hex.EncodeToString(sum[:4])
}

// address in the management network; the zero Addr: none.
func (p plan) address(node string) netip.Addr {
	switch node {
	case NodeManager:
		return managerAddress
	case NodeSwitches:
		return switchesAddress
	}
	for i, n := range sorted(p.Agents) {
		if n == node {
			a := managerAddress.As4()
			a[2], a[3] = 1, byte(i+1)
			return netip.AddrFrom4(a)
		}
	}
	return netip.Addr{}
}

// dpids gives every switch its datapath id.
func (p plan) dpids() map[string]uint64 {
	ids, used := map[string]uint64{}, map[uint64]bool{}
	for name, s := range p.Switches {
		if s.DPID > 0 {
			ids[name] = uint64(s.DPID)
			used[uint64(s.DPID)] = true
		}
	}
	next := uint64(1)
	for _, name := range sorted(p.Switches) {
		if ids[name] != 0 {
			continue
		}
		for used[next] {
			next++
		}
		ids[name], used[next] = next, true
	}
	return ids
}

// macs gives every station its MAC address.
func (p plan) macs() map[string]net.HardwareAddr {
	macs, used := map[string]net.HardwareAddr{}, map[string]bool{}
	for name, h := range p.Hosts {
		if m, err := net.ParseMAC(h.MAC); err == nil {
			macs[name], used[m.String()] = m, true
		}
	}
	n := 0
	for _, name := range sorted(p.Hosts) {
		for macs[name] == nil {
			n++
			if m := (net.HardwareAddr{0x02, 0x57, 0, 0, byte(n >> 8), byte(n)}); !used[m.String()] {
				macs[name] = m
			}
		}
	}
	return macs
}

func (p plan) addresses(host string) []netip.Prefix {
	var out []netip.Prefix
	h := p.Hosts[host]
	for _, a := range append([]string{h.Address}, h.Addresses...) {
		if x, err := netip.ParsePrefix(a); err == nil {
			out = append(out, x)
		}
	}
	return out
}

// cable is a link with the names of its two interfaces.
type cable struct {
	Link
	a, b  end
	sides [2]side
}

type side struct {
	node      string // whose
	space     string // namespace
	Interface string
}

// cables lists the links. The first side is a switch's.
func (p plan) cables() []cable {
	out := make([]cable, len(p.Links))
	for i, l := range p.Links {
		c := cable{Link: l, a: parseEnd(l.A), b: parseEnd(l.B)}
		if c.a.port == 0 {
			c.a, c.b = c.b, c.a
		}
		for j, e := range []end{c.a, c.b} {
			c.sides[j] = side{e.node, p.where(e.node), p.interfaceOf(e)}
		}
		out[i] = c
	}
	return out
}

// interfaceOf names the interface at a cable's end: "s1-2" in the switches' namespace, eth0 of a station, eth1 of an agent.
func (p plan) interfaceOf(e end) string {
	if e.port != 0 {
		return e.node + "-" + strconv.Itoa(e.port) // at most 9 + 1 + 5 bytes
	}
	if _, ok := p.Agents[e.node]; ok {
		return "eth1"
	}
	return "eth0"
}

func parseEnd(text string) end {
	name, number, _ := strings.Cut(text, ":")
	n, _ := strconv.Atoi(number)
	return end{name, n}
}

// cable finds the cable at an end: "s1:2", a station's or an agent's name.
func (p plan) cable(at string) (cable, error) {
	for _, c := range p.cables() {
		if c.a.String() == at || c.b.String() == at {
			return c, nil
		}
	}
	var ends []string
	for _, c := range p.cables() {
		ends = append(ends, c.a.String()+" - "+c.b.String())
	}
	return cable{}, fmt.Errorf("%w: no cable of testbed %s ends at %q; there are %s", ErrNotFound, p.Name, at, strings.Join(ends, ", "))
}

// uplink is whether an agent has a cable into the fabric.
func (p plan) uplink(agent string) bool {
	for _, c := range p.cables() {
		if c.a.node == agent || c.b.node == agent {
			return true
		}
	}
	return false
}
