package read

import (
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

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
			query = append(query, "kind", "object", "severity", "limit")
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
		{Method: "GET", Path: "/v1/audit", ID: "list-audit", Summary: "who did, or tried to do, what; with watch as server-sent events",
			Query: []string{"name", "watch", "revision", "who", "verb", "kind", "object", "limit"}, Answers: map[int]any{200: web.ListOf{Item: api.AuditRecord{}}}, Problems: []int{400, 410, 503}, Handler: rd.audits},
		{Method: "GET", Path: "/v1/backup", ID: "backup", Does: "backup", Summary: "all that the store holds at one revision, secrets included, with a checksum: for weir up --restore",
			Answers: map[int]any{200: web.Text("application/jsonl")}, Problems: []int{503}, Handler: rd.backup},
	}...)
}
