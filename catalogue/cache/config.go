package main

import (
	"fmt"
	"slices"

	"weir.dev/weir/catalogue/nf"
)

// config is the function's configuration; schema.json describes the same.
type config struct {
	Ports       []uint16 `json:"ports"`
	SizeMB      int      `json:"size_mb"`
	MaxObjectKB int      `json:"max_object_kb"`
	DefaultTTLS int      `json:"default_ttl_s"`
}

const (
	maxPorts    = 8
	maxSizeMB   = 40 // of the 64 that /tmp has: answers on their way need room, too
	maxObjectKB = 8 << 10
	maxTTLS     = 86400
)

func parseConfig(raw []byte) (config, error) {
	cfg := config{Ports: []uint16{80}, SizeMB: 32, MaxObjectKB: 1024}
	if err := nf.DecodeConfig(raw, &cfg); err != nil {
		return config{}, err
	}
	slices.Sort(cfg.Ports)
	switch {
	case len(cfg.Ports) == 0 || len(cfg.Ports) > maxPorts || cfg.Ports[0] == 0:
		return config{}, fmt.Errorf("ports %v: want 1 to %d TCP ports", cfg.Ports, maxPorts)
	case len(slices.Compact(slices.Clone(cfg.Ports))) != len(cfg.Ports):
		return config{}, fmt.Errorf("ports %v: want each one once", cfg.Ports)
	case cfg.SizeMB < 1 || cfg.SizeMB > maxSizeMB:
		return config{}, fmt.Errorf("size_mb %d: want 1 to %d", cfg.SizeMB, maxSizeMB)
	case cfg.MaxObjectKB < 1 || cfg.MaxObjectKB > maxObjectKB:
		return config{}, fmt.Errorf("max_object_kb %d: want 1 to %d", cfg.MaxObjectKB, maxObjectKB)
	case cfg.MaxObjectKB > cfg.SizeMB<<10:
		return config{}, fmt.Errorf("max_object_kb %d: more than the cache of %d MB has", cfg.MaxObjectKB, cfg.SizeMB)
	case cfg.DefaultTTLS < 0 || cfg.DefaultTTLS > maxTTLS:
		return config{}, fmt.Errorf("default_ttl_s %d: want 0 to %d", cfg.DefaultTTLS, maxTTLS)
	}
	return cfg, nil
}
