package probing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/datapath"
)

// Through sends a frame through each inline function among names, and waits until all are out or ctx ends. It tells how long each took, 0 of one
// that is not out. What is no inline function is missing.
type Through func(ctx context.Context, names []string) (map[string]time.Duration, error)

// One is a switch's Probe.
func (through Through) One(ctx context.Context, name string) (datapath.Probe, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Wait)
		defer cancel()
	}
	took, err := through(ctx, []string{name})
	rtt, inline := took[name]
	switch {
	case err != nil:
	case !inline:
		err = fmt.Errorf("no such inline function: %w", datapath.ErrNotFound)
	case rtt > 0:
		return datapath.Probe{RTT: rtt}, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return datapath.Probe{}, ctx.Err()
	default:
		err = fmt.Errorf("the frame sent into port in did not come out of port out: %w", ctx.Err())
	}
	return datapath.Probe{}, fmt.Errorf("probe function %s: %w", name, err)
}

// All is a switch's ProbeAll.
func (through Through) All(ctx context.Context, names []string) (map[string]datapath.Probe, error) {
	took, err := through(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("probe %d functions: %w", len(names), err)
	}
	passed := make(map[string]datapath.Probe, len(took))
	for name, rtt := range took {
		if rtt > 0 {
			passed[name] = datapath.Probe{RTT: rtt}
		}
	}
	return passed, nil
}
