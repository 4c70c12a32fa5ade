package testbed

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/instance"
)

// Bounds of one testbed: what a machine with a few cores carries.
const (
	MaxSwitches = 128
	MaxHosts    = 512
	MaxAgents   = 64
	MaxPort     = 65279 // of Open vSwitch; higher numbers are reserved (OpenFlow 1.3, 7.2.1)
	maxRate     = 100e9
	maxDelay    = time.Minute
)

// Names of nodes that the file does not name.
const (
	NodeManager  = "manager"
	NodeSwitches = "ovs" // the namespace of all switches
	mgmt         = "mgmt"
)

var nodeName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,7}[a-z0-9])?$`)

// checker collects problems.
type checker struct {
	spec  *Spec
	found []api.Problem
	kinds map[string]string // node -> switch, host, agent
}

func (c *checker) add(path, hint, format string, args ...any) {
	c.found = append(c.found, api.Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Validate finds all that is wrong with a spec, as paths such as "links[2].a".
func (s *Spec) Validate() []api.Problem {
	c := &checker{spec: s, kinds: map[string]string{}}
	c.name()
	c.nodes()
	c.hosts()
	c.agents()
	c.switches()
	c.manager()
	c.links()
	return c.found
}

func (c *checker) name() {
	if c.spec.Name == "" {
		c.add("name", "1 to 10 characters of a-z, 0-9 and inner '-'", "is missing: a testbed needs a name")
	} else if _, err := instance.New(c.spec.Name, ""); err != nil {
		c.add("name", "", "%q: want 1 to 10 characters of a-z, 0-9 and inner '-'", c.spec.Name)
	}
	for _, b := range []struct {
		section   string
		have, max int
	}{
		{"switches", len(c.spec.Switches), MaxSwitches}, {"hosts", len(c.spec.Hosts), MaxHosts}, {"agents", len(c.spec.Agents), MaxAgents},
	} {
		if b.have > b.max {
			c.add(b.section, "", "%d of them are more than one testbed holds, %d", b.have, b.max)
		}
	}
	if len(c.spec.Switches)+len(c.spec.Hosts)+len(c.spec.Agents) == 0 {
		c.add("", wantTop, "there is no node")
	}
}

func (c *checker) nodes() {
	for _, section := range []struct {
		name, kind string
		nodes      []string
	}{
		{"switches", "switch", sorted(c.spec.Switches)}, {"hosts", "host", sorted(c.spec.Hosts)}, {"agents", "agent", sorted(c.spec.Agents)},
	} {
		for _, n := range section.nodes {
			path := section.name + "." + n
			switch other := c.kinds[n]; {
			case n == NodeManager || n == NodeSwitches || n == mgmt:
				c.add(path, "choose another name", "%s is taken by the testbed itself", n)
			case !nodeName.MatchString(n):
				c.add(path, "", "name of a node: want a letter, then at most 8 of a-z, 0-9 and '-'")
			case other != "":
				c.add(path, "choose another name", "is the name of %s %s, too", article(other), other)
			}
			c.kinds[n] = section.kind
		}
	}
}

func article(kind string) string {
	if kind == "agent" {
		return "an"
	}
	return "a"
}

func (c *checker) hosts() {
	addresses, macs := map[netip.Addr]string{}, map[string]string{}
	for _, name := range sorted(c.spec.Hosts) {
		h, path := c.spec.Hosts[name], "hosts."+name
		for i, a := range append([]string{h.Address}, h.Addresses...) {
			at := path + ".address"
			if i > 0 {
				at = fmt.Sprintf("%s.addresses[%d]", path, i-1)
			}
			if a == "" && i == 0 {
				continue
			}
			p, err := netip.ParsePrefix(a)
			switch {
			case err != nil:
				c.add(at, "", "%q: want an address with its prefix's length, such as 10.0.0.1/24", a)
			case h.Agent != "":
				c.add(at, "leave it out", "the endpoint that takes a host of an agent sets its address")
			case !p.Addr().IsGlobalUnicast() || p.Masked().Addr() == p.Addr() && !p.IsSingleIP():
				c.add(at, "", "%s is no address that a station can have", a)
			case management.Overlaps(p):
				c.add(at, "", "%s is in the management network, %s", a, management)
			case addresses[p.Addr()] != "":
				c.add(at, "", "%s is the address of %s already", p.Addr(), addresses[p.Addr()])
			default:
				addresses[p.Addr()] = name
			}
		}
		if h.MAC != "" {
			m, err := net.ParseMAC(h.MAC)
			switch {
			case err != nil || len(m) != 6 || m[0]&1 != 0 || m.String() == "00:00:00:00:00:00":
				c.add(path+".mac", "", "%q: want a unicast MAC address such as 02:57:00:00:00:01", h.MAC)
			case macs[m.String()] != "":
				c.add(path+".mac", "", "%s is the MAC address of %s already", m, macs[m.String()])
			default:
				macs[m.String()] = name
			}
		}
		if h.Agent != "" && c.kinds[h.Agent] != "agent" {
			c.add(path+".agent", file.Suggest(h.Agent, sorted(c.spec.Agents)), "there is no agent %q", h.Agent)
		}
	}
}

func (c *checker) agents() {
	if len(c.spec.Agents) > 0 && c.spec.Manager == nil {
		c.add("agents", "add manager: {}", "agents need a manager to join")
	}
	for _, name := range sorted(c.spec.Agents) {
		if s := c.spec.Agents[name].Switch; s != "" && s != "ebpf" && s != "ovs" {
			c.add("agents."+name+".switch", "", "%q: want ebpf or ovs", s)
		}
	}
}

func (c *checker) switches() {
	ids := map[int64]string{}
	for _, name := range sorted(c.spec.Switches) {
		s, path := c.spec.Switches[name], "switches."+name
		if s.DPID < 0 {
			c.add(path+".dpid", "", "%d: want a datapath id from 1 to %d", s.DPID, math.MaxInt64)
		}
		if other := ids[s.DPID]; s.DPID > 0 && other != "" {
			c.add(path+".dpid", "", "%d is the datapath id of %s already", s.DPID, other)
		}
		if ids[s.DPID] == "" {
			ids[s.DPID] = name
		}
		if s.TableSize < 0 || s.TableSize > 1_000_000 {
			c.add(path+".table_size", "", "%d: want 1 to 1000000 entries", s.TableSize)
		}
	}
}

func (c *checker) manager() {
	m := c.spec.Manager
	if m == nil {
		return
	}
	if m.Underlay != "" && m.Underlay != "none" && m.Underlay != "vxlan" {
		c.add("manager.underlay", "", "%q: want none or vxlan", m.Underlay)
	}
	if m.OpenFlow != "" && m.OpenFlow != "tls" && m.OpenFlow != "plain" {
		c.add("manager.openflow", "", "%q: want tls or plain", m.OpenFlow)
	}
	if m.Placement != "" && !nameLike.MatchString(m.Placement) {
		c.add("manager.placement", "", "%q: want a placement's name, such as most-available", m.Placement)
	}
}

var nameLike = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

func (c *checker) links() {
	ports := map[string]int{} // "s1:1", or a host's or agent's name -> the link that has it
	for i, l := range c.spec.Links {
		path := fmt.Sprintf("links[%d]", i)
		a, okA := c.end(path, "a", l.A)
		b, okB := c.end(path, "b", l.B)
		if okA && okB {
			c.pair(path, a, b)
		}
		for key, e := range map[string]end{"a": a, "b": b} {
			ok := okA
			if key == "b" {
				ok = okB
			}
			if !ok {
				continue
			}
			if first, twice := ports[e.String()]; twice && first != i {
				c.taken(path+"."+key, e, first)
				continue
			}
			ports[e.String()] = i
		}
		c.impairment(path, l)
	}
	for _, name := range sorted(c.spec.Hosts) {
		_, cabled := ports[name]
		switch agent := c.spec.Hosts[name].Agent; {
		case agent == "" && !cabled:
			c.add("hosts."+name, "add {a: \"SWITCH:PORT\", b: "+name+"} to links", "is not connected")
		case agent != "" && cabled:
			c.add("hosts."+name+".agent", "leave one of them out", "is on the machine of agent %s and has a cable, too", agent)
		}
	}
}

func (c *checker) taken(path string, e end, first int) {
	if e.port == 0 {
		c.add(path, "a station or agent has one cable", "%s is connected by links[%d] already", e.node, first)
		return
	}
	c.add(path, "", "port %d of %s is taken by links[%d] already", e.port, e.node, first)
}

// end is one end of a cable; port 0 is a station's or an agent's only one.
type end struct {
	node string
	port int
}

func (e end) String() string {
	if e.port == 0 {
		return e.node
	}
	return e.node + ":" + strconv.Itoa(e.port)
}

func (c *checker) end(link, key, text string) (end, bool) {
	path := link + "." + key
	if text == "" {
		c.add(link, "", "%s is missing: a cable has two ends, a and b", key)
		return end{}, false
	}
	name, number, hasPort := strings.Cut(text, ":")
	kind := c.kinds[name]
	switch {
	case kind == "":
		hint := file.Suggest(name, slices.Sorted(maps.Keys(c.kinds)))
		c.add(path, hint, "there is no node %q", name)
		return end{}, false
	case kind == "switch" && !hasPort:
		c.add(path, "", "%s is a switch: want its port, such as %s:1", name, name)
		return end{}, false
	case kind != "switch" && hasPort:
		c.add(path, "write "+name, "%s is %s %s and has one port", name, article(kind), kind)
		return end{}, false
	case !hasPort:
		return end{node: name}, true
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > MaxPort || strconv.Itoa(n) != number {
		c.add(path, "", "port %q: want a number from 1 to %d", number, MaxPort)
		return end{}, false
	}
	return end{name, n}, true
}

// pair refuses cables that make no sense.
func (c *checker) pair(path string, a, b end) {
	switch {
	case a == b:
		c.add(path+".b", "", "both ends are %s", a)
	case a.node == b.node:
		c.add(path+".b", "", "is a cable from %s to itself", a.node)
	case a.port == 0 && b.port == 0:
		c.add(path+".b", "put a switch between them, or the host on the agent's machine with agent: NAME", "want a switch at one end at least, found %s and %s", a, b)
	}
}

func (c *checker) impairment(path string, l Link) {
	for _, p := range []struct {
		key, text string
		check     func(string) error
	}{
		{"rate", l.Rate, func(t string) error { _, err := ParseRate(t); return err }},
		{"delay", l.Delay, func(t string) error { _, err := ParseDelay(t); return err }},
		{"loss", l.Loss, func(t string) error { _, err := ParseLoss(t); return err }},
	} {
		if p.text == "" {
			continue
		}
		if err := p.check(p.text); err != nil {
			c.add(path+"."+p.key, "", "%v", err)
		}
	}
}

// ParseRate reads bits per second: "800k", "10M", "1G".
func ParseRate(text string) (uint64, error) {
	number, unit := text, 1.0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'k':
			number, unit = text[:n-1], 1e3
		case 'M':
			number, unit = text[:n-1], 1e6
		case 'G':
			number, unit = text[:n-1], 1e9
		}
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f*unit >= 1000 && f*unit <= maxRate) {
		return 0, fmt.Errorf("%q: want bits per second from 1k to 100G, such as 10M", text)
	}
	return uint64(f * unit), nil
}

// ParseDelay reads a time such as "5ms".
func ParseDelay(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxDelay {
		return 0, fmt.Errorf("%q: want a time up to %s, such as 5ms", text, maxDelay)
	}
	return d, nil
}

// ParseLoss reads a share of frames such as "0.5%".
func ParseLoss(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !percent || !(f > 0 && f <= 100) {
		return 0, fmt.Errorf("%q: want a share of frames, such as 1%%", text)
	}
	return f, nil
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
