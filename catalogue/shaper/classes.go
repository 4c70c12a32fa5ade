package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/catalogue/nf"
)

// class of frames. Its share of a limit's rate is guaranteed; what is guaranteed to nobody, or not used, goes to the first class that wants it.
type class struct {
	Name  string   `json:"name"`
	Match []match  `json:"match"` // one of them is enough
	Share nf.Share `json:"share"`
}

// match selects frames: all that it says must be so.
type match struct {
	Service string   `json:"service"` // as udp/5060; "": ip
	DSCP    any      `json:"dscp"`    // a number or a name; nil: any
	Clients []string `json:"clients"` // addresses and networks at in; none: all
	Servers []string `json:"servers"` // addresses and networks at out; none: all

	kind             string // a service without its ports
	first, last      uint16 // ports of either end; 0: all
	dscp             int    // -1: any
	clients, servers []netip.Prefix
}

const (
	rest       = "rest" // what is in no class, as metrics name it
	maxClasses = 7      // and the rest: the kernel has eight priorities
	maxMatches = 64     // of a class
	maxRules   = 256    // of all classes: each frame is compared with one after the other
	minShare   = 0.01
	maxShares  = 0.95 // of all classes: the rest does not starve
)

var className = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// completeClasses checks classes and reads their matches.
func completeClasses(classes []class) error {
	if len(classes) > maxClasses {
		return fmt.Errorf("%d: want at most %d", len(classes), maxClasses)
	}
	var sum nf.Share
	rules, names := 0, map[string]bool{rest: true}
	for i := range classes {
		c := &classes[i]
		switch {
		case !className.MatchString(c.Name):
			return fmt.Errorf("%d.: name %q: want 1 to 32 of a-z, 0-9 and -, as \"voice\"", i+1, c.Name)
		case names[c.Name] && c.Name == rest:
			return fmt.Errorf("%d.: name %q: frames in no class have this name; want another", i+1, c.Name)
		case names[c.Name]:
			return fmt.Errorf("%d.: name %q: an earlier class has it; want another", i+1, c.Name)
		case c.Share < minShare || c.Share > maxShares:
			return fmt.Errorf("%s: share %.4g%%: want 1%% to 95%% of the rate, as \"30%%\"", c.Name, c.Share*100)
		case len(c.Match) == 0 || len(c.Match) > maxMatches:
			return fmt.Errorf("%s: %d matches: want 1 to %d, as [\"udp/5060\"]", c.Name, len(c.Match), maxMatches)
		}
		names[c.Name] = true
		for j := range c.Match {
			m := &c.Match[j]
			if err := m.complete(); err != nil {
				return fmt.Errorf("%s: match %d: %w", c.Name, j+1, err)
			}
			rules += len(m.rules(true))
		}
		sum += c.Share
	}
	if sum > maxShares+1e-9 {
		return fmt.Errorf("their shares are %.4g%% together: want at most 95%%, so that frames in no class keep 5%%", sum*100)
	}
	if rules > maxRules {
		return fmt.Errorf("their matches need %d filters in the kernel: want at most %d (each combination of addresses needs one, for each end that a port may be of; a range of ports needs up to 30)",
			rules, maxRules)
	}
	return nil
}

// UnmarshalJSON takes a service as a text, or a service with more.
func (m *match) UnmarshalJSON(raw []byte) error {
	*m = match{}
	if json.Unmarshal(raw, &m.Service) == nil && m.Service != "" {
		return nil
	}
	type plain match
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode((*plain)(m)); err != nil {
		return fmt.Errorf("match %.60s: want a service as \"udp/5060\", or an object of service, dscp, clients, servers: %w", raw, err)
	}
	return nil
}

// complete checks a match and reads its texts.
func (m *match) complete() (err error) {
	if m.Service == "" && m.DSCP == nil && m.Clients == nil && m.Servers == nil {
		return errors.New("it says nothing: want a service, dscp, clients or servers; frames in no class need no match")
	}
	if err := m.readService(); err != nil {
		return err
	}
	if m.kind == "arp" && (m.DSCP != nil || m.Clients != nil || m.Servers != nil) {
		return errors.New("service arp: ARP has no dscp, clients or servers here; leave them out")
	}
	if m.dscp, err = readDSCP(m.DSCP); err != nil {
		return err
	}
	if m.clients, err = readNetworks(m.Clients); err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	if m.servers, err = readNetworks(m.Servers); err != nil {
		return fmt.Errorf("servers: %w", err)
	}
	if len(m.rules(true)) == 0 {
		return errors.New("clients and servers have no address family in common: want both with IPv4, or both with IPv6")
	}
	return nil
}

var services = []string{"ip", "arp", "icmp", "tcp", "udp", "sctp"}

func (m *match) readService() error {
	kind, ports, has := strings.Cut(m.Service, "/")
	if m.Service == "" {
		kind = "ip"
	}
	want := fmt.Errorf("service %q: want ip, arp, icmp, tcp, udp or sctp, the last three also with ports as tcp/443 or udp/5060-5061", m.Service)
	if !slices.Contains(services, kind) || has && slices.Index(services, kind) < slices.Index(services, "tcp") {
		return want
	}
	m.kind, m.first, m.last = kind, 0, 0
	if !has {
		return nil
	}
	var ok bool
	if m.first, m.last, ok = nf.Ports(ports); !ok {
		return fmt.Errorf("%w; ports are 1 to 65535, the lower one first", want)
	}
	return nil
}

// readDSCP reads a code point by its number or its name in RFC 2474, 2597 and 3246; -1: any.
func readDSCP(v any) (int, error) {
	text := ""
	switch v := v.(type) {
	case nil:
		return -1, nil
	case float64:
		text = strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		text = strings.ToLower(v)
	}
	if n, err := strconv.ParseUint(text, 10, 6); err == nil {
		return int(n), nil
	}
	digit := func(at int, from, to byte) (int, bool) {
		return int(text[at] - '0'), text[at] >= from && text[at] <= to
	}
	switch {
	case text == "ef":
		return 46, nil
	case len(text) == 3 && strings.HasPrefix(text, "cs"):
		if class, ok := digit(2, '0', '7'); ok {
			return 8 * class, nil
		}
	case len(text) == 4 && strings.HasPrefix(text, "af"):
		class, ok1 := digit(2, '1', '4')
		drop, ok2 := digit(3, '1', '3')
		if ok1 && ok2 {
			return 8*class + 2*drop, nil
		}
	}
	return 0, fmt.Errorf("dscp %v: want 0 to 63, ef, cs0 to cs7, or af11 to af43", v)
}

func readNetworks(texts []string) (all []netip.Prefix, err error) {
	if texts != nil && len(texts) == 0 {
		return nil, errors.New("an empty list: want addresses or networks, or leave it out for all")
	}
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if a, wrong := netip.ParseAddr(text); wrong == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q: want an address or a network, as 10.0.0.1, 10.0.0.0/24 or 2001:db8::/64", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// matchAlike tells whether classes choose the same frames in the same order.
func matchAlike(a, b []class) bool {
	return slices.EqualFunc(a, b, func(a, b class) bool { return reflect.DeepEqual(a.Match, b.Match) })
}
