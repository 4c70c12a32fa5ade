package join

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

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
