package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Names  map[string]*service `json:"names"` // by a name, or by "*." and a name
	Health *health             `json:"health"`
}

// service is what one name leads to.
type service struct {
	Targets  []target  `json:"targets"`
	TTL      *uint32   `json:"ttl"`      // seconds
	Strategy string    `json:"strategy"` // weighted (the default), hash or failover
	Answers  int       `json:"answers"`  // how many targets of a family an answer has
	AllDown  string    `json:"all_down"` // serve (the default), servfail or pass
	Check    *checking `json:"check"`    // nil: the targets are never down
}

type target struct {
	Address netip.Addr `json:"address"`
	Weight  *int       `json:"weight"` // 1 if it is not given; 0: only when no other is up
}

// checking says how targets are tried. One of the three is set.
type checking struct {
	TCP  uint16     `json:"tcp"` // port
	HTTP *httpCheck `json:"http"`
	ICMP bool       `json:"icmp"`
}

type httpCheck struct {
	Port uint16 `json:"port"`
	Path string `json:"path"`
	Host string `json:"host"` // of the request; the address if it is not given
}

// health is what the function needs to try targets by itself.
type health struct {
	Addresses []netip.Prefix `json:"addresses"` // its own, at out
	Gateways  []netip.Addr   `json:"gateways"`
	Interval  nf.Duration    `json:"interval"`
	Timeout   nf.Duration    `json:"timeout"`
	Rise      int            `json:"rise"` // so many trials in a row must succeed
	Fall      int            `json:"fall"` // or fail
}

// Strategies, and what an answer is when no target is up.
const (
	weighted = "weighted"
	hash     = "hash"
	failover = "failover"

	serve    = "serve"
	servfail = "servfail"
	pass     = "pass"
)

// Bounds of what can be asked for.
const (
	maxNames    = 1000
	maxTargets  = 64 // of a name
	maxWeight   = 1000
	maxTTL      = 86400
	maxChecks   = 256 // pairs of address and check
	maxRise     = 10
	minInterval = 100 * time.Millisecond
	maxInterval = 5 * time.Minute

	defaultTTL      = 30
	defaultInterval = 5 * time.Second
	defaultTimeout  = time.Second
	defaultRise     = 2
	defaultFall     = 3
)

func parseConfig(raw []byte) (config, error) {
	var cfg config
	if len(bytes.TrimSpace(raw)) == 0 {
		return cfg, errors.New("names: want at least one")
	}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	if len(cfg.Names) == 0 || len(cfg.Names) > maxNames {
		return config{}, fmt.Errorf("names: %d: want 1 to %d", len(cfg.Names), maxNames)
	}
	if err := cfg.Health.complete(); err != nil {
		return config{}, fmt.Errorf("health: %w", err)
	}
	names := make(map[string]*service, len(cfg.Names))
	for name, s := range cfg.Names {
		lower := strings.ToLower(strings.TrimSuffix(name, "."))
		if err := validName(lower); err != nil {
			return config{}, fmt.Errorf("name %q: %w", name, err)
		}
		if names[lower] != nil {
			return config{}, fmt.Errorf("name %q: given twice", name)
		}
		if s == nil {
			return config{}, fmt.Errorf("name %q: targets: want at least one", name)
		}
		if err := s.complete(cfg.Health); err != nil {
			return config{}, fmt.Errorf("name %q: %w", name, err)
		}
		names[lower] = s
	}
	cfg.Names = names
	if n := len(cfg.checks()); n > maxChecks {
		return config{}, fmt.Errorf("%d pairs of address and check: want at most %d", n, maxChecks)
	}
	return cfg, nil
}

var label = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// validName of a host, in lower case and without the dot at its end; it may begin with "*.".
func validName(name string) error {
	rest := strings.TrimPrefix(name, "*.")
	if len(rest) > 253 {
		return errors.New("want at most 253 characters")
	}
	for l := range strings.SplitSeq(rest, ".") {
		if !label.MatchString(l) {
			return fmt.Errorf("label %q: want 1 to 63 of a-z, 0-9, - and _, as in app.example.com or *.example.com", l)
		}
	}
	return nil
}

