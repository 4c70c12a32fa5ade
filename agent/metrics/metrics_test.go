package metrics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

const head = "# HELP denied_packets_total Packets that were denied.\n# TYPE denied_packets_total counter\n"

func TestParse(t *testing.T) {
	got, err := Parse([]byte(head + "denied_packets_total{rule=\"a\\\"b\"} 7\ndenied_packets_total 1e3\n# HELP sessions Sessions.\n# TYPE sessions gauge\nsessions 2.5\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Metric{
		{Name: "denied_packets_total", Help: "Packets that were denied.", Kind: api.MetricCounter, Value: 1000},
		{Name: "denied_packets_total", Help: "Packets that were denied.", Kind: api.MetricCounter, Labels: map[string]string{"rule": `a"b`}, Value: 7},
		{Name: "sessions", Help: "Sessions.", Kind: api.MetricGauge, Value: 2.5},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, err := Parse(nil); err != nil || len(got) != 0 {
		t.Errorf("nothing: %v, %v", got, err)
	}
}

// What a hostile function may try is refused, whole, with what would be right.
func TestWhatNoFunctionMaySay(t *testing.T) {
	gauge := func(name string) string { return "# HELP " + name + " x\n# TYPE " + name + " gauge\n" + name }
	for name, tt := range map[string]struct{ text, err string }{
		"no format":           {"hello world\n", "text format"},
		"another's host":      {head + "denied_packets_total{host=\"h2\"} 1\n", "label host: it is reserved"},
		"another's function":  {head + "denied_packets_total{function=\"fw\"} 1\n", "label function: it is reserved"},
		"hidden label":        {head + "denied_packets_total{__name__=\"up\"} 1\n", ""},
		"exported label":      {head + "denied_packets_total{exported_host=\"h2\"} 1\n", "not with exported_"},
		"capital name":        {gauge("Sessions") + " 1\n", "want at most 64 of a-z"},
		"colon":               {gauge("a:b") + " 1\n", "want at most 64 of a-z"},
		"long name":           {gauge(strings.Repeat("x", 65)) + " 1\n", "want at most 64 of a-z"},
		"long help":           {"# HELP a " + strings.Repeat("x", 201) + "\n# TYPE a gauge\na 1\n", "HELP text of at most"},
		"no help":             {"# TYPE a gauge\na 1\n", "want a HELP text"},
		"no type":             {"# HELP a x\na 1\n", "want counter or gauge"},
		"histogram":           {"# HELP a x\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n", "want counter or gauge"},
		"counter's name":      {"# HELP a x\n# TYPE a counter\na 1\n", "end in _total"},
		"gauge's name":        {gauge("a_total") + " 1\n", "end in _total"},
		"not a number":        {gauge("a") + " NaN\n", "finite"},
		"infinite":            {gauge("a") + " +Inf\n", "finite"},
		"backwards":           {head + "denied_packets_total -1\n", "below 0"},
		"time stamp":          {gauge("a") + " 1 123456\n", "no time stamps"},
		"twice":               {gauge("a") + " 1\na 2\n", "twice"},
		"twice, other order":  {gauge("a") + "{b=\"1\",c=\"2\"} 1\na{c=\"2\",b=\"1\"} 2\n", "twice"},
		"many labels":         {gauge("a") + "{b=\"1\",c=\"1\",d=\"1\",e=\"1\",f=\"1\"} 1\n", "at most 4"},
		"long value":          {gauge("a") + "{b=\"" + strings.Repeat("x", 129) + "\"} 1\n", "at most 128 bytes"},
		"not a base unit":     {gauge("latency_milliseconds") + " 1\n", "base unit"},
		"many":                {gauge("a") + "{b=\"0\"} 1\n" + many(api.MaxMetrics), "more than 200 numbers"},
		"an unfinished label": {gauge("a") + "{b=\"1\n", "text format"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, %v: want an error with %q", got, err, tt.err)
			}
		})
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a{b=\"%d\"} 1\n", i+1)
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "denied_packets_total{rule=\"a\"} 7\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if all, err := Parse(text); err == nil && (len(all) > api.MaxMetrics || api.CheckMetrics(all) != "") {
			t.Errorf("%d numbers, %s", len(all), api.CheckMetrics(all))
		}
	})
}

// The last numbers count until they are old; what is refused changes nothing; a text without end costs no memory.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "metrics.sock")
	s, err := Serve(filepath.Join(dir, "new"), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
	post := func(body io.Reader) int {
		s.mu.Lock()
		s.tried = time.Time{}
		s.mu.Unlock()
		r, err := client.Post("http://weir/", "text/plain", body)
		if err != nil {
			return 0
		}
		r.Body.Close()
		return r.StatusCode
	}
	if code := post(strings.NewReader(head + "denied_packets_total 7\n")); code != http.StatusNoContent {
		t.Errorf("answer %d", code)
	}
	if r, err := client.Post("http://weir/", "text/plain", strings.NewReader("")); err != nil || r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("at once again: %v, %v", r, err)
	}
	if code := post(strings.NewReader("nonsense")); code != http.StatusBadRequest {
		t.Errorf("nonsense: answer %d", code)
	}
	if code := post(io.LimitReader(endless{}, 1<<30)); code != http.StatusRequestEntityTooLarge && code != 0 {
		t.Errorf("an endless text: answer %d", code)
	}
	all, at := s.Last(time.Now())
	if len(all) != 1 || all[0].Value != 7 || time.Since(at) > time.Minute {
		t.Errorf("%v at %s", all, at)
	}
	if all, _ := s.Last(time.Now().Add(Fresh + time.Second)); all != nil {
		t.Errorf("old numbers: %v", all)
	}
	var none *Server
	none.Close()
	none.Forget()
	if all, _ := none.Last(time.Now()); all != nil {
		t.Error("numbers of nobody")
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
