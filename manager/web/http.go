package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// maxStack bounds what the log gets of a panic's stack, in bytes.
const maxStack = 8 << 10

// Handler is a handler whose error becomes a problem, unless it has begun to answer.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Tokens are those of the API.
type Tokens interface {
	// OpenFile reads the token file of the TCP listener, or makes it.
	OpenFile(path string) error
	// Authenticate finds whose token a request bears. What it was told of a token in vain is named, for the audit log.
	Authenticate(r *http.Request) (c Caller, name string, err error)
}

// Hosts are those that have joined.
type Hosts interface {
	// Check tells whether a host may still use the key of its certificate.
	Check(ctx context.Context, host, key string) error
	// Enter notes a request of an agent, unless it has too many. The request ends with the certificate's life, and with the membership.
	Enter(ctx context.Context, who Agent, life time.Duration) (_ context.Context, leave func(), err error)
	// KeepDismissing ends requests of hosts that are members no more, until ctx does.
	KeepDismissing(ctx context.Context)
}

// UI is the web UI at an address of its own.
type UI interface {
	// Handler serves files, and the API to who has a session. refuse answers who has none.
	Handler(api http.Handler, refuse func(w http.ResponseWriter, r *http.Request, err error)) http.Handler
	// Serves tells it where it is served, nil: nowhere.
	Serves(at net.Addr)
	// KeepChecking ends sessions that stand for nobody any more, until ctx does.
	KeepChecking(ctx context.Context)
}

// Options are what the server needs.
type Options struct {
	Log     *slog.Logger
	Now     func() time.Time
	Tokens  Tokens
	Hosts   Hosts
	Keys    *keys.Keys
	Audit   *history.Audit
	UI      UI                              // nil: there is none
	Images  http.Handler                    // serves ImagesPath to agents; nil: there are none
	Health  func(ctx context.Context) error // nil: the manager answers, and its store works
	Watches func() int64                    // that are open
	Metrics []prometheus.Collector          // besides the API's own
}

// API serves routes to those who may. Make it with New.
type API struct {
	Options
	mux     *http.ServeMux
	table   []Route
	metrics *metrics
	bodies  memory // of requests, as they came
	decoded memory // what they became
}

// New makes a server of some routes.
func New(o Options, routes ...[]Route) *API {
	a := &API{
		Options: o, mux: http.NewServeMux(), table: slices.Concat(routes...), metrics: newMetrics(o.Watches, o.Metrics),
		bodies: memory{total: maxBodies, share: MaxReport}, decoded: memory{total: maxDecoded, share: maxDecoded / 2},
	}
	a.table = append(a.table, a.routes()...)
	for _, rt := range a.table {
		a.mux.Handle(rt.Method+" "+rt.Path, a.serve(rt))
	}
	a.mux.Handle("/", a.serve(Route{Path: "other", Needs: api.RoleViewer, Quiet: true, Handler: a.unknown}))
	return a
}

// Route is a path of the API and what the OpenAPI document says of it.
type Route struct {
	Method, Path string
	Handler      Handler
	ID, Summary  string
	Query        []string // parameters, of those that are documented in parameters
	Body         any      // zero value; a Text is read by the handler, which bounds it
	Limit        int64    // of the body in bytes; 0: defaultBody
	Answers      map[int]any
	Problems     []int
	// needs is the role that may; "": admin. Hosts' certificates are another matter: see mayAgent.
	Needs api.Role
	// does is what the audit log calls it; default the method. It records all but GETs, and those that say what they do.
	Does  string
	Kind  api.Kind // of the object that the path names, for the audit log
	Quiet bool     // is not recorded unless it is refused: agents' and the router's news
}

// recorded tells whether the audit log has every request.
func (rt Route) recorded() bool {
	return !rt.Quiet && (rt.Does != "" || rt.Method != "GET")
}

// Text is an answer, or a body, that is no JSON, by its content type.
type Text string