// complete checks a service and fills in what was left out.
func (s *service) complete(h *health) error {
	if s.TTL == nil {
		s.TTL = new(uint32(defaultTTL))
	}
	if s.Strategy == "" {
		s.Strategy = weighted
	}
	if s.Answers == 0 {
		s.Answers = 1
	}
	if s.AllDown == "" {
		s.AllDown = serve
	}
	switch {
	case len(s.Targets) == 0 || len(s.Targets) > maxTargets:
		return fmt.Errorf("targets: %d: want 1 to %d", len(s.Targets), maxTargets)
	case *s.TTL > maxTTL:
		return fmt.Errorf("ttl %d: want 0 to %d seconds", *s.TTL, maxTTL)
	case !slices.Contains([]string{weighted, hash, failover}, s.Strategy):
		return fmt.Errorf("strategy %q: want weighted, hash or failover", s.Strategy)
	case s.Answers < 0 || s.Answers > maxTargets:
		return fmt.Errorf("answers %d: want 1 to %d", s.Answers, maxTargets)
	case !slices.Contains([]string{serve, servfail, pass}, s.AllDown):
		return fmt.Errorf("all_down %q: want serve, servfail or pass", s.AllDown)
	case s.Check == nil && s.AllDown != serve:
		return fmt.Errorf("all_down %q: without a check no target is ever down", s.AllDown)
	}
	seen := map[netip.Addr]bool{}
	for i := range s.Targets {
		t := &s.Targets[i]
		if t.Weight == nil {
			t.Weight = new(1)
		}
		switch {
		case !t.Address.IsValid() || t.Address.Zone() != "" || t.Address.Is4In6():
			return fmt.Errorf("target %d: address: want an IPv4 or IPv6 address", i+1)
		case seen[t.Address]:
			return fmt.Errorf("target %s: given twice", t.Address)
		case *t.Weight < 0 || *t.Weight > maxWeight:
			return fmt.Errorf("target %s: weight %d: want 0 to %d", t.Address, *t.Weight, maxWeight)
		case s.Check != nil && h == nil:
			return errors.New("check: the function has no address to try targets from: want health.addresses")
		case s.Check != nil && !h.speaks(t.Address):
			return fmt.Errorf("target %s: check: health.addresses has none of this family", t.Address)
		}
		seen[t.Address] = true
	}
	if s.Check == nil {
		return nil
	}
	return s.Check.complete()
}

func (c *checking) complete() error {
	n := 0
	for _, set := range []bool{c.TCP != 0, c.HTTP != nil, c.ICMP} {
		if set {
			n++
		}
	}
	if n != 1 {
		return errors.New("check: want one of tcp (a port), http and icmp (true)")
	}
	if c.HTTP == nil {
		return nil
	}
	if c.HTTP.Port == 0 {
		c.HTTP.Port = 80
	}
	if c.HTTP.Path == "" {
		c.HTTP.Path = "/"
	}
	if !strings.HasPrefix(c.HTTP.Path, "/") || strings.ContainsFunc(c.HTTP.Path, unprintable) || strings.ContainsFunc(c.HTTP.Host, unprintable) {
		return fmt.Errorf("check: http: path %q, host %q: want a path as /healthz and a name", c.HTTP.Path, c.HTTP.Host)
	}
	return nil
}

func unprintable(r rune) bool { return r <= ' ' || r > '~' }

func (h *health) complete() error {
	if h == nil {
		return nil
	}
	for _, d := range []struct {
		at *nf.Duration
		to time.Duration
	}{{&h.Interval, defaultInterval}, {&h.Timeout, defaultTimeout}} {
		if *d.at == 0 {
			*d.at = nf.Duration(d.to)
		}
	}
	if h.Rise == 0 {
		h.Rise = defaultRise
	}
	if h.Fall == 0 {
		h.Fall = defaultFall
	}
	switch interval, timeout := time.Duration(h.Interval), time.Duration(h.Timeout); {
	case len(h.Addresses) == 0:
		return errors.New("addresses: want at least one, as 10.0.0.9/24")
	case interval < minInterval || interval > maxInterval:
		return fmt.Errorf("interval %s: want %s to %s", interval, minInterval, maxInterval)
	case timeout < minInterval || timeout > interval:
		return fmt.Errorf("timeout %s: want %s to the interval, %s", timeout, minInterval, interval)
	case h.Rise < 0 || h.Rise > maxRise || h.Fall < 0 || h.Fall > maxRise:
		return fmt.Errorf("rise %d, fall %d: want 1 to %d", h.Rise, h.Fall, maxRise)
	}
	var families [2]int
	for _, p := range h.Addresses {
		a := p.Addr()
		if !a.IsValid() || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return fmt.Errorf("address %s: want one of a host with the length of its network, as 10.0.0.9/24", p)
		}
		families[family(a)]++
	}
	var gateways [2]int
	for _, g := range h.Gateways {
		if !slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return p.Contains(g) }) {
			return fmt.Errorf("gateway %s: want one in the network of an address", g)
		}
		gateways[family(g)]++
	}
	if max(families[0], families[1], gateways[0], gateways[1]) > 1 {
		return errors.New("want at most one address and one gateway of each family")
	}
	return nil
}

// family of an address: 0 is IPv4, 1 is IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (h *health) speaks(to netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return family(p.Addr()) == family(to) })
}

// probed is an address and how it is tried. Names that agree in both share it.
type probed struct {
	addr netip.Addr
	how  string // a canonical form of the check
}

func (p probed) text() string { return p.addr.String() + " " + p.how }

func (c config) checks() map[probed]checking {
	all := map[probed]checking{}
	for _, s := range c.Names {
		if s.Check == nil {
			continue
		}
		for _, t := range s.Targets {
			all[probed{t.Address, s.Check.String()}] = *s.Check
		}
	}
	return all
}

func (c *checking) String() string {
	switch {
	case c.HTTP != nil:
		return fmt.Sprintf("http port %d host %q path %s", c.HTTP.Port, c.HTTP.Host, c.HTTP.Path)
	case c.TCP != 0:
		return fmt.Sprintf("tcp port %d", c.TCP)
	}
	return "icmp"
}
