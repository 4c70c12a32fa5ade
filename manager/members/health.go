package members

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// WithHealth returns a stored object as clients see it. A host gets its health as the manager decides it now, and the time of its agent's last sign of
// life; all other objects are as stored. news: the host's state differs from the stored one. A later sign of life alone is no news.
func (m *Hosts) WithHealth(n object.Noun, i store.Item) (now []byte, news bool) {
	if n.Kind != api.KindHost {
		return i.Value, false
	}
	var h api.Host
	if json.Unmarshal(i.Value, &h) != nil {
		return i.Value, false
	}
	h.Revision = i.Revision // which tells a newer report from an older one
	if last, beats := m.lastBeat(h.Name); beats && (m.Now().Sub(last) <= api.BeatLost || last.After(h.Status.Heartbeat)) {
		h.Status.Heartbeat = last.UTC()
	}
	state := m.State(h)
	news = state != h.Status.State
	if h.Status.State, h.Revision = state, 0; news {
		h.Status.Conditions = Conditions(h.Name, &h.Status).Dated(h.Status.Conditions, m.Now().UTC())
	}
	return object.Marshal(h), news
}

// State is how a host is now: as its agent said, or starting or lost as its signs of life say.
func (m *Hosts) State(h api.Host) api.HostState {
	now := m.Now()
	last, beats := m.lastBeat(h.Name)
	h.Updated = m.beats.reported(h, now)
	switch {
	case beats && h.Name != m.Host:
		return beatState(h, last, m.Began, now)
	case beats && h.Status.State != api.HostLost && now.Sub(last) <= silence && h.Updated.After(m.Began):
		return h.Status.State // whatever has become of the clock since it reported
	}
	if !h.Updated.After(m.Began) && m.beats.missing(h.Name, m.Began, now) {
		return api.HostLost
	}
	return hostState(h, m.Began, now)
}

// Lost says that a host is lost and since when; "" it is not.
func (m *Hosts) Lost(h api.Host) string {
	if m.State(h) != api.HostLost {
		return ""
	}
	last, beats := m.lastBeat(h.Name)
	if !beats {
		last = m.beats.reported(h, m.Now())
	}
	return fmt.Sprintf("host %s is lost: its agent has been silent for %v", h.Name, max(0, m.Now().Sub(last)).Round(time.Second))
}

// silence is for how long a host whose health is decided by its reports may not report; then it is lost.
const silence = 3 * api.HostBeat

// beatState decides the health of a host whose agent beats at this manager. When it has come back, the leader says so. One that beats no more and goes on
// reporting does so by another manager.
func beatState(h api.Host, last, began, now time.Time) api.HostState {
	switch elsewhere := h.Updated.Sub(last) > api.BeatLost && now.Sub(h.Updated) <= silence; {
	case now.Sub(last) > api.BeatLost && (h.Status.State == api.HostLost || !elsewhere):
		return api.HostLost
	case h.Status.State != api.HostLost && h.Updated.Before(began):
		return api.HostStarting
	}
	return h.Status.State
}

// hostState decides a host's health by its reports alone, which come less often: the one of this process, and those of which this manager has
// heard no beat yet.
func hostState(h api.Host, began, now time.Time) api.HostState {
	switch {
	case h.Status.State == api.HostLost:
		return api.HostLost
	case h.Updated.Before(began) && now.Sub(began) <= silence:
		return api.HostStarting
	case now.Sub(h.Updated) > silence:
		return api.HostLost
	}
	return h.Status.State
}

// HostBack is the event of a host that was lost and has come back.
func HostBack(name string, away time.Duration) api.Event {
	return api.Event{Severity: api.Info, Reason: "HostBack", Kind: api.KindHost, Object: name, Host: name,
		Message: "host " + name + " is back", OutageNs: max(0, away).Nanoseconds()}
}

// Drained brings what is said of a host's drain up to date: functions are those that are placed there. It returns the event of a drain that has come
// to its end; nil: there is none.
func Drained(name string, spec api.HostSpec, placed int, s *api.HostStatus) *api.Event {
	if !spec.Drain {
		s.Drain = nil
		return nil
	}
	was := s.Drain
	s.Drain = &api.HostDrain{Stays: placed, Leaving: max(0, s.Functions-placed)}
	if !s.Drain.Done() || was != nil && was.Done() {
		return nil
	}
	return &api.Event{Severity: api.Info, Reason: "HostDrained", Kind: api.KindHost, Object: name, Host: name, Message: "host " + name + " is drained: it has no functions"}
}

// Conditions say of a host what its status comes to.
func Conditions(name string, s *api.HostStatus) (out api.Conditions) {
	note := func(t api.ConditionType, r api.Reason, message string) {
		out = append(out, api.Condition{Type: t, Reason: r, Message: strict.Clip(message, object.MaxConditionText)})
	}
	switch s.State {
	case api.HostLost:
		note(api.ConditionLost, api.ReasonSilent, "the agent of host "+name+" is silent; what the host forwards goes on")
	case api.HostStarting:
		note(api.ConditionStarting, api.ReasonWaiting, "the agent of host "+name+" has not looked at all of its functions yet")
	}
	lacks := func(f api.Feature) bool { return f.Required && !f.OK }
	if i := slices.IndexFunc(s.Features, lacks); i >= 0 {
		note(api.ConditionIncapable, api.ReasonFeature, fmt.Sprintf("host %s lacks %s: %s", name, s.Features[i].Name, s.Features[i].Detail))
	}
	if d := s.Drain; d != nil {
		switch {
		case d.Leaving > 0:
			note(api.ConditionDraining, api.ReasonLeaving, fmt.Sprintf("host %s is being drained: functions that are leaving: %d; that no other host can have: %d", name, d.Leaving, d.Stays))
		case d.Stays > 0:
			note(api.ConditionDraining, api.ReasonStays, fmt.Sprintf("host %s is being drained: functions that no other host can have: %d", name, d.Stays))
		default:
			note(api.ConditionDraining, api.ReasonDrained, "host "+name+" is drained: it has no functions")
		}
	}
	if s.Claims != nil {
		note(api.ConditionOverclaimed, api.ReasonCapacity, claimText(name, s))
	}
	return out
}
