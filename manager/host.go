package manager

import (
	"encoding/json"
	"time"

	"weir.dev/weir/api"
)

// judge gives a stored object as it is now: of a host, the agent says how it is and the manager whether that is still true. Managers
// that share a store share the time of its last report too.
func (m *Manager) judge(n noun, value []byte) []byte {
	if n.kind != api.KindHost {
		return value
	}
	var h api.Host
	if json.Unmarshal(value, &h) != nil {
		return value
	}
	state := hostState(h, m.began, m.Now())
	if state == h.Status.State {
		return value
	}
	h.Status.State, h.Revision = state, 0
	return marshal(h)
}

func hostState(h api.Host, began, now time.Time) string {
	const silence = 3 * api.HostBeat
	switch {
	case h.Updated.Before(began) && now.Sub(began) <= silence:
		return "starting"
	case now.Sub(h.Updated) > silence:
		return "lost"
	}
	return h.Status.State
}
