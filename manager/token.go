package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// accessRoutes are the paths of tokens.
func (m *Manager) accessRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/tokens", id: "new-token", does: "create", kind: kindTokens, summary: "make a token for the API, or one with which one agent can join; its secret is shown this once",
			body: api.TokenRequest{}, answers: map[int]any{201: api.Token{}}, problems: []int{400, 409, 422, 507}, handler: m.newToken},
		{method: "GET", path: "/v1/tokens", id: "list-tokens", summary: "the tokens, without their secrets",
			answers: map[int]any{200: api.List[api.Token]{}}, handler: m.tokens},
		{method: "DELETE", path: "/v1/tokens/{name}", id: "delete-token", kind: kindTokens, summary: "make a token worthless",
			answers: map[int]any{204: nil}, problems: []int{404, 409}, handler: m.deleteToken},
		{method: "POST", path: "/v1/tokens/{name}/rotate", id: "rotate-token", does: "rotate", kind: kindTokens, summary: "give a token for the API a new secret and a new life",
			answers: map[int]any{200: api.Token{}}, problems: []int{404, 409}, handler: m.rotateToken},
	}
}

// Kinds that no path of the API lists.
const (
	kindToken  api.Kind = "join-token" // by ID
	kindTokens api.Kind = "token"      // of both sorts, in the audit log
)

// Bounds of join tokens.
const (
	tokenTTL      = time.Hour
	maxTokenTTL   = 7 * 24 * time.Hour
	maxTokens     = 1000
	keepDeadToken = 24 * time.Hour // expired tokens are remembered so long, for a clear message to who brings one
)

// tokenRecord is a token as it is kept.
type tokenRecord struct {
	api.Meta
	Hash    string    `json:"hash"`
	Host    string    `json:"host,omitempty"`
	Replace bool      `json:"replace,omitempty"`
	CPUs    string    `json:"cpus,omitempty"`
	Memory  string    `json:"memory,omitempty"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`
	UsedBy  string    `json:"used_by,omitempty"`
	UsedKey string    `json:"used_key,omitempty"`
}

func (t *tokenRecord) public() api.Token {
	return api.Token{ID: t.Name, Role: api.RoleAgent, Host: t.Host, Replace: t.Replace, CPUs: t.CPUs, Memory: t.Memory, Created: t.Created, Expires: t.Expires, Used: t.Used, UsedBy: t.UsedBy}
}

// newToken makes a token for the API or one to join with.
func (m *Manager) newToken(w http.ResponseWriter, r *http.Request) error {
	var req api.TokenRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	if req.Name != "" || req.Role != "" {
		note(r).object = req.Name
		out, err := m.newAccess(r.Context(), req)
		if err != nil {
			return err
		}
		return answer(w, http.StatusCreated, out)
	}
	ttl, err := checkToken(req)
	if err != nil {
		return err
	}
	a, err := m.authority(r.Context())
	if err != nil {
		return err
	}
	if err := m.trimTokens(r.Context()); err != nil {
		return err
	}
	now := m.Now().UTC()
	t := pki.NewToken(a.Hash())
	rec := &tokenRecord{
		Meta: api.Meta{Name: t.ID, UID: newUID(), Created: now, Updated: now},
		Hash: pki.SecretHash(t.ID, t.Secret), Host: req.Host, Replace: req.Replace, CPUs: req.CPUs, Memory: req.Memory, Expires: now.Add(ttl),
	}
	op, err := store.Put(kindToken, rec)
	if err != nil {
		return err
	}
	if _, err := m.Store.Txn(r.Context(), []store.Cond{{Key: op.Key}}, []store.Op{op}); err != nil {
		return err
	}
	out := rec.public()
	out.Token = t.String()
	note(r).object = t.ID
	return answer(w, http.StatusCreated, out)
}

func checkToken(req api.TokenRequest) (ttl time.Duration, err error) {
	var problems []api.Problem
	ttl = tokenTTL
	if req.TTL != "" {
		ttl, err = time.ParseDuration(req.TTL)
		if err != nil || ttl < time.Second || ttl > maxTokenTTL {
			problems = append(problems, api.Problem{Path: "ttl", Message: fmt.Sprintf("is %q", req.TTL), Hint: fmt.Sprintf("want a duration from 1s to %v, for example 1h30m", maxTokenTTL)})
		}
	}
	if req.Host != "" && api.CheckName(req.Host) != nil {
		problems = append(problems, api.Problem{Path: "host", Message: api.CheckName(req.Host).Error()})
	}
	if (req.CPUs != "" || req.Memory != "") && req.Host == "" {
		problems = append(problems, api.Problem{Path: "cpus", Message: "capacity without a host", Hint: "name the host whose capacity that is"})
	}
	problems = append(problems, checkCapacity(req.CPUs, req.Memory, "")...)
	if req.Replace && req.Host == "" {
		problems = append(problems, api.Problem{Path: "replace", Message: "without a host", Hint: "name the host whose agent is to be replaced"})
	}
	if len(problems) > 0 {
		return 0, api.Refuse(http.StatusUnprocessableEntity, "the token is refused", problems...)
	}
	return ttl, nil
}

// trimTokens forgets tokens that have been dead for long, and refuses when too many are left.
func (m *Manager) trimTokens(ctx context.Context) error {
	list, _, err := store.List[tokenRecord](ctx, m.Store, kindToken)
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, t := range list {
		if m.Now().Sub(t.Expires) > keepDeadToken && len(ops) < forgetAtOnce {
			ops = append(ops, store.Delete(kindToken, t.Name))
		}
	}
	if len(ops) > 0 {
		if _, err := m.Store.Txn(ctx, nil, ops); err != nil {
			return err
		}
	}
	if len(list)-len(ops) >= maxTokens {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("there are %d join tokens: delete some (weir token list, weir token delete ID); expired ones disappear after a day", len(list)))
	}
	return nil
}

// tokens lists tokens, the oldest first.
func (m *Manager) tokens(w http.ResponseWriter, r *http.Request) error {
	list, rev, err := store.List[tokenRecord](r.Context(), m.Store, kindToken)
	if err != nil {
		return err
	}
	out := api.List[api.Token]{Items: []api.Token{}, Revision: rev}
	for i := range list {
		out.Items = append(out.Items, list[i].public())
	}
	named, err := m.accessTokens(r.Context())
	if err != nil {
		return err
	}
	out.Items = append(out.Items, named...)
	slices.SortFunc(out.Items, func(x, y api.Token) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return answer(w, http.StatusOK, out)
}

// deleteToken makes a token worthless; what joined with it stays.
func (m *Manager) deleteToken(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if name == fileTokenName {
		return api.Refuse(http.StatusConflict, "the token file of a manager is not deleted: rotate it (weir token rotate file), or start weir with --listen none")
	}
	kind := kindAccess
	if joinID.MatchString(name) {
		kind = kindToken
	}
	i, err := m.Store.Get(r.Context(), store.Key(kind, name))
	if errors.Is(err, store.ErrNotFound) {
		return notFound(kindTokens, name)
	}
	if err != nil {
		return err
	}
	if _, err := m.Store.Txn(r.Context(), []store.Cond{{Key: i.Key, Revision: i.Revision}}, []store.Op{store.Delete(kind, name)}); err != nil {
		return err
	}
	m.access.forget(name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
