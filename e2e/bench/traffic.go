package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
)

// side is one of those that are measured in turn. Frames enter its path as if a link had just received them, on the CPU that does the chain's work:
// the rate that they reach is the cost of a packet, not a capacity without loss.
type side struct {
	platform.Path
	got []float64 // Mpps
}

const (
	batchFrames = 16 // batch x crossings must stay under about 3000 (softirq)
	discard     = 9  // the port of the datagrams
)

// rate sends datagrams of 64 bytes on the wire for d and returns how many a second arrived.
func (s side) rate(ctx context.Context, d time.Duration) (pps float64, err error) {
	from, to, err := s.MACs()
	if err != nil {
		return 0, err
	}
	g, err := xdp.New(xdp.Options{In: xdp.Place{Space: s.Space, Link: s.Link}, Sink: xdp.Place{Space: s.To, Link: platform.Station}, Batch: batchFrames, CPU: -1})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	n, err := traffic.Send(ctx, g, traffic.Spec{
		Flows: []traffic.Flow{{SrcMAC: from, DstMAC: to, Src: s.Source, Dst: s.Address, SrcPort: 7, DstPort: discard}}, Sizes: []int{64}, Duration: d,
	})
	if err != nil {
		return 0, err
	}
	if n.Unique < n.Sent/100 || n.Unique == 0 {
		return 0, fmt.Errorf("only %d of %d frames arrived in %s", n.Unique, n.Sent, s.To)
	}
	return n.Goodput(), nil
}
