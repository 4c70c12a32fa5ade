package intent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/manager/web"
)

// written is the body of PUT and PATCH: the object as GET shows it, of which only the spec counts.
type written struct {
	api.Meta
	Spec      json.RawMessage `json:"spec"`
	Placement json.RawMessage `json:"placement,omitempty"`
	Secrets   json.RawMessage `json:"secrets,omitempty"`
	Status    json.RawMessage `json:"status,omitempty"`
}

func readObject(n object.Noun, w http.ResponseWriter, r *http.Request) (written, error) {
	var body written
	raw, err := web.ReadRaw(w, r)
	if err != nil {
		return body, err
	}
	if err := web.DecodeBody(w, r, raw, n.Body()); err != nil {
		return body, err
	}
	return body, json.Unmarshal(raw, &body)
}

// preconditions evaluates If-Match and If-None-Match (RFC 9110, 13.1) of a write.
func preconditions(r *http.Request, kind api.Kind, name string, cur *object.Object) error {
	if match := r.Header.Get("If-Match"); match != "" {
		switch {
		case cur == nil:
			return api.Refuse(http.StatusPreconditionFailed, fmt.Sprintf("%s %s does not exist (any more)", kind, name))
		case !object.ETagIn(match, cur.Revision):
			return api.Refuse(http.StatusPreconditionFailed,
				fmt.Sprintf("%s %s changed meanwhile: it is at revision %d: read it again and repeat your change", kind, name, cur.Revision))
		}
	}
	if none := r.Header.Get("If-None-Match"); none != "" && cur != nil && object.ETagIn(none, cur.Revision) {
		return api.Refuse(http.StatusPreconditionFailed, fmt.Sprintf("%s %s exists already, at revision %d", kind, name, cur.Revision))
	}
	return nil
}

// put makes an object or replaces its spec.
func (e *Editor) put(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	body, err := readObject(n, w, r)
	if err != nil {
		return err
	}
	if body.Name != "" && body.Name != name {
		return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("the body is about %s %q, the path about %q", n.Kind, body.Name, name),
			api.Problem{Path: "name", Message: fmt.Sprintf("is %q", body.Name), Hint: "leave it out, or write " + name})
	}
	spec, err := n.DecodeSpec(body.Spec, "spec")
	if err != nil {
		return err
	}
	return e.replace(n, w, r, name, func(*object.Object) (json.RawMessage, error) { return spec, nil })
}

// patch merges into a spec (RFC 7386).
func (e *Editor) patch(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	body, err := readObject(n, w, r)
	if err != nil {
		return err
	}
	if len(body.Placement) > 0 {
		return api.Refuse(http.StatusUnprocessableEntity, "placement is written by the manager only",
			api.Problem{Path: "placement", Message: "cannot be patched", Hint: "pin it with spec.host"})
	}
	if len(body.Status) > 0 {
		return api.Refuse(http.StatusUnprocessableEntity, "status is written by agents only",
			api.Problem{Path: "status", Message: "cannot be patched", Hint: "patch spec"})
	}
	return e.replace(n, w, r, name, func(cur *object.Object) (json.RawMessage, error) {
		if cur == nil {
			return nil, object.NotFound(n.Kind, name)
		}
		var target, patch any
		if err := decodeExact(cur.Spec, &target); err != nil {
			return nil, fmt.Errorf("stored %s %s: %w", n.Kind, name, err)
		}
		if len(body.Spec) == 0 {
			return cur.Spec, nil
		}
		if err := decodeExact(body.Spec, &patch); err != nil {
			return nil, strict.BadJSON(body.Spec, err)
		}
		return n.DecodeSpec(object.Marshal(mergePatch(target, patch)), "spec")
	})
}

// warningHeader has what there is to say of a write that was done, as ApplyResult.Warnings has it.
const warningHeader = "Weir-Warning"

