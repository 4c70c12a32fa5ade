package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
	"weir.dev/weir/catalogue/nf/targets"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Services    map[string]*service `json:"services"`
	Connections int                 `json:"connections"`
	Health      *targets.Health     `json:"health"`
}

// service is a virtual address and port.
type service struct {
	Address  netip.Addr     `json:"address"`
	Protocol string         `json:"protocol"`
	Port     uint16         `json:"port"`
	By       string         `json:"by"`
	Return   string         `json:"return"`
	Targets  []target       `json:"targets"`
	Check    *targets.Check `json:"check"` // nil: the targets are never down
}

type target struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Weight  int        `json:"weight"`
	Drain   bool       `json:"drain"`
	MAC     string     `json:"mac"`
}

const (
	byConnection = "connection"
	byClient     = "client"

	returnFunction = "function" // answers come back through the function
	returnDirect   = "direct"   // targets have the virtual address, too, and answer by themselves
)

// Bounds of what can be asked for.
const (
	maxServices    = 64
	maxTargets     = 64 // of a service
	maxWeight      = 100
	minConnections = 64
	maxConnections = 262144

	defaultConnections = 65536
)

var (
	protocols = map[string]uint8{"tcp": nf.TCP, "udp": nf.UDP}
	names     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)
)

func parseConfig(raw []byte) (config, error) {
	cfg := config{Connections: defaultConnections}
	if len(bytes.TrimSpace(raw)) == 0 {
		return config{}, errors.New("services: want at least one")
	}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	switch {
	case len(cfg.Services) == 0 || len(cfg.Services) > maxServices:
		return config{}, fmt.Errorf("services: %d: want 1 to %d", len(cfg.Services), maxServices)
	case cfg.Connections < minConnections || cfg.Connections > maxConnections:
		return config{}, fmt.Errorf("connections %d: want %d to %d", cfg.Connections, minConnections, maxConnections)
	}
	if err := cfg.Health.Complete(); err != nil {
		return config{}, fmt.Errorf("health: %w", err)
	}
	type place struct {
		protocol string
		at       netip.AddrPort
		direct   string // of a target that answers by itself: its service. Its port may serve others, too
	}
	virtual, real := map[place]string{}, map[place]string{}
	for name, s := range cfg.Services {
		if !names.MatchString(name) {
			return config{}, fmt.Errorf("service %q: want a name of 1 to 63 of A-Z, a-z, 0-9, - and _", name)
		}
		if s == nil {
			return config{}, fmt.Errorf("service %s: address: want one", name)
		}
		if err := s.complete(cfg.Health); err != nil {
			return config{}, fmt.Errorf("service %s: %w", name, err)
		}
		p := place{s.Protocol, netip.AddrPortFrom(s.Address, s.Port), ""}
		if other := virtual[p]; other != "" {
			return config{}, fmt.Errorf("service %s: %s %s: service %s has it, too", name, p.protocol, p.at, other)
		}
		virtual[p] = name
		for _, t := range s.Targets { // what comes from there has to tell the service
			p := place{s.Protocol, netip.AddrPortFrom(t.Address, t.Port), ""}
			if s.Return == returnDirect {
				p.direct = name
			}
			switch other := real[p]; {
			case other != "" && p.direct != "":
				return config{}, fmt.Errorf("service %s: target %s is given twice", name, t.Address)
			case other != "":
				return config{}, fmt.Errorf("service %s: target %s %s: service %s has it, too; a target's port serves one service", name, p.protocol, p.at, other)
			}
			real[p] = name
		}
	}
	for name, s := range cfg.Services {
		for _, t := range s.Targets {
			for _, v := range cfg.Services {
				if v.Address == t.Address {
					return config{}, fmt.Errorf("service %s: target %s: it is a virtual address", name, t.Address)
				}
			}
		}
		if cfg.Health == nil {
			continue
		}
		for _, p := range cfg.Health.Addresses {
			if p.Addr() == s.Address {
				return config{}, fmt.Errorf("service %s: address %s: it is one of health.addresses", name, s.Address)
			}
		}
	}
	if n := len(cfg.checks()); n > targets.MaxChecks {
		return config{}, fmt.Errorf("%d pairs of address and check: want at most %d", n, targets.MaxChecks)
	}
	return cfg, nil
}

// complete checks a service and fills in what was left out.
func (s *service) complete(h *targets.Health) error {
	if s.By == "" {
		s.By = byConnection
	}
	if s.Return == "" {
		s.Return = returnFunction
	}
	switch {
	case !station.Single(s.Address):
		return fmt.Errorf("address %s: want the IPv4 or IPv6 address of a station", s.Address)
	case protocols[s.Protocol] == 0:
		return fmt.Errorf("protocol %q: want tcp or udp", s.Protocol)
	case s.Port == 0:
		return errors.New("port: want 1 to 65535")
	case s.By != byConnection && s.By != byClient:
		return fmt.Errorf("by %q: want %s or %s", s.By, byConnection, byClient)
	case s.Return != returnFunction && s.Return != returnDirect:
		return fmt.Errorf("return %q: want %s or %s", s.Return, returnFunction, returnDirect)
	case len(s.Targets) == 0 || len(s.Targets) > maxTargets:
		return fmt.Errorf("targets: %d: want 1 to %d", len(s.Targets), maxTargets)
	}
	for i := range s.Targets {
		t := &s.Targets[i]
		if t.Port == 0 {
			t.Port = s.Port
		}
		if t.Weight == 0 {
			t.Weight = 1
		}
		switch {
		case !station.Single(t.Address) || t.Address.Is4() != s.Address.Is4():
			return fmt.Errorf("target %d: address %s: want one of a station, of the family of %s", i+1, t.Address, s.Address)
		case t.Weight < 1 || t.Weight > maxWeight:
			return fmt.Errorf("target %s: weight %d: want 1 to %d", t.Address, t.Weight, maxWeight)
		case (t.MAC == "" || s.Check != nil) && h == nil:
			return fmt.Errorf("target %s: the function has no address to ask from where it is, or to try it: want health.addresses, or its mac and no check", t.Address)
		case (t.MAC == "" || s.Check != nil) && !h.Speaks(t.Address):
			return fmt.Errorf("target %s: health.addresses has none of this family", t.Address)
		case s.Return == returnDirect && t.Port != s.Port:
			return fmt.Errorf("target %s: port %d: with return: direct a target gets packets as clients sent them: want the service's port %d, or none", t.Address, t.Port, s.Port)
		case s.Return == returnDirect && t.MAC == "" && !slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return p.Contains(t.Address) }):
			return fmt.Errorf("target %s: it is behind a router, which would not hand on packets to %s: with return: direct want a target in a network of health.addresses, or its own mac", t.Address, s.Address)
		}
		if t.MAC != "" {
			if m, err := net.ParseMAC(t.MAC); err != nil || len(m) != 6 || m[0]&1 != 0 {
				return fmt.Errorf("target %s: mac %q: want one of a station, as 02:00:00:00:00:01", t.Address, t.MAC)
			}
		}
	}
	if s.Check == nil {
		return nil
	}
	return s.Check.Complete()
}

func (c config) checks() map[targets.Probed]targets.Check {
	all := map[targets.Probed]targets.Check{}
	for _, s := range c.Services {
		if s.Check == nil {
			continue
		}
		for _, t := range s.Targets {
			all[targets.Of(t.Address, s.Check)] = *s.Check
		}
	}
	return all
}
