package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	eventTimeout = time.Second
	deniedEvery  = 30 * time.Second // at most one event per denying rule in this time
	maxRules     = 4096             // remembered for the rate limit
)

// eventSink raises events at the socket that the platform gives; without it, nothing happens.
type eventSink struct {
	path   string
	last   map[string]time.Time
	missed map[string]uint64 // packets denied since the last event
}

// denied collects what a rule denied and tells it now and then.
func (s *eventSink) denied(ctx context.Context, log *slog.Logger, rule string, packets uint64) {
	if s.last == nil || len(s.last) > maxRules {
		s.last, s.missed = map[string]time.Time{}, map[string]uint64{}
	}
	s.missed[rule] += packets
	if time.Since(s.last[rule]) < deniedEvery {
		return
	}
	n := s.missed[rule]
	s.last[rule], s.missed[rule] = time.Now(), 0
	packet := "packets"
	if n == 1 {
		packet = "packet"
	}
	s.raise(ctx, log, "warning", "TrafficDenied", fmt.Sprintf("%d %s denied by rule %q", n, packet, rule))
}

func (s *eventSink) raise(ctx context.Context, log *slog.Logger, severity, reason, message string) {
	if _, err := os.Stat(s.path); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err := s.post(ctx, severity, reason, message); err != nil {
		log.Warn("raise event", "reason", reason, "error", err)
	}
}

func (s *eventSink) post(ctx context.Context, severity, reason, message string) error {
	body, err := json.Marshal(map[string]string{"severity": severity, "reason": reason, "message": message})
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.path)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://weir/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("answer %s", resp.Status)
	}
	return nil
}
