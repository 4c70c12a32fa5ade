package join

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"cmp"
	"crypto/hmac"
	"crypto/sha256"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/access"
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/intent"
	"weir.dev/weir/manager/keys"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// Bounds of refused joins from one address: failBurst at once, then one each failRefill. When there are more addresses than maxPeers, an attack comes
// from everywhere: secrets of 192 bits bear it.
const (
	failBurst  = 10
	failRefill = 3 * time.Second
	maxPeers   = 4096
)

// Options are what a Joiner needs.
type Options struct {
	*tx.Writer
	Host            string // whose agent runs in this process: nobody else joins by this name
	Hosts           *members.Hosts
	Keys            *keys.Keys
	Intent          *intent.Editor
	AgentConfig     api.AgentConfig // what all hosts have in common, without time and key
	CertificateLife time.Duration   // of agents
}

// New makes a Joiner.
func New(o Options) *Joiner {
	return &Joiner{Options: o, failures: bounded.Rates[string]{Burst: failBurst, Refill: failRefill, Max: maxPeers}}
}

// Joiner lets hosts join, and gives them what all of them need.
type Joiner struct {
	Options
	failures bounded.Rates[string] // refused joins, by address
}

// Routes are the paths for agents that join, and for those that have.
func (j *Joiner) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: web.JoinPath, Limit: maxJoinBody, ID: "join", Needs: web.Anybody, Does: "join", Kind: api.KindHost, Summary: "an agent's first certificate for a token, at the agents' listener",
			Body: api.JoinRequest{}, Answers: map[int]any{200: api.Certificate{}}, Problems: []int{400, 401, 403, 409, 422, 429}, Handler: j.joinHost},
		{Method: "POST", Path: "/v1/certificates", ID: "renew", Does: "renew", Summary: "an agent's next certificate, at the agents' listener",
			Body: api.CertificateRequest{}, Answers: map[int]any{200: api.Certificate{}}, Problems: []int{400, 401, 403, 422}, Handler: j.renew},
		{Method: "GET", Path: "/v1/agent/config", ID: "agent-config", Summary: "what all hosts have in common, and the key with which one host signs its link discovery frames",
			Query: []string{"host"}, Answers: map[int]any{200: api.AgentConfig{}}, Problems: []int{403, 404}, Handler: j.agentConfig},
	}
}

// maxJoinBody bounds the body of who has no certificate yet.
const maxJoinBody = 16 << 10

// joinHost gives a host its first certificate for a token.
func (j *Joiner) joinHost(w http.ResponseWriter, r *http.Request) error {
	from := web.PeerOf(r)
	if wait := j.failures.Wait(from, j.Now()); wait > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(wait.Seconds())+1))
		return api.Refuse(http.StatusTooManyRequests, fmt.Sprintf("too many refused joins from this address: try again in %v", wait.Round(time.Second)))
	}
	var req api.JoinRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	web.Note(r).Who, web.Note(r).Object = "nobody", printableName(req.Host)
	for range tx.Attempts {
		out, err := j.joinOnce(r.Context(), req)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if errors.Is(err, api.ErrUnauthorized) {
			j.failures.Count(from, j.Now())
			j.Log.Warn("join refused", "peer", from, "host", printableName(req.Host), "error", err)
		}
		if err != nil {
			return err
		}
		web.Note(r).Who = "token " + req.ID
		j.Log.Info("host joined", "host", req.Host, "peer", from, "token", req.ID)
		return web.Answer(w, http.StatusOK, out)
	}
	return tx.OthersWrite("objects")
}

// printableName keeps what a stranger sends out of the log unless it is a name.
func printableName(host string) string {
	if api.CheckName(host) != nil {
		return "?"
	}
	return host
}

