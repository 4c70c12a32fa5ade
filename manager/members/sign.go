package members

import (
	"net/http"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/pki"
)

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
