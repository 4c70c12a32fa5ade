package manager

import (
	"net/http"

	"weir.dev/weir/api"
)

// readRoutes are the paths by which objects are read.
func (m *Manager) readRoutes() []route {
	var out []route
	bind := func(n noun, f func(noun, http.ResponseWriter, *http.Request) error) handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(n, w, r) }
	}
	for _, n := range nouns() {
		all, one := "/v1/"+n.kind.Plural(), "/v1/"+n.kind.Plural()+"/{name}"
		query := []string{"name", "watch", "revision"}
		switch n.kind {
		case api.KindEvent:
			query = append(query, "kind", "object", "severity", "limit")
		case api.KindOperation:
			query = append(query, "kind", "object", "limit")
		}
		out = append(out,
			route{method: "GET", path: all, id: "list-" + n.kind.Plural(), needs: api.RoleViewer, summary: "all " + n.kind.Plural() + ", or with watch their changes as server-sent events",
				query: query, answers: map[int]any{200: listOf{n.object}}, problems: []int{400, 410, 503}, handler: bind(n, m.list)},
			route{method: "GET", path: one, id: "get-" + string(n.kind), needs: api.RoleViewer, summary: "one " + string(n.kind),
				answers: map[int]any{200: n.object, 304: nil}, problems: []int{404}, handler: bind(n, m.get)},
		)
	}
	return append(out, []route{
		{method: "GET", path: "/v1/audit", id: "list-audit", summary: "who did, or tried to do, what; with watch as server-sent events",
			query: []string{"name", "watch", "revision", "who", "verb", "kind", "object", "limit"}, answers: map[int]any{200: listOf{api.AuditRecord{}}}, problems: []int{400, 410, 503}, handler: m.audits},
		{method: "GET", path: "/v1/backup", id: "backup", does: "backup", summary: "all that the store holds at one revision, secrets included, with a checksum: for weir up --restore",
			answers: map[int]any{200: text("application/jsonl")}, problems: []int{503}, handler: m.backup},
	}...)
}
