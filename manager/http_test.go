package manager_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/manager"
)

// timed is an answer that notes whether a write had no bound.
type timed struct {
	*httptest.ResponseRecorder
	until     time.Time
	unbounded bool
}

func (w *timed) SetWriteDeadline(t time.Time) error {
	w.until = t
	return nil
}

func (w *timed) WriteHeader(status int) {
	w.unbounded = w.unbounded || w.until.IsZero()
	w.ResponseRecorder.WriteHeader(status)
}

func (w *timed) Write(p []byte) (int, error) {
	w.unbounded = w.unbounded || w.until.IsZero()
	return w.ResponseRecorder.Write(p)
}

// Whoever asks and does not read the answer does not keep a connection, and what answers on it, for ever.
func TestAnswersAreBoundedInTime(t *testing.T) {
	b := start(t, manager.Options{})
	for request, status := range map[string]int{
		"GET /healthz": 200, "GET /metrics": 200, "GET /v1/openapi.json": 200, "GET /v1/functions": 200, "GET /v1/functions/none": 404,
		"GET /v1/nothing": 404, "POST /v1/status": 400, "DELETE /v1/functions": 405,
	} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequestWithContext(ctx(t), method, path, http.NoBody)
		w := &timed{ResponseRecorder: httptest.NewRecorder()}
		b.m.Handler().ServeHTTP(w, r)
		if w.Code != status || w.unbounded {
			t.Errorf("%s: status %d, want %d; unbounded %t", request, w.Code, status, w.unbounded)
		}
	}
}
