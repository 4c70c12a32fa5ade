package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Allow   []entry           `json:"allow"`
	Deny    []entry           `json:"deny"`
	Default string            `json:"default"` // drop (the default) or accept
	Reject  bool              `json:"reject"`  // answer what is denied instead of dropping it in silence
	Sets    map[string]places `json:"sets"`    // addresses by name
	Settle  *bool             `json:"settle"`  // the switch may pass accepted flows by; default true

	probe []byte // first bytes of the switch's probe frames, destination and source; nil: there are none
}

const maxServices = 1000 // of each list: rules are looked at one after another

// entry of a list.
type entry struct {
	service
	From, To         places // of clients, of servers
	Limit            *limit
	sources, targets addresses // what From and To are; nil: all
	fromText, toText string    // for people
}

// limit of what passes: of connections for TCP, else of packets.
type limit struct {
	Rate      string `json:"rate"`  // 10/s, 600/m, 100/h
	Burst     uint32 `json:"burst"` // at once; default: what a second or one unit may have
	PerSource bool   `json:"per_source"`

	n    uint64
	unit expr.LimitTime
}

// service is one kind of traffic: a protocol and, for some, ports of the server.
type service struct {
	proto       string
	first, last uint16 // 0, 0: every port
}

var protocols = []string{"all", "arp", "icmp", "ip", "sctp", "tcp", "udp"}

func parseConfig(raw []byte) (config, error) {
	cfg := config{Default: "drop"}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	switch cfg.Default {
	case "drop", "accept":
	default:
		return config{}, fmt.Errorf("default %q: want drop or accept", cfg.Default)
	}
	if len(cfg.Allow) > maxServices || len(cfg.Deny) > maxServices {
		return config{}, fmt.Errorf("more than %d entries in a list", maxServices)
	}
	return cfg, cfg.resolve()
}

// resolve the addresses of entries.
func (c *config) resolve() error {
	if len(c.Sets) > maxSets {
		return fmt.Errorf("%d sets: want at most %d", len(c.Sets), maxSets)
	}
	sets, all := map[string]addresses{}, 0
	for name, texts := range c.Sets {
		if !setName.MatchString(name) {
			return fmt.Errorf("set %q: want a name of letters, digits, - and _", name)
		}
		a, err := parseAddresses(texts)
		if err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
		sets[name] = a
	}
	for list, entries := range map[string][]entry{"allow": c.Allow, "deny": c.Deny} {
		for i := range entries {
			e := &entries[i]
			if err := e.complete(sets, list == "allow"); err != nil {
				return fmt.Errorf("%s: %s: %w", list, e.service, err)
			}
			all += len(e.sources) + len(e.targets)
		}
	}
	if all > maxAddresses {
		return fmt.Errorf("the entries have %d ranges of addresses, each set counted where it is used: want at most %d", all, maxAddresses)
	}
	return nil
}

var setName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

func (e *entry) complete(sets map[string]addresses, allows bool) (err error) {
	if e.proto == "arp" && (e.From != nil || e.To != nil || e.Limit != nil) {
		return errors.New("ARP has no addresses and no limit here")
	}
	for _, x := range []struct {
		name string
		p    places
		to   *addresses
		text *string
	}{{"from", e.From, &e.sources, &e.fromText}, {"to", e.To, &e.targets, &e.toText}} {
		if x.p == nil {
			continue
		}
		if *x.to, err = x.p.resolve(sets); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		if *x.to == nil {
			*x.to = addresses{} // nobody
		}
		*x.text = strings.Join(x.p, " ")
		if len(*x.text) > maxText {
			*x.text = fmt.Sprintf("%.40s ... (%d ranges)", *x.text, len(*x.to))
		}
	}
	switch {
	case e.Limit == nil:
		return nil
	case !allows:
		return errors.New("limit: what is denied has none")
	}
	return e.Limit.parse()
}

const maxText = 60 // of addresses in the name of a rule

const maxRate = 1_000_000

func (l *limit) parse() error {
	n, unit, ok := strings.Cut(l.Rate, "/")
	units := map[string]expr.LimitTime{"s": expr.LimitTimeSecond, "m": expr.LimitTimeMinute, "h": expr.LimitTimeHour}
	var err error
	if l.n, err = strconv.ParseUint(n, 10, 32); err != nil || !ok || units[unit] == 0 || l.n == 0 || l.n > maxRate {
		return fmt.Errorf("limit: rate %q: want a number to %d and /s, /m or /h, as 10/s", l.Rate, maxRate)
	}
	l.unit = units[unit]
	if l.Burst > maxRate {
		return fmt.Errorf("limit: burst %d: want at most %d", l.Burst, maxRate)
	}
	if l.Burst == 0 {
		l.Burst = uint32(max(1, min(l.n, l.n/uint64(l.unit)+1)))
	}
	return nil
}

// UnmarshalJSON takes a service as a text, or with its addresses and limit.
func (e *entry) UnmarshalJSON(raw []byte) error {
	var long struct {
		Service string `json:"service"`
		From    places `json:"from"`
		To      places `json:"to"`
		Limit   *limit `json:"limit"`
	}
	if err := json.Unmarshal(raw, &long.Service); err != nil {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&long); err != nil {
			return fmt.Errorf("%.60s: want a text as \"tcp/80\", or service with from, to, limit: %w", raw, err)
		}
	}
	s, err := parseService(long.Service)
	*e = entry{service: s, From: long.From, To: long.To, Limit: long.Limit}
	return err
}

// String tells an entry as rules are named.
func (e entry) String() string {
	text := e.service.String()
	if e.fromText != "" {
		text += " from " + e.fromText
	}
	if e.toText != "" {
		text += " to " + e.toText
	}
	return text
}

func parseService(text string) (service, error) {
	proto, ports, hasPorts := strings.Cut(text, "/")
	s := service{proto: proto}
	if !slices.Contains(protocols, proto) {
		return service{}, fmt.Errorf("service %q: want one of %s, the last three with /PORT or /FIRST-LAST", text, strings.Join(protocols, ", "))
	}
	if !hasPorts {
		return s, nil
	}
	if !s.hasPorts() {
		return service{}, fmt.Errorf("service %q: %s has no ports", text, proto)
	}
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	var err error
	if s.first, err = parsePort(first); err == nil {
		s.last, err = parsePort(last)
	}
	if err == nil && s.first > s.last {
		return service{}, fmt.Errorf("service %q goes backwards: want %s/%d-%d", text, proto, s.last, s.first)
	}
	if err != nil {
		return service{}, fmt.Errorf("service %q: want ports from 1 to 65535 as %s/80 or %s/8000-8100", text, proto, proto)
	}
	return s, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = errors.New("port 0")
	}
	return uint16(n), err
}

func (s service) hasPorts() bool { return s.proto == "tcp" || s.proto == "udp" || s.proto == "sctp" }

func (s service) String() string {
	switch {
	case s.first == 0:
		return s.proto
	case s.first == s.last:
		return fmt.Sprintf("%s/%d", s.proto, s.first)
	}
	return fmt.Sprintf("%s/%d-%d", s.proto, s.first, s.last)
}
