package agent

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// Whatever lies where the socket for events belongs, the socket is made, for all to use, and nothing that is not the agent's gets its mode.
func TestSocketIsMadeOverALink(t *testing.T) {
	dir := t.TempDir()
	victim, fresh, path := filepath.Join(dir, "victim"), filepath.Join(dir, "fresh"), filepath.Join(dir, "socket")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{fresh, path} { // the first as a killed agent may have left it, the second as a function may
		if err := os.Symlink(victim, p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := listenFor(fresh, path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("%v, %v; want a socket for all", info, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want it as it was", info, err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := os.Lstat(fresh); err == nil {
		t.Error("the socket is there twice")
	}
}

// A function that opens connections without end takes few of the agent's descriptors, and is served again when those have been idle.
func TestConnectionsForEventsAreBounded(t *testing.T) {
	dir := t.TempDir()
	f := &function{a: &Agent{Options: Options{Instance: instance.Instance{Run: dir}, Log: slog.New(slog.DiscardHandler)}}, name: "fw"}
	if err := os.MkdirAll(f.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.serveEvents()
	defer f.stopEvents()
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	const many = 200
	var conns []net.Conn
	for range many {
		c, err := net.Dial("unix", f.path("run", eventSocket))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		if took := descriptors() - before - many; took > eventConns+1 {
			t.Fatalf("%d connections took %d descriptors of the agent", many, took)
		}
	}
	for _, c := range conns {
		c.Close()
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", f.path("run", eventSocket))
		}}}
	r, err := client.Get("http://weir/")
	if err != nil {
		t.Fatalf("not served again: %v", err)
	}
	r.Body.Close()
}

// All that a container has of the host's files it can only read.
func TestFunctionMountsAreReadOnly(t *testing.T) {
	f := &function{a: &Agent{unshared: func() error { return nil }}, name: "fw"}
	s, err := f.spec(api.Function{}, image.Image{}, "/")
	if err != nil || len(s.Mounts) == 0 {
		t.Fatal(s.Mounts, err)
	}
	for _, m := range s.Mounts {
		if !m.ReadOnly {
			t.Errorf("%s can be written to at %s", m.Source, m.Target)
		}
	}
}

// A function cannot raise what reads as the agent's own event, and what it raises is marked as the function's.
func TestFunctionsRaiseNoEventsInTheNameOfWeir(t *testing.T) {
	dir := t.TempDir()
	report := newReporter(Options{Host: "h1", Log: slog.New(slog.DiscardHandler), Now: time.Now})
	f := &function{a: &Agent{Options: Options{Instance: instance.Instance{Run: dir}, Log: slog.New(slog.DiscardHandler)}, report: report}, name: "fw"}
	if err := os.MkdirAll(f.path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.serveEvents()
	defer f.stopEvents()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", f.path("run", eventSocket))
	}}}
	defer c.CloseIdleConnections()
	for _, tt := range []struct {
		reason string
		status int
		says   string
	}{
		{"FunctionDied", 400, "reason: FunctionDied is reserved for Weir's own events: want another word, for example AppFunctionDied"},
		{"hostlost", 400, "reserved"},
		{"Function Died", 400, "one word"},
		{"FunctionDied\u200b", 400, "one word"},
		{"TrafficDenied", 202, ""},
		{"", 202, ""},
	} {
		r, err := c.Post("http://weir/", "application/json", strings.NewReader(fmt.Sprintf(`{"reason": %q, "message": "m"}`, tt.reason)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != tt.status || !strings.Contains(string(body), tt.says) {
			t.Errorf("%q: %d %s, %v; want %d %s", tt.reason, r.StatusCode, body, err, tt.status, tt.says)
		}
	}
	var got []string
	for _, e := range report.pending.Events {
		got = append(got, e.Reason+" "+e.Source+" "+e.Object)
	}
	if d := cmp.Diff([]string{"TrafficDenied function/fw fw", "Raised function/fw fw"}, got); d != "" {
		t.Error(d)
	}
}

// While the manager is away, what functions raise does not drive out what the agent does.
func TestEventsOfFunctionsMakeRoomFirst(t *testing.T) {
	r := newReporter(Options{Host: "h1", Log: slog.New(slog.DiscardHandler), Now: time.Now})
	r.event(api.Event{Reason: "FunctionDied"})
	for range 2 * maxEvents {
		r.event(api.Event{Reason: "Noise", Source: "function/fw"})
	}
	if e := r.pending.Events; len(e) != maxEvents || e[0].Reason != "FunctionDied" || r.lost != maxEvents+1 {
		t.Errorf("%d events, the first %s, %d lost", len(e), e[0].Reason, r.lost)
	}
	for range maxEvents {
		r.event(api.Event{Reason: "FunctionRecovered"})
	}
	if e := r.pending.Events; len(e) != maxEvents || e[0].Reason != "FunctionRecovered" {
		t.Errorf("%d events, the first %s", len(e), e[0].Reason)
	}
}

// The reasons of port security are made from the names of refusals.
func TestReasonsOfPortSecurityAreReserved(t *testing.T) {
	want := map[string]bool{}
	for why := flow.RefusedMAC; why < flow.Refusals; why++ {
		want["Refused"+strings.ToUpper(why.String()[:1])+why.String()[1:]] = true
	}
	got := map[string]bool{}
	for _, r := range api.Reasons() {
		if strings.HasPrefix(r, "Refused") {
			got[r] = true
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
