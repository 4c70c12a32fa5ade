package intent

import (
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// Routes are the paths by which specs and secrets are written.
func (e *Editor) Routes() []web.Route {
	out := []web.Route{
		{Method: "POST", Path: "/v1/apply", Limit: web.MaxBody, ID: "apply", Needs: api.RoleOperator, Does: "apply", Summary: "check a whole document, then commit it in one step or not at all",
			Body: api.ApplyRequest{}, Answers: map[int]any{200: api.ApplyResult{}}, Problems: []int{400, 409, 422, 507}, Handler: e.apply},
		{Method: "POST", Path: "/v1/delete", Limit: web.MaxBody, ID: "delete", Needs: api.RoleOperator, Does: "delete", Summary: "delete many objects in one step, or none; a name that does not exist is ignored",
			Body: api.DeleteRequest{}, Answers: map[int]any{200: api.DeleteResult{}}, Problems: []int{400, 409, 413, 415, 507}, Handler: e.removeAll},
		{Method: "PUT", Path: "/v1/secrets/{name}", ID: "put-secret", Needs: api.RoleOperator, Kind: api.KindSecret, Summary: "make a secret or replace its value, which no answer contains",
			Limit: 4 * api.MaxSecret, Body: api.SecretRequest{}, Answers: map[int]any{200: api.Secret{}, 201: api.Secret{}}, Problems: []int{400, 409, 413, 415, 422, 507}, Handler: e.putSecret},
		{Method: "GET", Path: "/v1/secrets", ID: "list-secrets", Needs: api.RoleViewer, Summary: "the secrets, without their values",
			Answers: map[int]any{200: api.List[api.Secret]{}}, Handler: e.listSecrets},
		{Method: "GET", Path: "/v1/secrets/{name}", ID: "get-secret", Needs: api.RoleViewer, Summary: "one secret, without its value",
			Answers: map[int]any{200: api.Secret{}}, Problems: []int{404}, Handler: e.getSecret},
		{Method: "DELETE", Path: "/v1/secrets/{name}", ID: "delete-secret", Needs: api.RoleOperator, Kind: api.KindSecret, Summary: "delete a secret that no function uses",
			Answers: map[int]any{204: nil}, Problems: []int{404, 409}, Handler: e.removeSecret},
		{Method: "GET", Path: "/v1/agent/secrets/{name}", ID: "function-secrets", Summary: "the secrets of a function, for the agent of its host only",
			Answers: map[int]any{200: api.List[api.FunctionSecret]{}}, Problems: []int{403, 404}, Handler: e.functionSecrets},
	}
	for _, verb := range []string{"start", "stop", "restart"} {
		out = append(out, web.Route{Method: "POST", Path: "/v1/functions/{name}/" + verb, ID: verb + "-function", Needs: api.RoleOperator, Does: verb, Kind: api.KindFunction,
			Summary: verb + " a function; the operation tells when it is done", Answers: map[int]any{202: api.Operation{}}, Problems: []int{404, 409},
			Handler: func(w http.ResponseWriter, r *http.Request) error { return e.verb(w, r, verb) }})
	}
	bind := func(n object.Noun, f func(object.Noun, http.ResponseWriter, *http.Request) error) web.Handler {
		return func(w http.ResponseWriter, r *http.Request) error { return f(n, w, r) }
	}
	for _, n := range object.Nouns() {
		if n.Spec == nil {
			continue
		}
		one := "/v1/" + n.Kind.Plural() + "/{name}"
		remover := api.RoleOperator
		if n.Kind == api.KindHost { // that revokes its certificate
			remover = api.RoleAdmin
		}
		gone := map[int]any{204: nil}
		if n.TwoPhase {
			gone = map[int]any{202: api.Operation{}}
		}
		out = append(out,
			web.Route{Method: "PUT", Path: one, ID: "put-" + string(n.Kind), Needs: api.RoleOperator, Kind: n.Kind, Summary: "make one or replace its spec; only spec is read",
				Body: web.SpecOf{Spec: n.Spec}, Answers: map[int]any{200: n.Object, 201: n.Object}, Problems: []int{400, 409, 412, 413, 415, 422, 507}, Handler: bind(n, e.put)},
			web.Route{Method: "PATCH", Path: one, ID: "patch-" + string(n.Kind), Needs: api.RoleOperator, Kind: n.Kind, Summary: "merge into its spec (RFC 7386)",
				Body: web.MergeOf{Spec: n.Spec}, Answers: map[int]any{200: n.Object}, Problems: []int{400, 404, 409, 412, 413, 415, 422, 507}, Handler: bind(n, e.patch)},
			web.Route{Method: "DELETE", Path: one, ID: "delete-" + string(n.Kind), Needs: remover, Kind: n.Kind, Summary: "delete one that nobody uses",
				Answers: gone, Problems: []int{404, 409, 412}, Handler: bind(n, e.remove)},
		)
	}
	return out
}
