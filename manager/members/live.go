package members

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// lookAgain is how often certificates of requests that go on are checked against the members: another manager may have replaced one.
const lookAgain = 10 * time.Second

// maxAgentRequests bounds the requests of one agent that are being answered. It needs some ten, and as many more for each time that it has come back
// within the time that it takes to find out that its former connection is dead.
const maxAgentRequests = 100

// liveAgents are the agents' requests that are being answered: watches and connections go on for long, and have to end with the right to
// make them.
type liveAgents struct {
	mu   sync.Mutex
	next uint64
	by   map[web.Agent]map[uint64]context.CancelFunc
}

// Enter notes a request, unless the agent has too many; leave ends it.
func (m *Hosts) Enter(ctx context.Context, who web.Agent, life time.Duration) (_ context.Context, leave func(), err error) {
	m.live.mu.Lock()
	defer m.live.mu.Unlock()
	if len(m.live.by[who]) >= maxAgentRequests {
		return nil, nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("host %s has %d requests open: end some", who.Host, maxAgentRequests))
	}
	ctx, cancel := context.WithTimeout(ctx, life)
	if m.live.by == nil {
		m.live.by = map[web.Agent]map[uint64]context.CancelFunc{}
	}
	if m.live.by[who] == nil {
		m.live.by[who] = map[uint64]context.CancelFunc{}
	}
	m.live.next++
	id := m.live.next
	m.live.by[who][id] = cancel
	return ctx, func() {
		cancel()
		m.live.mu.Lock()
		defer m.live.mu.Unlock()
		if delete(m.live.by[who], id); len(m.live.by[who]) == 0 {
			delete(m.live.by, who)
		}
	}, nil
}

// Dismiss ends the requests of a host's agents that are members no more; "" looks at all hosts.
func (m *Hosts) Dismiss(ctx context.Context, host string) {
	m.live.mu.Lock()
	agents := slices.Collect(maps.Keys(m.live.by))
	m.live.mu.Unlock()
	for _, who := range agents {
		if host != "" && who.Host != host || !errors.Is(m.Check(ctx, who.Host, who.Key), api.ErrUnauthorized) {
			continue
		}
		m.live.mu.Lock()
		for _, cancel := range m.live.by[who] {
			cancel()
		}
		m.live.mu.Unlock()
	}
}

// KeepDismissing looks at all hosts now and then, until ctx ends.
func (m *Hosts) KeepDismissing(ctx context.Context) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.Dismiss(ctx, "")
		}
	}
}
