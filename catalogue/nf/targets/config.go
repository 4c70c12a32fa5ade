// Package targets tries the targets of a function that balances (dns-lb, load-balancer), knows which are up, and tells the operator.
package targets

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// Check says how targets are tried. One of the three is set.
type Check struct {
	TCP  uint16 `json:"tcp"` // port
	HTTP *HTTP  `json:"http"`
	ICMP bool   `json:"icmp"`
}

// HTTP is a request.
type HTTP struct {
	Port uint16 `json:"port"`
	Path string `json:"path"`
	Host string `json:"host"` // of the request; the address if it is not given
}

// Health is what the function needs to try targets by itself.
type Health struct {
	Addresses []netip.Prefix `json:"addresses"` // its own, at out
	Gateways  []netip.Addr   `json:"gateways"`
	Interval  nf.Duration    `json:"interval"`
	Timeout   nf.Duration    `json:"timeout"`
	Rise      int            `json:"rise"` // so many trials in a row must succeed
	Fall      int            `json:"fall"` // or fail
}

// Bounds of what can be asked for.
const (
	MaxChecks   = 256 // pairs of address and check
	maxRise     = 10
	minInterval = 100 * time.Millisecond
	maxInterval = 5 * time.Minute

	defaultInterval = 5 * time.Second
	defaultTimeout  = time.Second
	defaultRise     = 2
	defaultFall     = 3
)

// Complete checks it and fills in what was left out.
func (c *Check) Complete() error {
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

// Complete checks it and fills in what was left out; nil stays nil.
func (h *Health) Complete() error {
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
		families[station.Family(a)]++
	}
	var gateways [2]int
	for _, g := range h.Gateways {
		if !slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return p.Contains(g) }) {
			return fmt.Errorf("gateway %s: want one in the network of an address", g)
		}
		gateways[station.Family(g)]++
	}
	if max(families[0], families[1], gateways[0], gateways[1]) > 1 {
		return errors.New("want at most one address and one gateway of each family")
	}
	return nil
}

// Speaks tells whether a target's family has an address of ours.
func (h *Health) Speaks(to netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(p netip.Prefix) bool { return station.Family(p.Addr()) == station.Family(to) })
}

// Probed is an address and how it is tried. Names that agree in both share it.
type Probed struct {
	Address netip.Addr
	How     string // a canonical form of the check
}

func (c *Check) String() string {
	switch {
	case c.HTTP != nil:
		return fmt.Sprintf("http port %d host %q path %s", c.HTTP.Port, c.HTTP.Host, c.HTTP.Path)
	case c.TCP != 0:
		return fmt.Sprintf("tcp port %d", c.TCP)
	}
	return "icmp"
}

// Of names an address and a check.
func Of(a netip.Addr, c *Check) Probed { return Probed{a, c.String()} }
