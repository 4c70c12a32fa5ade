package manager

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/store"
)

// node finds who answers for a host.
func (m *Manager) node(host string) (Node, error) {
	if n := m.Node(host); n != nil {
		return n, nil
	}
	return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("the agent of host %q cannot be asked from here: is it running?", host))
}

// nodeOf finds who answers for a function.
func (m *Manager) nodeOf(ctx context.Context, name string) (Node, error) {
	f, err := store.Get[api.Function](ctx, m.Store, api.KindFunction, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(api.KindFunction, name)
	}
	if err != nil {
		return nil, err
	}
	return m.node(f.Status.Host)
}

// live turns an error of a Node into a problem.
func live(err error) error {
	switch {
	case errors.Is(err, container.ErrNotFound):
		return api.Refuse(http.StatusConflict, err.Error()+": is the function created yet?")
	case errors.Is(err, container.ErrState):
		return api.Refuse(http.StatusConflict, err.Error())
	}
	return err
}

func (m *Manager) counters(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if _, err := m.Store.Get(r.Context(), store.Key(api.KindHost, name)); errors.Is(err, store.ErrNotFound) {
		return notFound(api.KindHost, name)
	} else if err != nil {
		return err
	}
	n, err := m.node(name)
	if err != nil {
		return err
	}
	c, err := n.Counters(r.Context())
	if err != nil {
		return live(err)
	}
	if c.Ports == nil {
		c.Ports = []api.PortCounters{}
	}
	if c.Rules == nil {
		c.Rules = []api.RuleCounters{}
	}
	return answer(w, http.StatusOK, c)
}

// path answers with a policy's rendered path and the counters of each port on it.
func (m *Manager) path(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	p, err := store.Get[api.Policy](r.Context(), m.Store, api.KindPolicy, name)
	if errors.Is(err, store.ErrNotFound) {
		return notFound(api.KindPolicy, name)
	}
	if err != nil {
		return err
	}
	ports := map[string]api.PortCounters{}
	if len(p.Status.RenderedPath) > 0 {
		n, err := m.node("")
		if err != nil {
			return err
		}
		c, err := n.Counters(r.Context())
		if err != nil {
			return live(err)
		}
		for _, port := range c.Ports {
			ports[port.Name] = port
		}
	}
	return answer(w, http.StatusOK, api.PolicyPath{
		Policy: name, State: p.Status.State, Message: p.Status.Message,
		Forward: hops(p.Status.RenderedPath, ports), Reverse: hops(p.Status.RenderedReverse, ports),
	})
}

func hops(names []string, ports map[string]api.PortCounters) []api.Hop {
	out := []api.Hop{}
	for _, name := range names {
		p, ok := ports[name]
		out = append(out, api.Hop{Port: name, Link: p.Link, State: p.State, Live: ok, Rx: p.Rx, Tx: p.Tx, Dropped: p.Dropped})
	}
	return out
}

// logs streams a function's output as text.
func (m *Manager) logs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	o := container.LogOptions{Follow: q.Has("follow") && q.Get("follow") != "false"}
	if s := q.Get("tail"); s != "" {
		var err error
		if o.Tail, err = strconv.Atoi(s); err != nil || o.Tail < 0 {
			return api.Refuse(http.StatusBadRequest, "the query is refused",
				api.Problem{Path: "query.tail", Message: "is " + strconv.Quote(s), Hint: "want a number of lines"})
		}
	}
	n, err := m.nodeOf(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	release, err := acquire(m.streams, "logs and execs")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := m.streamContext(r)
	defer cancel()
	logs, err := n.Logs(ctx, r.PathValue("name"), o)
	if err != nil {
		return live(err)
	}
	defer logs.Close()
	defer context.AfterFunc(ctx, func() { logs.Close() })() // a blocked read ends with the request
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.Copy(flushing{w, http.NewResponseController(w)}, logs) // the client is gone, or the log ended
	return nil
}

// flushing sends each piece at once.
type flushing struct {
	w io.Writer
	c *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	if err := f.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}

// exec runs a process in a function over an upgraded connection; see api.ExecProtocol.
func (m *Manager) exec(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	spec := container.ExecSpec{Args: q["arg"], Env: q["env"], TTY: q.Get("tty") == "true"}
	if len(spec.Args) == 0 {
		return api.Refuse(http.StatusBadRequest, "nothing to run", api.Problem{Path: "query.arg", Message: "is missing", Hint: "want the program and its arguments, one arg each"})
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), api.ExecProtocol) {
		w.Header().Set("Upgrade", api.ExecProtocol)
		return api.Refuse(http.StatusUpgradeRequired, "exec needs the headers `Connection: Upgrade` and `Upgrade: "+api.ExecProtocol+"`")
	}
	name := r.PathValue("name")
	n, err := m.nodeOf(r.Context(), name)
	if err != nil {
		return err
	}
	release, err := acquire(m.streams, "logs and execs")
	if err != nil {
		return err
	}
	defer release()
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", api.ExecProtocol); err != nil {
		return nil // the client is gone
	}
	ctx, cancel := m.streamContext(r)
	defer cancel()
	execOver(ctx, cancel, n, name, spec, rw.Reader, conn)
	return nil
}

// execOver joins a process with a framed connection. When the client goes, the process is ended by its context.
func execOver(ctx context.Context, cancel context.CancelFunc, n Node, name string, spec container.ExecSpec, r *bufio.Reader, conn io.Writer) {
	s := api.NewExecStream(r, conn)
	in, stdin := io.Pipe()
	defer in.Close()
	resize := make(chan [2]uint16, 1)
	spec.Stdin, spec.Resize = in, resize
	spec.Stdout, spec.Stderr = s.Writer(api.ExecStdout), s.Writer(api.ExecStderr)
	go func() {
		defer stdin.Close()
		for {
			t, p, err := s.Receive()
			switch {
			case err != nil:
				cancel()
				return
			case t == api.ExecStdin:
				_, _ = stdin.Write(p) // fails once the process has ended
			case t == api.ExecStdinClose:
				stdin.Close()
			case t == api.ExecResize && len(p) == 4:
				select {
				case <-resize: // only the last size counts
				default:
				}
				resize <- [2]uint16{binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])}
			}
		}
	}()
	code, err := n.Exec(ctx, name, spec)
	if err != nil {
		_ = s.Send(api.ExecError, []byte(err.Error()))
		return
	}
	_ = s.Send(api.ExecExit, binary.BigEndian.AppendUint32(nil, uint32(int32(code))))
}

// health answers whether the store works.
func (m *Manager) health(w http.ResponseWriter, r *http.Request) error {
	if err := m.Health(); err != nil {
		return api.Refuse(http.StatusServiceUnavailable, err.Error())
	}
	if _, err := m.Store.Count(r.Context(), store.Prefix(api.KindHost)); err != nil {
		return err
	}
	return answer(w, http.StatusOK, json.RawMessage(`{"status":"ok"}`))
}
