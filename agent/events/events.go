// Package events takes the events that a function raises: HTTP POST of one JSON object {severity, reason, message} at a socket in its container. Weir's own
// reasons are reserved, and connections, bytes and rate are bounded.
package events

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/api"
)

// Bounds of what a function may raise.
const (
	maxBytes = 8 << 10
	burst    = 20
	refill   = 100 * time.Millisecond // one more event per
)

// Serve listens at path, which is made at fresh, in the same file system. raise gets what a function raises.
func Serve(fresh, path, function string, raise func(api.Event)) (*socket.HTTP, error) {
	return socket.Serve(fresh, path, handler(function, raise))
}

func handler(function string, raise func(api.Event)) http.Handler {
	b := &bucket{tokens: burst, last: time.Now()}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Functions are taken as hostile: whatever they send is bounded and checked.
		if r.Method != http.MethodPost {
			http.Error(w, "POST one JSON object {severity, reason, message}", http.StatusMethodNotAllowed)
			return
		}
		var e struct {
			Severity api.Severity `json:"severity"`
			Reason   string       `json:"reason"`
			Message  string       `json:"message"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBytes)).Decode(&e); err != nil {
			http.Error(w, "want one JSON object {severity, reason, message}: "+err.Error(), http.StatusBadRequest)
			return
		}
		switch e.Severity {
		case api.Info, api.Warning, api.Error:
		case "":
			e.Severity = api.Info
		default:
			http.Error(w, "severity: want info, warning or error", http.StatusBadRequest)
			return
		}
		if strings.TrimSpace(e.Message) == "" {
			http.Error(w, "message: want a text", http.StatusBadRequest)
			return
		}
		if e.Reason == "" {
			e.Reason = "Raised"
		}
		if wrong := api.CheckReason(e.Reason); wrong != "" {
			http.Error(w, "reason: "+wrong, http.StatusBadRequest)
			return
		}
		// The rate is checked last, so that a mistake costs no event.
		if !b.take(time.Now()) {
			http.Error(w, "too many events", http.StatusTooManyRequests)
			return
		}
		raise(api.Event{Severity: e.Severity, Reason: e.Reason, Kind: api.KindFunction, Object: function, Message: e.Message,
			Source: api.SourceOf(api.KindFunction, function)})
		w.WriteHeader(http.StatusAccepted)
	})
}

// bucket limits a rate.
type bucket struct {
	mu     sync.Mutex
	tokens int
	last   time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int(now.Sub(b.last) / refill); n > 0 {
		b.tokens = min(burst, b.tokens+n)
		b.last = b.last.Add(time.Duration(n) * refill)
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}