func (j *Joiner) joinOnce(ctx context.Context, req api.JoinRequest) (api.Certificate, error) {
	now := j.Now().UTC()
	token, err := j.checkSecret(ctx, req, now)
	if err != nil {
		return api.Certificate{}, err
	}
	if err := api.CheckName(req.Host); err != nil {
		return api.Certificate{}, api.Refuse(http.StatusUnprocessableEntity, "host: "+err.Error()+": choose one with --host")
	}
	if token.Host != "" && token.Host != req.Host {
		return api.Certificate{}, api.Refuse(http.StatusForbidden, fmt.Sprintf("token %s is for host %s, not for %s", token.Name, token.Host, req.Host))
	}
	csr, err := pki.ParseRequest([]byte(req.Request))
	if err != nil {
		return api.Certificate{}, api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	key := pki.RequestKeyHash(csr)
	if !token.Used.IsZero() && (token.UsedBy != req.Host || token.UsedKey != key) {
		return api.Certificate{}, api.Refuse(http.StatusForbidden, fmt.Sprintf("token %s was used by host %s at %s: a token works once: make another (weir token create)",
			token.Name, token.UsedBy, token.Used.Format(time.DateTime+" MST")))
	}
	if err := pki.CheckSkew(req.Host, req.Time, now); err != nil {
		return api.Certificate{}, api.Refuse(http.StatusUnprocessableEntity, err.Error()+", then join with the same token")
	}
	old, err := j.mayJoin(ctx, req.Host, key, token, now)
	if err != nil {
		return api.Certificate{}, err
	}
	return j.admitHost(ctx, req, key, token, old, now)
}

// errUnknownToken does not say whether the identifier or the secret is wrong.
const errUnknownToken = "no such join token: it is wrong, was deleted, or expired long ago: make one with `weir token create`"

// checkSecret finds the token of a request and checks its secret and its time.
func (j *Joiner) checkSecret(ctx context.Context, req api.JoinRequest, now time.Time) (*access.TokenRecord, error) {
	token, err := store.Get[access.TokenRecord](ctx, j.Store, access.KindToken, req.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if !pki.SameHash(token.Hash, pki.SecretHash(req.ID, req.Secret)) { // also when there is none: Hash is empty then
		return nil, api.Refuse(http.StatusUnauthorized, errUnknownToken)
	}
	if now.After(token.Expires) {
		return nil, api.Refuse(http.StatusUnauthorized, fmt.Sprintf("token %s expired at %s, and the manager's clock says %s: make another (weir token create, with --ttl for longer)",
			token.Name, token.Expires.Format(time.DateTime+" MST"), now.Format(time.DateTime+" MST")))
	}
	return &token, nil
}

// mayJoin refuses a second agent of one name while the first may still come.
func (j *Joiner) mayJoin(ctx context.Context, host, key string, token *access.TokenRecord, now time.Time) (*members.Member, error) {
	old, err := store.Get[members.Member](ctx, j.Store, members.Kind, host)
	known := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	hint := "choose another name with --host, or shut the former agent out: weir token create --replace --host " + host
	switch {
	case host == j.Host:
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s is the manager's own: choose another name with --host", host))
	case known && !slices.Contains(old.Keys, key) && now.Before(old.Expires) && !token.Replace:
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s has joined already, and its certificate is valid until %s: %s",
			host, old.Expires.Format(time.DateTime+" MST"), hint))
	case !known && !token.Replace && j.Hosts.HostAlive(ctx, host):
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s is alive already: %s", host, hint))
	}
	if !known {
		return nil, nil
	}
	return &old, nil
}

// admitHost signs, and in one step uses the token up and writes the member.
func (j *Joiner) admitHost(ctx context.Context, req api.JoinRequest, key string, token *access.TokenRecord, old *members.Member, now time.Time) (api.Certificate, error) {
	out, err := j.sign(ctx, req.Request, req.Host, now)
	if err != nil {
		return api.Certificate{}, err
	}
	// A member keeps its record. With another key it begins a new life: the former agent is shut out.
	who := &members.Member{Meta: api.Meta{Name: req.Host, UID: object.NewUID(), Created: now}}
	memberAt := int64(0)
	replaced := old != nil && !slices.Contains(old.Keys, key)
	if old != nil {
		who.Meta, who.Beats, who.Life, memberAt = old.Meta, old.Beats, old.Life, old.Revision
	}
	if old == nil || replaced {
		who.Life = object.NewUID()
	}
	who.Keys, who.Expires, who.Updated = []string{key}, out.Expires, now
	who.Declared = api.HostSpec{CPUs: token.CPUs, Memory: token.Memory}
	// A token may be used again with the same key only: an answer got lost. No second event then.
	again := !token.Used.IsZero()
	tokenAt := token.Revision
	token.Used, token.UsedBy, token.UsedKey, token.Updated = now, req.Host, key, now
	put := store.Put(members.Kind, who)
	use := store.Put(access.KindToken, token)
	e := api.Event{Severity: api.Info, Reason: history.HostJoined, Kind: api.KindHost, Object: req.Host, Host: req.Host, Message: fmt.Sprintf("host %s joined with token %s", req.Host, token.Name)}
	if replaced {
		e = api.Event{Severity: api.Warning, Reason: history.HostReplaced, Kind: api.KindHost, Object: req.Host, Host: req.Host,
			Message: fmt.Sprintf("host %s joined anew with token %s: its former agent is shut out", req.Host, token.Name)}
	}
	events := []api.Event{e}
	if again {
		events = nil
	}
	// Member and token change in one transaction, so a token never admits two hosts.
	_, err = j.Write(ctx, tx.Change{Conds: []store.Cond{{Key: put.Key, Revision: memberAt}, {Key: use.Key, Revision: tokenAt}}, Ops: []store.Op{put, use}, Events: events})
	if err != nil {
		return api.Certificate{}, err
	}
	j.Hosts.Forget(req.Host)
	if replaced {
		j.Hosts.Dismiss(ctx, req.Host)
	}
	if who.Declared != (api.HostSpec{}) && old != nil {
		if err := j.Intent.DeclareHost(ctx, req.Host, who.Declared); err != nil {
			return api.Certificate{}, err
		}
	}
	return out, nil
}

