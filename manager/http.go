package manager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// maxStack bounds what the log gets of a panic's stack, in bytes.
const maxStack = 8 << 10

// handler is a handler whose error becomes a problem, unless it has begun to answer.
type handler func(w http.ResponseWriter, r *http.Request) error

// register adds paths, for the server and for its OpenAPI document alike.
func (m *Manager) register(routes ...route) {
	m.table = append(m.table, routes...)
	for _, rt := range routes {
		m.mux.Handle(rt.method+" "+rt.path, m.serve(rt))
	}
}

// route is a path of the API and what the OpenAPI document says of it.
type route struct {
	method, path string
	handler      handler
	id, summary  string
	query        []string // parameters, of those that are documented in parameters
	body         any      // zero value
	limit        int64    // of the body in bytes; 0: defaultBody
	answers      map[int]any
	problems     []int
	// needs is the role that may; "": admin. Hosts' certificates are another matter: see mayAgent.
	needs api.Role
	// does is what the audit log calls it; default the method. It records all but GETs, and those that say what they do.
	does  string
	kind  api.Kind // of the object that the path names, for the audit log
	quiet bool     // is not recorded unless it is refused: agents' and the router's news
}

// recorded tells whether the audit log has every request.
func (rt route) recorded() bool {
	return !rt.quiet && (rt.does != "" || rt.method != "GET")
}

// text is an answer that is no JSON, by its content type.
type text string

// serve counts, logs, bounds, asks for the caller's role, records, and turns errors into problems.
func (m *Manager) serve(rt route) http.Handler {
	need := rt.needs
	if need == "" {
		need = api.RoleAdmin
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		t := &tracked{ResponseWriter: w, body: body{m: m, limit: cmp.Or(rt.limit, defaultBody)}}
		defer t.body.giveBack()
		n := &noted{}
		r = r.WithContext(context.WithValue(r.Context(), notedKey{}, n))
		var told bool
		record := func(status int, err error) {
			refused := status == http.StatusUnauthorized || status == http.StatusForbidden
			if !told && (rt.recorded() && !(n.idle && err == nil) || refused) {
				m.auditRequest(r, rt, n, status, err)
			}
			told = told || rt.recorded() || refused
		}
		n.began = func(status int) { record(status, nil) }
		defer func() {
			if p := recover(); p != nil {
				m.Log.Error("panic in a request", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", strict.Clip(string(debug.Stack()), maxStack))
				err := fmt.Errorf("panic: %v", p)
				record(http.StatusInternalServerError, err)
				m.fail(t, r, err)
			}
			m.metrics.request(r.Method, rt.path, t.status, time.Since(began))
		}()
		err := mayCall(r, need)
		if err == nil {
			err = checkQuery(rt, r)
		}
		if err == nil {
			err = rt.handler(t, r)
		}
		if err != nil {
			record(problemOf(err).Status, err)
			m.fail(t, r, err)
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

func (m *Manager) fail(t *tracked, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return // the client is gone
	}
	p := problemOf(err)
	p.Instance = r.URL.Path
	if p.Status >= 500 {
		m.Log.Error("request", "method", r.Method, "path", r.URL.Path, "status", p.Status, "error", err)
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
	_, _ = t.Write(append(marshal(p), '\n'))
}

// problemOf makes a problem of any error.
func problemOf(err error) *api.ProblemError {
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
func (m *Manager) unknown(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{"GET", "PUT", "PATCH", "POST", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := m.mux.Handler(other); pattern != "/" && pattern != "" {
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

// answer writes JSON.
func answer(w http.ResponseWriter, status int, v any) error {
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
