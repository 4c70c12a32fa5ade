package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/targets"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Names  map[string]*service `json:"names"` // by a name, or by "*." and a name
	Health *targets.Health     `json:"health"`
}

// service is what one name leads to.
type service struct {
	Targets  []target       `json:"targets"`
	TTL      *uint32        `json:"ttl"`      // seconds
	Strategy string         `json:"strategy"` // weighted (the default), hash or failover
	Answers  int            `json:"answers"`  // how many targets of a family an answer has
	AllDown  string         `json:"all_down"` // serve (the default), servfail or pass
	Check    *targets.Check `json:"check"`    // nil: the targets are never down
}

type target struct {
	Address netip.Addr `json:"address"`
	Weight  *int       `json:"weight"` // 1 if it is not given; 0: only when no other is up
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
	maxNames   = 1000
	maxTargets = 64 // of a name
	maxWeight  = 1000
	maxTTL     = 86400

	defaultTTL = 30
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
	if err := cfg.Health.Complete(); err != nil {
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
	if n := len(cfg.checks()); n > targets.MaxChecks {
		return config{}, fmt.Errorf("%d pairs of address and check: want at most %d", n, targets.MaxChecks)
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
func (s *service) complete(h *targets.Health) error {
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
		case s.Check != nil && !h.Speaks(t.Address):
			return fmt.Errorf("target %s: check: health.addresses has none of this family", t.Address)
		}
		seen[t.Address] = true
	}
	if s.Check == nil {
		return nil
	}
	return s.Check.Complete()
}

func (c config) checks() map[targets.Probed]targets.Check {
	all := map[targets.Probed]targets.Check{}
	for _, s := range c.Names {
		if s.Check == nil {
			continue
		}
		for _, t := range s.Targets {
			all[targets.Of(t.Address, s.Check)] = *s.Check
		}
	}
	return all
}
