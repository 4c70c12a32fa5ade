// Package manager serves the API: it admits specs, keeps objects with their generations, and follows operations.
//
// It is stateless over the store: several managers can serve one store. It owns Meta and operations; status comes from agents.
// It computes no rules and knows no drivers: what needs a host's answer goes through Node.
package manager

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/store"
)

// Bounds of what the manager keeps and does at once.
const (
	maxEvents     = 10_000
	maxOperations = 1_000
	maxWatches    = 1_000
	maxStreams    = 200      // logs and execs
	maxBody       = 32 << 20 // of a request
	bodyTimeout   = 30 * time.Second
	writeTimeout  = 30 * time.Second // of one write to a stream
	editAttempts  = 10               // when other managers write at the same time
)

// Node answers what only a host knows. The agent of this process is one.
type Node interface {
	// Counters reads ports and rules live from the switch.
	Counters(ctx context.Context) (api.Counters, error)
	// Logs streams a function's output until it ends, or with Follow until ctx does.
	Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error)
	// Exec runs one more process in a function and returns its exit code.
	Exec(ctx context.Context, function string, e container.ExecSpec) (int, error)
}

// Options are what a manager needs. Only Store is required.
type Options struct {
	Store store.Store
	// Validate tells everything that is wrong between the objects of a whole document: router.Validate. Each spec by
	// itself is checked in any case.
	Validate func(api.Document) []api.Problem
	// Admit tells what hosts have against what is new or changed in a document: an image or an interface that is missing. What
	// is there already stays admitted, whatever becomes of the host.
	Admit func(d, changed api.Document) []api.Problem
	// Node finds a host's Node; "" is the only host. nil: not reachable from here.
	Node func(host string) Node
	// Health, if set, must be nil for /healthz to be well.
	Health  func() error
	Version string
	Log     *slog.Logger     // default none
	Now     func() time.Time // default time.Now
}

// Manager serves the API. Make it with New.
type Manager struct {
	Options
	began   time.Time
	mu      sync.Mutex // one writer at a time in this process; others are kept apart by preconditions
	watches chan struct{}
	streams chan struct{}
	metrics *metrics
	mux     *http.ServeMux
}

// New makes a manager.
func New(o Options) (*Manager, error) {
	if o.Store == nil {
		return nil, errors.New("manager without a store")
	}
	if o.Validate == nil {
		o.Validate = func(api.Document) []api.Problem { return nil }
	}
	if o.Admit == nil {
		o.Admit = func(_, _ api.Document) []api.Problem { return nil }
	}
	if o.Node == nil {
		o.Node = func(string) Node { return nil }
	}
	if o.Health == nil {
		o.Health = func() error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Manager{
		Options: o,
		began:   o.Now().UTC(),
		watches: make(chan struct{}, maxWatches),
		streams: make(chan struct{}, maxStreams),
		metrics: newMetrics(),
		mux:     http.NewServeMux(),
	}
	m.routes()
	return m, nil
}

// acquire takes a slot of a bounded resource, or refuses.
func acquire(slots chan struct{}, what string) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, api.Refuse(http.StatusServiceUnavailable, "too many "+what+" at once: close some or try again later")
	}
}
