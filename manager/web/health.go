package web

import (
	"encoding/json"
	"net/http"

	"weir.dev/weir/api"
)

type health struct {
	Status string `json:"status"`
}

// routes are the paths of the server itself.
func (a *API) routes() []Route {
	return []Route{
		{Method: "GET", Path: "/v1/openapi.json", ID: "openapi", Needs: api.RoleViewer, Summary: "this document", Answers: map[int]any{200: Text("application/json")},
			Handler: func(w http.ResponseWriter, _ *http.Request) error {
				b, err := a.OpenAPI()
				if err != nil {
					return err
				}
				return Answer(w, http.StatusOK, json.RawMessage(b))
			}},
		{Method: "GET", Path: "/healthz", ID: "health", Needs: Anybody, Summary: "200 when the manager answers and its store works",
			Answers: map[int]any{200: health{}}, Problems: []int{503}, Handler: func(w http.ResponseWriter, r *http.Request) error {
				if err := a.Health(r.Context()); err != nil {
					return err
				}
				return Answer(w, http.StatusOK, health{"ok"})
			}},
		{Method: "GET", Path: "/metrics", ID: "metrics", Needs: api.RoleViewer, Summary: "metrics in the Prometheus format", Answers: map[int]any{200: Text("text/plain")},
			Handler: func(w http.ResponseWriter, r *http.Request) error {
				a.metrics.handler.ServeHTTP(w, r)
				return nil
			}},
	}
}
