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
