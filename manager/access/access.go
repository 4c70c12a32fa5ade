package access

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// kindAccess are tokens for the API, by name.
const kindAccess api.Kind = "access-token"

// Bounds of tokens for the API.
const (
	accessTTL      = 30 * 24 * time.Hour
	maxAccessTTL   = 366 * 24 * time.Hour
	maxAccess      = 1000
	accessCache    = 2 * time.Second // for so long other managers may still believe in a token that was deleted or rotated here
	usedEvery      = time.Minute     // how exactly the last use is known
	accessVersion  = "weirt1"
	fileTokenName  = "file" // the token file of this manager
	errUnknownAcct = "the bearer token is missing or wrong: it is in the token file of weir's root directory, or make one with `weir token create NAME --role ROLE`"
)

// joinID is what join tokens are called; tokens for the API are not.
var joinID = regexp.MustCompile(`^[0-9a-f]{8}$`)

// accessRecord is a token for the API as it is kept. There is room for bounds by label beside the role.
type accessRecord struct {
	api.Meta
	Hash     string        `json:"hash"`
	Role     api.Role      `json:"role"`
	TTL      time.Duration `json:"ttl_ns"` // of the next rotation
	Expires  time.Time     `json:"expires"`
	Rotated  time.Time     `json:"rotated,omitzero"`
	Used     time.Time     `json:"used,omitzero"`
	UsedFrom string        `json:"used_from,omitempty"`
}

func (t *accessRecord) public() api.Token {
	return api.Token{ID: t.Name, Role: t.Role, Created: t.Created, Rotated: t.Rotated, Expires: t.Expires, Used: t.Used, UsedFrom: t.UsedFrom}
}

// Options are what Tokens need.
type Options struct {
	Store store.Store
	Log   *slog.Logger
	Now   func() time.Time
	Began time.Time // of this manager
	Keys  *keys.Keys
}

// Tokens is what a manager keeps in memory about tokens for the API.
type Tokens struct {
	Options
	records bounded.Cache[accessRecord]

	mu    sync.Mutex
	file  string // path of the token file, "" none
	token []byte // in it
	used  time.Time
	from  string
}

// New makes Tokens.
func New(o Options) *Tokens {
	return &Tokens{Options: o, records: bounded.Cache[accessRecord]{Life: accessCache, Max: maxAccess}}
}

// newSecret gives a token's secret of 256 random bits, and the whole token.
func newSecret(name string) (secret, whole string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	secret = base64.RawURLEncoding.EncodeToString(b[:])
	return secret, strings.Join([]string{accessVersion, name, secret}, ".")
}

// newAccess makes a token for the API.
func (ts *Tokens) newAccess(ctx context.Context, req api.TokenRequest) (api.Token, error) {
	ttl, err := checkAccess(req)
	if err != nil {
		return api.Token{}, err
	}
	list, _, err := store.List[accessRecord](ctx, ts.Store, kindAccess)
	if err != nil {
		return api.Token{}, err
	}
	now := ts.Now().UTC()
	var ops []store.Op
	at := int64(0)
	for _, t := range list {
		switch {
		case t.Name == req.Name && now.Before(t.Expires):
			return api.Token{}, api.Refuse(http.StatusConflict, fmt.Sprintf("there is a token %s: rotate it (weir token rotate %s), delete it, or choose another name", t.Name, t.Name))
		case t.Name == req.Name:
			at = t.Revision
		case now.Sub(t.Expires) > keepDeadToken && len(ops) < history.ForgetAtOnce:
			ops = append(ops, store.Delete(kindAccess, t.Name))
		}
	}
	if len(list)-len(ops) >= maxAccess {
		return api.Token{}, api.Refuse(http.StatusConflict, fmt.Sprintf("there are %d tokens: delete some (weir token list, weir token delete NAME)", len(list)))
	}
	secret, whole := newSecret(req.Name)
	rec := &accessRecord{
		Meta: api.Meta{Name: req.Name, UID: object.NewUID(), Created: now, Updated: now},
		Hash: pki.SecretHash(req.Name, secret), Role: req.Role, TTL: ttl, Expires: now.Add(ttl),
	}
	op := store.Put(kindAccess, rec)
	if _, err := ts.Store.Txn(ctx, []store.Cond{{Key: op.Key, Revision: at}}, append(ops, op)); err != nil {
		return api.Token{}, err
	}
	ts.records.Forget(req.Name)
	out := rec.public()
	out.Token = whole
	return out, nil
}

