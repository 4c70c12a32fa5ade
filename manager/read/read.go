package read

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// Options are what a Reader needs.
type Options struct {
	Store      store.Store
	Now        func() time.Time
	Hosts      *members.Hosts
	Audit      *history.Audit
	Version    string
	SecretsKey func() (string, error) // the text of the file with the key of users' secrets, for backups; nil or "": none
}

// Reader answers with what is stored.
type Reader struct {
	Options
	watches, backups web.Slots
	graphs           web.Slots
	open             atomic.Int64 // watches, agents' included
	views            views
}

// New makes a Reader.
func New(o Options) *Reader {
	return &Reader{Options: o, watches: make(web.Slots, maxWatches), backups: make(web.Slots, 1), graphs: make(web.Slots, maxGraphs)}
}

// Watches are how many watches are open.
func (rd *Reader) Watches() int64 { return rd.open.Load() }

// Routes are the paths by which objects are read.
func (rd *Reader) Routes() []web.Route {
	var out []web.Route
	bind := func(n object.Noun, f func(object.Noun, http.ResponseWriter, *http.Request) error) web.Handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(n, w, r) }
	}
	for _, n := range object.Nouns() {
		all, one := "/v1/"+n.Kind.Plural(), "/v1/"+n.Kind.Plural()+"/{name}"
		query := []string{"name", "watch", "revision"}
		switch n.Kind {
		case api.KindEvent:
			query = append(query, "kind", "object", "severity", "raised_by", "limit")
		case api.KindOperation:
			query = append(query, "kind", "object", "limit")
		}
		out = append(out,
			web.Route{Method: "GET", Path: all, ID: "list-" + n.Kind.Plural(), Needs: api.RoleViewer, Summary: "all " + n.Kind.Plural() + ", or with watch their changes as server-sent events",
				Query: query, Answers: map[int]any{200: web.ListOf{Item: n.Object}}, Problems: []int{400, 410, 503}, Handler: bind(n, rd.list)},
			web.Route{Method: "GET", Path: one, ID: "get-" + string(n.Kind), Needs: api.RoleViewer, Summary: "one " + string(n.Kind),
				Answers: map[int]any{200: n.Object, 304: nil}, Problems: []int{404}, Handler: bind(n, rd.get)},
		)
	}
	return append(out, []web.Route{
		{Method: "GET", Path: "/v1/graph", ID: "graph", Needs: api.RoleViewer, Summary: "what steers which traffic where, and what it runs on, as nodes and edges",
			Query: []string{"underlay"}, Answers: map[int]any{200: api.Graph{}}, Handler: rd.graph},
		{Method: "GET", Path: "/v1/watch", ID: "watch", Needs: api.RoleViewer, Summary: "changes of objects of several kinds as server-sent events over one connection; for browsers also over a WebSocket of the subprotocol " + api.WatchProtocol + ", whose binary messages are pieces of the same text",
			Query: []string{"kinds", "revision"}, Answers: map[int]any{200: web.Text("text/event-stream")}, Problems: []int{400, 410, 503}, Handler: rd.watchKinds},
		{Method: "GET", Path: "/v1/audit", ID: "list-audit", Summary: "who did, or tried to do, what; with watch as server-sent events",
			Query: []string{"name", "watch", "revision", "who", "verb", "kind", "object", "limit"}, Answers: map[int]any{200: web.ListOf{Item: api.AuditRecord{}}}, Problems: []int{400, 410, 503}, Handler: func(w http.ResponseWriter, r *http.Request) error {
				rd.Audit.Settled(r.Context())
				return rd.list(object.Noun{Kind: api.KindAudit, Object: api.AuditRecord{}}, w, r)
			}},
		{Method: "GET", Path: "/v1/backup", ID: "backup", Does: "backup", Summary: "all that the store holds at one revision, secrets included, with a checksum: for weir up --restore",
			Answers: map[int]any{200: web.Text("application/jsonl")}, Problems: []int{503}, Handler: rd.backup},
	}...)
}

// get answers with one object.
func (rd *Reader) get(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	i, err := rd.Store.Get(r.Context(), store.Key(n.Kind, name))
	if errors.Is(err, store.ErrNotFound) {
		return object.NotFound(n.Kind, name)
	}
	if err != nil {
		return err
	}
	value, news := rd.Hosts.WithHealth(n, i)
	i.Value, _ = rd.viewOf(r.Context(), n)(i.Key, value, nil, i.Revision)
	w.Header().Set("ETag", api.ETag(i.Revision))
	if none := r.Header.Get("If-None-Match"); none != "" && object.ETagIn(none, i.Revision) && !news {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return web.Answer(w, http.StatusOK, object.Wire(i))
}

// list answers with all objects of a kind, or with a watch.
func (rd *Reader) list(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	f := filterOf(r)
	if wantsWatch(r) {
		return rd.watch(n, f, w, r)
	}
	items, rev, err := rd.Store.List(r.Context(), store.Prefix(n.Kind), store.ListOptions{})
	if err != nil {
		return err
	}
	out := api.List[json.RawMessage]{Items: []json.RawMessage{}, Revision: rev}
	view := rd.viewOf(r.Context(), n)
	for _, i := range items {
		value, _ := rd.Hosts.WithHealth(n, i)
		i.Value, _ = view(i.Key, value, nil, i.Revision)
		if f.match(store.NameOf(i.Key), i.Value) {
			out.Items = append(out.Items, object.Wire(i))
		}
	}
	if f.limit > 0 && len(out.Items) > f.limit {
		out.Items = out.Items[len(out.Items)-f.limit:] // their names sort by time: the newest
	}
	w.Header().Set("Weir-Revision", strconv.FormatInt(rev, 10))
	return web.Answer(w, http.StatusOK, out)
}

// filter selects from a list or a watch.
type filter struct {
	name, object string
	who, verb    string
	source       string
	kind         api.Kind
	severity     int
	limit        int
}

// filterOf reads the query, which fits the route's parameters.
func filterOf(r *http.Request) filter {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	return filter{
		name: q.Get("name"), object: q.Get("object"), who: q.Get("who"), verb: q.Get("verb"), source: q.Get("raised_by"), kind: api.Kind(q.Get("kind")),
		severity: rank(api.Severity(q.Get("severity"))), limit: limit,
	}
}

// rank orders severities; 0 is none.
func rank(s api.Severity) int {
	return 1 + slices.Index([]api.Severity{api.Info, api.Warning, api.Error}, s)
}

// match tells whether an object in stored form is selected.
func (f filter) match(name string, value []byte) bool {
	if f.name != "" && f.name != name {
		return false
	}
	if f.object == "" && f.kind == "" && f.severity == 0 && f.who == "" && f.verb == "" && f.source == "" {
		return true
	}
	var v struct {
		Kind     api.Kind
		Object   string
		Severity api.Severity
		Who      string
		Verb     string
		Source   string
	}
	if json.Unmarshal(value, &v) != nil {
		return false
	}
	return (f.who == "" || f.who == v.Who) && (f.verb == "" || f.verb == v.Verb) && (f.source == "" || f.source == v.Source) && (f.object == "" || f.object == v.Object) && (f.kind == "" || f.kind == v.Kind) && rank(v.Severity) >= f.severity
}
