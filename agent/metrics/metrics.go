// Package metrics takes the numbers that a function tells of itself: HTTP POST of Prometheus's text format at a socket in its container, whole each time. The last
// ones count, until they are old. Functions are taken as hostile: size, names, labels and number are bounded, and what does not fit is refused as a whole.
package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/api"
)

// Bounds of what a function may tell.
const (
	maxBytes = 64 << 10
	every    = time.Second // sooner than that after the last ones, they are refused
	Fresh    = time.Minute // so long they count
)

// Server of one function's numbers.
type Server struct {
	*socket.HTTP

	mu    sync.Mutex
	at    time.Time
	last  []api.Metric
	tried time.Time
}

// Serve listens at path, which is made at fresh, in the same file system.
func Serve(fresh, path string) (*Server, error) {
	s := &Server{}
	var err error
	s.HTTP, err = socket.Serve(fresh, path, s)
	return s, err
}

// Close ends it. A Server that is nil is closed already.
func (s *Server) Close() {
	if s != nil {
		s.HTTP.Close()
	}
}

// Last are the numbers that were told last, and when; none if they are old, or the Server is nil.
func (s *Server) Last(now time.Time) ([]api.Metric, time.Time) {
	if s == nil {
		return nil, time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.at) > Fresh {
		s.last = nil
	}
	if s.last == nil {
		return nil, time.Time{}
	}
	return s.last, s.at
}

// Forget the numbers: they were those of an instance that has ended. A Server that is nil has none.
func (s *Server) Forget() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = nil
	}
}

// ServeHTTP takes numbers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "POST Prometheus's text format", http.StatusMethodNotAllowed)
		return
	}
	s.mu.Lock()
	now := time.Now()
	soon := now.Sub(s.tried) < every
	if !soon {
		s.tried = now
	}
	s.mu.Unlock()
	if soon {
		http.Error(w, "the last ones came less than a second ago", http.StatusTooManyRequests)
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("want at most %d bytes: %v", maxBytes, err), http.StatusRequestEntityTooLarge)
		return
	}
	all, err := Parse(text)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.last, s.at = all, now
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// Parse reads numbers, sorted by name. All are good, or there is an error that says what would be right.
func Parse(text []byte) ([]api.Metric, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	all := []api.Metric{}
	for _, f := range families {
		for _, m := range f.Metric {
			one, err := metric(f, m)
			if err != nil {
				return nil, err
			}
			if all = append(all, one); len(all) > api.MaxMetrics {
				return nil, fmt.Errorf("more than %d numbers", api.MaxMetrics)
			}
		}
	}
	slices.SortFunc(all, func(x, y api.Metric) int { return strings.Compare(x.ID(), y.ID()) })
	if wrong := api.CheckMetrics(all); wrong != "" {
		return nil, errors.New(wrong)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		return nil, fmt.Errorf("%s: %s", p.Metric, p.Text)
	}
	return all, nil
}

func metric(f *dto.MetricFamily, m *dto.Metric) (api.Metric, error) {
	out := api.Metric{Name: f.GetName(), Help: f.GetHelp(), Kind: api.MetricKind(strings.ToLower(f.GetType().String()))}
	switch {
	case m.TimestampMs != nil:
		return out, fmt.Errorf("%s: no time stamps: numbers are of now", out.Name)
	case m.Counter != nil:
		out.Value = m.Counter.GetValue()
	case m.Gauge != nil:
		out.Value = m.Gauge.GetValue()
	}
	for _, l := range m.Label {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		if _, is := out.Labels[l.GetName()]; is {
			return out, fmt.Errorf("%s: label %s: given twice", out.Name, l.GetName())
		}
		out.Labels[l.GetName()] = l.GetValue()
	}
	return out, nil
}