func checkAccess(req api.TokenRequest) (ttl time.Duration, err error) {
	var problems []api.Problem
	add := func(path, message, hint string) {
		problems = append(problems, api.Problem{Path: path, Message: message, Hint: hint})
	}
	if err := api.CheckName(req.Name); err != nil {
		add("name", err.Error(), "")
	} else if req.Name == fileTokenName || joinID.MatchString(req.Name) {
		add("name", fmt.Sprintf("%q is taken", req.Name), "choose another")
	}
	if !slices.Contains(api.Roles(), req.Role) {
		add("role", fmt.Sprintf("is %q", req.Role), fmt.Sprintf("want one of %v", api.Roles()))
	}
	ttl = accessTTL
	if req.TTL != "" {
		if ttl, err = time.ParseDuration(req.TTL); err != nil || ttl < time.Second || ttl > maxAccessTTL {
			add("ttl", fmt.Sprintf("is %q", req.TTL), fmt.Sprintf("want a duration from 1s to %v, for example 24h", maxAccessTTL))
		}
	}
	if req.Host != "" || req.Replace || req.CPUs != "" || req.Memory != "" {
		add("host", "is of a token to join with", "leave name and role out")
	}
	if len(problems) > 0 {
		return 0, api.Refuse(http.StatusUnprocessableEntity, "the token is refused", problems...)
	}
	return ttl, nil
}

// rotateToken gives a token a new secret, and its whole life anew. The former secret is worth nothing at once.
func (ts *Tokens) rotateToken(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if name == fileTokenName {
		return ts.rotateFile(w)
	}
	secret, whole := newSecret(name)
	rec, err := tx.Update(r.Context(), ts.Store, kindAccess, name, func(rec *accessRecord) (bool, error) {
		now := ts.Now().UTC()
		rec.Hash, rec.Rotated, rec.Updated, rec.Expires = pki.SecretHash(name, secret), now, now, now.Add(rec.TTL)
		return true, nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Refuse(http.StatusNotFound, fmt.Sprintf("token %q not found: tokens to join with are not rotated, make another", name))
	}
	if err != nil {
		return err
	}
	ts.records.Forget(name)
	out := rec.public()
	out.Token = whole
	return web.Answer(w, http.StatusOK, out)
}

// rotateFile writes this manager's token file anew.
func (ts *Tokens) rotateFile(w http.ResponseWriter) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.file == "" {
		return api.Refuse(http.StatusNotFound, "this manager listens on no TCP address, and has no token file")
	}
	t, err := newToken(ts.file)
	if err != nil {
		return err
	}
	ts.token = t
	return web.Answer(w, http.StatusOK, api.Token{ID: fileTokenName, Role: api.RoleAdmin, Created: ts.Began.UTC(), Rotated: ts.Now().UTC(), Token: string(t)})
}

// accessTokens lists the tokens for the API, by name.
func (ts *Tokens) accessTokens(ctx context.Context) ([]api.Token, error) {
	list, _, err := store.List[accessRecord](ctx, ts.Store, kindAccess)
	if err != nil {
		return nil, err
	}
	var out []api.Token
	ts.mu.Lock()
	if ts.file != "" {
		out = append(out, api.Token{ID: fileTokenName, Role: api.RoleAdmin, Created: ts.Began.UTC(), Used: ts.used, UsedFrom: ts.from})
	}
	ts.mu.Unlock()
	for i := range list {
		out = append(out, list[i].public())
	}
	return out, nil
}

// Authenticate finds whose token a request bears. What it was told of a token in vain is named, for the audit log.
func (ts *Tokens) Authenticate(r *http.Request) (c web.Caller, name string, err error) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given = strings.TrimSpace(given)
	if !strings.EqualFold(scheme, "Bearer") || given == "" {
		return c, "", api.Refuse(http.StatusUnauthorized, errUnknownAcct)
	}
	return ts.Check(r.Context(), given, web.HostOf(r.RemoteAddr))
}

