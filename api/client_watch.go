package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Heartbeat is how often the server writes at least something to a watch.
const Heartbeat = 15 * time.Second

const (
	watchSilence  = 3 * Heartbeat // then the connection is taken for broken
	watchRetryMin = 100 * time.Millisecond
	watchRetryMax = 5 * time.Second
	maxWatchLine  = 16 << 20
)

// DeltaType is what a Delta says.
type DeltaType string

const (
	DeltaReset  DeltaType = "reset"  // Items are all there is: what they lack is gone
	DeltaPut    DeltaType = "put"    // Object is new or changed
	DeltaDelete DeltaType = "delete" // Object is gone; its last state
	DeltaError  DeltaType = "error"  // Err: the connection broke or was refused; the watch goes on by itself
)

// Delta is one step of a watch.
type Delta[T any] struct {
	Type     DeltaType
	Object   T
	Items    []T
	Revision int64 // where another watch could go on
	Err      error
}

// Watch tells every change after a revision until ctx ends, then the channel is closed. From revision 0 it begins with a
// DeltaReset of what is there. It resumes by itself after a broken connection, and lists again (DeltaReset) when the server
// no longer knows the revision. A request that can never succeed (bad option, bad token) ends it after one DeltaError.
//
// Delivery is at least once: after a broken connection a change can come again.
func (r Reader[T]) Watch(ctx context.Context, revision int64, o ListOptions) <-chan Delta[T] {
	w := &watch[T]{r: r, o: o, revision: revision, out: make(chan Delta[T])}
	w.o.Limit = 0
	go w.run(ctx)
	return w.out
}

type watch[T any] struct {
	r        Reader[T]
	o        ListOptions
	revision int64
	away     bool // nobody was there at the last try, and that is told
	out      chan Delta[T]
}

func (w *watch[T]) run(ctx context.Context) {
	defer close(w.out)
	retry := watchRetryMin
	told := false // one DeltaError an outage, and one more when nobody is there at all
	for ctx.Err() == nil {
		before := w.revision
		err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrGone):
			w.revision = 0
			continue
		case errors.Is(err, ErrBadRequest), errors.Is(err, ErrUnauthorized), errors.Is(err, ErrNotFound):
			w.send(ctx, Delta[T]{Type: DeltaError, Err: err})
			return
		}
		if w.revision != before { // it had worked
			retry, told = watchRetryMin, false
		}
		if away := errors.Is(err, ErrUnreachable); err != nil && (!told || away && !w.away) {
			told, w.away = true, away
			w.send(ctx, Delta[T]{Type: DeltaError, Revision: w.revision, Err: err})
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry/2 + rand.N(retry/2)):
		}
		retry = min(2*retry, watchRetryMax)
	}
}

func (w *watch[T]) send(ctx context.Context, d Delta[T]) bool {
	select {
	case w.out <- d:
		return true
	case <-ctx.Done():
		return false
	}
}

// once lists if there is no revision yet, then follows one connection to its end. nil: the server ended it in good order.
func (w *watch[T]) once(ctx context.Context) error {
	if w.revision == 0 {
		l, err := w.r.List(ctx, w.o)
		if err != nil {
			return err
		}
		if !w.send(ctx, Delta[T]{Type: DeltaReset, Items: l.Items, Revision: l.Revision}) {
			return nil
		}
		w.revision = l.Revision
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(watchSilence, func() { cancel(fmt.Errorf("silent for %v", watchSilence)) })
	defer silence.Stop()
	q := w.o.query()
	q.Set("watch", "true")
	q.Set("revision", strconv.FormatInt(w.revision, 10))
	resp, err := w.r.c.do(ctx, http.MethodGet, w.r.path("")+"?"+q.Encode(), http.Header{"Accept": {"text/event-stream"}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	w.away = false
	err = w.follow(ctx, resp.Body, func() { silence.Reset(watchSilence) })
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil && !errors.Is(err, ErrGone) {
		return fmt.Errorf("watch %s at %s: %w", w.r.kind.Plural(), w.r.c.where, err)
	}
	return err
}

// follow reads server-sent events (WHATWG HTML, section 9.2) as this server writes them: id, event and one data line.
func (w *watch[T]) follow(ctx context.Context, body io.Reader, alive func()) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 64<<10), maxWatchLine)
	var event string
	var data []byte
	var id int64
	for lines.Scan() {
		alive()
		field, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			event = string(value)
		case "data":
			data = append(data[:0], value...)
		case "id":
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return fmt.Errorf("event id %q is no revision", value)
			}
			id = n
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		if err := w.dispatch(ctx, event, data, id); err != nil {
			return err
		}
		event, data = "", data[:0]
	}
	return lines.Err()
}

func (w *watch[T]) dispatch(ctx context.Context, event string, data []byte, id int64) error {
	d := Delta[T]{Type: DeltaType(event), Revision: max(id, w.revision)}
	switch d.Type {
	case DeltaPut, DeltaDelete:
		if err := json.Unmarshal(data, &d.Object); err != nil {
			return fmt.Errorf("event %s: %w", event, err)
		}
		if !w.send(ctx, d) {
			return nil
		}
	case DeltaError:
		p := &ProblemError{}
		if err := json.Unmarshal(data, p); err != nil {
			return fmt.Errorf("event error: %w", err)
		}
		return p
	}
	w.revision = d.Revision
	return nil
}
