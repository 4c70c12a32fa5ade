package manager

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// HostLLDPKey signs the link discovery frames of one host: it is derived from LLDPKey and the host's membership, so that no host can
// make another's, and one that joins anew gets another. A host that is not known (any more) has none: ErrNotFound.
func (m *Manager) HostLLDPKey(ctx context.Context, host string) ([]byte, error) {
	key, err := m.LLDPKey(ctx)
	if err != nil {
		return nil, err
	}
	life := ""
	rec, err := store.Get[member](ctx, m.Store, kindMember, host)
	switch {
	case err == nil:
		life = rec.Life
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case host != m.Host || host == "": // a manager's own has no membership
		if _, err := m.Store.Get(ctx, store.Key(api.KindHost, host)); err != nil {
			return nil, err
		}
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "weir lldp host 1\x00%s\x00%s", host, life)
	return h.Sum(nil), nil
}

// agentConfig answers with what all hosts have in common, and with the asking host's key of link discovery.
func (m *Manager) agentConfig(w http.ResponseWriter, r *http.Request) error {
	host := cmp.Or(r.URL.Query().Get("host"), m.Host)
	if who, ok := agentOf(r.Context()); ok {
		if host = cmp.Or(r.URL.Query().Get("host"), who.host); host != who.host {
			return api.Refuse(http.StatusForbidden, fmt.Sprintf("the key of host %q is not for host %s", host, who.host))
		}
	}
	c := m.AgentConfig
	c.Time = m.Now().UTC()
	if host != "" {
		key, err := m.HostLLDPKey(r.Context(), host)
		if err != nil {
			return err
		}
		c.LLDPKey = key
	}
	if c.Underlay == "" {
		c.Underlay = "none"
	}
	return answer(w, http.StatusOK, c)
}
