package read

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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

// gatherFor is how long changes of several kinds wait for more of them: people watch these.
const gatherFor = 50 * time.Millisecond

// Bytes of a watch in memory: of its first list, and while nothing happens.
const (
	maxBuffered = 256 << 10
	maxKept     = 64 << 10
)

// wantsWatch tells a watch from a list: ?watch, ?watch=true or Accept: text/event-stream.
func wantsWatch(r *http.Request) bool {
	if r.URL.Query().Has("watch") {
		return web.Flag(r, "watch")
	}
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}

// watch streams changes of one kind as server-sent events until the client goes. From no revision it begins with a put of each object.
// The id of an event is the revision after which a watch resumes without a gap: of several changes in one revision only
// the last carries it.
func (rd *Reader) watch(n object.Noun, f filter, w http.ResponseWriter, r *http.Request) error {
	return rd.stream(store.Prefix(n.Kind), []object.Noun{n}, w, r, &stream{f: f})
}

// watchKinds streams changes of several kinds over one connection. Each event says the kind. A browser has six connections for all its pages of one server, but
// WebSockets do not count among them: over one, each message is a piece of the same text. What is refused is an event there, since a page cannot read an answer
// that is no WebSocket.
func (rd *Reader) watchKinds(w http.ResponseWriter, r *http.Request) error {
	named, known := r.URL.Query()["kinds"], []string{}
	var nouns []object.Noun
	for _, n := range object.Nouns() {
		known = append(known, string(n.Kind))
		if slices.Contains(named, string(n.Kind)) {
			nouns = append(nouns, n)
		}
	}
	refuse := func(message string) error {
		return api.Refuse(http.StatusBadRequest, "the query is refused",
			api.Problem{Path: "query.kinds", Message: message, Hint: "want one or more of " + strings.Join(known, ", ")})
	}
	for _, k := range named {
		if !slices.Contains(known, k) {
			return refuse(fmt.Sprintf("is %.40q", k))
		}
	}
	if len(nouns) == 0 {
		return refuse("is not given")
	}
	s := &stream{tagged: true, gather: gatherFor}
	if r.Header.Get("Upgrade") == "" {
		return rd.stream("", nouns, w, r, s)
	}
	if err := web.WantWebSocket(w, r, "watch", api.WatchProtocol); err != nil {
		return err
	}
	conn, err := web.UpgradeWebSocket(w, r, api.WatchProtocol, 1) // nothing is expected from there
	if conn == nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() { // ends with the connection
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	}()
	s.send = func(p []byte) error {
		_, err := conn.Write(p)
		return err
	}
	if err := rd.stream("", nouns, w, r.WithContext(ctx), s); err != nil {
		s.end(err)
	}
	return nil
}

