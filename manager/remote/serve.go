package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
)

// Serve answers a manager over one connection until it ends or ctx does, and closes it.
func Serve(ctx context.Context, conn net.Conn, n Node, log *slog.Logger) error {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the connection beneath is TLS already
	streams, end := context.WithCancel(ctx)
	defer end()
	srv := &http.Server{
		Handler:     handler(n),
		Protocols:   &protocols,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return streams },
	}
	l := newOneConn(conn)
	defer conn.Close()
	defer srv.Close()
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	err := srv.Serve(l)
	if errors.Is(err, errConnEnded) || errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return err
}

// oneConn is a listener with one connection; Accept fails once that is closed.
type oneConn struct {
	conn  chan net.Conn
	ended chan struct{}
	end   func()
	addr  net.Addr
}

var errConnEnded = errors.New("connection ended")

func newOneConn(c net.Conn) *oneConn {
	l := &oneConn{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: c.LocalAddr()}
	l.end = sync.OnceFunc(func() { close(l.ended) })
	l.conn <- &watchedConn{Conn: c, closed: l.end}
	return l
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.ended:
		return nil, errConnEnded
	}
}

func (l *oneConn) Close() error {
	l.end() // the server waits for Accept to return
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.addr }

type watchedConn struct {
	net.Conn
	closed func()
}

func (c *watchedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

func handler(n Node) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, r *http.Request) {
		c, err := n.Counters(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, "application/json", c)
	})
	mux.HandleFunc("GET /images", func(w http.ResponseWriter, r *http.Request) {
		images, err := n.ImageList(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, "application/json", images)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		all, err := n.Metrics(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, "application/json", all)
	})
	mux.HandleFunc("GET /alive", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /functions/{name}/logs", func(w http.ResponseWriter, r *http.Request) { logs(n, w, r) })
	mux.HandleFunc("GET /functions/{name}/state", func(w http.ResponseWriter, r *http.Request) { state(n, w, r) })
	mux.HandleFunc("GET /functions/{name}/flows", func(w http.ResponseWriter, r *http.Request) {
		o, err := api.ParseFlows(r.URL.Query())
		if err != nil {
			refuse(w, err)
			return
		}
		flows, err := n.Flows(r.Context(), r.PathValue("name"), o)
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, "application/json", flows)
	})
	mux.HandleFunc("GET /capture/{kind}/{name}", func(w http.ResponseWriter, r *http.Request) { capture(n, w, r) })
	mux.HandleFunc("POST /functions/{name}/exec", func(w http.ResponseWriter, r *http.Request) { exec(n, w, r) })
	mux.HandleFunc("POST /admit", func(w http.ResponseWriter, r *http.Request) {
		var a admission
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxDocument)).Decode(&a); err != nil {
			refuse(w, api.Refuse(http.StatusBadRequest, err.Error()))
			return
		}
		problems := n.Admit(r.Context(), a.Document, a.Changed)
		if problems == nil {
			problems = []api.Problem{}
		}
		answer(w, http.StatusOK, "application/json", problems)
	})
	return mux
}

func answer(w http.ResponseWriter, status int, kind string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(b) // the manager is gone, if that fails
}

// refuse sends an error as a problem, in the manager's words for what a runtime says.
func refuse(w http.ResponseWriter, err error) {
	p := Problem(err)
	answer(w, p.Status, "application/problem+json", p)
}

// Problem makes a problem of an error of a Node.
func Problem(err error) *api.ProblemError {
	var p *api.ProblemError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, container.ErrNotFound):
		return api.Refuse(http.StatusConflict, err.Error()+": is the function created yet?")
	case errors.Is(err, container.ErrState), errors.Is(err, container.ErrMissing):
		return api.Refuse(http.StatusConflict, err.Error())
	}
	return api.Refuse(http.StatusInternalServerError, err.Error())
}

func logs(n Node, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	o := container.LogOptions{Follow: q.Get("follow") == "true"}
	if s := q.Get("tail"); s != "" {
		var err error
		if o.Tail, err = strconv.Atoi(s); err != nil || o.Tail < 0 {
			refuse(w, api.Refuse(http.StatusBadRequest, "tail "+strconv.Quote(s)+": want a number"))
			return
		}
	}
	from, err := n.Logs(r.Context(), r.PathValue("name"), o)
	if err != nil {
		refuse(w, err)
		return
	}
	stream(w, r, "text/plain; charset=utf-8", from)
}

func capture(n Node, w http.ResponseWriter, r *http.Request) {
	o, err := api.ParseCapture(r.URL.Query())
	if err != nil {
		refuse(w, err)
		return
	}
	from, err := n.Capture(r.Context(), api.Kind(r.PathValue("kind")), r.PathValue("name"), o)
	if err != nil {
		refuse(w, err)
		return
	}
	stream(w, r, api.CaptureType, from)
}

func state(n Node, w http.ResponseWriter, r *http.Request) {
	from, size, err := n.State(r.Context(), r.PathValue("name"), r.URL.Query().Get("uid"))
	switch {
	case err != nil:
		refuse(w, err)
	case from == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		stream(w, r, "application/octet-stream", from)
	}
}

// stream sends what comes, and closes it.
func stream(w http.ResponseWriter, r *http.Request, kind string, from io.ReadCloser) {
	defer from.Close()
	defer context.AfterFunc(r.Context(), func() { from.Close() })() // a blocked read ends with the request
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(http.StatusOK)
	f := &flushing{w, http.NewResponseController(w)}
	if f.c.Flush() != nil {
		return
	}
	_, _ = io.Copy(f, from) // the manager is gone, or it ended
}

func exec(n Node, w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	spec := container.ExecSpec{Args: q["arg"], Env: q["env"], TTY: q.Get("tty") == "true"}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	f := &flushing{w, http.NewResponseController(w)}
	if f.c.Flush() != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	name := r.PathValue("name")
	Exec(ctx, cancel, func(ctx context.Context, e container.ExecSpec) (int, error) { return n.Exec(ctx, name, e) }, spec, api.NewExecStream(r.Body, f))
}

// flushing sends each piece at once, within a bounded time.
type flushing struct {
	w io.Writer
	c *http.ResponseController
}

func (f *flushing) Write(p []byte) (int, error) {
	if err := f.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}
