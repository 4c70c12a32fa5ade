package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
)

// Bounds of one request.
const (
	defaultBody   = 4 << 20  // bytes of a request's body; of paths that take more:
	MaxReport     = 16 << 20 // what an agent tells
	MaxBody       = 32 << 20 // documents, and what the router tells
	bodyTimeout   = 30 * time.Second
	answerTimeout = 2 * time.Minute  // until the client has taken an answer
	WriteTimeout  = 30 * time.Second // of one write to a stream
)

// Bounds of what all requests together hold. One that needs more waits, memoryPatience at most.
const (
	maxBodies      = 64 << 20  // bytes of bodies
	maxDecoded     = 128 << 20 // bytes of what became of them, as scan tells beforehand
	memoryPatience = 10 * time.Second
)

// memory is bytes that requests share. Of one client's they are never more than share, unless it is a single request.
type memory struct {
	total, share int64

	mu    sync.Mutex
	held  int64
	by    map[string]int64
	freed chan struct{} // closed, and made anew, when some are given back
}

// take waits until the client may hold n bytes more; more than there are in total is as much as there are.
func (b *memory) take(ctx context.Context, client string, n int64) (giveBack func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, memoryPatience)
	defer cancel()
	n = min(n, b.total)
	for {
		freed := b.try(client, n)
		if freed == nil {
			return sync.OnceFunc(func() { b.give(client, n) }), nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, api.Refuse(http.StatusServiceUnavailable, "too many large requests at once: try again later, or in smaller parts")
		}
	}
}

// try takes n bytes and returns nil, or tells when to try again.
func (b *memory) try(client string, n int64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by == nil {
		b.by, b.freed = map[string]int64{}, make(chan struct{})
	}
	share := b.total
	if client != operators {
		share = b.share
	}
	if b.held+n > b.total || b.by[client] > 0 && b.by[client]+n > share {
		return b.freed
	}
	b.held += n
	b.by[client] += n
	return nil
}

func (b *memory) give(client string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.by[client] -= n; b.by[client] <= 0 {
		delete(b.by, client)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}

// operators are all clients that are neither agents nor about to become some.
const operators = ""

func clientOf(r *http.Request) string {
	if a, ok := AgentOf(r.Context()); ok {
		return "host " + a.Host
	}
	if peer, ok := r.Context().Value(peerKey{}).(string); ok {
		return "address " + peer
	}
	return operators
}

// body is a request's body and what it holds of the memory that all share.
type body struct {
	a     *API
	limit int64
	held  []func()
}

func (b *body) giveBack() {
	for _, give := range b.held {
		give()
	}
	b.held = nil
}

func (b *body) take(r *http.Request, from *memory, n int64) error {
	give, err := from.take(r.Context(), clientOf(r), n)
	if err == nil {
		b.held = append(b.held, give)
	}
	return err
}

// ReadBody decodes a bounded JSON body strictly. What it holds of the memory is given back at the end of the request.
func ReadBody(w http.ResponseWriter, r *http.Request, v any) error {
	raw, err := ReadRaw(w, r)
	if err != nil {
		return err
	}
	return DecodeBody(w, r, raw, v)
}

// DecodeBody decodes strictly, when there is memory for what the body becomes.
func DecodeBody(w http.ResponseWriter, r *http.Request, raw []byte, v any) error {
	cost, err := strict.Scan(raw, reflect.TypeOf(v), "", r.Method == http.MethodPatch)
	if err != nil {
		return err
	}
	if t, ok := w.(*tracked); ok {
		if err := t.body.take(r, &t.body.a.decoded, cost); err != nil {
			return err
		}
	}
	return strict.Scanned(raw, v, "")
}

// ReadRaw reads a bounded body that says it is JSON.
func ReadRaw(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		t, _, err := mime.ParseMediaType(kind)
		if err != nil || t != "application/json" && t != "application/merge-patch+json" {
			return nil, api.Refuse(http.StatusUnsupportedMediaType, fmt.Sprintf("content type %q: want application/json", strict.Clip(kind, strict.MaxText)))
		}
	}
	limit := int64(defaultBody)
	t, bounded := w.(*tracked)
	if bounded {
		limit = t.body.limit
	}
	n := r.ContentLength
	if n > limit {
		return nil, tooLarge(w, r, limit)
	}
	if n < 0 {
		n = limit // it does not say
	}
	if bounded {
		if err := t.body.take(r, &t.body.a.bodies, n); err != nil {
			return nil, err
		}
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(bodyTimeout)) // not possible on every kind of connection
	raw, err := readAll(http.MaxBytesReader(w, r.Body, limit), r.ContentLength)
	_ = c.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(w, r, large.Limit)
	case err != nil:
		return nil, api.Refuse(http.StatusBadRequest, "the body could not be read: "+err.Error())
	}
	return raw, nil
}

// readAll is io.ReadAll into one piece of memory, where the length is known.
func readAll(r io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(r)
	}
	raw := make([]byte, length)
	n, err := io.ReadFull(r, raw)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // as short as it is
	}
	return raw[:n], err
}

// tooLarge refuses a body. It reads on for a while: who still writes when the connection closes does not get to read the answer.
func tooLarge(w http.ResponseWriter, r *http.Request, limit int64) error {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(bodyTimeout))
	_, _ = io.CopyN(io.Discard, r.Body, 2*MaxBody)
	_ = c.SetReadDeadline(time.Time{})
	if limit < 1<<20 {
		return api.Refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d KiB", limit>>10))
	}
	return api.Refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d MiB: send it in smaller parts", limit>>20))
}
