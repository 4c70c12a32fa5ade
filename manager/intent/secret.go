package intent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// kindSealed are users' secrets, by name.
const kindSealed api.Kind = "sealed"

const maxSecrets = 1000

// sealed is a user's secret as it is kept: encrypted, see seal.
type sealed struct {
	api.Meta
	Value []byte `json:"value"`
}

// version tells one value from another, also when a name is used again.
func (s *sealed) version() string { return fmt.Sprintf("%s-%d", s.UID, s.Generation) }

// sealedName is what a secret's value is bound to when it is encrypted.
func sealedName(name string) string { return "user secret " + name }

// putSecret makes a secret or replaces its value. Functions that use it get a new generation, and so are made anew.
func (e *Editor) putSecret(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := object.CheckName(api.KindSecret, name); err != nil {
		return err
	}
	var req api.SecretRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	if p := checkSecret("", req.Value); p != nil {
		return api.Refuse(http.StatusUnprocessableEntity, "the secret is refused", *p)
	}
	var rec sealed
	status, action := http.StatusOK, ""
	_, err := e.edit(r.Context(), func(st *state) (err error) {
		if action, err = st.setSecret(r.Context(), name, req.Value); err != nil || action == "unchanged" {
			rec = st.secrets[name]
			return err
		}
		rec = st.secrets[name]
		_, err = st.bindSecrets(r.Context())
		return err
	})
	if action == "create" {
		status = http.StatusCreated
	}
	if err != nil {
		return err
	}
	web.Note(r).Idle, web.Note(r).Generation = action == "unchanged", rec.Generation
	out, err := e.publicSecret(r.Context(), rec)
	if err != nil {
		return err
	}
	return web.Answer(w, status, out)
}

// checkSecret refuses a value, which the problem does not contain.
func checkSecret(path string, value []byte) *api.Problem {
	if n := len(value); n < 1 || n > api.MaxSecret {
		return &api.Problem{Path: path + "value", Message: fmt.Sprintf("has %d bytes: want 1 to %d", n, api.MaxSecret)}
	}
	return nil
}

// setSecret makes a secret or replaces its value, and tells what that is: create, update or unchanged.
func (st *state) setSecret(ctx context.Context, name string, value []byte) (action string, err error) {
	key, err := st.e.Keys.UserKey()
	if err != nil {
		return "", err
	}
	if err := st.readSecrets(ctx); err != nil {
		return "", err
	}
	now := st.e.Now().UTC()
	old, known := st.secrets[name]
	rec := old
	switch {
	case !known && len(st.secrets) >= maxSecrets:
		return "", api.Refuse(http.StatusConflict, fmt.Sprintf("there are %d secrets: delete some (weir secret delete NAME)", len(st.secrets)))
	case !known:
		action = "create"
		rec = sealed{Meta: api.Meta{Name: name, UID: object.NewUID(), Generation: 1, Created: now, Updated: now}}
	default:
		if was, err := keys.Open(key, sealedName(name), old.Value); err == nil && bytes.Equal(was, value) {
			return "unchanged", nil
		}
		action = "update"
		rec.Generation, rec.Updated = old.Generation+1, now
	}
	if rec.Value, err = keys.Seal(key, sealedName(name), value); err != nil {
		return "", err
	}
	st.secrets[name] = rec
	tx.Add(&st.Change, kindSealed, &rec, old.Revision)
	return action, nil
}

