package report

import (
	"log/slog"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// While the manager is away, what functions raise does not drive out what the agent does.
func TestEventsOfFunctionsMakeRoomFirst(t *testing.T) {
	r := New("h1", nil, slog.New(slog.DiscardHandler), time.Now)
	r.Event(api.Event{Reason: "FunctionDied"})
	for range 2 * maxEvents {
		r.Event(api.Event{Reason: "Noise", Source: "function/fw"})
	}
	if e := r.pending.Events; len(e) != maxEvents || e[0].Reason != "FunctionDied" || r.lost != maxEvents+1 {
		t.Errorf("%d events, the first %s, %d lost", len(e), e[0].Reason, r.lost)
	}
	for range maxEvents {
		r.Event(api.Event{Reason: "FunctionRecovered"})
	}
	if e := r.pending.Events; len(e) != maxEvents || e[0].Reason != "FunctionRecovered" {
		t.Errorf("%d events, the first %s", len(e), e[0].Reason)
	}
}