// Check finds whose token it is, as Authenticate does.
func (ts *Tokens) Check(ctx context.Context, given, from string) (c web.Caller, name string, err error) {
	now := ts.Now().UTC()
	unknown := api.Refuse(http.StatusUnauthorized, errUnknownAcct)
	ts.mu.Lock()
	byFile := len(ts.token) > 0 && subtle.ConstantTimeCompare([]byte(given), ts.token) == 1
	if byFile {
		ts.used, ts.from = now.Truncate(usedEvery), from
	}
	ts.mu.Unlock()
	if byFile {
		return web.Caller{Who: "token " + fileTokenName, Role: api.RoleAdmin, From: from, Token: fileTokenName, Proof: pki.SecretHash(fileTokenName, given)}, fileTokenName, nil
	}
	part := strings.Split(given, ".")
	if len(part) != 3 || part[0] != accessVersion || api.CheckName(part[1]) != nil {
		return c, "", unknown
	}
	rec, err := ts.record(ctx, part[1])
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return c, "", err
	}
	if !pki.SameHash(rec.Hash, pki.SecretHash(part[1], part[2])) { // also when there is none
		return c, rec.Name, unknown
	}
	if now.After(rec.Expires) {
		return c, rec.Name, errExpired(rec)
	}
	ts.noteUse(ctx, rec, from, now)
	return web.Caller{Who: "token " + rec.Name, Role: rec.Role, From: from, Token: rec.Name, Proof: rec.Hash}, rec.Name, nil
}

func (ts *Tokens) record(ctx context.Context, name string) (accessRecord, error) {
	return ts.records.Get(name, ts.Now(), func() (accessRecord, error) {
		return store.Get[accessRecord](ctx, ts.Store, kindAccess, name)
	})
}

func errExpired(rec accessRecord) error {
	return api.Refuse(http.StatusUnauthorized, fmt.Sprintf("token %s expired at %s: an administrator can give it a new life (weir token rotate %s)",
		rec.Name, rec.Expires.Format(time.DateTime+" MST"), rec.Name))
}

// Stands says what a caller with a token may now. A token that was deleted, rotated or made anew since, or has expired, may nothing.
func (ts *Tokens) Stands(ctx context.Context, c web.Caller) (api.Role, error) {
	gone := api.Refuse(http.StatusUnauthorized, fmt.Sprintf("token %s was deleted or rotated: sign in again", c.Token))
	if c.Token == fileTokenName {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		if !pki.SameHash(c.Proof, pki.SecretHash(fileTokenName, string(ts.token))) {
			return "", gone
		}
		return api.RoleAdmin, nil
	}
	rec, err := ts.record(ctx, c.Token)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", gone
	case err != nil:
		return "", err
	case !pki.SameHash(rec.Hash, c.Proof):
		return "", gone
	case ts.Now().UTC().After(rec.Expires):
		return "", errExpired(rec)
	}
	return rec.Role, nil
}

// noteUse writes down when and from where a token was used, at most once a minute, unless the address is another.
func (ts *Tokens) noteUse(ctx context.Context, rec accessRecord, from string, now time.Time) {
	if now.Sub(rec.Used) < usedEvery && (rec.UsedFrom == from || now.Sub(rec.Used) < accessCache) {
		return
	}
	rec.Used, rec.UsedFrom = now, from
	if err := tx.Put(ctx, ts.Store, kindAccess, &rec, rec.Revision); err != nil && !errors.Is(err, store.ErrConflict) { // another was faster
		ts.Log.Warn("note the use of a token", "token", rec.Name, "error", err)
	}
	ts.records.Forget(rec.Name)
}

// OpenFile takes the token file of a listener.
func (ts *Tokens) OpenFile(path string) error {
	t, err := token(path)
	if err != nil {
		return err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.file, ts.token = path, t
	return nil
}

// token reads the bearer token, or makes one. A file that others can read is refused.
func token(path string) ([]byte, error) {
	if path == "" {
		return nil, errors.New("listen on TCP: no token file given")
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newToken(path)
	}
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("token: %s has mode %04o: others may have read it: delete it (a new one is made at the next start)", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if len(t) < 32 {
		return nil, fmt.Errorf("token: %s holds %d characters: want at least 32; delete it (a new one is made at the next start)", path, len(t))
	}
	return []byte(t), nil
}

// newToken writes a token of 256 random bits, whole or not at all.
func newToken(path string) ([]byte, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	t := base64.RawURLEncoding.EncodeToString(raw[:])
	if err := instance.WriteFile(path, []byte(t+"\n")); err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	return []byte(t), nil
}
