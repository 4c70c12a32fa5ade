package api

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"weir.dev/weir/cpuset"
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$`)

// CheckName says whether a noun may be called so.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("name %q: want 1 to 42 characters of a-z, 0-9 and inner '-'", name)
	}
	return nil
}

// PathHop is one place in a chain.
type PathHop struct {
	Function string
	Tap      bool // gets a copy; the frame goes on
}

func (h PathHop) String() string {
	if h.Tap {
		return "tap:" + h.Function
	}
	return h.Function
}

// Bounds of a chain.
const (
	MaxHops = 256
	MaxTaps = 4 // one after another at one place
)

// ParsePath reads a chain: "fw | w1 | tap:mon".
func ParsePath(path string) ([]PathHop, error) {
	const form = `want function names separated by '|', "tap:" before one that gets a copy, as in "fw | w1 | tap:mon"`
	if strings.TrimSpace(path) == "" {
		return nil, fmt.Errorf("empty chain: %s", form)
	}
	parts := strings.Split(path, "|")
	if len(parts) > MaxHops {
		return nil, fmt.Errorf("%d functions in one chain: want at most %d", len(parts), MaxHops)
	}
	hops := make([]PathHop, 0, len(parts))
	seen := make(map[string]int, len(parts))
	taps := 0
	for i, part := range parts {
		name, isTap := strings.CutPrefix(strings.TrimSpace(part), "tap:")
		hop := PathHop{Function: strings.TrimSpace(name), Tap: isTap}
		if err := CheckName(hop.Function); err != nil {
			return nil, fmt.Errorf("place %d of the chain: %q is no function's name: %s", i+1, strings.TrimSpace(part), form)
		}
		if first, twice := seen[hop.Function]; twice {
			return nil, fmt.Errorf("function %q stands at place %d and again at place %d: a loop; make a second function of the same image", hop.Function, first, i+1)
		}
		seen[hop.Function] = i + 1
		if taps++; !isTap {
			taps = 0
		}
		if taps > MaxTaps {
			return nil, fmt.Errorf("place %d of the chain: want at most %d taps one after another", i+1, MaxTaps)
		}
		hops = append(hops, hop)
	}
	return hops, nil
}

// Hops are the places of the chain; none if the path cannot be read, which no stored one is.
func (s ChainSpec) Hops() []PathHop {
	hops, _ := ParsePath(s.Path)
	return hops
}

// Functions are the names in the chain's path, in order; none if the path cannot be read.
func (s ChainSpec) Functions() []string {
	var names []string
	for _, h := range s.Hops() {
		names = append(names, h.Function)
	}
	return names
}

// SelectorKind tells what a policy's from or to names.
type SelectorKind uint8

const (
	SelectAny SelectorKind = iota
	SelectEndpoint
	SelectPrefix
	SelectMAC
)

// Selector is a policy's from or to.
type Selector struct {
	Kind     SelectorKind
	Endpoint string
	Prefix   netip.Prefix
	MAC      [6]byte
}

// String names it for people, and as the end of a path.
func (s Selector) String() string {
	switch s.Kind {
	case SelectEndpoint:
		return "endpoint/" + s.Endpoint
	case SelectPrefix:
		return s.Prefix.String()
	case SelectMAC:
		return net.HardwareAddr(s.MAC[:]).String()
	}
	return "any"
}

// ParseSelector reads an endpoint's name, a CIDR or address, a MAC, "any" or nothing (any).
func ParseSelector(text string) (Selector, error) {
	const form = `want an endpoint's name, an address or CIDR such as 10.9.0.0/24, a MAC such as 02:00:00:00:00:01, or "any"`
	if text == "" || text == "any" {
		return Selector{}, nil
	}
	if mac, err := ParseMAC(text); err == nil {
		return Selector{Kind: SelectMAC, MAC: mac}, nil
	}
	if strings.ContainsAny(text, ".:/") {
		p, err := parsePrefix(text)
		if err != nil {
			return Selector{}, fmt.Errorf("%q: %w; %s", text, err, form)
		}
		return Selector{Kind: SelectPrefix, Prefix: p}, nil
	}
	if CheckName(text) != nil {
		return Selector{}, fmt.Errorf("%q is nothing to select by: %s", text, form)
	}
	return Selector{Kind: SelectEndpoint, Endpoint: text}, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Zone() != "" || a.Is4In6() {
			return netip.Prefix{}, fmt.Errorf("neither a zone nor an IPv4 address inside IPv6 can be matched")
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("no address, CIDR or MAC")
	}
	if p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("an IPv4 address inside IPv6 cannot be matched")
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%s has bits behind its length: write %s for the network or %s for the host", p, p.Masked(), p.Addr())
	}
	return p, nil
}

