package agent

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
)

// Bounds of what a function may raise.
const (
	eventBytes  = 8 << 10
	eventBurst  = 20
	eventRefill = 100 * time.Millisecond // one more event per
)

// event raises an event about the function.
func (f *function) event(s api.Severity, reason, message string, outage time.Duration) {
	f.a.report.event(api.Event{Severity: s, Reason: reason, Kind: api.KindFunction, Object: f.name, Message: message, OutageNs: outage.Nanoseconds()})
}

// serveEvents listens where the container finds /run/weir/events.sock: HTTP POST of one JSON object {severity, reason, message}.
// Listening already: nothing to do. A socket that cannot be made is logged, since a function works without.
func (f *function) serveEvents() {
	if f.events != nil {
		return
	}
	path := f.path("run", "events.sock")
	_ = os.Remove(path) // of an earlier agent
	l, err := net.Listen("unix", path)
	if err != nil {
		f.a.Log.Warn("event socket", "function", f.name, "error", err)
		return
	}
	_ = os.Chmod(path, 0o666) // the function may run as any user of its container
	f.events = &http.Server{
		Handler: f.eventHandler(), ReadHeaderTimeout: time.Second, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second,
		IdleTimeout: time.Second, MaxHeaderBytes: 4 << 10,
	}
	go func(s *http.Server) { _ = s.Serve(l) }(f.events) // ends with Close
}

func (f *function) stopEvents() {
	if f.events != nil {
		_ = f.events.Close()
		f.events = nil
	}
}

func (f *function) eventHandler() http.Handler {
	b := &bucket{tokens: eventBurst, last: time.Now()}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "POST one JSON object {severity, reason, message}", http.StatusMethodNotAllowed)
			return
		}
		var e struct {
			Severity api.Severity `json:"severity"`
			Reason   string       `json:"reason"`
			Message  string       `json:"message"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, eventBytes)).Decode(&e); err != nil {
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
		if !b.take(time.Now()) {
			http.Error(w, "too many events", http.StatusTooManyRequests)
			return
		}
		f.event(e.Severity, e.Reason, e.Message, 0)
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
	if n := int(now.Sub(b.last) / eventRefill); n > 0 {
		b.tokens = min(eventBurst, b.tokens+n)
		b.last = b.last.Add(time.Duration(n) * eventRefill)
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}
