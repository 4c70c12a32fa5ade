package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/store/mem"
)

const patience = 20 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// world is a manager, and what raises events there.
func world(t *testing.T) (*api.Client, func(api.Severity, ...string)) {
	t.Helper()
	m, err := manager.New(manager.Options{Store: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	managertest.Serve(t, m, manager.ServeOptions{Socket: socket})
	c, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, func(severity api.Severity, messages ...string) {
		t.Helper()
		var events []api.Event
		for _, text := range messages {
			events = append(events, api.Event{Severity: severity, Reason: "Scan", Kind: api.KindFunction, Object: "ids", Source: "function/ids", Message: text})
		}
		if err := c.Report(t.Context(), api.StatusReport{Events: events}); err != nil {
			t.Fatal(err)
		}
	}
}

// hook is a receiver of webhooks.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	got    []string // messages
	ids    []string
	answer []int // of the next requests; then 200
	wrong  []string
}

func newHook(t *testing.T, secret string) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var e api.Event
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := json.Unmarshal(body, &e); err != nil {
			h.wrong = append(h.wrong, err.Error())
		}
		if at := r.Header.Get(HeaderTime); r.Header.Get(HeaderSignature) != Sign(secret, at, body) {
			h.wrong = append(h.wrong, "signature "+r.Header.Get(HeaderSignature))
		}
		if len(h.answer) > 0 {
			code := h.answer[0]
			h.answer = h.answer[1:]
			w.WriteHeader(code)
			return
		}
		h.got, h.ids = append(h.got, e.Message), append(h.ids, r.Header.Get(HeaderID))
	}))
	t.Cleanup(h.Server.Close)
	return h
}

func (h *hook) has(n int) func() bool {
	return func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.got) >= n }
}

func secretFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// running starts it; stop ends it.
func running(t *testing.T, c *api.Client, state string, targets ...Target) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Client: c, Config: Config{targets}, State: state, Log: slog.New(slog.DiscardHandler), Retry: time.Millisecond})
	}()
	eventually(t, "it has begun", func() bool {
		text, err := os.ReadFile(state)
		return len(done) > 0 || err == nil && strings.Count(string(text), `":`) > len(targets)
	})
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Events arrive in order, signed, once each; what is refused for now is tried again, what is refused for good is left out; after a restart it goes on where it was.
func TestWebhooksGetEventsThroughFailuresAndRestarts(t *testing.T) {
	c, raise := world(t)
	h := newHook(t, "s3cret")
	target := Target{Name: "chat", Webhook: h.URL, SecretFile: secretFile(t, "s3cret\n", 0o600), Severity: api.Warning, From: []string{"function/ids"}}
	state := filepath.Join(t.TempDir(), "state")
	raise(api.Warning, "before") // no news
	stop := running(t, c, state, target)
	h.mu.Lock()
	h.answer = []int{500, 429, 503}
	h.mu.Unlock()
	raise(api.Warning, "one")
	raise(api.Info, "not severe enough")
	raise(api.Error, "two")
	eventually(t, "two events", h.has(2))
	h.mu.Lock()
	h.answer = []int{400}
	h.mu.Unlock()
	raise(api.Warning, "refused for good")
	raise(api.Warning, "three")
	eventually(t, "three events", h.has(3))
	raise(api.Warning, "three", "three") // again, soon
	stop()
	raise(api.Error, "four")
	defer running(t, c, state, target)()
	raise(api.Error, "five")
	eventually(t, "the last event", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Contains(h.got, "five")
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	got := slices.DeleteFunc(slices.Clone(h.got), func(s string) bool { return s == "three" }) // which may have come again after the restart
	if want := []string{"one", "two", "four", "five"}; !slices.Equal(got, want) || len(h.wrong) > 0 {
		t.Errorf("got %q, want %q beside three; wrong: %q", h.got, want, h.wrong)
	}
}

// A target that takes nothing holds up no other one and costs bounded memory; it is told how many events it missed.
func TestATargetThatHangsHoldsUpNobody(t *testing.T) {
	c, raise := world(t)
	h := newHook(t, "x")
	var open sync.Mutex
	open.Lock()
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		open.Lock()
		defer open.Unlock()
		h.Config.Handler.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(`{"message": "slow"}`)))
	}))
	defer slow.Close()
	good := newHook(t, "s")
	defer running(t, c, filepath.Join(t.TempDir(), "state"), Target{Name: "slow", Webhook: slow.URL}, Target{Name: "good", Webhook: good.URL, SecretFile: secretFile(t, "s", 0o600)})()
	defer open.Unlock()
	for i := range 2 {
		var texts []string
		for j := range 400 {
			texts = append(texts, fmt.Sprint(i, " ", j))
		}
		raise(api.Warning, texts...)
		eventually(t, "all at the one that works", good.has(400*(i+1)))
	}
	good.mu.Lock()
	defer good.mu.Unlock()
	if len(good.wrong) > 0 {
		t.Error(good.wrong[0])
	}
}

