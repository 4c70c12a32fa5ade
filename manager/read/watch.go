package read

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// maxWatches bounds the watches, but agents'.
const maxWatches = 1_000

// wantsWatch tells a watch from a list: ?watch, ?watch=true or Accept: text/event-stream.
func wantsWatch(r *http.Request) bool {
	if q := r.URL.Query(); q.Has("watch") {
		return q.Get("watch") != "false"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// watch streams changes as server-sent events until the client goes. From no revision it begins with a put of each object.
// The id of an event is the revision after which a watch resumes without a gap: of several changes in one revision only
// the last carries it.
func (rd *Reader) watch(n object.Noun, f filter, w http.ResponseWriter, r *http.Request) error {
	after, err := resumeFrom(r)
	if err != nil {
		return err
	}
	if _, agents := web.AgentOf(r.Context()); !agents { // theirs are bounded for each: see maxAgentRequests
		release, err := rd.watches.Take("watches")
		if err != nil {
			return err
		}
		defer release()
	}
	rd.open.Add(1)
	defer rd.open.Add(-1)
	ctx, cancel := web.StreamContext(r)
	defer cancel()
	var first []store.Item
	if after == 0 {
		if first, after, err = rd.Store.List(ctx, store.Prefix(n.Kind), store.ListOptions{}); err != nil {
			return err
		}
	}
	changes, err := rd.Store.Watch(ctx, store.Prefix(n.Kind), after)
	if err != nil {
		return err
	}
	view := rd.viewOf(r.Context(), n)
	s := &stream{w: w, c: http.NewResponseController(w), view: view}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	for _, i := range first {
		if f.match(store.NameOf(i.Key), i.Value) {
			value, _ := rd.Hosts.WithHealth(n, i)
			i.Value = view(i.Key, value, i.Revision)
			s.event("put", object.Wire(i))
		}
	}
	s.id(after)
	if err := s.flush(); err != nil {
		return nil // the client is gone
	}
	s.follow(f, changes)
	return nil
}

// resumeFrom is the revision in the query or, after a broken connection of a browser, in Last-Event-ID.
func resumeFrom(r *http.Request) (int64, error) {
	text := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("revision"))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, api.Refuse(http.StatusBadRequest, "the query is refused",
			api.Problem{Path: "query.revision", Message: "is " + strconv.Quote(text), Hint: "want the revision of a list, a number"})
	}
	return n, nil
}

// stream writes server-sent events.
type stream struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	buf bytes.Buffer
	// view is what the client may see of a value at a revision; 0: of one that is gone.
	view func(key string, value []byte, revision int64) []byte
}

func (s *stream) event(kind string, data []byte) {
	fmt.Fprintf(&s.buf, "event: %s\ndata: %s\n\n", kind, data)
}

// id ends what was written so far with the revision to resume from: an event without data only sets the id.
func (s *stream) id(revision int64) { fmt.Fprintf(&s.buf, "id: %d\n\n", revision) }

// flush writes within a bounded time: a client that does not read is dropped.
func (s *stream) flush() error {
	if err := s.c.SetWriteDeadline(time.Now().Add(web.WriteTimeout)); err != nil {
		return err
	}
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return err
	}
	s.buf.Reset()
	return s.c.Flush()
}

// follow writes batches as they come, and a comment when nothing comes.
func (s *stream) follow(f filter, changes store.Watch) {
	beat := time.NewTicker(api.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case b, ok := <-changes.C:
			if !ok {
				s.end(changes.Err())
				return
			}
			s.batch(f, b)
		case <-beat.C:
			s.buf.WriteString(": still here\n\n")
		}
		if s.flush() != nil {
			return
		}
	}
}

func (s *stream) batch(f filter, b store.Batch) {
	for _, e := range b.Events {
		name := store.NameOf(e.Key)
		switch {
		case e.Value != nil:
			if f.match(name, e.Value) {
				s.event("put", object.WithRevision(s.view(e.Key, e.Value, b.Revision), b.Revision))
			}
		case e.Last == nil: // no longer known: the name is
			if f.match(name, object.Marshal(api.Meta{Name: name})) {
				s.event("delete", object.WithRevision(object.Marshal(api.Meta{Name: name}), b.Revision))
			}
		case f.match(name, e.Last):
			s.event("delete", object.WithRevision(s.view(e.Key, e.Last, 0), b.Revision))
		}
	}
	s.id(b.Revision)
}

// end tells the client why its watch breaks, if it did.
func (s *stream) end(err error) {
	if err == nil || errors.Is(err, store.ErrLagging) || errors.Is(err, store.ErrStopped) {
		return // the client resumes
	}
	p, jsonErr := json.Marshal(web.ProblemOf(err))
	if jsonErr != nil {
		return
	}
	s.event("error", p)
	_ = s.flush() // the client may be gone
}
