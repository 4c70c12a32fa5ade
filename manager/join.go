package manager

import (
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

// joinRoutes are the paths for agents that join, and for those that have.
func (m *Manager) joinRoutes() []route {
	return []route{
		{method: "POST", path: joinPath, limit: maxJoinBody, id: "join", needs: anybody, does: "join", kind: api.KindHost, summary: "an agent's first certificate for a token, at the agents' listener",
			body: api.JoinRequest{}, answers: map[int]any{200: api.Certificate{}}, problems: []int{400, 401, 403, 409, 422, 429}, handler: m.joinHost},
		{method: "POST", path: "/v1/certificates", id: "renew", does: "renew", summary: "an agent's next certificate, at the agents' listener",
			body: api.CertificateRequest{}, answers: map[int]any{200: api.Certificate{}}, problems: []int{400, 401, 403, 422}, handler: m.renew},
		{method: "GET", path: "/v1/agent/config", id: "agent-config", summary: "what all hosts have in common, and the key with which one host signs its link discovery frames",
			query: []string{"host"}, answers: map[int]any{200: api.AgentConfig{}}, problems: []int{403, 404}, handler: m.agentConfig},
	}
}

// maxJoinBody bounds the body of who has no certificate yet.
const maxJoinBody = 16 << 10

// joins is what a manager keeps in memory about joining.
type joins struct {
	failures limiter
}

// joinHost gives a host its first certificate for a token.
func (m *Manager) joinHost(w http.ResponseWriter, r *http.Request) error {
	from := peerOf(r)
	if wait := m.join.failures.wait(from, m.Now()); wait > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(int(wait.Seconds())+1))
		return api.Refuse(http.StatusTooManyRequests, fmt.Sprintf("too many refused joins from this address: try again in %v", wait.Round(time.Second)))
	}
	var req api.JoinRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	note(r).who, note(r).object = "nobody", printableName(req.Host)
	for range editAttempts {
		out, err := m.joinOnce(r.Context(), req)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if errors.Is(err, api.ErrUnauthorized) {
			m.join.failures.fail(from, m.Now())
			m.Log.Warn("join refused", "peer", from, "host", printableName(req.Host), "error", err)
		}
		if err != nil {
			return err
		}
		note(r).who = "token " + req.ID
		m.Log.Info("host joined", "host", req.Host, "peer", from, "token", req.ID)
		return answer(w, http.StatusOK, out)
	}
	return othersWrite("objects")
}

// printableName keeps what a stranger sends out of the log unless it is a name.
func printableName(host string) string {
	if api.CheckName(host) != nil {
		return "?"
	}
	return host
}

func (m *Manager) joinOnce(ctx context.Context, req api.JoinRequest) (api.Certificate, error) {
	now := m.Now().UTC()
	token, err := m.checkSecret(ctx, req, now)
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
	old, err := m.mayJoin(ctx, req.Host, key, token, now)
	if err != nil {
		return api.Certificate{}, err
	}
	return m.admitHost(ctx, req, key, token, old, now)
}

// errUnknownToken does not say whether the identifier or the secret is wrong.
const errUnknownToken = "no such join token: it is wrong, was deleted, or expired long ago: make one with `weir token create`"

// checkSecret finds the token of a request and checks its secret and its time.
func (m *Manager) checkSecret(ctx context.Context, req api.JoinRequest, now time.Time) (*tokenRecord, error) {
	token, err := store.Get[tokenRecord](ctx, m.Store, kindToken, req.ID)
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
func (m *Manager) mayJoin(ctx context.Context, host, key string, token *tokenRecord, now time.Time) (*member, error) {
	old, err := store.Get[member](ctx, m.Store, kindMember, host)
	known := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	hint := "choose another name with --host, or shut the former agent out: weir token create --replace --host " + host
	switch {
	case host == m.Host:
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s is the manager's own: choose another name with --host", host))
	case known && !slices.Contains(old.Keys, key) && now.Before(old.Expires) && !token.Replace:
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s has joined already, and its certificate is valid until %s: %s",
			host, old.Expires.Format(time.DateTime+" MST"), hint))
	case !known && !token.Replace && m.hostAlive(ctx, host):
		return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("host %s is alive already: %s", host, hint))
	}
	if !known {
		return nil, nil
	}
	return &old, nil
}

