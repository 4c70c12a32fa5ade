package read

import (
	"encoding/json"
	"errors"
	"maps"
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
	open             atomic.Int64 // watches, agents' included
	views            views
}

// New makes a Reader.
func New(o Options) *Reader {
	return &Reader{Options: o, watches: make(web.Slots, maxWatches), backups: make(web.Slots, 1)}
}

// Watches are how many watches are open.
func (rd *Reader) Watches() int64 { return rd.open.Load() }

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
	value, news := rd.Hosts.Judge(n, i)
	i.Value = rd.viewOf(r.Context(), n)(i.Key, value, i.Revision)
	w.Header().Set("ETag", api.ETag(i.Revision))
	if none := r.Header.Get("If-None-Match"); none != "" && object.EtagIn(none, i.Revision) && !news {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return web.Answer(w, http.StatusOK, object.Wire(i))
}

// list answers with all objects of a kind, or with a watch.
func (rd *Reader) list(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	f, err := filterOf(r, n.Kind)
	if err != nil {
		return err
	}
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
		value, _ := rd.Hosts.Judge(n, i)
		i.Value = view(i.Key, value, i.Revision)
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
	kind         api.Kind
	severity     int
	limit        int
}

// filterOf reads the query.
func filterOf(r *http.Request, kind api.Kind) (filter, error) {
	q := r.URL.Query()
	f := filter{name: q.Get("name")}
	history := kind == api.KindEvent || kind == api.KindOperation || kind == api.KindAudit
	var problems []api.Problem
	for _, key := range slices.Sorted(maps.Keys(q)) {
		ok := true
		switch key {
		case "name", "watch", "revision":
		case "object", "kind", "limit":
			ok = history
		case "who", "verb":
			ok = kind == api.KindAudit
		case "severity":
			ok = kind == api.KindEvent
		default:
			ok = false
		}
		if !ok {
			problems = append(problems, api.Problem{Path: "query." + key, Message: "unknown parameter", Hint: "see /v1/openapi.json"})
		}
	}
	f.object, f.kind = q.Get("object"), api.Kind(q.Get("kind"))
	f.who, f.verb = q.Get("who"), q.Get("verb")
	if s := q.Get("severity"); s != "" {
		if f.severity = rank(api.Severity(s)); f.severity == 0 {
			problems = append(problems, api.Problem{Path: "query.severity", Message: "is " + strconv.Quote(s), Hint: "want info, warning or error"})
		}
	}
	if s := q.Get("limit"); s != "" {
		var err error
		if f.limit, err = strconv.Atoi(s); err != nil || f.limit < 1 {
			problems = append(problems, api.Problem{Path: "query.limit", Message: "is " + strconv.Quote(s), Hint: "want a number from 1"})
		}
	}
	if len(problems) > 0 {
		return f, api.Refuse(http.StatusBadRequest, "the query is refused", problems...)
	}
	return f, nil
}

// rank orders severities; 0 is none.
func rank(s api.Severity) int {
	switch s {
	case api.Info:
		return 1
	case api.Warning:
		return 2
	case api.Error:
		return 3
	}
	return 0
}

// match tells whether an object in stored form is selected.
func (f filter) match(name string, value []byte) bool {
	if f.name != "" && f.name != name {
		return false
	}
	if f.object == "" && f.kind == "" && f.severity == 0 && f.who == "" && f.verb == "" {
		return true
	}
	var v struct {
		Kind     api.Kind
		Object   string
		Severity api.Severity
		Who      string
		Verb     string
	}
	if json.Unmarshal(value, &v) != nil {
		return false
	}
	return (f.who == "" || f.who == v.Who) && (f.verb == "" || f.verb == v.Verb) && (f.object == "" || f.object == v.Object) && (f.kind == "" || f.kind == v.Kind) && rank(v.Severity) >= f.severity
}
