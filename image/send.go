package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// errStuck is about a registry that has taken nothing of what is sent to it for a time.
var errStuck = errors.New("not a byte was taken")

// sender is a transport that gives a request up when the registry takes nothing of its body for a time. A response is waited for as long as the next one says.
type sender struct {
	next   http.RoundTripper
	within time.Duration
	named  func(size int64) string // see RemoteOptions; nil: nothing has a name
}

func (s sender) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return s.next.RoundTrip(r)
	}
	// The watch is set anew at each piece that the transport takes to send.
	ctx, cancel := context.WithCancelCause(r.Context())
	var sent atomic.Int64
	var mu sync.Mutex
	over := false
	watch := time.AfterFunc(s.within, func() { cancel(s.stuck(r, sent.Load())) })
	taken := func(n int, err error) {
		sent.Add(int64(n))
		within := s.within
		if err != nil { // the end: for as long the next one waits for the response, which is no fault of the reading
			within *= 2
		}
		mu.Lock()
		defer mu.Unlock()
		if !over { // who has answered need not read on
			watch.Reset(within)
		}
	}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		watch.Stop()
	}()
	watched := func(body io.ReadCloser) io.ReadCloser { return sentBody{body, taken} }
	own := r.WithContext(ctx)
	own.Body = watched(r.Body)
	if r.GetBody != nil { // for a connection that breaks
		own.GetBody = func() (io.ReadCloser, error) {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			sent.Store(0)
			return watched(body), nil
		}
	}
	// The context ends with the response's body.
	resp, err := s.next.RoundTrip(own)
	if err != nil {
		err = orCause(ctx, err)
		cancel(nil)
		return nil, err
	}
	resp.Body = answered{resp.Body, func() { cancel(nil) }}
	return resp, nil
}

func (s sender) stuck(r *http.Request, sent int64) error {
	what := ""
	if s.named != nil {
		what = s.named(r.ContentLength)
	}
	return fmt.Errorf("%s: %w in %s, of %s, behind %d of %d bytes", r.URL.Host, errStuck, s.within, cmp.Or(what, r.URL.Path), sent, r.ContentLength)
}

// sentBody tells how much is taken of it.
type sentBody struct {
	io.ReadCloser
	taken func(n int, err error)
}

func (b sentBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	b.taken(n, err)
	return n, err
}

// answered calls closed behind its Close.
type answered struct {
	io.ReadCloser
	closed func()
}

func (a answered) Close() error {
	defer a.closed()
	return a.ReadCloser.Close()
}
