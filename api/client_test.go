package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProblemText(t *testing.T) {
	for want, p := range map[string]Problem{
		"no chain":                            {Message: "no chain"},
		"policies.p.chain: no chain (add it)": {Path: "policies.p.chain", Message: "no chain", Hint: "add it"},
		"f.yaml:3:7: policies.p: no chain":    {Path: "policies.p", Message: "no chain", File: "f.yaml", Line: 3, Column: 7},
		"f.yaml: empty":                       {Message: "empty", File: "f.yaml"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestProblemErrorsMatchTheirSentinels(t *testing.T) {
	all := []error{ErrBadRequest, ErrUnauthorized, ErrNotFound, ErrConflict, ErrGone, ErrPrecondition, ErrTooLarge, ErrInvalid, ErrBusy, ErrFull, ErrUnreachable}
	for status, want := range map[int]error{
		400: ErrBadRequest, 401: ErrUnauthorized, 403: ErrUnauthorized, 404: ErrNotFound, 405: ErrBadRequest, 409: ErrConflict, 410: ErrGone,
		412: ErrPrecondition, 413: ErrTooLarge, 415: ErrBadRequest, 422: ErrInvalid, 429: ErrBusy, 503: ErrBusy, 507: ErrFull, 500: nil,
	} {
		err := fmt.Errorf("wrapped: %w", Refuse(status, "x"))
		for _, s := range all {
			if got := errors.Is(err, s); got != (s == want) {
				t.Errorf("status %d is %v: %v", status, s, got)
			}
		}
	}
}

func client(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := Dial(Options{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAnAnswerThatIsNoProblemDocumentBecomesOne(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "proxy says no", http.StatusServiceUnavailable)
	})
	_, err := c.Chains().Get(t.Context(), "c")
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "proxy says no") {
		t.Errorf("%v", err)
	}
}

// TestAWatchSurvivesOddServers: broken JSON, connections cut in the middle of an event, errors in the stream.
func TestAWatchSurvivesOddServers(t *testing.T) {
	var calls atomic.Int64
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"items":[],"revision":%d}`, 10*calls.Add(1))
			return
		}
		switch calls.Add(1) {
		case 2: // after revision 10
			fmt.Fprint(w, ": hello\n\nevent: put\ndata: {\"name\":\"a\"}\n\nid: 11\n\nevent: put\ndata: {\"na")
		case 3:
			fmt.Fprint(w, "event: put\ndata: {]\n\n")
		case 4:
			if r.URL.Query().Get("revision") != "11" {
				t.Errorf("resumed from %s, want 11", r.URL.Query().Get("revision"))
			}
			fmt.Fprint(w, "event: later-invention\ndata: {}\n\nevent: delete\ndata: {\"name\":\"a\"}\n\nid: 12\n\nevent: error\ndata: {\"status\":410}\n\n")
		default:
			fmt.Fprint(w, "event: put\ndata: {\"name\":\"b\"}\n\nid: 99\n\n")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	for d := range c.Chains().Watch(ctx, 0, ListOptions{}) {
		if d.Type != DeltaError {
			got = append(got, string(d.Type)+" "+d.Object.Name)
		}
		if len(got) == 5 {
			cancel()
			break
		}
	}
	if d := cmp.Diff([]string{"reset ", "put a", "delete a", "reset ", "put b"}, got); d != "" {
		t.Error(d)
	}
}

// briefly is a manager that knows one operation in a state; asked is told when somebody follows it.
func briefly(t *testing.T, socket string, state OperationState, asked chan<- struct{}) (end func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := fmt.Sprintf(`{"name":"o","state":%q}`, state)
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"items":[%s],"revision":10}`, op)
			return
		}
		fmt.Fprintf(w, "event: put\ndata: %s\n\n", op)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	return func() {
		s.CloseClientConnections()
		s.Close()
	}
}

func TestAWaitOutlastsARestartAndNoMore(t *testing.T) {
	for name, x := range map[string]struct {
		away  time.Duration
		again bool
	}{
		"the manager is taken down":    {away: 50 * time.Millisecond},
		"the manager is started again": {away: time.Hour, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "weir-api-") // a socket's path is short
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			socket, asked := filepath.Join(dir, "s"), make(chan struct{}, 10)
			c, err := Dial(Options{Socket: socket, Away: x.away})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			end := briefly(t, socket, OpProcessing, asked)
			turned := make(chan struct{})
			go func() {
				defer close(turned)
				<-asked
				end()
				if x.again {
					end = briefly(t, socket, OpCompleted, asked)
				}
			}()
			done, err := c.Wait(ctx, "o")
			<-turned
			if x.again {
				defer end()
				if err != nil || done.State != OpCompleted {
					t.Errorf("%s, %v", done.State, err)
				}
			} else if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "waited 50ms") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestExecStreamRefusesNonsense(t *testing.T) {
	for name, in := range map[string]string{
		"unknown type": "\x63\x00\x00\x00\x00",
		"too long":     "\x00\xff\xff\xff\xff",
		"cut short":    "\x03\x00\x00\x00\x05abc",
		"half a head":  "\x03\x00",
	} {
		if _, _, err := NewExecStream(strings.NewReader(in), io.Discard).Receive(); err == nil || err == io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzExecStream: what is received can be sent again, and is the same.
func FuzzExecStream(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02hi\x05\x00\x00\x00\x04\x00\x00\x00\x07"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		r := bytes.NewReader(in)
		s := NewExecStream(r, &out)
		for {
			kind, p, err := s.Receive()
			if err != nil {
				break
			}
			if err := s.Send(kind, p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(in, out.Bytes()) {
			t.Errorf("%q became %q", in, out.Bytes())
		}
	})
}

// FuzzWatchStream: no stream of a server makes the client panic, and the revision never goes back.
func FuzzWatchStream(f *testing.F) {
	f.Add("event: put\ndata: {\"name\":\"a\"}\n\nid: 7\n\n")
	f.Add("id: x\n\n")
	f.Add("event: error\ndata: {}\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watch[Chain]{revision: 3, out: make(chan Delta[Chain])}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range w.out {
			}
		}()
		_ = w.follow(ctx, strings.NewReader(in), func() {})
		cancel()
		close(w.out)
		<-done
		if w.revision < 3 {
			t.Errorf("revision went back to %d", w.revision)
		}
	})
}
