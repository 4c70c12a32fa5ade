package api

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Defaults of specs. The specs themselves keep what was written.
const (
	DefaultPriority = 100
	MaxPriority     = 1000
	DefaultMTU      = 1500
)

// PriorityOrDefault is the priority in force.
func (s PolicySpec) PriorityOrDefault() int {
	if s.Priority == 0 {
		return DefaultPriority
	}
	return s.Priority
}

// ModeOrDefault is the mode in force.
func (s PolicySpec) ModeOrDefault() Mode {
	if s.Mode == "" {
		return ModeSelective
	}
	return s.Mode
}

// IsSymmetric says whether replies pass the chain in reverse order.
func (s PolicySpec) IsSymmetric() bool { return s.Symmetric == nil || *s.Symmetric }

// Validate checks each spec by itself, in a fixed order. What concerns several objects package router checks.
func (d Document) Validate() []Problem {
	var all []Problem
	for _, name := range slices.Sorted(maps.Keys(d.Endpoints)) {
		all = append(all, under("endpoints", name, d.Endpoints[name].Validate())...)
		if name == "any" {
			all = append(all, Problem{Path: "endpoints.any", Message: `an endpoint cannot be called "any": in a policy that means every endpoint`, Hint: "choose another name"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Functions)) {
		all = append(all, under("functions", name, d.Functions[name].Validate())...)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Chains)) {
		all = append(all, under("chains", name, d.Chains[name].Validate())...)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Policies)) {
		all = append(all, under("policies", name, d.Policies[name].Validate())...)
	}
	return all
}

// under puts an object's problems at its place in the document, and adds one when its name will not do.
func under(kinds, name string, problems []Problem) []Problem {
	where := kinds + "." + name
	if err := CheckName(name); err != nil {
		problems = append([]Problem{{Message: err.Error()}}, problems...)
	}
	for i := range problems {
		if problems[i].Path == "" {
			problems[i].Path = where
		} else {
			problems[i].Path = where + "." + problems[i].Path
		}
	}
	return problems
}

// check collects problems of one spec.
type check []Problem

