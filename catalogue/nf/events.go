package nf

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

const eventTimeout = time.Second

// Events raises events at the socket that the platform gives; where it is not there, nothing happens.
type Events string

// Raise an event. What cannot be raised is logged.
func (e Events) Raise(ctx context.Context, log *slog.Logger, severity, reason, message string) {
	if _, err := os.Stat(string(e)); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if err := e.post(ctx, severity, reason, message); err != nil {
		log.Warn("raise event", "reason", reason, "error", err)
	}
}

func (e Events) post(ctx context.Context, severity, reason, message string) error {
	body, err := json.Marshal(map[string]string{"severity": severity, "reason": reason, "message": message})
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", string(e))
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