func (j *Joiner) sign(ctx context.Context, request, host string, now time.Time) (api.Certificate, error) {
	a, err := j.Keys.Authority(ctx)
	if err != nil {
		return api.Certificate{}, err
	}
	cert, err := a.Agent([]byte(request), host, now, j.CertificateLife)
	if err != nil {
		return api.Certificate{}, api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	return api.Certificate{
		Host: host, Certificate: string(pki.EncodeCertificate(cert)), Authority: string(a.Certificate()), Expires: cert.NotAfter, Time: now,
	}, nil
}

// renew gives an agent its next certificate, for a new key.
func (j *Joiner) renew(w http.ResponseWriter, r *http.Request) error {
	who, ok := web.AgentOf(r.Context())
	if !ok {
		return api.Refuse(http.StatusForbidden, "certificates are for agents, which ask with the one they have, at the agents' listener")
	}
	var req api.CertificateRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	csr, err := pki.ParseRequest([]byte(req.Request))
	if err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	now := j.Now().UTC()
	out, err := j.sign(r.Context(), req.Request, who.Host, now)
	if err != nil {
		return err
	}
	_, err = tx.Update(r.Context(), j.Store, members.Kind, who.Host, func(rec *members.Member) (bool, error) {
		if !slices.Contains(rec.Keys, who.Key) {
			return false, members.ErrReplaced(who.Host)
		}
		rec.Keys, rec.Expires, rec.Updated = slices.Compact([]string{pki.RequestKeyHash(csr), who.Key}), out.Expires, now
		return true, nil
	})
	if err != nil {
		return err
	}
	j.Hosts.Forget(who.Host)
	return web.Answer(w, http.StatusOK, out)
}

// HostLLDPKey signs the link discovery frames of one host: it is derived from LLDPKey and the host's membership, so that no host can
// make another's, and one that joins anew gets another. A host that is not known (any more) has none: ErrNotFound.
func (j *Joiner) HostLLDPKey(ctx context.Context, host string) ([]byte, error) {
	key, err := j.Keys.LLDPKey(ctx)
	if err != nil {
		return nil, err
	}
	life := ""
	rec, err := store.Get[members.Member](ctx, j.Store, members.Kind, host)
	switch {
	case err == nil:
		life = rec.Life
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case host != j.Host || host == "": // a manager's own has no membership
		if _, err := j.Store.Get(ctx, store.Key(api.KindHost, host)); err != nil {
			return nil, err
		}
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "weir lldp host 1\x00%s\x00%s", host, life)
	return h.Sum(nil), nil
}

// agentConfig answers with what all hosts have in common, and with the asking host's key of link discovery.
func (j *Joiner) agentConfig(w http.ResponseWriter, r *http.Request) error {
	host := cmp.Or(r.URL.Query().Get("host"), j.Host)
	if who, ok := web.AgentOf(r.Context()); ok {
		if host = cmp.Or(r.URL.Query().Get("host"), who.Host); host != who.Host {
			return api.Refuse(http.StatusForbidden, fmt.Sprintf("the key of host %q is not for host %s", host, who.Host))
		}
	}
	c := j.AgentConfig
	c.Time = j.Now().UTC()
	if host != "" {
		key, err := j.HostLLDPKey(r.Context(), host)
		if err != nil {
			return err
		}
		c.LLDPKey = key
	}
	if c.Underlay == "" {
		c.Underlay = "none"
	}
	return web.Answer(w, http.StatusOK, c)
}
