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
		case !object.EtagIn(match, cur.Revision):
			return api.Refuse(http.StatusPreconditionFailed,
				fmt.Sprintf("%s %s changed meanwhile: it is at revision %d: read it again and repeat your change", kind, name, cur.Revision))
		}
	}
	if none := r.Header.Get("If-None-Match"); none != "" && cur != nil && object.EtagIn(none, cur.Revision) {
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
	var last *state
	status := http.StatusOK
	err := e.edit(r.Context(), func(st *state) error {
		last = st
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
	err := e.edit(r.Context(), func(st *state) error {
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
		op = st.remove(n, name)
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
