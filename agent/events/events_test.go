package events

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/api"
)

// A function that opens connections without end takes few of the agent's descriptors, and is served again when those have been idle.
func TestConnectionsForEventsAreBounded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "socket")
	s, err := Serve(filepath.Join(dir, "fresh"), path, "fw", func(api.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	const many = 200
	var open []net.Conn
	for range many {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		if took := descriptors() - before - many; took > socket.Conns+1 {
			t.Fatalf("%d connections took %d descriptors of the agent", many, took)
		}
	}
	for _, c := range open {
		c.Close()
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}}
	r, err := client.Get("http://weir/")
	if err != nil {
		t.Fatalf("not served again: %v", err)
	}
	r.Body.Close()
}

// A function cannot raise what reads as the agent's own event, and what it raises is marked as the function's.
func TestFunctionsRaiseNoEventsInTheNameOfWeir(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	raised := make(chan api.Event, 9)
	s, err := Serve(filepath.Join(dir, "fresh"), socket, "fw", func(e api.Event) { raised <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
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
	close(raised)
	for e := range raised {
		got = append(got, e.Reason+" "+e.Source+" "+e.Object)
	}
	if d := cmp.Diff([]string{"TrafficDenied function/fw fw", "Raised function/fw fw"}, got); d != "" {
		t.Error(d)
	}
}
