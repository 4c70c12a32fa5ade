package manager

import (
	"net/http"

	"weir.dev/weir/api"
)

// intentRoutes are the paths by which specs and secrets are written.
func (m *Manager) intentRoutes() []route {
	out := []route{
		{method: "POST", path: "/v1/apply", limit: maxBody, id: "apply", needs: api.RoleOperator, does: "apply", summary: "check a whole document, then commit it in one step or not at all",
			body: api.ApplyRequest{}, answers: map[int]any{200: api.ApplyResult{}}, problems: []int{400, 409, 422, 507}, handler: m.apply},
		{method: "POST", path: "/v1/delete", limit: maxBody, id: "delete", needs: api.RoleOperator, does: "delete", summary: "delete many objects in one step, or none; a name that does not exist is ignored",
			body: api.DeleteRequest{}, answers: map[int]any{200: api.DeleteResult{}}, problems: []int{400, 409, 413, 415, 507}, handler: m.removeAll},
		{method: "PUT", path: "/v1/secrets/{name}", id: "put-secret", needs: api.RoleOperator, kind: api.KindSecret, summary: "make a secret or replace its value, which no answer contains",
			limit: 4 * api.MaxSecret, body: api.SecretRequest{}, answers: map[int]any{200: api.Secret{}, 201: api.Secret{}}, problems: []int{400, 409, 413, 415, 422, 507}, handler: m.putSecret},
		{method: "GET", path: "/v1/secrets", id: "list-secrets", needs: api.RoleViewer, summary: "the secrets, without their values",
			answers: map[int]any{200: api.List[api.Secret]{}}, handler: m.listSecrets},
		{method: "GET", path: "/v1/secrets/{name}", id: "get-secret", needs: api.RoleViewer, summary: "one secret, without its value",
			answers: map[int]any{200: api.Secret{}}, problems: []int{404}, handler: m.getSecret},
		{method: "DELETE", path: "/v1/secrets/{name}", id: "delete-secret", needs: api.RoleOperator, kind: api.KindSecret, summary: "delete a secret that no function uses",
			answers: map[int]any{204: nil}, problems: []int{404, 409}, handler: m.removeSecret},
		{method: "GET", path: "/v1/agent/secrets/{name}", id: "function-secrets", summary: "the secrets of a function, for the agent of its host only",
			answers: map[int]any{200: api.List[api.FunctionSecret]{}}, problems: []int{403, 404}, handler: m.functionSecrets},
	}
	for _, verb := range []string{"start", "stop", "restart"} {
		out = append(out, route{method: "POST", path: "/v1/functions/{name}/" + verb, id: verb + "-function", needs: api.RoleOperator, does: verb, kind: api.KindFunction,
			summary: verb + " a function; the operation tells when it is done", answers: map[int]any{202: api.Operation{}}, problems: []int{404, 409},
			handler: func(w http.ResponseWriter, r *http.Request) error { return m.verb(w, r, verb) }})
	}
	bind := func(n noun, f func(noun, http.ResponseWriter, *http.Request) error) handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(n, w, r) }
	}
	for _, n := range nouns() {
		if n.spec == nil {
			continue
		}
		one := "/v1/" + n.kind.Plural() + "/{name}"
		remover := api.RoleOperator
		if n.kind == api.KindHost { // that revokes its certificate
			remover = api.RoleAdmin
		}
		gone := map[int]any{204: nil}
		if n.twoPhase {
			gone = map[int]any{202: api.Operation{}}
		}
		out = append(out,
			route{method: "PUT", path: one, id: "put-" + string(n.kind), needs: api.RoleOperator, kind: n.kind, summary: "make one or replace its spec; only spec is read",
				body: specOf{n.spec}, answers: map[int]any{200: n.object, 201: n.object}, problems: []int{400, 409, 412, 413, 415, 422, 507}, handler: bind(n, m.put)},
			route{method: "PATCH", path: one, id: "patch-" + string(n.kind), needs: api.RoleOperator, kind: n.kind, summary: "merge into its spec (RFC 7386)",
				body: mergeOf{n.spec}, answers: map[int]any{200: n.object}, problems: []int{400, 404, 409, 412, 413, 415, 422, 507}, handler: bind(n, m.patch)},
			route{method: "DELETE", path: one, id: "delete-" + string(n.kind), needs: remover, kind: n.kind, summary: "delete one that nobody uses",
				answers: gone, problems: []int{404, 409, 412}, handler: bind(n, m.remove)},
		)
	}
	return out
}
