package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Pool     addresses      `json:"pool"`
	Clients  []netip.Prefix `json:"clients"` // none: everybody at in
	Forward  []forward      `json:"forward"`
	Sessions int            `json:"sessions_per_client"`
}

// addresses of a pool, in the order in which they were given.
type addresses []netip.Addr

// forward leads what comes to a port of the pool to a client.
type forward struct {
	Protocol string         `json:"protocol"` // tcp or udp
	Address  netip.Addr     `json:"address"`  // of the pool; the first if it is not given
	Port     uint16         `json:"port"`
	To       netip.AddrPort `json:"to"`
}

// Bounds of what can be asked for.
const (
	maxPool         = 256 // addresses
	maxClients      = 256
	maxForwards     = 1000
	maxPerClient    = 60000
	defaultSessions = 2000
)

var protocols = map[string]uint8{"tcp": nf.TCP, "udp": nf.UDP}

func parseConfig(raw []byte) (config, error) {
	cfg := config{Sessions: defaultSessions}
	if len(bytes.TrimSpace(raw)) == 0 {
		return config{}, errors.New("pool: want at least one address")
	}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	switch {
	case len(cfg.Pool) == 0 || len(cfg.Pool) > maxPool:
		return config{}, fmt.Errorf("pool: %d addresses: want 1 to %d", len(cfg.Pool), maxPool)
	case len(cfg.Clients) > maxClients:
		return config{}, fmt.Errorf("clients: more than %d networks", maxClients)
	case len(cfg.Forward) > maxForwards:
		return config{}, fmt.Errorf("forward: more than %d ports", maxForwards)
	case cfg.Sessions < 1 || cfg.Sessions > maxPerClient:
		return config{}, fmt.Errorf("sessions_per_client %d: want 1 to %d", cfg.Sessions, maxPerClient)
	}
	for i, p := range cfg.Clients {
		if !p.IsValid() || !p.Addr().Is4() {
			return config{}, fmt.Errorf("clients: %s: want an IPv4 network, as 10.0.0.0/24", p)
		}
		cfg.Clients[i] = p.Masked()
	}
	type place struct {
		protocol string
		at       netip.AddrPort
	}
	seen := map[place]bool{}
	for i := range cfg.Forward {
		f := &cfg.Forward[i]
		if !f.Address.IsValid() {
			f.Address = cfg.Pool[0]
		}
		p := place{f.Protocol, netip.AddrPortFrom(f.Address, f.Port)}
		switch {
		case protocols[f.Protocol] == 0:
			return config{}, fmt.Errorf("forward: protocol %q: want tcp or udp", f.Protocol)
		case f.Port == 0:
			return config{}, errors.New("forward: port: want 1 to 65535")
		case !slices.Contains(cfg.Pool, f.Address):
			return config{}, fmt.Errorf("forward: address %s: want one of the pool", f.Address)
		case !f.To.Addr().Is4() || f.To.Port() == 0:
			return config{}, fmt.Errorf("forward: to %q: want an IPv4 address and a port, as 10.0.0.5:80", f.To)
		case !cfg.client(f.To.Addr()):
			return config{}, fmt.Errorf("forward: to %s: want one of the clients", f.To)
		case seen[p]:
			return config{}, fmt.Errorf("forward: %s %s: given twice", p.protocol, p.at)
		}
		seen[p] = true
	}
	return cfg, nil
}

// UnmarshalJSON reads addresses and ranges of them.
func (a *addresses) UnmarshalJSON(raw []byte) error {
	var texts []string
	if err := json.Unmarshal(raw, &texts); err != nil {
		return errors.New("pool: want a list of texts as \"10.0.0.100-10.0.0.110\"")
	}
	seen := map[netip.Addr]bool{}
	for _, text := range texts {
		first, last, err := span(text)
		if err != nil {
			return fmt.Errorf("pool: %q: %w", text, err)
		}
		for at := first; at.Compare(last) <= 0 && at.IsValid(); at = at.Next() {
			if seen[at] {
				return fmt.Errorf("pool: %s: given twice", at)
			}
			if seen[at] = true; len(seen) > maxPool {
				return fmt.Errorf("pool: more than %d addresses", maxPool)
			}
			*a = append(*a, at)
		}
	}
	return nil
}

func span(text string) (first, last netip.Addr, err error) {
	want := errors.New("want an IPv4 address, as 10.0.0.100, or a range, as 10.0.0.100-10.0.0.110")
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err1 := netip.ParseAddr(from)
	last, err2 := netip.ParseAddr(to)
	if err1 != nil || err2 != nil || !first.Is4() || !last.Is4() || last.Less(first) {
		return first, last, want
	}
	for _, a := range []netip.Addr{first, last} {
		if !host(a) {
			return first, last, want
		}
	}
	return first, last, nil
}

// host tells whether an address is that of one station.
func host(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// client tells whether an address is translated.
func (c *config) client(a netip.Addr) bool {
	if slices.Contains(c.Pool, a) || !host(a) {
		return false
	}
	return len(c.Clients) == 0 || slices.ContainsFunc(c.Clients, func(p netip.Prefix) bool { return p.Contains(a) })
}