// stream opens a watch of the keys below prefix and writes what it says of some kinds.
func (rd *Reader) stream(prefix string, nouns []object.Noun, w http.ResponseWriter, r *http.Request, s *stream) error {
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
	s.views = map[api.Kind]view{}
	if s.send == nil {
		s.send = sender(w)
	}
	for _, n := range nouns {
		s.views[n.Kind] = rd.viewOf(r.Context(), n)
	}
	fail := func(err error) error { // the answer may have begun
		if !s.begun {
			return err
		}
		s.end(err)
		return nil
	}
	if after == 0 { // of several kinds the first list's revision counts: what the later lists have from after it comes again
		for _, n := range nouns {
			items, revision, err := rd.Store.List(ctx, store.Prefix(n.Kind), store.ListOptions{})
			if err != nil {
				return fail(err)
			}
			after = cmp.Or(after, revision)
			for _, i := range items {
				if s.f.match(store.NameOf(i.Key), i.Value) {
					value, _ := rd.Hosts.WithHealth(n, i)
					i.Value, _ = s.views[n.Kind](i.Key, value, nil, i.Revision)
					s.event("put", n.Kind, object.Wire(i))
				}
				if s.buf.Len() > maxBuffered && s.flush() != nil {
					return nil // the client is gone
				}
			}
		}
	}
	changes, err := rd.Store.Watch(ctx, prefix, after)
	if err != nil {
		return fail(err)
	}
	s.revision = after
	s.id()
	if err := s.flush(); err != nil {
		return nil // the client is gone
	}
	s.follow(changes)
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

// sender writes server-sent events into an answer, each piece within a bounded time.
func sender(w http.ResponseWriter) func([]byte) error {
	out, begun := web.Flushing(w), false
	return func(p []byte) error {
		if !begun {
			begun = true
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Cache-Control", "no-store")
		}
		_, err := out.Write(p)
		return err
	}
}

// stream writes server-sent events.
type stream struct {
	f        filter
	tagged   bool          // each event says its object's kind
	gather   time.Duration // how long changes wait for more
	send     func([]byte) error
	begun    bool // the client has something
	buf      bytes.Buffer
	views    map[api.Kind]view // of the kinds that are told
	revision int64             // all up to it is in buf, or was written
	said     int64             // the revision that the client knows of
}

func (s *stream) event(what string, kind api.Kind, data []byte) {
	if s.tagged {
		fmt.Fprintf(&s.buf, "event: %s\ndata: {\"kind\":%q,\"object\":%s}\n\n", what, kind, data)
		return
	}
	fmt.Fprintf(&s.buf, "event: %s\ndata: %s\n\n", what, data)
}

// id ends what was written so far with the revision to resume from: an event without data only sets the id.
func (s *stream) id() {
	fmt.Fprintf(&s.buf, "id: %d\n\n", s.revision)
	s.said = s.revision
}

// flush writes within a bounded time: a client that does not read is dropped.
func (s *stream) flush() error {
	s.begun = true
	if err := s.send(s.buf.Bytes()); err != nil {
		return err
	}
	if s.buf.Reset(); s.buf.Cap() > maxKept { // a watch lives for hours, and there are many
		s.buf = bytes.Buffer{}
	}
	return nil
}

// follow writes batches as they come, or gathers them, and when nothing comes for long, or nothing of interest, a comment, or what has passed.
func (s *stream) follow(changes store.Watch) {
	beat := time.NewTicker(api.Heartbeat)
	defer beat.Stop()
	var due <-chan time.Time // what is gathered
	for {
		select {
		case b, ok := <-changes.C:
			if !ok {
				s.end(changes.Err())
				return
			}
			s.batch(b)
			switch {
			case s.buf.Len() == 0:
				continue
			case s.gather > 0 && due == nil:
				due = time.After(s.gather)
			}
			if s.gather > 0 && s.buf.Len() < maxBuffered {
				continue
			}
		case <-due:
		case <-beat.C:
			if s.revision == s.said {
				s.buf.WriteString(": still here\n\n")
			}
		}
		due = nil
		if s.revision > s.said {
			s.id()
		}
		if s.flush() != nil {
			return
		}
	}
}

func (s *stream) batch(b store.Batch) {
	for _, e := range b.Events {
		prefix, name, _ := strings.Cut(e.Key, "/")
		kind := api.Kind(prefix)
		view := s.views[kind]
		if view == nil {
			continue
		}
		switch {
		case e.Value != nil:
			seen, same := view(e.Key, e.Value, e.Last, b.Revision)
			if s.f.match(name, e.Value) && (!same || s.f != filter{}) {
				s.event("put", kind, object.WithRevision(seen, b.Revision))
			}
		case e.Last == nil: // no longer known: the name is
			if s.f.match(name, object.Marshal(api.Meta{Name: name})) {
				s.event("delete", kind, object.WithRevision(object.Marshal(api.Meta{Name: name}), b.Revision))
			}
		case s.f.match(name, e.Last):
			seen, _ := view(e.Key, e.Last, nil, 0)
			s.event("delete", kind, object.WithRevision(seen, b.Revision))
		}
	}
	s.revision = b.Revision
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
	fmt.Fprintf(&s.buf, "event: error\ndata: %s\n\n", p)
	_ = s.flush() // the client may be gone
}
