package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"weir.dev/weir/catalogue/nf"
)

// listen plays the platform's end of the socket for events.
func listen(t *testing.T, path string) <-chan map[string]string {
	t.Helper()
	events := make(chan map[string]string, 16)
	l, err := net.Listen("unix", path)
	must(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var e map[string]string
		if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		events <- e
	})}
	go srv.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { srv.Close() })
	return events
}

func TestEventsSayHowMuchWasDenied(t *testing.T) {
	s := denials{events: nf.Events(filepath.Join(t.TempDir(), "events.sock"))}
	events := listen(t, string(s.events))
	for packets, want := range map[uint64]string{1: `1 packet denied by rule "deny icmp"`, 2: `2 packets denied by rule "deny icmp"`} {
		s.last = nil
		s.denied(t.Context(), slog.New(slog.DiscardHandler), "deny icmp", packets)
		select {
		case e := <-events:
			if e["message"] != want {
				t.Errorf("%q, want %q", e["message"], want)
			}
		default:
			t.Errorf("%d packets: no event", packets)
		}
	}
}
