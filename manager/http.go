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

// routes registers every path, for the server and for its OpenAPI document alike.
func (m *Manager) routes() {
	for _, rt := range m.table() {
		m.mux.Handle(rt.method+" "+rt.path, m.serve(rt))
	}
	m.mux.Handle("/", m.serve(route{path: "other", needs: api.RoleViewer, quiet: true, handler: m.unknown}))
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

// table lists the paths.
func (m *Manager) table() []route {
	var out []route
	for _, n := range nouns() {
		out = append(out, m.nounRoutes(n)...)
	}
	for _, verb := range []string{"start", "stop", "restart"} {
		out = append(out, route{method: "POST", path: "/v1/functions/{name}/" + verb, id: verb + "-function", needs: api.RoleOperator, does: verb, kind: api.KindFunction,
			summary: verb + " a function; the operation tells when it is done", answers: map[int]any{202: api.Operation{}}, problems: []int{404, 409},
			handler: func(w http.ResponseWriter, r *http.Request) error { return m.verb(w, r, verb) }})
	}
	return append(out,
		route{method: "GET", path: "/v1/functions/{name}/logs", id: "logs", needs: api.RoleOperator, does: "logs", kind: api.KindFunction, summary: "what a function writes to its standard output and error, as text",
			query: []string{"tail", "follow"}, answers: map[int]any{200: text("text/plain")}, problems: []int{404, 409}, handler: m.logs},
		route{method: "POST", path: "/v1/functions/{name}/exec", id: "exec", needs: api.RoleOperator, does: "exec", kind: api.KindFunction, summary: "run a process in a function, over a connection upgraded to " + api.ExecProtocol,
			query: []string{"arg", "env", "tty"}, answers: map[int]any{101: nil}, problems: []int{400, 404, 409, 426}, handler: m.exec},
		route{method: "GET", path: "/v1/hosts/{name}/counters", id: "counters", needs: api.RoleViewer, summary: "a host's ports and rules with their counters, read live from its switch",
			answers: map[int]any{200: api.Counters{}}, problems: []int{404, 503}, handler: m.counters},
		route{method: "GET", path: "/v1/policies/{name}/path", id: "path", needs: api.RoleViewer, summary: "the ports that a policy's packets really meet, with live counters",
			answers: map[int]any{200: api.PolicyPath{}}, problems: []int{404, 503}, handler: m.path},
		route{method: "GET", path: "/v1/trace", id: "trace", needs: api.RoleViewer, summary: "what becomes of a packet between two endpoints, and of the reply to it, by the policies as they are declared",
			query: []string{"from", "to", "match", "source", "destination", "source_port", "vlan"}, answers: map[int]any{200: api.Trace{}}, problems: []int{400}, handler: m.trace},
		route{method: "POST", path: "/v1/apply", limit: maxBody, id: "apply", needs: api.RoleOperator, does: "apply", summary: "check a whole document, then commit it in one step or not at all",
			body: api.ApplyRequest{}, answers: map[int]any{200: api.ApplyResult{}}, problems: []int{400, 409, 422, 507}, handler: m.apply},
		route{method: "POST", path: "/v1/delete", limit: maxBody, id: "delete", needs: api.RoleOperator, does: "delete", summary: "delete many objects in one step, or none; a name that does not exist is ignored",
			body: api.DeleteRequest{}, answers: map[int]any{200: api.DeleteResult{}}, problems: []int{400, 409, 413, 415, 507}, handler: m.removeAll},
		route{method: "POST", path: "/v1/status", limit: maxReport, id: "report", quiet: true, summary: "an agent's news of many objects, in one transaction",
			body: api.StatusReport{}, answers: map[int]any{204: nil}, problems: []int{400, 403, 413, 415, 422, 507}, handler: m.report},
		route{method: "POST", path: "/v1/fabric", limit: maxBody, id: "fabric", quiet: true, summary: "the router's news of switches, assignments, and what crosses hosts, in one transaction",
			body: api.FabricReport{}, answers: map[int]any{204: nil}, problems: []int{400, 403, 422, 507}, handler: m.fabric},
		route{method: "GET", path: "/v1/switches/{name}/rules", id: "switch-rules", needs: api.RoleViewer, summary: "a fabric switch's tables and Weir's entries with their counters, read live",
			answers: map[int]any{200: api.SwitchRules{}}, problems: []int{404, 503}, handler: m.switchRules},
		route{method: "POST", path: "/v1/tokens", id: "new-token", does: "create", kind: kindTokens, summary: "make a token for the API, or one with which one agent can join; its secret is shown this once",
			body: api.TokenRequest{}, answers: map[int]any{201: api.Token{}}, problems: []int{400, 409, 422, 507}, handler: m.newToken},
		route{method: "GET", path: "/v1/tokens", id: "list-tokens", summary: "the tokens, without their secrets",
			answers: map[int]any{200: api.List[api.Token]{}}, handler: m.tokens},
		route{method: "DELETE", path: "/v1/tokens/{name}", id: "delete-token", kind: kindTokens, summary: "make a token worthless",
			answers: map[int]any{204: nil}, problems: []int{404, 409}, handler: m.deleteToken},
		route{method: "POST", path: "/v1/switch-certificates", id: "new-switch-certificate", does: "create", kind: "switch-certificate", summary: "sign a switch's certificate request, for its datapath ids",
			body: api.SwitchCertificateRequest{}, answers: map[int]any{201: api.SwitchCertificate{}}, problems: []int{400, 409, 422, 507}, handler: m.newSwitchCert},
		route{method: "GET", path: "/v1/switch-certificates", id: "list-switch-certificates", needs: api.RoleViewer, summary: "the switches' certificates that are not revoked",
			answers: map[int]any{200: api.List[api.SwitchCertificate]{}}, handler: m.switchCertificates},
		route{method: "DELETE", path: "/v1/switch-certificates/{name}", id: "revoke-switch-certificate", kind: "switch-certificate", summary: "refuse a switch's certificate from now on",
			answers: map[int]any{204: nil}, problems: []int{404}, handler: m.revokeSwitchCert},
		route{method: "PUT", path: "/v1/secrets/{name}", id: "put-secret", needs: api.RoleOperator, kind: api.KindSecret, summary: "make a secret or replace its value, which no answer contains",
			limit: 4 * api.MaxSecret, body: api.SecretRequest{}, answers: map[int]any{200: api.Secret{}, 201: api.Secret{}}, problems: []int{400, 409, 413, 415, 422, 507}, handler: m.putSecret},
		route{method: "GET", path: "/v1/secrets", id: "list-secrets", needs: api.RoleViewer, summary: "the secrets, without their values",
			answers: map[int]any{200: api.List[api.Secret]{}}, handler: m.listSecrets},
		route{method: "GET", path: "/v1/secrets/{name}", id: "get-secret", needs: api.RoleViewer, summary: "one secret, without its value",
			answers: map[int]any{200: api.Secret{}}, problems: []int{404}, handler: m.getSecret},
		route{method: "DELETE", path: "/v1/secrets/{name}", id: "delete-secret", needs: api.RoleOperator, kind: api.KindSecret, summary: "delete a secret that no function uses",
			answers: map[int]any{204: nil}, problems: []int{404, 409}, handler: m.removeSecret},
		route{method: "GET", path: "/v1/agent/secrets/{name}", id: "function-secrets", summary: "the secrets of a function, for the agent of its host only",
			answers: map[int]any{200: api.List[api.FunctionSecret]{}}, problems: []int{403, 404}, handler: m.functionSecrets},
		route{method: "POST", path: "/v1/tokens/{name}/rotate", id: "rotate-token", does: "rotate", kind: kindTokens, summary: "give a token for the API a new secret and a new life",
			answers: map[int]any{200: api.Token{}}, problems: []int{404, 409}, handler: m.rotateToken},
		route{method: "GET", path: "/v1/audit", id: "list-audit", summary: "who did, or tried to do, what; with watch as server-sent events",
			query: []string{"name", "watch", "revision", "who", "verb", "kind", "object", "limit"}, answers: map[int]any{200: listOf{api.AuditRecord{}}}, problems: []int{400, 410, 503}, handler: m.audits},
		route{method: "GET", path: "/v1/backup", id: "backup", does: "backup", summary: "all that the store holds at one revision, secrets included, with a checksum: for weir up --restore",
			answers: map[int]any{200: text("application/jsonl")}, problems: []int{503}, handler: m.backup},
		route{method: "POST", path: joinPath, limit: maxJoinBody, id: "join", needs: anybody, does: "join", kind: api.KindHost, summary: "an agent's first certificate for a token, at the agents' listener",
			body: api.JoinRequest{}, answers: map[int]any{200: api.Certificate{}}, problems: []int{400, 401, 403, 409, 422, 429}, handler: m.joinHost},
		route{method: "POST", path: "/v1/certificates", id: "renew", does: "renew", summary: "an agent's next certificate, at the agents' listener",
			body: api.CertificateRequest{}, answers: map[int]any{200: api.Certificate{}}, problems: []int{400, 401, 403, 422}, handler: m.renew},
		route{method: "GET", path: "/v1/agent/config", id: "agent-config", summary: "what all hosts have in common, and the key with which one host signs its link discovery frames",
			query: []string{"host"}, answers: map[int]any{200: api.AgentConfig{}}, problems: []int{403, 404}, handler: m.agentConfig},
		route{method: "POST", path: "/v1/hosts/{name}/beat", id: "beat", quiet: true, summary: "an agent's sign of life; nothing is stored",
			body: api.BeatRequest{}, answers: map[int]any{200: api.BeatAnswer{}}, problems: []int{400, 422}, handler: m.beat},
		route{method: "GET", path: "/v1/hosts/{name}/connect", id: "connect", does: "connect", kind: api.KindHost, summary: "an agent's connection over which the manager asks it, upgraded to " + api.NodeProtocol,
			answers: map[int]any{101: nil}, problems: []int{426}, handler: m.connect},
		route{method: "GET", path: "/v1/openapi.json", id: "openapi", needs: api.RoleViewer, summary: "this document", answers: map[int]any{200: text("application/json")}, handler: m.openapi},
		route{method: "GET", path: "/healthz", id: "health", needs: anybody, summary: "200 when the manager answers and its store works",
			answers: map[int]any{200: health{}}, problems: []int{503}, handler: m.health},
		route{method: "GET", path: "/metrics", id: "metrics", needs: api.RoleViewer, summary: "metrics in the Prometheus format", answers: map[int]any{200: text("text/plain")}, handler: m.metricsPage},
	)
}

type health struct {
	Status string `json:"status"`
}

// text is an answer that is no JSON, by its content type.
type text string

// nounRoutes are the paths of one kind.
func (m *Manager) nounRoutes(n noun) []route {
	bind := func(f func(noun, http.ResponseWriter, *http.Request) error) handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(n, w, r) }
	}
	all, one := "/v1/"+n.kind.Plural(), "/v1/"+n.kind.Plural()+"/{name}"
	query := []string{"name", "watch", "revision"}
	switch n.kind {
	case api.KindEvent:
		query = append(query, "kind", "object", "severity", "limit")
	case api.KindOperation:
		query = append(query, "kind", "object", "limit")
	}
	out := []route{
		{method: "GET", path: all, id: "list-" + n.kind.Plural(), needs: api.RoleViewer, summary: "all " + n.kind.Plural() + ", or with watch their changes as server-sent events",
			query: query, answers: map[int]any{200: listOf{n.object}}, problems: []int{400, 410, 503}, handler: bind(m.list)},
		{method: "GET", path: one, id: "get-" + string(n.kind), needs: api.RoleViewer, summary: "one " + string(n.kind),
			answers: map[int]any{200: n.object, 304: nil}, problems: []int{404}, handler: bind(m.get)},
	}
	if n.spec == nil {
		return out
	}
	remover := api.RoleOperator
	if n.kind == api.KindHost { // that revokes its certificate
		remover = api.RoleAdmin
	}
	gone := map[int]any{204: nil}
	if n.twoPhase {
		gone = map[int]any{202: api.Operation{}}
	}
	return append(out,
		route{method: "PUT", path: one, id: "put-" + string(n.kind), needs: api.RoleOperator, kind: n.kind, summary: "make one or replace its spec; only spec is read",
			body: specOf{n.spec}, answers: map[int]any{200: n.object, 201: n.object}, problems: []int{400, 409, 412, 413, 415, 422, 507}, handler: bind(m.put)},
		route{method: "PATCH", path: one, id: "patch-" + string(n.kind), needs: api.RoleOperator, kind: n.kind, summary: "merge into its spec (RFC 7386)",
			body: mergeOf{n.spec}, answers: map[int]any{200: n.object}, problems: []int{400, 404, 409, 412, 413, 415, 422, 507}, handler: bind(m.patch)},
		route{method: "DELETE", path: one, id: "delete-" + string(n.kind), needs: remover, kind: n.kind, summary: "delete one that nobody uses",
			answers: gone, problems: []int{404, 409, 412}, handler: bind(m.remove)},
	)
}

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
