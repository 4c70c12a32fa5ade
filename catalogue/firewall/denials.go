package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"weir.dev/weir/catalogue/nf"
)

const (
	deniedEvery = 30 * time.Second // at most one event per denying rule in this time
	maxRules    = 4096             // remembered for the rate limit
)

// denials tells what rules denied, now and then.
type denials struct {
	events nf.Events
	last   map[string]time.Time
	missed map[string]uint64 // packets denied since the last event
}

// denied collects what a rule denied and tells it now and then.
func (s *denials) denied(ctx context.Context, log *slog.Logger, rule string, packets uint64) {
	if s.last == nil || len(s.last) > maxRules {
		s.last, s.missed = map[string]time.Time{}, map[string]uint64{}
	}
	s.missed[rule] += packets
	if time.Since(s.last[rule]) < deniedEvery {
		return
	}
	n := s.missed[rule]
	s.last[rule], s.missed[rule] = time.Now(), 0
	packet := "packets"
	if n == 1 {
		packet = "packet"
	}
	s.events.Raise(ctx, log, "warning", "TrafficDenied", fmt.Sprintf("%d %s denied by rule %q", n, packet, rule))
}
