// Package manager serves the API: it admits specs, keeps objects with their generations, and follows operations.
//
// It is stateless over the store: several managers can serve one store. It owns Meta and operations; status comes from agents.
// It computes no rules and knows no drivers: what needs a host's answer goes through Node. DESIGN.md has the flow and the invariants.
package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/pki"
	"weir.dev/weir/placement"
	"weir.dev/weir/store"
)

// Bounds of what the manager keeps and does at once.
const (
	maxWatches    = 1_000    // but agents'
	maxStreams    = 200      // logs and execs
	defaultBody   = 4 << 20  // bytes of a request's body; of paths that take more:
	maxReport     = 16 << 20 // what an agent tells
	maxBody       = 32 << 20 // documents, and what the router tells
	bodyTimeout   = 30 * time.Second
	answerTimeout = 2 * time.Minute  // until the client has taken an answer
	writeTimeout  = 30 * time.Second // of one write to a stream
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

// Fabric answers what only the router knows.
type Fabric interface {
	// SwitchRules reads a switch's tables and Weir's entries live.
	SwitchRules(ctx context.Context, name string) (api.SwitchRules, error)
}

// ErrElsewhere is of a Fabric whose router does not run here: it does where the leader is.
var ErrElsewhere = errors.New("the router runs at another manager")

// Options are what a manager needs. Only Store is required.
type Options struct {
	Store store.Store
	// Validate tells everything that is wrong between the objects of a whole document, of which a part is new or changed:
	// router.ValidateChange. Each spec by itself is checked in any case.
	Validate func(d, changed api.Document) []api.Problem
	// Trace tells what becomes of a packet: router.Trace.
	Trace func(d api.Document, q api.TraceQuery, macs map[string]string, down map[string]bool) (api.Trace, error)
	// Admit tells what hosts have against what is new or changed in a document: an image or an interface that is missing. What
	// is there already stays admitted, whatever becomes of the host. It may take a while: nobody waits for it but who changes something.
	Admit func(ctx context.Context, d, changed api.Document) Verdict
	// Node finds a host's Node; "" is the only host. nil: not reachable from here.
	Node func(host string) Node
	// Fabric answers for the OpenFlow switches; nil: there are none here.
	Fabric Fabric
	// NoRouter says that no router runs, whatever switches are known from before.
	NoRouter bool
	// Health, if set, must be nil for /healthz to be well.
	Health func() error
	// Host is the host whose agent runs in this process, "" if none does: nobody else can join by its name, and it is alive.
	Host string
	// AgentConfig is what all hosts have in common; the manager adds its clock and the key of link discovery.
	AgentConfig api.AgentConfig
	// Placement is the name of the strategy by which functions get their hosts; default placement.Default.
	Placement string
	// CertificateLife is how long agents' certificates are valid; default pki.AgentLife.
	CertificateLife time.Duration
	// Where tells people of other managers where this one is when it leads; default its host and process.
	Where string
	// SecretKey (32 bytes) encrypts secrets in the store, which whoever reads it could use else; nil: they are there as they are.
	SecretKey []byte
	// AuditFile is where the audit log is kept as JSON lines, beside the store; "" nowhere.
	AuditFile string
	// SecretsKey gives the text of the file with the key of users' secrets, for backups; nil or "": there is none, or it is somebody else's to keep.
	SecretsKey func() (string, error)
	// SealKey gives the key (32 bytes) of users' secrets; nil: SecretKey is it.
	SealKey func() ([]byte, error)
	// ID tells this manager from others of the store; it stays the same over restarts. "" is one of its own.
	ID      string
	Version string
	Log     *slog.Logger     // default none
	Now     func() time.Time // default time.Now
}

// Manager serves the API. Make it with New.
type Manager struct {
	Options
	Began    time.Time
	writer   writer
	watches  chan struct{}
	streams  chan struct{}
	backups  chan struct{}
	rates    eventRates
	metrics  *metrics
	mux      *http.ServeMux
	table    []route
	bodies   memory // of requests, as they came
	decoded  memory // what they became
	join     joins
	keys     keys
	cache    memberCaches
	live     liveAgents
	switches switchCerts
	beats    beats
	nodes    nodes
	views    views
	access   access
	audit    audit

	Strategy placement.Strategy
	leading  atomic.Bool
}

// New makes a manager.
func New(o Options) (*Manager, error) {
	if o.Store == nil {
		return nil, errors.New("manager without a store")
	}
	if o.Validate == nil {
		o.Validate = func(_, _ api.Document) []api.Problem { return nil }
	}
	if o.Trace == nil {
		o.Trace = func(api.Document, api.TraceQuery, map[string]string, map[string]bool) (api.Trace, error) {
			return api.Trace{}, api.Refuse(http.StatusNotImplemented, "this manager has no router that could tell")
		}
	}
	if o.Admit == nil {
		o.Admit = func(context.Context, api.Document, api.Document) Verdict { return Verdict{} }
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
	if o.CertificateLife == 0 {
		o.CertificateLife = pki.AgentLife
	}
	strategy, err := placement.Named(o.Placement)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		Strategy: strategy,
		Options:  o,
		Began:    o.Now(), // UTC() would take the monotonic clock away, and what is compared with it could be stepped
		watches:  make(chan struct{}, maxWatches),
		streams:  make(chan struct{}, maxStreams),
		backups:  make(chan struct{}, 1),
		writer:   writer{Store: o.Store, Log: o.Log, Now: o.Now, repeats: repeats{}},
		audit:    audit{Store: o.Store, Log: o.Log, Now: o.Now, file: auditFile{path: o.AuditFile}},
		metrics:  newMetrics(),
		bodies:   memory{total: maxBodies, share: maxReport},
		decoded:  memory{total: maxDecoded, share: maxDecoded / 2},
		mux:      http.NewServeMux(),
	}
	if m.Where == "" {
		m.Where = fmt.Sprintf("%s/%d", m.Host, os.Getpid())
	}
	m.mux.Handle("/", m.serve(route{path: "other", needs: api.RoleViewer, quiet: true, handler: m.unknown}))
	for _, routes := range [][]route{m.readRoutes(), m.intentRoutes(), m.askRoutes(), m.newsRoutes(), m.accessRoutes(), m.switchCertRoutes(), m.joinRoutes(), m.membersRoutes(), m.ownRoutes()} {
		m.register(routes...)
	}
	return m, nil
}
