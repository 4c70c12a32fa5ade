package nf

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// postbox listens where a function posts, and serves as handle does.
func postbox(t *testing.T, handle http.HandlerFunc) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handle, ReadHeaderTimeout: time.Minute}
	go s.Serve(l) //nolint:errcheck // it is closed
	t.Cleanup(func() { s.Close() })
	return socket
}

// What is posted comes whole, and a refusal says why.
func TestPost(t *testing.T) {
	body := strings.Repeat("line\r\n\r\n", 5000)
	for name, tt := range map[string]struct {
		status int
		text   string
		err    string // "": none
	}{
		"taken":               {http.StatusNoContent, "", ""},
		"taken, with a text":  {http.StatusOK, strings.Repeat("ok", 10_000), ""},
		"refused":             {http.StatusBadRequest, "reason \"a b\": want one word\n", `answer 400 Bad Request: reason "a b": want one word`},
		"refused, at length":  {http.StatusTooManyRequests, strings.Repeat("x", 20_000), "answer 429 Too Many Requests: " + strings.Repeat("x", maxWhy)},
		"refused, no reason":  {http.StatusTeapot, "", "answer 418 I'm a teapot: "},
		"nothing of the kind": {http.StatusFound, "", "answer 302 Found: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			socket := postbox(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got <- r.Method + " " + r.Host + " " + r.Header.Get("Content-Type") + " " + string(b)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.text)
			})
			err := post(t.Context(), socket, "text/plain", []byte(body))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			if got := <-got; got != "POST weir text/plain "+body {
				t.Errorf("got %.200q", got)
			}
		})
	}
}

// A platform that takes a part of too much says so, and the function hears it.
func TestPostOfTooMuch(t *testing.T) {
	socket := postbox(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10)); err != nil {
			http.Error(w, "want at most 1 KiB", http.StatusRequestEntityTooLarge)
		}
	})
	const want = "answer 413 Request Entity Too Large: want at most 1 KiB"
	if err := post(t.Context(), socket, "text/plain", make([]byte, 4<<20)); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A platform that does not answer, or answers nonsense, is given up in time.
func TestPostIsGivenUp(t *testing.T) {
	began := time.Now()
	silent := postbox(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if err := post(t.Context(), silent, "text/plain", nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := post(ctx, silent, "text/plain", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if took := time.Since(began); took > 5*postTimeout {
		t.Errorf("it took %s", took)
	}
	for _, answer := range []string{"", "HTTP/1.1 200 OK", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 fine\r\n\r\n", "\r\n\r\n"} {
		if err := refusal([]byte(answer)); err == nil || !strings.Contains(err.Error(), "want HTTP/1") {
			t.Errorf("%q: %v", answer, err)
		}
	}
}
