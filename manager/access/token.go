package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// Routes are the paths of tokens.
func (ts *Tokens) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: "/v1/tokens", ID: "new-token", Does: "create", Kind: web.KindTokens, Summary: "make a token for the API, or one with which one agent can join; its secret is shown this once",
			Body: api.TokenRequest{}, Answers: map[int]any{201: api.Token{}}, Problems: []int{400, 409, 422, 507}, Handler: ts.newToken},
		{Method: "GET", Path: "/v1/tokens", ID: "list-tokens", Summary: "the tokens, without their secrets",
			Answers: map[int]any{200: api.List[api.Token]{}}, Handler: ts.tokens},
		{Method: "DELETE", Path: "/v1/tokens/{name}", ID: "delete-token", Kind: web.KindTokens, Summary: "make a token worthless",
			Answers: map[int]any{204: nil}, Problems: []int{404, 409}, Handler: ts.deleteToken},
		{Method: "POST", Path: "/v1/tokens/{name}/rotate", ID: "rotate-token", Does: "rotate", Kind: web.KindTokens, Summary: "give a token for the API a new secret and a new life",
			Answers: map[int]any{200: api.Token{}}, Problems: []int{404, 409}, Handler: ts.rotateToken},
	}
}

// KindToken are tokens to join with, by ID. No path of the API lists them.
const KindToken api.Kind = "join-token"

// Bounds of join tokens.
const (
	tokenTTL      = time.Hour
	maxTokenTTL   = 7 * 24 * time.Hour
	maxTokens     = 1000
	keepDeadToken = 24 * time.Hour // expired tokens are remembered so long, for a clear message to who brings one
)

// TokenRecord is a token as it is kept.
type TokenRecord struct {
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

func (t *TokenRecord) public() api.Token {
	return api.Token{ID: t.Name, Role: api.RoleAgent, Host: t.Host, Replace: t.Replace, CPUs: t.CPUs, Memory: t.Memory, Created: t.Created, Expires: t.Expires, Used: t.Used, UsedBy: t.UsedBy}
}

// newToken makes a token for the API or one to join with.
func (ts *Tokens) newToken(w http.ResponseWriter, r *http.Request) error {
	var req api.TokenRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	if req.Name != "" || req.Role != "" {
		web.Note(r).Object = req.Name
		out, err := ts.newAccess(r.Context(), req)
		if err != nil {
			return err
		}
		return web.Answer(w, http.StatusCreated, out)
	}
	ttl, err := checkToken(req)
	if err != nil {
		return err
	}
	a, err := ts.Keys.Authority(r.Context())
	if err != nil {
		return err
	}
	if err := ts.trimTokens(r.Context()); err != nil {
		return err
	}
	now := ts.Now().UTC()
	t := pki.NewToken(a.Hash())
	rec := &TokenRecord{
		Meta: api.Meta{Name: t.ID, UID: object.NewUID(), Created: now, Updated: now},
		Hash: pki.SecretHash(t.ID, t.Secret), Host: req.Host, Replace: req.Replace, CPUs: req.CPUs, Memory: req.Memory, Expires: now.Add(ttl),
	}
	if err := tx.Put(r.Context(), ts.Store, KindToken, rec, 0); err != nil {
		return err
	}
	out := rec.public()
	out.Token = t.String()
	web.Note(r).Object = t.ID
	return web.Answer(w, http.StatusCreated, out)
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
	problems = append(problems, members.CheckCapacity(req.CPUs, req.Memory, "")...)
	if req.Replace && req.Host == "" {
		problems = append(problems, api.Problem{Path: "replace", Message: "without a host", Hint: "name the host whose agent is to be replaced"})
	}
	if len(problems) > 0 {
		return 0, api.Refuse(http.StatusUnprocessableEntity, "the token is refused", problems...)
	}
	return ttl, nil
}

// trimTokens forgets tokens that have been dead for long, and refuses when too many are left.
func (ts *Tokens) trimTokens(ctx context.Context) error {
	list, _, err := store.List[TokenRecord](ctx, ts.Store, KindToken)
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, t := range list {
		if ts.Now().Sub(t.Expires) > keepDeadToken && len(ops) < history.ForgetAtOnce {
			ops = append(ops, store.Delete(KindToken, t.Name))
		}
	}
	if len(ops) > 0 {
		if _, err := ts.Store.Txn(ctx, nil, ops); err != nil {
			return err
		}
	}
	if len(list)-len(ops) >= maxTokens {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("there are %d join tokens: delete some (weir token list, weir token delete ID); expired ones disappear after a day", len(list)))
	}
	return nil
}

// tokens lists tokens, the oldest first.
func (ts *Tokens) tokens(w http.ResponseWriter, r *http.Request) error {
	list, rev, err := store.List[TokenRecord](r.Context(), ts.Store, KindToken)
	if err != nil {
		return err
	}
	out := api.List[api.Token]{Items: []api.Token{}, Revision: rev}
	for i := range list {
		out.Items = append(out.Items, list[i].public())
	}
	named, err := ts.accessTokens(r.Context())
	if err != nil {
		return err
	}
	out.Items = append(out.Items, named...)
	slices.SortFunc(out.Items, func(x, y api.Token) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID)) })
	return web.Answer(w, http.StatusOK, out)
}

// deleteToken makes a token worthless; what joined with it stays.
func (ts *Tokens) deleteToken(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if name == fileTokenName {
		return api.Refuse(http.StatusConflict, "the token file of a manager is not deleted: rotate it (weir token rotate file), or start weir with --listen none")
	}
	kind := kindAccess
	if joinID.MatchString(name) {
		kind = KindToken
	}
	i, err := ts.Store.Get(r.Context(), store.Key(kind, name))
	if errors.Is(err, store.ErrNotFound) {
		return object.NotFound(web.KindTokens, name)
	}
	if err != nil {
		return err
	}
	if _, err := ts.Store.Txn(r.Context(), []store.Cond{{Key: i.Key, Revision: i.Revision}}, []store.Op{store.Delete(kind, name)}); err != nil {
		return err
	}
	ts.records.Forget(name)
	w.WriteHeader(http.StatusNoContent)
	return nil
}
