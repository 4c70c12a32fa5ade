package members

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/store"
)

// Options are what Hosts need.
type Options struct {
	*tx.Writer
	Began time.Time // of this manager
	Host  string    // whose agent runs in this process, "" none: it is alive
	ID    string    // of this manager, the same over restarts
}

// Hosts are the hosts that have joined, their signs of life, and their agents' requests.
type Hosts struct {
	Options
	keys  bounded.Cache[[]string] // of members; none: not a member
	beats beats
	live  liveAgents
}

// New makes Hosts.
func New(o Options) *Hosts {
	return &Hosts{Options: o, keys: bounded.Cache[[]string]{Life: memberCache, Max: maxBeats}}
}

// memberCache is for how long a member's record is believed without reading it again: so long a replaced agent may still be heard by
// other managers than the one that replaced it.
const memberCache = 2 * time.Second

// Member is a host that has joined. Keys are the hashes of the public keys that its agent may use, the newest first: two, since a renewed
// certificate may be lost on its way.
type Member struct {
	api.Meta
	Keys    []string  `json:"keys"`
	Expires time.Time `json:"expires"`
	Beats   []string  `json:"beats,omitempty"` // managers (Options.ID) that hear its beats
	Life    string    `json:"life,omitempty"`  // another with each agent that joins under this name
	// Declared is what the host has by the token's word.
	Declared api.HostSpec `json:"declared,omitzero"`
}

// Kind are hosts that have joined. No path of the API lists them.
const Kind api.Kind = "member"

// ErrReplaced refuses a certificate whose key is not the host's any more.
func ErrReplaced(host string) error {
	return api.Refuse(http.StatusUnauthorized, fmt.Sprintf("the certificate of host %s is no longer accepted: another agent joined in its place, or the host was removed: join again with a new token (weir token create --replace --host %s)", host, host))
}

// Check tells whether a host may still use a key.
func (m *Hosts) Check(ctx context.Context, host, key string) error {
	keys, err := m.keys.Get(host, m.Now(), func() ([]string, error) {
		rec, err := store.Get[Member](ctx, m.Store, Kind, host)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		return rec.Keys, err
	})
	if err == nil && !slices.Contains(keys, key) {
		return ErrReplaced(host)
	}
	return err
}

// Forget makes the next request of a host read its record.
func (m *Hosts) Forget(host string) { m.keys.Forget(host) }

// HostAlive tells of a host without a certificate, another manager's own, whether it reports.
func (m *Hosts) HostAlive(ctx context.Context, host string) bool {
	h, err := store.Get[api.Host](ctx, m.Store, api.KindHost, host)
	return err == nil && (m.BeatsAgain(host) || m.Now().Sub(m.beats.reported(h, m.Now())) <= silence)
}
