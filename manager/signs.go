package manager

import (
	"net/http"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/pki"
)

// membersRoutes are the paths of signs of life.
func (m *Manager) membersRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/hosts/{name}/beat", id: "beat", quiet: true, summary: "an agent's sign of life; nothing is stored",
			body: api.BeatRequest{}, answers: map[int]any{200: api.BeatAnswer{}}, problems: []int{400, 422}, handler: m.beat},
	}
}

// beat takes a host's sign of life. Of all that a host gives, only the first is written to the store.
func (m *Manager) beat(w http.ResponseWriter, r *http.Request) error {
	var req api.BeatRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	now := m.Now()
	host := r.PathValue("name")
	if err := checkName(api.KindHost, host); err != nil {
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
		e := api.Event{Severity: api.Warning, Reason: clockSkew, Kind: api.KindHost, Object: host, Host: host, Message: err.Error()}
		if _, err := m.writer.write(r.Context(), change{events: []api.Event{e}}); err != nil {
			return err
		}
	}
	return answer(w, http.StatusOK, api.BeatAnswer{Time: now.UTC()})
}
