package members

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
	"weir.dev/weir/store"
)

// maxBeats bounds the hosts of which signs of life are kept.
const maxBeats = 20_000

// beats are the hosts' signs of life as this manager hears them: each agent beats at every manager that it knows, so every manager can
// judge by itself. What is stored of them is at which managers a host beats, see member.Beats: after a start a manager knows by that whom it
// has to hear from.
type beats struct {
	mu       sync.Mutex
	last     map[string]beat
	expected map[string]bool // hosts that beat here in an earlier life of this manager
	returned time.Time       // when the last of them came back
	ran      time.Time       // when this process last ran, see excuse
	reports  map[string]report
}

// report is a host's last report as this manager has seen it.
type report struct {
	revision int64     // of the host as it was seen
	updated  time.Time // of the wall clock of the manager that took it
	at       time.Time // on this manager's own clock, which nobody steps
	looked   time.Time
}

// reported is when a host has reported last, on this manager's own clock. What is stored is the wall clock of the manager that took the report, which
// may have been stepped since, or be another's: it counts only within the time in which the report must have come. A host without its revision is
// the newest.
func (b *beats) reported(h api.Host, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.reports[h.Name]
	age := max(0, now.Sub(h.Updated))
	switch {
	case known && (h.Revision > 0 && h.Revision <= last.revision || h.Updated.Equal(last.updated)):
		h.Updated = last.updated
	case known:
		last.at = now.Add(-min(age, max(0, now.Sub(last.looked))))
	default:
		last.at = now.Add(-age)
	}
	if !known && len(b.reports) >= maxBeats {
		return last.at
	}
	if b.reports == nil {
		b.reports = map[string]report{}
	}
	b.reports[h.Name] = report{max(h.Revision, last.revision), h.Updated, last.at, now}
	return last.at
}

// heldUp is how long this process may not have run until that counts: with the time between two beats it stays below api.BeatLost.
const heldUp = 3 * api.Beat / 2

// excuse takes the time in which this process did not run from the hosts' silence: a machine that was suspended or overloaded has heard nobody,
// whoever lives. It is called with every beat and every look of the leader. real is the true time, now that of the beats.
func (b *beats) excuse(real, now time.Time) {
	late := real.Sub(b.ran)
	if !b.ran.IsZero() && late > heldUp {
		for host, x := range b.last {
			if x.at = x.at.Add(late); x.at.After(now) {
				x.at = now
			}
			b.last[host] = x
		}
	}
	b.ran = real
}

// ExcuseSilence is excuse for the leader, which looks at the hosts now and then.
func (m *Hosts) ExcuseSilence() {
	m.beats.mu.Lock()
	defer m.beats.mu.Unlock()
	m.beats.excuse(time.Now(), m.Now())
}

// comeBack is how long after its start a manager waits for hosts that beat here before. As long as others are coming back, thousands at
// once maybe, it waits on.
const comeBack = 5 * time.Second

type beat struct {
	at   time.Time
	skew time.Duration // the host's clock minus the manager's, the way there included
}

// note keeps a sign of life and returns the one before, zero if there was none.
func (b *beats) note(host string, now time.Time, skew time.Duration) (before beat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[string]beat{}
	}
	b.excuse(time.Now(), now)
	if _, known := b.last[host]; !known && len(b.last) >= maxBeats {
		for name, x := range b.last {
			if now.Sub(x.at) > time.Hour {
				delete(b.last, name)
			}
		}
		if len(b.last) >= maxBeats {
			return before
		}
	}
	before, known := b.last[host]
	if !known && b.expected[host] {
		b.returned = now
	}
	b.last[host] = beat{now, skew}
	return before
}

// missing tells that a host which beat here before has not come back in time since this manager began.
func (b *beats) missing(host string, began, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, back := b.last[host]; back || !b.expected[host] {
		return false
	}
	until := began.Add(comeBack)
	if more := b.returned.Add(api.BeatLost); more.After(until) {
		until = more
	}
	return now.After(until)
}

