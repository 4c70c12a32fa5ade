package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Up       path           `json:"up"`   // from in to out
	Down     path           `json:"down"` // from out to in
	Match    []term         `json:"match"`
	Networks []netip.Prefix `json:"networks"`
	Seed     uint64         `json:"seed"`
	Buffer   nf.Size        `json:"buffer"` // bytes that wait, of each direction
}

// path says what happens in one direction. The zero value: nothing.
type path struct {
	Delay     nf.Duration `json:"delay"`
	Jitter    nf.Duration `json:"jitter"`
	KeepOrder *bool       `json:"keep_order"`
	Loss      nf.Share    `json:"loss"`
	LossBurst float64     `json:"loss_burst"` // frames in a row, in the mean
	Duplicate nf.Share    `json:"duplicate"`
	Reorder   nf.Share    `json:"reorder"`
	Hold      nf.Duration `json:"hold"`
	Rate      nf.Rate     `json:"rate"` // 0: none
	Queue     nf.Duration `json:"queue"`
}

// term of a selection.
type term struct {
	kind        string // all, ip, arp, icmp, tcp, udp
	first, last uint16 // ports of either end; 0: all
}

// Bounds of what can be asked for.
const (
	maxTerms    = 64
	maxNetworks = 256
	maxTime     = 10 * time.Second
	maxBurst    = 1000
	minRate     = 8e3 // bits a second
	maxRate     = 20e9
	minBuffer   = 64e3 // bytes
	maxBuffer   = 128e6

	defaultBuffer = 16e6
	defaultHold   = 10 * time.Millisecond
	defaultQueue  = 50 * time.Millisecond
)

func parseConfig(raw []byte) (config, error) {
	cfg := config{Seed: 1, Buffer: defaultBuffer}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	switch {
	case len(cfg.Match) > maxTerms:
		return config{}, fmt.Errorf("match: more than %d terms", maxTerms)
	case len(cfg.Networks) > maxNetworks:
		return config{}, fmt.Errorf("networks: more than %d", maxNetworks)
	case cfg.Buffer < minBuffer || cfg.Buffer > maxBuffer:
		return config{}, fmt.Errorf("buffer %d bytes: want 64KB to 128MB", cfg.Buffer)
	}
	for i, p := range cfg.Networks {
		if !p.IsValid() || p.Addr().Is4In6() {
			return config{}, fmt.Errorf("networks: %s: want a network, as 10.0.0.0/24 or 2001:db8::/64", p)
		}
		cfg.Networks[i] = p.Masked()
	}
	for name, p := range map[string]*path{"up": &cfg.Up, "down": &cfg.Down} {
		if err := p.complete(); err != nil {
			return config{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return cfg, nil
}

// complete checks a path and fills in what was left out.
func (p *path) complete() error {
	for name, d := range map[string]nf.Duration{"delay": p.Delay, "jitter": p.Jitter, "hold": p.Hold, "queue": p.Queue} {
		if d := time.Duration(d); d < 0 || d > maxTime {
			return fmt.Errorf("%s %s: want 0 to %s", name, d, maxTime)
		}
	}
	if p.LossBurst == 0 {
		p.LossBurst = 1
	}
	switch {
	case p.Jitter > p.Delay:
		return fmt.Errorf("jitter %s: want at most the delay, %s", time.Duration(p.Jitter), time.Duration(p.Delay))
	case p.LossBurst < 1 || p.LossBurst > maxBurst:
		return fmt.Errorf("loss_burst %g: want 1 to %d", p.LossBurst, maxBurst)
	case p.LossBurst > 1 && p.Loss > nf.Share(p.LossBurst/(p.LossBurst+1)): // a good frame between two bursts at least
		return fmt.Errorf("loss %.3g%%: with a loss_burst of %g want at most %.3g%%", float64(p.Loss)*100, p.LossBurst, 100*p.LossBurst/(p.LossBurst+1))
	case p.Rate != 0 && (p.Rate < minRate || p.Rate > maxRate):
		return fmt.Errorf("rate %d bit/s: want 8kbit to 20Gbit", p.Rate)
	case p.Rate == 0 && p.Queue != 0:
		return fmt.Errorf("queue %s: there is no rate to wait for", time.Duration(p.Queue))
	case p.Reorder == 0 && p.Hold != 0:
		return fmt.Errorf("hold %s: reorder is 0%%, so nothing is held back", time.Duration(p.Hold))
	}
	if p.Hold == 0 {
		p.Hold = nf.Duration(defaultHold)
	}
	if p.Queue == 0 {
		p.Queue = nf.Duration(defaultQueue)
	}
	return nil
}

// idle tells whether nothing happens.
func (p *path) idle() bool {
	return p.Delay == 0 && p.Loss == 0 && p.Duplicate == 0 && p.Reorder == 0 && p.Rate == 0
}

func (p *path) keepsOrder() bool { return p.KeepOrder == nil || *p.KeepOrder }

// UnmarshalText reads a term as "tcp/80".
func (t *term) UnmarshalText(text []byte) error {
	kind, ports, has := strings.Cut(string(text), "/")
	want := fmt.Errorf("match: %q: want all, ip, arp, icmp, tcp, udp, or a port or a range of ports as tcp/80 or udp/5000-5100", text)
	switch kind {
	case "tcp", "udp":
	case "all", "ip", "arp", "icmp":
		if has {
			return want
		}
	default:
		return want
	}
	t.kind = kind
	if !has {
		return nil
	}
	var ok bool
	if t.first, t.last, ok = nf.Ports(ports); !ok {
		return want
	}
	return nil
}

// selects a frame?
func (c *config) selects(p *nf.Packet) bool {
	if len(c.Networks) > 0 && !c.within(p.Src) && !c.within(p.Dst) {
		return false
	}
	if len(c.Match) == 0 {
		return true
	}
	for _, t := range c.Match {
		if t.takes(p) {
			return true
		}
	}
	return false
}

func (c *config) within(a netip.Addr) bool {
	for _, n := range c.Networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}

const (
	etherARP = 0x0806
	icmp4    = 1
	icmp6    = 58
)

func (t term) takes(p *nf.Packet) bool {
	ip := p.Src.IsValid()
	switch t.kind {
	case "all":
		return true
	case "arp":
		return p.Type == etherARP
	case "ip":
		return ip
	case "icmp":
		return ip && (p.Src.Is4() && p.Proto == icmp4 || p.Src.Is6() && p.Proto == icmp6)
	}
	if !ip || p.Proto != map[string]uint8{"tcp": nf.TCP, "udp": nf.UDP}[t.kind] {
		return false
	}
	between := func(port uint16) bool { return port >= t.first && port <= t.last }
	return t.first == 0 || between(p.SrcPort) || between(p.DstPort)
}
