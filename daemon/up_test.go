package daemon

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadyWaitsUntilTheHostIsKnown(t *testing.T) {
	for name, x := range map[string]struct {
		known, end time.Duration // after which the manager knows the host, and ctx ends; 0 never
		after      time.Duration
		ready      bool
		says       string
	}{
		"known at once":        {known: time.Nanosecond, after: time.Nanosecond, ready: true},
		"known after a second": {known: time.Second, after: time.Second, ready: true},
		"not known":            {after: knownWithin, ready: true, says: "has not heard of this host"},
		"ends before":          {end: time.Second, after: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				known := make(chan struct{})
				if x.known > 0 {
					time.AfterFunc(x.known, func() { close(known) })
				}
				if x.end > 0 {
					time.AfterFunc(x.end, cancel)
				}
				var log strings.Builder
				began := time.Now()
				ready := awaitKnown(ctx, known, slog.New(slog.NewTextHandler(&log, nil)))
				if after := time.Since(began); ready != x.ready || after != x.after {
					t.Errorf("%v after %v, want %v after %v", ready, after, x.ready, x.after)
				}
				if said := log.String(); (x.says != "") != (said != "") || !strings.Contains(said, x.says) {
					t.Errorf("it says %q, want %q", said, x.says)
				}
			})
		})
	}
}
