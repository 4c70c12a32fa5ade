package main

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/rig"
)

// Hostile frames by both ports, up to jumbo frames, over a line that loses all UDP in one direction, and delays, doubles and swaps it in the other: none of it passes, and what
// passes is as it came. What waits is bounded. Then a connection goes through as ever. They are 500,000, to save time: each is only looked at once.
func TestHostileFrames(t *testing.T) {
	r, p := start(t, `{"up": {"loss": "100%"}, "down": {"delay": "2ms", "jitter": "1ms", "keep_order": false, "duplicate": "20%", "reorder": "10%", "hold": "3ms"}, "match": ["udp"], "buffer": "1MB"}`)
	rig.Hostile{
		Frames: 500_000, MTU: 9000, MemoryKB: 32 << 10, Pass: 0.5,
		Denied: func(up bool, f []byte) string {
			// Behind more tags and extension headers nothing is looked for.
			if r := rig.Read(f); up && r.Proper && r.Proto == unix.IPPROTO_UDP && r.Size >= 0 && len(r.VLANs) <= 2 && r.Headers <= 8 {
				return "it is lost"
			}
			return ""
		},
	}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("direction=down")
	at := strings.LastIndex(p.Output(), "direction=up")
	t.Log(p.Output()[at:])
	if !testing.Short() && !strings.Contains(p.Output()[at:], `"buffer full"=`) {
		t.Error("no counters")
	}
	r.Server.Echo("10.77.0.2:7000")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7000")
	must(t, err)
	c.Close()
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
}
