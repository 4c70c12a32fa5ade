package nf

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// attended is a function that works until the test ends.
func attended(t *testing.T, s Start, w Work) {
	t.Helper()
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	w.Report = func() {}
	told := s.Listen()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.attend(ctx, told) }()
	t.Cleanup(func() { stop(); <-done; told.Stop() })
}

// The commands of the contract reach the process that serves, and its answers and refusals come back.
func TestCommandsOfTheContract(t *testing.T) {
	if _, err := net.Dial("unix", controlSocket); err == nil {
		t.Fatal("something listens there already")
	}
	loaded, imported := []string{}, ""
	file := filepath.Join(t.TempDir(), "config.json")
	attended(t, Start{Config: file}, Work{
		Load: func(_ context.Context, raw []byte) error {
			if strings.Contains(string(raw), "13") {
				return errors.New("13 brings\nbad luck")
			}
			loaded = append(loaded, string(raw))
			return nil
		},
		Export: func() ([]byte, error) { return bytes.Repeat([]byte("state\n"), 100_000), nil },
		Import: func(b []byte) error { imported = string(b); return nil },
	})
	for _, tt := range []struct{ command, in, out, refused string }{
		{"reload", `{"a":1}`, "", ""},
		{"reload", `{"a":13}`, "", "13 brings; bad luck"},
		{"export", "", strings.Repeat("state\n", 100_000), ""},
		{"import", "sessions", "", ""},
		{"import", strings.Repeat("x", maxControl+1), "", "more than 16 MiB"},
		{"explode", "", "", `this function has no command "explode"`},
	} {
		var out bytes.Buffer
		refused, err := ask(tt.command, strings.NewReader(tt.in), &out)
		if err != nil || refused != tt.refused || out.String() != tt.out {
			t.Errorf("%s %.20s: refused %q, %d bytes, %v", tt.command, tt.in, refused, out.Len(), err)
		}
	}
	if len(loaded) != 1 || loaded[0] != `{"a":1}` || imported != "sessions" {
		t.Errorf("loaded %q, imported %q", loaded, imported)
	}
	// The platform then writes what is in force: that is nothing new. Another text is.
	for _, text := range []string{`{"a":1}`, `{"a":2}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ask("import", strings.NewReader(text), io.Discard); err != nil { // after what is under way
			t.Fatal(err)
		}
		for deadline := time.Now().Add(5 * look); time.Now().Before(deadline) && text != `{"a":1}` && len(loaded) < 2; time.Sleep(10 * time.Millisecond) {
			_, _ = ask("import", strings.NewReader(text), io.Discard)
		}
	}
	if len(loaded) != 2 || loaded[1] != `{"a":2}` {
		t.Errorf("loaded %q", loaded)
	}
}

// A function without a process that listens is not asked for ever.
func TestNobodyListens(t *testing.T) {
	if _, err := ask("export", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "does not listen") {
		t.Errorf("%v", err)
	}
}

// Numbers are told in a form that promtool finds nothing to say about.
func TestNumbersAreTold(t *testing.T) {
	socket, came := filepath.Join(t.TempDir(), "metrics.sock"), make(chan string, 10)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		came <- string(b)
	})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	attended(t, Start{Metrics: socket}, Work{Numbers: func(n *Numbers) {
		n.Counter("denied_packets_total", "Packets that were\ndenied.", 7, "rule", "a\"b\\c\n\xff", "way", "up")
		n.Gauge("sessions", "Sessions.", 0.5)
		n.Counter("denied_packets_total", "Packets that were\ndenied.", 8, "rule", "other", "way", "up")
	}})
	text := <-came
	want := "# HELP denied_packets_total Packets that were\\ndenied.\n# TYPE denied_packets_total counter\ndenied_packets_total{rule=\"a\\\"b\\\\c\\n?\",way=\"up\"} 7\n" +
		"denied_packets_total{rule=\"other\",way=\"up\"} 8\n# HELP sessions Sessions.\n# TYPE sessions gauge\nsessions 0.5\n"
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if problems, err := promlint.New(strings.NewReader(text)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