func (c *check) add(path, hint, format string, args ...any) {
	*c = append(*c, Problem{Path: path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *check) err(path string, err error) {
	if err != nil {
		c.add(path, "", "%s", err)
	}
}

// Validate checks an endpoint by itself; paths are relative to it. It is one of three: a port of a host (interface), a station at a
// known port of the fabric (switch and switch_port), or one that is wherever its address or MAC is seen.
func (s EndpointSpec) Validate() []Problem {
	var c check
	switch {
	case s.OfHost():
		checkHostPort(&c, s)
	default:
		checkStation(&c, s)
	}
	if s.Address != "" {
		c.err("address", checkAddress(s.Address))
	}
	for i, a := range s.Addresses {
		c.err(fmt.Sprintf("addresses[%d]", i), checkAddress(a))
	}
	if s.MAC != "" {
		mac, err := ParseMAC(s.MAC)
		c.err("mac", err)
		if err == nil && (mac[0]&1 == 1 || mac == [6]byte{}) {
			c.add("mac", "use one that begins with 02", "MAC %s is no station's address", s.MAC)
		}
	}
	if s.MTU != 0 && (s.MTU < 68 || s.MTU > 65535) {
		c.add("mtu", "", "MTU %d: want 68 to 65535", s.MTU)
	}
	checkHost(&c, s.Host)
	checkPortSecurity(&c, s)
	return c
}

// OfHost says whether the endpoint is a port of a host's switch; else it is a station of the fabric.
func (s EndpointSpec) OfHost() bool { return s.Interface != "" || s.Netns != "" }

// Prefixes are the endpoint's addresses, as far as they can be read, each with the length of its network.
func (s EndpointSpec) Prefixes() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range append([]string{s.Address}, s.Addresses...) {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// At is the host where the endpoint is; empty: none (a station of the fabric), or not known yet.
func (e Endpoint) At() string {
	switch {
	case !e.Spec.OfHost():
		return ""
	case e.Placement != nil:
		return e.Placement.Host
	}
	return cmp.Or(e.Spec.Host, e.Status.Host)
}

// At is the host where the function is to run; empty: none yet.
func (f Function) At() string {
	if f.Placement == nil {
		return ""
	}
	return f.Placement.Host
}

func checkHostPort(c *check, s EndpointSpec) {
	checkInterface(c, s.Interface)
	for _, x := range []struct{ field, value string }{{"switch", s.Switch}, {"switch_port", s.SwitchPort}} {
		if x.value != "" {
			c.add(x.field, "give either interface (with host), or switch and switch_port", "%s is where a station of the fabric is, and interface makes this a port of a host", x.field)
		}
	}
	if s.Netns != "" {
		checkNetns(c, s.Netns)
		return
	}
	for _, x := range []struct {
		field string
		set   bool
	}{{"address", s.Address != ""}, {"addresses", len(s.Addresses) > 0}, {"mac", s.MAC != ""}, {"mtu", s.MTU != 0}} {
		if x.set {
			c.add(x.field, "give netns as well, or leave "+x.field+" out and set it on the interface yourself",
				"%s is only for a link that Weir makes into a netns; without netns the interface is the host's", x.field)
		}
	}
}

func checkStation(c *check, s EndpointSpec) {
	switch {
	case s.Switch == "" && s.SwitchPort == "" && s.Address == "" && len(s.Addresses) == 0 && s.MAC == "":
		c.add("interface", "at a host: interface, with netns its name inside (eth0), without an existing one; in the fabric: switch and switch_port, or address or mac alone",
			"an interface is needed, or where in the fabric the station is")
	case s.Switch == "" && s.SwitchPort != "":
		c.add("switch", "`weir get switches` shows their names", "switch_port %q without switch", s.SwitchPort)
	case s.Switch != "" && s.SwitchPort == "":
		c.add("switch_port", "its number or name; or leave switch out: the station is then wherever its address or MAC is seen", "switch %q without switch_port", s.Switch)
	}
	if s.Switch != "" {
		c.err("switch", CheckName(s.Switch))
	}
	if p := s.SwitchPort; len(p) > 64 || strings.ContainsAny(p, " \t\n/:") {
		c.add("switch_port", "", "switch port %q: want its number or its name", p)
	}
	if s.MTU != 0 {
		c.add("mtu", "leave mtu out", "mtu is only for a link that Weir makes into a netns")
	}
	if s.Host != "" {
		c.add("host", "leave host out, or give interface as well", "host is where an interface is, and this is a station of the fabric")
	}
}

func checkInterface(c *check, name string) {
	switch {
	case name == "":
		c.add("interface", "its name inside netns, for example eth0", "an interface is needed")
	case len(name) > 15 || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n"):
		c.add("interface", "", "interface %q: want 1 to 15 bytes without '/', ':' and blanks", name)
	}
}

func checkNetns(c *check, netns string) {
	plain := !strings.Contains(netns, "/")
	if plain && (netns == "." || netns == ".." || len(netns) > 255 || strings.ContainsAny(netns, " \t\n\x00")) || !plain && !filepath.IsAbs(netns) {
		c.add("netns", "", "netns %q: want a name as in `ip netns` or an absolute path", netns)
	}
}

func checkHost(c *check, host string) {
	if host != "" && CheckName(strings.ReplaceAll(strings.ToLower(host), ".", "-")) != nil {
		c.add("host", "", "host %q: want a host's name", host)
	}
}

func checkAddress(text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return fmt.Errorf("address %q: want an address with its prefix length, as in 10.9.0.1/24", text)
	}
	if a := p.Addr(); a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		return fmt.Errorf("address %q: want a host's address", text)
	}
	if p.Addr().Is4() && p.Bits() < 31 && p.Masked().Addr() == p.Addr() {
		return fmt.Errorf("address %q is that of the network: want a host's, as in %s/%d", text, p.Addr().Next(), p.Bits())
	}
	return nil
}

var capabilityPattern = regexp.MustCompile(`^CAP_[A-Z_]{2,40}$`)

// Validate checks a function by itself; paths are relative to it.
func (s FunctionSpec) Validate() []Problem {
	var c check
	if s.Image == "" {
		c.add("image", "for example wire, firewall, monitor", "an image is needed")
	}
	if s.OnFail != "" && s.OnFail != OnFailDrop && s.OnFail != OnFailBypass {
		c.add("on_fail", "", "on_fail %q: want drop or bypass", s.OnFail)
	}
	_, err := ParseCPUs(s.CPUs)
	c.err("cpus", err)
	_, err = ParseCPUSet(s.CPUSet)
	c.err("cpuset", err)
	_, err = ParseMemory(s.Memory)
	c.err("memory", err)
	checkRuntime(&c, s.Runtime)
	switch s.State {
	case "", FunctionCreated, FunctionStarted, FunctionStopped:
	default:
		c.add("state", "", "state %q: want created, started or stopped", s.State)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Env)) {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(s.Env[key], "\x00") {
			c.add("env", "", "environment variable %q: want a name without '='", key)
		}
	}
	for i, name := range s.Allow {
		if !capabilityPattern.MatchString(name) {
			c.add(fmt.Sprintf("allow[%d]", i), "the image's label weir.capabilities says which it asks for", "capability %q: want a name such as CAP_SYS_NICE", name)
		}
		if slices.Contains(s.Allow[:i], name) {
			c.add(fmt.Sprintf("allow[%d]", i), "", "capability %q is there twice", name)
		}
	}
	c.checkSecrets(s.Secrets)
	if len(s.Command) > 0 && s.Command[0] == "" {
		c.add("command[0]", "", "the command is empty")
	}
	if s.Restart < 0 {
		c.add("restart", "", "restart %d: want a number that grows", s.Restart)
	}
	checkHost(&c, s.Host)
	return c
}