func TestWaitingEventsAreBounded(t *testing.T) {
	tt := &target{Options: Options{Now: time.Now, Log: slog.New(slog.DiscardHandler)}, s: &state{path: filepath.Join(t.TempDir(), "s"), By: map[string]string{}}, known: true,
		wake: make(chan struct{}, 1), told: map[string]time.Time{}}
	for i := range 3 * maxWaiting {
		tt.add([]api.Event{{Meta: api.Meta{Name: fmt.Sprintf("e%06d", i), UID: fmt.Sprint(i)}}}, false)
	}
	e, skipped, ok := tt.next()
	if !ok || len(tt.waiting) != maxWaiting || skipped != 2*maxWaiting || e.Name != fmt.Sprintf("e%06d", 2*maxWaiting) {
		t.Errorf("%d wait, %d skipped, next %s", len(tt.waiting), skipped, e.Name)
	}
	if len(tt.told) > maxTold {
		t.Errorf("%d are remembered", len(tt.told))
	}
}

// What a function says makes no second message, and no other field.
func TestSyslogMessages(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := newSyslog("udp://" + l.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.host = "h1"
	e := api.Event{Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Severity: api.Warning, Reason: "Scan", Kind: api.KindFunction, Object: "ids", Host: `h"]1`, Source: "function/ids",
		Message: "a\n<0>1 b"}
	if err := s.send(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	_ = l.SetReadDeadline(time.Now().Add(patience))
	n, _, err := l.ReadFrom(b)
	want := `<28>1 2026-01-02T03:04:05.000006Z h1 weir - Scan [weir@57005 object="function/ids" host="h\"\]1" raised_by="function/ids"] a <0>1 b`
	if err != nil || string(b[:n]) != want {
		t.Errorf("%v\n%s\n%s", err, b[:n], want)
	}
	e.Message, e.Reason = strings.Repeat("é", 5000), "x y\n"
	if m := s.message(e); len(m) > maxSyslog || strings.ContainsAny(string(m), "\n") || !strings.Contains(string(m), " x_y_ ") {
		t.Errorf("%d bytes: %.200s", len(m), m)
	}
}

func TestAlerts(t *testing.T) {
	var got []map[string]any
	am := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/am/api/v2/alerts" || r.Header.Get("Authorization") != "Bearer tok" || json.NewDecoder(r.Body).Decode(&got) != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer am.Close()
	to, err := Target{Alertmanager: am.URL + "/am/", TokenFile: secretFile(t, "tok", 0o600)}.sender()
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Hour).UTC().Truncate(time.Second) // it has waited for the Alertmanager
	if err := to.send(t.Context(), api.Event{Time: before, Severity: api.Error, Reason: "HostLost", Kind: api.KindHost, Object: "h2", Message: "silent"}); err != nil {
		t.Fatal(err)
	}
	labels, _ := got[0]["labels"].(map[string]any)
	begin, end := fmt.Sprint(got[0]["startsAt"]), fmt.Sprint(got[0]["endsAt"])
	if ends, err := time.Parse(time.RFC3339, end); begin != before.Format(time.RFC3339) || err != nil || time.Until(ends) < alertFor/2 {
		t.Errorf("an event of %s: the alert begins %s and ends %s, %v: want it to end %s from now", before, begin, end, err, alertFor)
	}
	if len(got) != 1 || labels["alertname"] != "HostLost" || labels["object"] != "h2" || labels["severity"] != "error" {
		t.Errorf("%v", got)
	}
}

func TestConfigsAreChecked(t *testing.T) {
	if _, err := Load("../examples/events/notify.yaml"); err != nil {
		t.Error(err)
	}
	for text, says := range map[string]string{
		"":                                       "want 1 to 50",
		"targets: []":                            "want 1 to 50",
		"targets: [{name: a}]":                   "exactly one of",
		"targets: [{name: a, webhook: ftp://x}]": "webhook: want a URL such as https://HOST/PATH",
		"targets: [{name: a, webhook: 'http:/chat'}]":                               "webhook: want a URL such as https://HOST/PATH",
		"targets: [{name: a, alertmanager: 'http://:9093'}]":                        "alertmanager: want a URL such as https://HOST/PATH",
		"targets: [{name: a, syslog: '/dev/log'}]":                                  "syslog: want unix:///dev/log, udp://HOST:514 or tcp://HOST:514",
		"targets: [{name: a, syslog: 'unix://dev/log'}]":                            "syslog: want three slashes",
		"targets: [{name: a, syslog: 'udp://10.0.0.5'}]":                            "syslog: want a host and a port: udp://HOST:514",
		"targets: [{name: a, syslog: 'udp://x:1', secret_file: f}]":                 "only a webhook is signed",
		"targets: [{name: A, webhook: 'http://x'}]":                                 "want letters",
		"targets: [{name: a, webhook: 'http://x', severity: bad}]":                  "want info, warning or error",
		"targets: [{name: a, webhook: 'http://x', from: [ids]}]":                    "want function/NAME",
		"targets: [{name: a, webhook: 'http://x'}, {name: a, webhook: 'http://y'}]": "there twice",
		"targets: [{name: a, webhok: 'http://x'}]":                                  "webhok",
		"targets: [{name: a, webhook: 'http://x', alertmanager: 'http://y'}]":       "exactly one of",
	} {
		path := filepath.Join(t.TempDir(), "notify.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o644: false} {
		if _, err := readSecret(secretFile(t, "x", mode)); (err == nil) != fine {
			t.Errorf("%o: %v", mode, err)
		}
	}
}

// The URL, which may have a secret, is in no error.
func TestErrorsShowNoSecrets(t *testing.T) {
	w := &webhook{url: "http://127.0.0.1:1/t0psecret", body: plain}
	err := w.send(t.Context(), api.Event{})
	if err == nil || errors.Is(err, errPermanent) || strings.Contains(err.Error(), "t0psecret") {
		t.Error(err)
	}
}

// A chat service takes an object with a text.
func TestTextForAChat(t *testing.T) {
	var got map[string]string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer s.Close()
	to, err := Target{Name: "chat", Webhook: s.URL, Format: formatText}.sender()
	if err != nil {
		t.Fatal(err)
	}
	e := api.Event{Severity: api.Warning, Reason: "Blocked", Kind: api.KindFunction, Object: "filter", Host: "h1", Message: "rule games: 10.0.0.1", Count: 3}
	if err := to.send(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if want := "WARNING Blocked function/filter on h1: rule games: 10.0.0.1 (3 times)"; got["text"] != want || len(got) != 1 {
		t.Errorf("got %v, want the text %q", got, want)
	}
	for _, bad := range []Target{{Name: "x", Webhook: s.URL, Format: "slack"}, {Name: "x", Syslog: "udp://127.0.0.1:514", Format: formatText}} {
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), "format") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
