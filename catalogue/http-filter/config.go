package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Rules       []inspect.Rule `json:"rules"`
	Ports       ports          `json:"ports"`
	Midstream   string         `json:"midstream"`   // reset, pass
	Full        string         `json:"full"`        // reset, pass
	Unknown     string         `json:"unknown"`     // pass, reset
	Undecodable string         `json:"undecodable"` // reset, pass
	TLS         struct {
		NoName        string `json:"no_name"`        // reset, pass
		EncryptedName string `json:"encrypted_name"` // outer, reset
	} `json:"tls"`
	QUIC   string `json:"quic"` // drop, pass
	Limits limits `json:"limits"`
}

type limits struct {
	Connections int `json:"connections"`
	MemoryMB    int `json:"memory_mb"`
	WindowKB    int `json:"window_kb"`
	HeaderKB    int `json:"header_kb"`
	DecodedMB   int `json:"decoded_mb"`
	IdleS       int `json:"idle_s"`
}

// ports of servers. nil: any.
type ports map[uint16]bool

func (p *ports) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		if text != "any" {
			return fmt.Errorf("ports: %q: want a list, or any", text)
		}
		*p = nil
		return nil
	}
	var list []uint16
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("ports: want a list of numbers of 1 to 65535, or any: %w", err)
	}
	*p = ports{}
	for _, n := range list {
		if n == 0 {
			return errors.New("ports: 0: want 1 to 65535")
		}
		(*p)[n] = true
	}
	if len(*p) == 0 {
		return errors.New("ports: want at least one, or any")
	}
	return nil
}

func (p ports) has(n uint16) bool { return p == nil || p[n] }

func parseConfig(raw []byte) (config, error) {
	c := config{Ports: ports{80: true, 8080: true, 443: true}, Midstream: "reset", Full: "reset", Unknown: "pass", Undecodable: "reset", QUIC: "drop",
		Limits: limits{Connections: 20_000, MemoryMB: 64, WindowKB: 1024, HeaderKB: 64, DecodedMB: 16, IdleS: 3600}}
	c.TLS.NoName, c.TLS.EncryptedName = "reset", "outer"
	if err := nf.DecodeConfig(raw, &c); err != nil {
		return config{}, err
	}
	for _, x := range []struct{ name, value, a, b string }{
		{"midstream", c.Midstream, "reset", "pass"}, {"full", c.Full, "reset", "pass"}, {"unknown", c.Unknown, "pass", "reset"}, {"undecodable", c.Undecodable, "reset", "pass"},
		{"tls.no_name", c.TLS.NoName, "reset", "pass"}, {"tls.encrypted_name", c.TLS.EncryptedName, "outer", "reset"}, {"quic", c.QUIC, "drop", "pass"},
	} {
		if x.value != x.a && x.value != x.b {
			return config{}, fmt.Errorf("%s %q: want %s or %s", x.name, x.value, x.a, x.b)
		}
	}
	for _, x := range []struct {
		name               string
		value, least, most int
	}{
		{"connections", c.Limits.Connections, 1, 1_000_000}, {"memory_mb", c.Limits.MemoryMB, 1, 4096}, {"window_kb", c.Limits.WindowKB, 64, 16384},
		{"header_kb", c.Limits.HeaderKB, 4, 1024}, {"decoded_mb", c.Limits.DecodedMB, 1, 1024}, {"idle_s", c.Limits.IdleS, 10, 86400},
	} {
		if x.value < x.least || x.value > x.most {
			return config{}, fmt.Errorf("limits.%s %d: want %d to %d", x.name, x.value, x.least, x.most)
		}
	}
	return c, nil
}

// policy of the rules.
func (c config) policy(alert func(inspect.Hit)) (*inspect.Policy, error) {
	reset := func(s string) inspect.Action {
		if s == "reset" {
			return inspect.Reset
		}
		return ""
	}
	return inspect.NewPolicy(c.Rules, inspect.Options{
		NoName: reset(c.TLS.NoName), Encrypted: reset(c.TLS.EncryptedName), Unknown: reset(c.Unknown), Undecodable: reset(c.Undecodable),
		MaxHeader: c.Limits.HeaderKB << 10, MaxInflated: c.Limits.DecodedMB << 20, Alert: alert,
	})
}