// Validate checks a chain by itself; paths are relative to it.
func (s ChainSpec) Validate() []Problem {
	var c check
	_, err := ParsePath(s.Path)
	c.err("path", err)
	return c
}

// Validate checks a policy by itself; paths are relative to it.
func (s PolicySpec) Validate() []Problem {
	var c check
	from, err := ParseSelector(s.From)
	c.err("from", err)
	to, err := ParseSelector(s.To)
	c.err("to", err)
	for i, text := range s.Match {
		_, err := ParseMatch(text)
		c.err(fmt.Sprintf("match[%d]", i), err)
	}
	if s.Chain == "" {
		c.add("chain", "", "a chain is needed")
	}
	if s.Priority < 0 || s.Priority > MaxPriority {
		c.add("priority", "", "priority %d: want 1 to %d; the higher wins", s.Priority, MaxPriority)
	}
	switch s.Mode {
	case "", ModeSelective, ModeReplica:
	case ModeExhaustive:
		checkExhaustive(&c, s, from, to)
	default:
		c.add("mode", "", "mode %q: want exhaustive, selective or replica", s.Mode)
	}
	switch s.MatchBy {
	case "", MatchByIP, MatchByMAC:
	default:
		c.add("match_by", "leave it out to have it chosen", "match_by %q: want ip or mac", s.MatchBy)
	}
	switch {
	case from != to:
	case from.Kind == SelectEndpoint:
		c.add("to", "traffic of one endpoint with everyone: leave out from or to", "from and to are both endpoint %q", to.Endpoint)
	case from.Kind == SelectMAC, from.Kind == SelectPrefix && from.Prefix.IsSingleIP():
		c.add("to", "traffic of one station with everyone: leave out from or to", "from and to are both %s, and no station sends frames to itself", s.To)
	}
	if from.Kind == SelectPrefix && to.Kind == SelectPrefix && from.Prefix.Addr().Is4() != to.Prefix.Addr().Is4() {
		c.add("to", "make two policies, one for each family", "from %s and to %s are of different families", from.Prefix, to.Prefix)
	}
	return c
}

func checkExhaustive(c *check, s PolicySpec, from, to Selector) {
	const hint = "name one endpoint in from (or to) and leave the other out; or use mode: selective"
	switch {
	case from.Kind == SelectEndpoint && to.Kind == SelectAny || from.Kind == SelectAny && to.Kind == SelectEndpoint:
	case from.Kind != SelectEndpoint && to.Kind != SelectEndpoint:
		c.add("mode", hint, "exhaustive takes all traffic of one endpoint, and neither from nor to is an endpoint")
	default:
		c.add("mode", hint, "exhaustive takes all traffic of one endpoint, and here both from and to select")
	}
	for i, text := range s.Match {
		if text != string(ProtocolAll) {
			c.add(fmt.Sprintf("match[%d]", i), "leave match out, or use mode: selective", "exhaustive takes all traffic, match %q would not", text)
		}
	}
}