// setSecrets does so with all of a request.
func (st *state) setSecrets(ctx context.Context, req api.ApplyRequest) ([]api.Change, error) {
	changes := []api.Change{}
	if req.Secrets == nil {
		return changes, nil
	}
	if err := st.readSecrets(ctx); err != nil {
		return nil, err
	}
	var problems []api.Problem
	for _, name := range slices.Sorted(maps.Keys(req.Secrets)) {
		path := "secrets." + name
		if err := api.CheckName(name); err != nil {
			problems = append(problems, api.Problem{Path: path, Message: err.Error()})
		} else if p := checkSecret(path+".", req.Secrets[name].Value); p != nil {
			problems = append(problems, *p)
		}
	}
	if len(problems) > 0 {
		return nil, api.Refuse(http.StatusUnprocessableEntity, "the secrets are refused", problems...)
	}
	for _, name := range slices.Sorted(maps.Keys(req.Secrets)) {
		action, err := st.setSecret(ctx, name, req.Secrets[name].Value)
		if err != nil {
			return nil, err
		}
		c := api.Change{Action: action, Kind: api.KindSecret, Name: name}
		if action == "update" {
			c.Fields = []string{"value"}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// dropSecret deletes a secret that no function uses which stays.
func (st *state) dropSecret(name string) error {
	for _, user := range st.users(name) {
		if st.objects[api.KindFunction][user].Deleting == nil {
			return api.Refuse(http.StatusConflict, fmt.Sprintf("secret %s is used by function %s: take it out there first", name, user))
		}
	}
	st.Remove(kindSealed, name, st.secrets[name].Revision)
	delete(st.secrets, name)
	return nil
}

// removeSecret deletes a secret that no function uses.
func (e *Editor) removeSecret(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	_, err := e.edit(r.Context(), func(st *state) error {
		if err := st.readSecrets(r.Context()); err != nil {
			return err
		}
		if _, known := st.secrets[name]; !known {
			return object.NotFound(api.KindSecret, name)
		}
		return st.dropSecret(name)
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listSecrets lists secrets without their values.
func (e *Editor) listSecrets(w http.ResponseWriter, r *http.Request) error {
	list, rev, err := store.List[sealed](r.Context(), e.Store, kindSealed)
	if err != nil {
		return err
	}
	users, err := e.secretUsers(r.Context())
	if err != nil {
		return err
	}
	out := api.List[api.Secret]{Items: []api.Secret{}, Revision: rev}
	for _, s := range list {
		out.Items = append(out.Items, api.Secret{Meta: s.Meta, UsedBy: append([]string{}, users[s.Name]...)})
	}
	return web.Answer(w, http.StatusOK, out)
}

// getSecret tells of one secret without its value.
func (e *Editor) getSecret(w http.ResponseWriter, r *http.Request) error {
	rec, err := store.Get[sealed](r.Context(), e.Store, kindSealed, r.PathValue("name"))
	if errors.Is(err, store.ErrNotFound) {
		return object.NotFound(api.KindSecret, r.PathValue("name"))
	}
	if err != nil {
		return err
	}
	out, err := e.publicSecret(r.Context(), rec)
	if err != nil {
		return err
	}
	return web.Answer(w, http.StatusOK, out)
}

func (e *Editor) publicSecret(ctx context.Context, rec sealed) (api.Secret, error) {
	users, err := e.secretUsers(ctx)
	return api.Secret{Meta: rec.Meta, UsedBy: append([]string{}, users[rec.Name]...)}, err
}

// secretUsers are the functions that use each secret.
func (e *Editor) secretUsers(ctx context.Context) (map[string][]string, error) {
	list, _, err := store.List[object.Object](ctx, e.Store, api.KindFunction)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for i := range list {
		for _, name := range slices.Sorted(maps.Keys(secretsOf(&list[i]))) {
			out[name] = append(out[name], list[i].Name)
		}
	}
	return out, nil
}

// functionSecrets hands a function's secrets to the agent of its host, and to nobody else: no token reads them.
func (e *Editor) functionSecrets(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	f, err := object.Find[object.Object](r.Context(), e.Store, api.KindFunction, name)
	if err != nil {
		return err
	}
	who, isAgent := web.AgentOf(r.Context())
	if isAgent && f.At() != who.Host || !isAgent && !web.CallerOf(r).Self {
		return api.Refuse(http.StatusForbidden, fmt.Sprintf("the secrets of function %s are for the agent of its host", name))
	}
	out := api.List[api.FunctionSecret]{Items: []api.FunctionSecret{}}
	for _, secret := range slices.Sorted(maps.Keys(secretsOf(&f))) {
		rec, err := store.Get[sealed](r.Context(), e.Store, kindSealed, secret)
		if err != nil {
			return err
		}
		key, err := e.Keys.UserKey()
		if err != nil {
			return err
		}
		value, err := keys.Open(key, sealedName(secret), rec.Value)
		if err != nil {
			return fmt.Errorf("secret %s in the state was encrypted with another key than this manager has: %w", secret, err)
		}
		out.Items = append(out.Items, api.FunctionSecret{Name: secret, Version: rec.version(), Value: value})
	}
	return web.Answer(w, http.StatusOK, out)
}

// secretsOf are the names of the secrets that a function wants.
func secretsOf(o *object.Object) map[string]bool {
	if !bytes.Contains(o.Spec, []byte(`"secrets"`)) {
		return nil
	}
	var spec api.FunctionSpec
	if json.Unmarshal(o.Spec, &spec) != nil {
		return nil
	}
	out := map[string]bool{}
	for _, text := range spec.Secrets {
		if name, _, err := api.ParseSecret(text); err == nil {
			out[name] = true
		}
	}
	return out
}

// readSecrets reads all secrets, once for an edit.
func (st *state) readSecrets(ctx context.Context) error {
	if st.secrets != nil {
		return nil
	}
	list, _, err := store.List[sealed](ctx, st.e.Store, kindSealed)
	if err != nil {
		return err
	}
	st.secrets = make(map[string]sealed, len(list))
	for _, s := range list {
		st.secrets[s.Name] = s
	}
	return nil
}

func (st *state) users(secret string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindFunction])) {
		if secretsOf(st.objects[api.KindFunction][name])[secret] {
			names = append(names, name)
		}
	}
	return names
}

// bindSecrets notes at each function which values of its secrets are in force. One that gets another value gets a new generation with it: it is
// made anew as after a change of its spec.
func (st *state) bindSecrets(ctx context.Context) (problems []api.Problem, err error) {
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindFunction])) {
		cur := st.objects[api.KindFunction][name]
		wants := secretsOf(cur)
		if cur.Deleting != nil || len(wants) == 0 && len(cur.Secrets) == 0 {
			continue
		}
		if err := st.readSecrets(ctx); err != nil {
			return nil, err
		}
		bound := map[string]string{}
		for _, secret := range slices.Sorted(maps.Keys(wants)) {
			rec, known := st.secrets[secret]
			if !known {
				problems = append(problems, api.Problem{Path: "functions." + name + ".secrets", Message: fmt.Sprintf("there is no secret %q", secret),
					Hint: "make it first: weir secret set " + secret + " < FILE"})
				continue
			}
			bound[secret] = rec.version()
		}
		if maps.Equal(bound, cur.Secrets) {
			continue
		}
		_, touched := st.before[api.KindFunction][name]
		next := st.revise(api.KindFunction, name)
		if next.Secrets = bound; len(bound) == 0 {
			next.Secrets = nil
		}
		if !touched {
			next.Generation++
			next.Updated = st.e.Now().UTC()
		}
	}
	return problems, nil
}