// replace writes one object's spec under the request's preconditions.
func (e *Editor) replace(n object.Noun, w http.ResponseWriter, r *http.Request, name string, spec func(*object.Object) (json.RawMessage, error)) error {
	if err := object.CheckName(n.Kind, name); err != nil {
		return err
	}
	status := http.StatusOK
	last, err := e.edit(r.Context(), func(st *state) error {
		// The edit may run again after a conflict, so it starts from the stored object each time.
		cur := st.get(n.Kind, name)
		if err := preconditions(r, n.Kind, name, cur); err != nil {
			return err
		}
		raw, err := spec(cur)
		if err != nil {
			return err
		}
		now, err := st.set(n, name, raw)
		if err != nil {
			return err
		}
		status = http.StatusOK
		if cur == nil {
			status = http.StatusCreated
		}
		// An equal spec writes nothing.
		if web.Note(r).Idle = now == cur; now == cur {
			return nil
		}
		if n.Kind == api.KindHost {
			if err := members.CheckHostSpec(raw); err != nil {
				return err
			}
			if err := members.Recount(now, e.Now().UTC()); err != nil {
				return err
			}
		}
		return st.check(r.Context())
	})
	if err != nil {
		return err
	}
	// The answer shows the object as it was committed.
	now := last.get(n.Kind, name)
	web.Note(r).Generation = now.Generation
	w.Header().Set("ETag", api.ETag(now.Revision))
	for _, text := range last.warnings() {
		w.Header().Add(warningHeader, text)
	}
	if status == http.StatusCreated {
		w.Header().Set("Location", "/v1/"+n.Kind.Plural()+"/"+name)
	}
	return web.Answer(w, status, now)
}

// remove deletes an object that nobody uses.
func (e *Editor) remove(n object.Noun, w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	var op *api.Operation
	_, err := e.edit(r.Context(), func(st *state) error {
		cur := st.get(n.Kind, name)
		if cur == nil {
			return object.NotFound(n.Kind, name)
		}
		if err := preconditions(r, n.Kind, name, cur); err != nil {
			return err
		}
		if err := st.inUse(object.Ref{Kind: n.Kind, Name: name}); err != nil {
			return err
		}
		if n.Kind == api.KindHost {
			if err := st.removeHost(cur); err != nil {
				return err
			}
		}
		if st.takeOut(n, name); n.TwoPhase {
			op = st.operation("delete", object.Ref{Kind: n.Kind, Name: name}, st.get(n.Kind, name).Generation)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n.Kind == api.KindHost { // its agent has to join again
		e.Hosts.Forget(name)
		e.Hosts.Dismiss(r.Context(), name)
	}
	if op != nil {
		web.Note(r).Generation = op.Target
		return accepted(w, op)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// decodeExact reads a JSON value with numbers as they are written.
func decodeExact(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

// mergePatch applies an RFC 7386 merge patch.
func mergePatch(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, ok := target.(map[string]any)
	if !ok {
		t = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(t, k)
			continue
		}
		t[k] = mergePatch(t[k], v)
	}
	return t
}

// Routes are the paths by which specs and secrets are written.
func (e *Editor) Routes() []web.Route {
	out := []web.Route{
		{Method: "POST", Path: "/v1/apply", Limit: web.MaxBody, ID: "apply", Needs: api.RoleOperator, Does: "apply", Summary: "check a whole document, then commit it in one step or not at all",
			Body: api.ApplyRequest{}, Answers: map[int]any{200: api.ApplyResult{}}, Problems: []int{400, 409, 422, 507}, Handler: e.apply},
		{Method: "GET", Path: "/v1/document", ID: "export", Needs: api.RoleViewer, Summary: "what is declared, as a document: to apply it changes nothing",
			Answers: map[int]any{200: api.Export{}}, Handler: e.export},
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
	out = append(out, web.Route{Method: "POST", Path: "/v1/hosts/{name}/drain", ID: "drain-host", Needs: api.RoleOperator, Does: "drain", Kind: api.KindHost,
		Summary: "move the functions of a host to others, and place nothing new there until spec.drain is taken back; with plan: only say which",
		Body:    api.DrainRequest{}, Answers: map[int]any{200: api.DrainResult{}}, Problems: []int{400, 404, 409, 413, 415}, Handler: e.drain})
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
