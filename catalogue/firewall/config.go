package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Allow   []service `json:"allow"`
	Deny    []service `json:"deny"`
	Default string    `json:"default"` // drop (the default) or accept
	Reject  bool      `json:"reject"`  // answer what is denied instead of dropping it in silence

	probe []byte // first bytes of the switch's probe frames, destination and source; nil: there are none
}

const maxServices = 1000 // of each list: rules are looked at one after another

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
	return cfg, nil
}

func (s *service) UnmarshalJSON(raw []byte) error {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("%s: want a text as \"tcp/80\"", raw)
	}
	parsed, err := parseService(text)
	if err != nil {
		return err
	}
	*s = parsed
	return nil
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