// ParseMAC reads six pairs of hexadecimal digits with colons between.
func ParseMAC(text string) ([6]byte, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || len(text) != 17 || strings.Count(text, ":") != 5 {
		return [6]byte{}, fmt.Errorf("MAC %q: want six pairs of hexadecimal digits, as in 02:00:00:00:00:01", text)
	}
	return [6]byte(mac), nil
}

// Protocol of a term of a policy's match.
type Protocol string

const (
	ProtocolAll  Protocol = "all"  // every frame, whatever is in it
	ProtocolIP   Protocol = "ip"   // IPv4 and IPv6
	ProtocolARP  Protocol = "arp"  //
	ProtocolICMP Protocol = "icmp" // ICMP and ICMPv6
	ProtocolTCP  Protocol = "tcp"  // of both families, as are the next
	ProtocolUDP  Protocol = "udp"
	ProtocolSCTP Protocol = "sctp"
)

// Term is one service: a protocol and, for tcp, udp and sctp, the service's ports. First and Last 0: any.
type Term struct {
	Protocol    Protocol
	First, Last uint16
}

func (t Term) String() string {
	switch {
	case t.Last == 0:
		return string(t.Protocol)
	case t.First == t.Last:
		return fmt.Sprintf("%s/%d", t.Protocol, t.First)
	}
	return fmt.Sprintf("%s/%d-%d", t.Protocol, t.First, t.Last)
}

// ParseMatch reads one term of a policy's match.
func ParseMatch(text string) (Term, error) {
	const form = "want tcp, udp or sctp, alone or as in tcp/80 or udp/5000-5100, or one of icmp, arp, ip, all"
	proto, ports, hasPorts := strings.Cut(text, "/")
	t := Term{Protocol: Protocol(proto)}
	switch t.Protocol {
	case ProtocolTCP, ProtocolUDP, ProtocolSCTP:
	case ProtocolAll, ProtocolIP, ProtocolARP, ProtocolICMP:
		if hasPorts {
			return Term{}, fmt.Errorf("match %q: %s has no ports: %s", text, proto, form)
		}
	default:
		return Term{}, fmt.Errorf("match %q: unknown protocol %q: %s", text, proto, form)
	}
	if !hasPorts {
		return t, nil
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	var err error
	if t.First, err = parsePort(first); err == nil {
		t.Last, err = parsePort(last)
	}
	if err != nil {
		return Term{}, fmt.Errorf("match %q: %w", text, err)
	}
	if t.First > t.Last {
		return Term{}, fmt.Errorf("match %q: the first port is greater than the last: write %s/%d-%d", text, proto, t.Last, t.First)
	}
	return t, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q: want a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// Least and greatest limits that make sense for a function.
const (
	MinMemory = 1 << 20
	MinCPUs   = 0.01
	MaxCPUs   = 4096
)

// ParseMemory reads bytes with an optional K, M or G (powers of 1024). Empty: 0, no limit.
func ParseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number, shift := text, 0
	switch text[len(text)-1] {
	case 'K', 'k':
		shift = 10
	case 'M', 'm':
		shift = 20
	case 'G', 'g':
		shift = 30
	}
	if shift > 0 {
		number = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("memory %q: want bytes with an optional K, M or G, as in 64M", text)
	}
	if n <<= shift; n < MinMemory {
		return 0, fmt.Errorf("memory %q: want at least 1M", text)
	}
	return n, nil
}

// ParseCPUSet reads numbers of processors and ranges of them, such as "0-3,5", and returns them as the kernel writes them. Empty: all processors.
func ParseCPUSet(text string) (string, error) {
	s, err := cpuset.Parse(text)
	return s.String(), err
}

// ParseCPUs reads a number of cores, such as "0.5". Empty: 0, no limit.
func ParseCPUs(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || n < MinCPUs || n > MaxCPUs {
		return 0, fmt.Errorf("cpus %q: want a number of cores from %v to %d, as in 0.5", text, MinCPUs, MaxCPUs)
	}
	return n, nil
}