// admitHost signs, and in one step uses the token up and writes the member.
func (m *Manager) admitHost(ctx context.Context, req api.JoinRequest, key string, token *tokenRecord, old *member, now time.Time) (api.Certificate, error) {
	out, expires, err := m.sign(ctx, req.Request, req.Host, now)
	if err != nil {
		return api.Certificate{}, err
	}
	who := &member{Meta: api.Meta{Name: req.Host, UID: newUID(), Created: now}}
	memberAt := int64(0)
	replaced := old != nil && !slices.Contains(old.Keys, key)
	if old != nil {
		who.Meta, who.Beats, who.Life, memberAt = old.Meta, old.Beats, old.Life, old.Revision
	}
	if old == nil || replaced {
		who.Life = newUID()
	}
	who.Keys, who.Expires, who.Updated = []string{key}, expires, now
	who.Declared = api.HostSpec{CPUs: token.CPUs, Memory: token.Memory}
	again := !token.Used.IsZero()
	tokenAt := token.Revision
	token.Used, token.UsedBy, token.UsedKey, token.Updated = now, req.Host, key, now
	put, err := store.Put(kindMember, who)
	if err != nil {
		return api.Certificate{}, err
	}
	use, err := store.Put(kindToken, token)
	if err != nil {
		return api.Certificate{}, err
	}
	e := api.Event{Severity: api.Info, Reason: hostJoined, Kind: api.KindHost, Object: req.Host, Host: req.Host, Message: fmt.Sprintf("host %s joined with token %s", req.Host, token.Name)}
	if replaced {
		e = api.Event{Severity: api.Warning, Reason: hostReplaced, Kind: api.KindHost, Object: req.Host, Host: req.Host,
			Message: fmt.Sprintf("host %s joined anew with token %s: its former agent is shut out", req.Host, token.Name)}
	}
	events := []api.Event{e}
	if again {
		events = nil
	}
	_, err = m.writer.write(ctx, change{conds: []store.Cond{{Key: put.Key, Revision: memberAt}, {Key: use.Key, Revision: tokenAt}}, ops: []store.Op{put, use}, events: events})
	if err != nil {
		return api.Certificate{}, err
	}
	m.forgetMember(req.Host)
	if replaced {
		m.dismiss(ctx, req.Host)
	}
	if who.Declared != (api.HostSpec{}) && old != nil {
		if err := m.declareHost(ctx, req.Host, who.Declared); err != nil {
			return api.Certificate{}, err
		}
	}
	return out, nil
}

func (m *Manager) sign(ctx context.Context, request, host string, now time.Time) (api.Certificate, time.Time, error) {
	a, err := m.authority(ctx)
	if err != nil {
		return api.Certificate{}, now, err
	}
	cert, err := a.Agent([]byte(request), host, now, m.CertificateLife)
	if err != nil {
		return api.Certificate{}, now, api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	return api.Certificate{
		Host: host, Certificate: string(pki.EncodeCertificate(cert)), Authority: string(a.Certificate()), Expires: cert.NotAfter, Time: now,
	}, cert.NotAfter, nil
}

// renew gives an agent its next certificate, for a new key.
func (m *Manager) renew(w http.ResponseWriter, r *http.Request) error {
	who, ok := agentOf(r.Context())
	if !ok {
		return api.Refuse(http.StatusForbidden, "certificates are for agents, which ask with the one they have, at the agents' listener")
	}
	var req api.CertificateRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	csr, err := pki.ParseRequest([]byte(req.Request))
	if err != nil {
		return api.Refuse(http.StatusUnprocessableEntity, err.Error())
	}
	for range editAttempts {
		now := m.Now().UTC()
		out, expires, err := m.sign(r.Context(), req.Request, who.host, now)
		if err != nil {
			return err
		}
		rec, err := store.Get[member](r.Context(), m.Store, kindMember, who.host)
		if err != nil {
			return err
		}
		if !slices.Contains(rec.Keys, who.key) {
			return errReplaced(who.host)
		}
		at := rec.Revision
		rec.Keys, rec.Expires, rec.Updated = slices.Compact([]string{pki.RequestKeyHash(csr), who.key}), expires, now
		put, err := store.Put(kindMember, &rec)
		if err != nil {
			return err
		}
		_, err = m.Store.Txn(r.Context(), []store.Cond{{Key: put.Key, Revision: at}}, []store.Op{put})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		m.forgetMember(who.host)
		return answer(w, http.StatusOK, out)
	}
	return othersWrite("objects")
}
