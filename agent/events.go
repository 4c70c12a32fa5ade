package agent

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"weir.dev/weir/api"
)

const eventSocket = "events.sock"

// Bounds of what a function may raise.
const (
	// Connections of one function at a time. Further ones wait in the kernel, where they cost this process no descriptor; one that says nothing for
	// a second is closed.
	eventConns  = 4
	eventBytes  = 8 << 10
	eventBurst  = 20
	eventRefill = 100 * time.Millisecond // one more event per
)

// event raises an event of the agent about the function.
func (f *function) event(s api.Severity, reason, message string, outage time.Duration) {
	f.a.report.event(api.Event{Severity: s, Reason: reason, Kind: api.KindFunction, Object: f.name, Message: message, OutageNs: outage.Nanoseconds()})
}

// serveEvents listens where the container finds /run/weir/events.sock: HTTP POST of one JSON object {severity, reason, message}.
// Listening already: nothing to do. A socket that cannot be made is logged, since a function works without.
func (f *function) serveEvents() {
	if f.events != nil {
		return
	}
	l, err := listenFor(f.path("events.new"), f.path("run", eventSocket))
	if err != nil {
		f.a.Log.Warn("event socket", "function", f.name, "error", err)
		return
	}
	f.events = &http.Server{
		Handler: f.eventHandler(), ReadHeaderTimeout: time.Second, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second,
		IdleTimeout: time.Second, MaxHeaderBytes: 4 << 10,
	}
	l = netutil.LimitListener(l, eventConns)
	go func(s *http.Server) { _ = s.Serve(l) }(f.events) // ends with Close
}

// listenFor makes a socket for any user of a container. It is made where no container looks, then moved: whoever can write beside path, as containers
// of older versions can, could lay a link in the way of a mode that is set there.
func listenFor(fresh, path string) (net.Listener, error) {
	_ = os.Remove(fresh) // of an agent that was killed
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o666), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	return l, nil
}

func (f *function) stopEvents() {
	if f.events != nil {
		_ = f.events.Close()
		_ = os.Remove(f.path("run", eventSocket))
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
		if wrong := api.CheckReason(e.Reason); wrong != "" {
			http.Error(w, "reason: "+wrong, http.StatusBadRequest)
			return
		}
		if !b.take(time.Now()) {
			http.Error(w, "too many events", http.StatusTooManyRequests)
			return
		}
		f.a.report.event(api.Event{Severity: e.Severity, Reason: e.Reason, Kind: api.KindFunction, Object: f.name, Message: e.Message,
			Source: api.SourceOf(api.KindFunction, f.name)})
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
