package manager_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store"
)

// hostile is a node whose ports have each name twice and text that is none.
type hostile struct{ node }

func (*hostile) Counters(context.Context) (api.Counters, error) {
	p := api.PortCounters{Name: "endpoint/\xff\n\"", Rx: api.Counter{Packets: 1}, Settled: api.Counter{Packets: 7, Bytes: 70}, Refused: map[string]uint64{"mac": 2, "\xfe": 1, "?": 3}}
	return api.Counters{Host: "h2", Ports: []api.PortCounters{p, p, {Name: strings.Repeat("x", 1<<20)}, {Name: strings.Repeat("x", 1<<20)}}}, nil
}

// Metrics are those of a function of another host, of one twice, and what no function may say.
func (*hostile) Metrics(context.Context) ([]api.FunctionMetrics, error) {
	good := []api.Metric{{Name: "stolen", Help: "x", Kind: api.MetricGauge, Value: 1}}
	forged := []api.Metric{{Name: "forged", Help: "x", Kind: api.MetricGauge, Labels: map[string]string{"host": "h1"}}}
	twice := []api.Metric{{Name: "twice", Help: "x", Kind: api.MetricGauge}, {Name: "twice", Help: "x", Kind: api.MetricGauge}}
	return []api.FunctionMetrics{{Function: "fw", Metrics: good}, {Function: "mon", Metrics: forged}, {Function: "mon", Metrics: twice}, {Function: "none", Metrics: good}}, nil
}

func scrape(t *testing.T) string {
	t.Helper()
	b := start(t, manager.Options{Node: func(host string) ask.Node {
		return map[string]ask.Node{"h1": &meter{}, "h2": &hostile{}}[host]
	}})
	for _, h := range []string{"h1", "h2", "h3"} {
		if _, err := b.store.Txn(ctx(t), nil, putRaw(store.Key(api.KindHost, h))); err != nil {
			t.Fatal(err)
		}
	}
	d := demo()
	for name, e := range d.Endpoints {
		e.Host = "h1"
		d.Endpoints[name] = e
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t)
	if err := b.Report(ctx(t), api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"fw": {State: api.FunctionStarted, Healthy: true, Restarts: 3, RTTns: 45_000}},
		Events: []api.Event{{Severity: api.Warning, Reason: "Test", Kind: api.KindHost, Object: "h1", Message: "m"}}}); err != nil {
		t.Fatal(err)
	}
	code, _, body := request(t, b, "GET", "/metrics", nil, "")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	return string(body)
}

func TestMetrics(t *testing.T) {
	text := scrape(t)
	for _, want := range []string{
		`weir_host_answered{host="h1"} 1`, `weir_host_answered{host="h2"} 1`, `weir_host_answered{host="h3"} 0`, `weir_host_ready{host="h3"} 0`,
		`weir_port_received_packets_total{host="h1",port="endpoint/alice"} `, `weir_port_sent_bytes_total{host="h1",port="function/fw/in"} `, `weir_port_dropped_packets_total{host="h1",port="function/fw/out"} `,
		`weir_port_refused_packets_total{host="h2",port="endpoint/?\n\"",reason="mac"} 2`,
		`weir_port_settled_packets_total{host="h2",port="endpoint/?\n\""} 7`, `weir_port_settled_bytes_total{host="h2",port="endpoint/?\n\""} 70`,
		`weir_nf_denied_packets_total{function="fw",host="h1",rule="a\"b"} 7`, `weir_nf_sessions{function="fw",host="h1"} 2.5`, `weir_function_healthy{function="fw",host="`, `weir_function_restarts_total{function="mon",host="`, `weir_policy_ready{policy="guests"} 0`, `weir_events_total{severity="error"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	for _, not := range []string{"stolen", "forged", "twice", "elsewhere"} {
		if strings.Contains(text, not) {
			t.Errorf("/metrics has %s", not)
		}
	}
	if len(text) > 1<<20 {
		t.Errorf("a hostile host's ports make %d bytes", len(text))
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if t.Failed() {
		var ours []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "weir_") && !strings.HasPrefix(line, "weir_api") {
				ours = append(ours, line[:min(len(line), 200)])
			}
		}
		t.Log(strings.Join(ours, ""))
	}
}

// TestTheDashboardAsksForWhatThereIs: every metric that the example for Grafana names is one of /metrics.
func TestTheDashboardAsksForWhatThereIs(t *testing.T) {
	there := map[string]bool{}
	for _, line := range strings.Split(scrape(t), "\n") {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(name, " ")
			there[name] = true
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				there[name+suffix] = there[name+suffix] || kind == "histogram"
			}
		}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join("..", "examples", "grafana", "weir.json")))(t), &board); err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`\b(weir|process|go)_[a-z_]+`)
	asked := map[string]bool{}
	look := func(where, expr string) {
		names := metric.FindAllString(expr, -1)
		if len(names) == 0 && expr != "" {
			t.Errorf("%s: %q asks for no metric", where, expr)
		}
		for _, name := range names {
			asked[name] = true
			if !there[name] {
				t.Errorf("%s asks for %s, which is not in /metrics", where, name)
			}
		}
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			look("panel "+p.Title, target.Expr)
		}
	}
	for _, v := range board.Templating.List {
		look("a variable", v.Definition)
	}
	if len(board.Panels) < 10 {
		t.Errorf("%d panels", len(board.Panels))
	}
	for name, is := range there {
		if is && strings.HasPrefix(name, "weir_port_") && !asked[name] && !slices.Contains([]string{"weir_port_received_packets_total"}, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
