package manager

import (
	"encoding/json"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// health answers whether the store works.
func (m *Manager) health(w http.ResponseWriter, r *http.Request) error {
	if err := m.Health(); err != nil {
		return api.Refuse(http.StatusServiceUnavailable, err.Error())
	}
	if _, err := m.Store.Count(r.Context(), store.Prefix(api.KindHost)); err != nil {
		return err
	}
	return answer(w, http.StatusOK, json.RawMessage(`{"status":"ok"}`))
}

func (m *Manager) metricsPage(w http.ResponseWriter, r *http.Request) error {
	m.metrics.handler.ServeHTTP(w, r)
	return nil
}

func (m *Manager) openapi(w http.ResponseWriter, _ *http.Request) error {
	b, err := m.OpenAPI()
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, json.RawMessage(b))
}

type health struct {
	Status string `json:"status"`
}

// ownRoutes are the paths of the server itself.
func (m *Manager) ownRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/openapi.json", id: "openapi", needs: api.RoleViewer, summary: "this document", answers: map[int]any{200: text("application/json")}, handler: m.openapi},
		{method: "GET", path: "/healthz", id: "health", needs: anybody, summary: "200 when the manager answers and its store works",
			answers: map[int]any{200: health{}}, problems: []int{503}, handler: m.health},
		{method: "GET", path: "/metrics", id: "metrics", needs: api.RoleViewer, summary: "metrics in the Prometheus format", answers: map[int]any{200: text("text/plain")}, handler: m.metricsPage},
	}
}