// ExpectBeats reads which hosts beat here before this manager was started.
func (m *Hosts) ExpectBeats(ctx context.Context) error {
	members, _, err := store.List[Member](ctx, m.Store, Kind)
	if err != nil {
		return err
	}
	expected := map[string]bool{}
	for _, x := range members {
		if slices.Contains(x.Beats, m.ID) {
			expected[x.Name] = true
		}
	}
	m.beats.mu.Lock()
	defer m.beats.mu.Unlock()
	m.beats.expected = expected
	for name := range expected { // some may have been quicker than this
		if x := m.beats.last[name]; x.at.After(m.beats.returned) {
			m.beats.returned = x.at
		}
	}
	return nil
}

// maxBeatsAt bounds the managers at which a host is known to beat; the newest are last.
const maxBeatsAt = 8

// noteBeatsHere writes down that a host beats at this manager. It is called with a host's first beat, and once there is nothing to write.
func (m *Hosts) noteBeatsHere(ctx context.Context, host string) error {
	_, err := tx.Update(ctx, m.Store, Kind, host, func(rec *Member) (bool, error) {
		if slices.Contains(rec.Beats, m.ID) {
			return false, nil
		}
		rec.Beats = append(rec.Beats, m.ID)
		rec.Beats = rec.Beats[max(0, len(rec.Beats)-maxBeatsAt):]
		return true, nil
	})
	if errors.Is(err, store.ErrNotFound) { // the agent of a manager's own process: nobody else hears it
		return nil
	}
	return err
}

// lastBeat is when a host's agent last gave a sign of life to this manager.
func (m *Hosts) lastBeat(host string) (time.Time, bool) {
	m.beats.mu.Lock()
	defer m.beats.mu.Unlock()
	x, ok := m.beats.last[host]
	return x.at, ok
}

// BeatsAgain tells that a host that was lost gives signs of life.
func (m *Hosts) BeatsAgain(host string) bool {
	last, ok := m.lastBeat(host)
	return ok && host != m.Host && m.Now().Sub(last) <= api.BeatLost
}

// Silence is for how long nothing has been heard of a host.
func (m *Hosts) Silence(host string, reported time.Time) time.Duration {
	if last, ok := m.lastBeat(host); ok && last.After(reported) {
		reported = last
	}
	return max(0, m.Now().Sub(reported))
}

// Routes are the paths of signs of life.
func (m *Hosts) Routes() []web.Route {
	return []web.Route{
		{Method: "POST", Path: "/v1/hosts/{name}/beat", ID: "beat", Quiet: true, Summary: "an agent's sign of life; nothing is stored",
			Body: api.BeatRequest{}, Answers: map[int]any{200: api.BeatAnswer{}}, Problems: []int{400, 422}, Handler: m.beat},
	}
}

// beat takes a host's sign of life. Of all that a host gives, only the first is written to the store.
func (m *Hosts) beat(w http.ResponseWriter, r *http.Request) error {
	var req api.BeatRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	now := m.Now()
	host := r.PathValue("name")
	if err := object.CheckName(api.KindHost, host); err != nil {
		return err
	}
	skew := time.Duration(0)
	if !req.Time.IsZero() {
		skew = req.Time.Sub(now)
	}
	before := m.beats.note(host, now, skew)
	if before.at.IsZero() {
		if err := m.noteBeatsHere(r.Context(), host); err != nil {
			m.Log.Warn("note that a host beats here", "host", host, "error", err)
		}
	}
	begins := before.skew.Abs() <= pki.MaxSkew || (skew-before.skew).Abs() > pki.MaxSkew // or is another
	if err := pki.CheckSkew(host, req.Time, now); err != nil && skew != 0 && begins {
		m.Log.Warn("clocks", "error", err)
		e := api.Event{Severity: api.Warning, Reason: history.ClockSkew, Kind: api.KindHost, Object: host, Host: host, Message: err.Error()}
		if _, err := m.Write(r.Context(), tx.Change{Events: []api.Event{e}}); err != nil {
			return err
		}
	}
	return web.Answer(w, http.StatusOK, api.BeatAnswer{Time: now.UTC()})
}