// serve counts, logs, bounds, asks for the caller's role, records, and turns errors into problems.
func (a *API) serve(rt Route) http.Handler {
	need := rt.Needs
	if need == "" {
		need = api.RoleAdmin
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		t := &tracked{ResponseWriter: w, body: body{a: a, limit: cmp.Or(rt.Limit, defaultBody)}}
		defer t.body.giveBack()
		n := &noted{}
		r = r.WithContext(context.WithValue(r.Context(), notedKey{}, n))
		// A request has at most one audit record; that of a stream is written when the stream begins. A refused request has one, whatever it asks.
		var told bool
		record := func(status int, err error) {
			refused := status == http.StatusUnauthorized || status == http.StatusForbidden
			if !told && (rt.recorded() && !(n.Idle && err == nil) || refused) {
				a.record(r, rt, n, status, err)
			}
			told = told || rt.recorded() || refused
		}
		n.Began = func(status int) { record(status, nil) }
		// A panic in one request must not end the manager.
		defer func() {
			if p := recover(); p != nil {
				a.Log.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", strict.Clip(string(debug.Stack()), maxStack))
				err := fmt.Errorf("panic: %v", p)
				record(http.StatusInternalServerError, err)
				a.fail(t, r, err)
			}
			a.metrics.request(r.Method, rt.Path, t.status, time.Since(began))
		}()
		err := mayCall(r, need)
		if err == nil {
			err = checkQuery(rt, r)
		}
		if err == nil {
			err = rt.Handler(t, r)
		}
		if err != nil {
			record(ProblemOf(err).Status, err)
			a.fail(t, r, err)
			return
		}
		record(t.status, nil)
	})
}

// tracked remembers whether an answer has begun.
type tracked struct {
	http.ResponseWriter
	status int
	body   body
}

// begin bounds how long the answer may take: a client that does not read does not keep a connection for ever. Streams set their own bounds later.
func (t *tracked) begin(status int) {
	if t.status != 0 {
		return
	}
	t.status = status
	_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTimeout)) // not possible on every kind of connection
}

func (t *tracked) WriteHeader(status int) {
	t.begin(status)
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracked) Write(p []byte) (int, error) {
	t.begin(http.StatusOK)
	return t.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (a *API) fail(t *tracked, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return // the client is gone
	}
	p := ProblemOf(err)
	p.Instance = r.URL.Path
	if p.Status >= 500 {
		a.Log.Error("request", "method", r.Method, "path", r.URL.Path, "status", p.Status, "error", err)
	}
	if t.status != 0 {
		return
	}
	if p.Status == http.StatusServiceUnavailable {
		t.Header().Set("Retry-After", "1")
	}
	t.Header().Del("ETag")
	t.Header().Set("Content-Type", "application/problem+json")
	t.WriteHeader(p.Status)
	_, _ = t.Write(append(object.Marshal(p), '\n'))
}

// ProblemOf makes a problem of any error.
func ProblemOf(err error) *api.ProblemError {
	var p *api.ProblemError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &p):
		c := *p
		return &c
	case errors.Is(err, store.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, store.ErrConflict):
		status = http.StatusConflict
	case errors.Is(err, store.ErrCompacted):
		status = http.StatusGone
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly):
		status = http.StatusInsufficientStorage
	case errors.Is(err, store.ErrTooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, store.ErrStopped), errors.Is(err, store.ErrAway), errors.Is(err, store.ErrLagging):
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	return api.Refuse(status, err.Error())
}

// unknown answers for what is in no route: 405 where another method is, else 404.
func (a *API) unknown(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{"GET", "PUT", "PATCH", "POST", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.mux.Handler(other); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 || slices.Contains(allowed, r.Method) {
		return api.Refuse(http.StatusNotFound, fmt.Sprintf("no such path: %s: see /v1/openapi.json", r.URL.Path))
	}
	for _, method := range allowed {
		w.Header().Add("Allow", method)
	}
	return api.Refuse(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s is not possible: want %v", r.Method, r.URL.Path, allowed))
}

// Answer writes JSON.
func Answer(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client is gone, if that fails
	return nil
}
