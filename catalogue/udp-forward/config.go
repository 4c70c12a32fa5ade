package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Addresses []netip.Prefix `json:"addresses"` // at both ports
	Gateways  []netip.Addr   `json:"gateways"`  // at out
	Relays    []relay        `json:"relays"`
}

type relay struct {
	Port uint16         `json:"port"`
	To   netip.AddrPort `json:"to"`
}

// maxRelays bounds what can be asked for.
const maxRelays = 64

func parseConfig(raw []byte) (config, error) {
	var cfg config
	if len(bytes.TrimSpace(raw)) == 0 {
		return cfg, errors.New("addresses: want at least one, as 10.0.0.9/24")
	}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	if len(cfg.Addresses) == 0 {
		return config{}, errors.New("addresses: want at least one, as 10.0.0.9/24")
	}
	if len(cfg.Relays) == 0 || len(cfg.Relays) > maxRelays {
		return config{}, fmt.Errorf("relays: %d: want 1 to %d", len(cfg.Relays), maxRelays)
	}
	var addresses, gateways [2]int
	for _, p := range cfg.Addresses {
		if !station.Single(p.Addr()) {
			return config{}, fmt.Errorf("address %s: want one of a station with the length of its network, as 10.0.0.9/24", p)
		}
		addresses[station.Family(p.Addr())]++
	}
	for _, g := range cfg.Gateways {
		if !slices.ContainsFunc(cfg.Addresses, func(p netip.Prefix) bool { return p.Contains(g) && p.Addr() != g }) {
			return config{}, fmt.Errorf("gateway %s: want one in the network of an address", g)
		}
		gateways[station.Family(g)]++
	}
	if max(addresses[0], addresses[1], gateways[0], gateways[1]) > 1 {
		return config{}, errors.New("want at most one address and one gateway of each family")
	}
	seen := map[netip.AddrPort]bool{}
	for _, r := range cfg.Relays {
		own := cfg.own(r.To.Addr())
		at := netip.AddrPortFrom(own, r.Port)
		switch {
		case r.Port == 0:
			return config{}, errors.New("relay: port: want 1 to 65535")
		case !station.Single(r.To.Addr()) || r.To.Port() == 0:
			return config{}, fmt.Errorf("relay %d: to %s: want a station's address and a port, as 10.0.0.2:7000", r.Port, r.To)
		case !own.IsValid():
			return config{}, fmt.Errorf("relay %d: to %s: addresses has none of this family", r.Port, r.To)
		case r.To.Addr() == own:
			return config{}, fmt.Errorf("relay %d: to %s: it is the function's own", r.Port, r.To)
		case seen[at]:
			return config{}, fmt.Errorf("relay %d: %s is given twice", r.Port, at)
		}
		seen[at] = true
	}
	return cfg, nil
}

// own address of the family of another one.
func (c config) own(like netip.Addr) netip.Addr {
	for _, p := range c.Addresses {
		if p.Addr().Is4() == like.Is4() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}
