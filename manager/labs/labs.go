// Package labs serves the lab of the manager's machine: studies, runs, reports. Who measures is a Lab; this package knows roles and paths only.
package labs

import (
	"context"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// Lab measures on this machine (lab/desk).
type Lab interface {
	Studies() (api.LabStudies, error)
	Doctor(ctx context.Context) (api.LabDoctor, error)
	Runs() (api.LabRuns, error)
	Get(name string) (api.LabRun, error)
	Start(ctx context.Context, r api.LabRequest) (api.LabRun, error)
	Resume(ctx context.Context, name string) (api.LabRun, error)
	Cancel(name string) (api.LabRun, error)
	Delete(name string) error
	// Report is an HTML page, and the Content-Security-Policy with which it is served.
	Report(ctx context.Context, name string) (page []byte, policy string, err error)
	Compare(ctx context.Context, a, b string) (api.LabComparison, error)
}

// kind of runs, in the audit log.
const kind api.Kind = "lab"

// Server serves a lab; one without a Lab refuses.
type Server struct{ Lab Lab }

// Routes of the lab. A run takes the processors of a machine that carries traffic, so only administrators start one.
func (s Server) Routes() []web.Route {
	return []web.Route{
		{Method: "GET", Path: "/v1/lab/studies", ID: "lab-studies", Needs: api.RoleViewer, Summary: "the studies that a run can be started of, with their parts and how long a quick run takes",
			Answers: map[int]any{200: api.LabStudies{}}, Problems: []int{409}, Handler: s.studies},
		{Method: "GET", Path: "/v1/lab/doctor", ID: "lab-doctor", Needs: api.RoleAdmin, Summary: "what the manager's machine can measure: it is looked at, which takes some seconds, unless that was done in the last ten minutes",
			Answers: map[int]any{200: api.LabDoctor{}}, Problems: []int{409, 503}, Handler: s.doctor},
		{Method: "GET", Path: "/v1/lab/runs", ID: "lab-runs", Needs: api.RoleViewer, Summary: "the runs in the manager's directory, the newest first",
			Answers: map[int]any{200: api.LabRuns{}}, Problems: []int{409}, Handler: s.runs},
		{Method: "POST", Path: "/v1/lab/runs", ID: "start-lab-run", Needs: api.RoleAdmin, Does: "start", Kind: kind, Summary: "start a quick run of a study on the manager's machine: one at a time, with its processors",
			Body: api.LabRequest{}, Answers: map[int]any{201: api.LabRun{}}, Problems: []int{409, 422, 504}, Handler: s.start},
		{Method: "GET", Path: "/v1/lab/runs/{name}", ID: "lab-run", Needs: api.RoleViewer, Summary: "a run and how far it is",
			Answers: map[int]any{200: api.LabRun{}}, Problems: []int{404, 409}, Handler: s.run},
		{Method: "DELETE", Path: "/v1/lab/runs/{name}", ID: "delete-lab-run", Needs: api.RoleAdmin, Kind: kind, Summary: "delete what the lab wrote of a run",
			Answers: map[int]any{204: nil}, Problems: []int{404, 409}, Handler: s.remove},
		{Method: "POST", Path: "/v1/lab/runs/{name}/cancel", ID: "cancel-lab-run", Needs: api.RoleAdmin, Does: "cancel", Kind: kind, Summary: "end a run in order: what was measured is kept, and it can go on",
			Answers: map[int]any{202: api.LabRun{}}, Problems: []int{404, 409}, Handler: s.cancel},
		{Method: "POST", Path: "/v1/lab/runs/{name}/resume", ID: "resume-lab-run", Needs: api.RoleAdmin, Does: "resume", Kind: kind, Summary: "go on with a run that ended early",
			Answers: map[int]any{202: api.LabRun{}}, Problems: []int{404, 409, 504}, Handler: s.resume},
		{Method: "GET", Path: "/v1/lab/runs/{name}/report", ID: "lab-report", Needs: api.RoleViewer, Summary: "the report of a run that does not go on: an HTML page that needs no other file, in a sandbox",
			Answers: map[int]any{200: web.Text("text/html")}, Problems: []int{404, 409, 503}, Handler: s.report},
		{Method: "GET", Path: "/v1/lab/compare", ID: "compare-lab-runs", Needs: api.RoleViewer, Summary: "two runs of a study side by side",
			Query: []string{"a", "b"}, Answers: map[int]any{200: api.LabComparison{}}, Problems: []int{404, 409, 503}, Handler: s.compare},
	}
}

// there refuses where nothing can be measured.
func (s Server) there() error {
	if s.Lab == nil {
		return api.Refuse(http.StatusConflict, "this manager has no lab: it is no host, or it was started with --lab none")
	}
	return nil
}

// answer what the lab says.
func answer[T any](s Server, w http.ResponseWriter, status int, ask func() (T, error)) error {
	if err := s.there(); err != nil {
		return err
	}
	out, err := ask()
	if err != nil {
		return err
	}
	return web.Answer(w, status, out)
}

func (s Server) studies(w http.ResponseWriter, _ *http.Request) error {
	return answer(s, w, http.StatusOK, func() (api.LabStudies, error) { return s.Lab.Studies() })
}

func (s Server) doctor(w http.ResponseWriter, r *http.Request) error {
	return answer(s, w, http.StatusOK, func() (api.LabDoctor, error) { return s.Lab.Doctor(r.Context()) })
}

func (s Server) runs(w http.ResponseWriter, _ *http.Request) error {
	return answer(s, w, http.StatusOK, func() (api.LabRuns, error) { return s.Lab.Runs() })
}

func (s Server) run(w http.ResponseWriter, r *http.Request) error {
	return answer(s, w, http.StatusOK, func() (api.LabRun, error) { return s.Lab.Get(r.PathValue("name")) })
}

func (s Server) start(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	var q api.LabRequest
	if err := web.ReadBody(w, r, &q); err != nil {
		return err
	}
	run, err := s.Lab.Start(r.Context(), q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/lab/runs/"+run.Name)
	return web.Answer(w, http.StatusCreated, run)
}

func (s Server) resume(w http.ResponseWriter, r *http.Request) error {
	return answer(s, w, http.StatusAccepted, func() (api.LabRun, error) { return s.Lab.Resume(r.Context(), r.PathValue("name")) })
}

func (s Server) cancel(w http.ResponseWriter, r *http.Request) error {
	return answer(s, w, http.StatusAccepted, func() (api.LabRun, error) { return s.Lab.Cancel(r.PathValue("name")) })
}

func (s Server) remove(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	if err := s.Lab.Delete(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s Server) compare(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	return answer(s, w, http.StatusOK, func() (api.LabComparison, error) { return s.Lab.Compare(r.Context(), q.Get("a"), q.Get("b")) })
}

func (s Server) report(w http.ResponseWriter, r *http.Request) error {
	if err := s.there(); err != nil {
		return err
	}
	page, policy, err := s.Lab.Report(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "SAMEORIGIN") // the policy says the same
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(page) // the client is gone, if that fails
	return nil
}
