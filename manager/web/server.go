package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"weir.dev/weir/api"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	drainTimeout  = 5 * time.Second
	maxHeader     = 256 << 10
)

// KindTokens are tokens of both sorts, in the audit log.
const KindTokens api.Kind = "token"

// ServeOptions say where the API is offered.
type ServeOptions struct {
	Socket    string // Unix socket, mode 0600: whoever can open it is root
	Listen    string // loopback address and port of TCP, "" none; needs the token
	TokenFile string // made with mode 0600 if it does not exist
	UI        string // loopback address and port of the web UI, "" none
	UIMoves   bool   // to a free port, if that one is taken
	Agents    string // host:port of TLS for agents elsewhere, "" none
}

// Server is a manager that listens.
type Server struct {
	a         *API
	socket    string
	listeners []net.Listener
	tcp       net.Addr
	gate      *gate // of TCP, nil if it is not served
	ui        *gate // of the web UI, nil if it is not served
	agents    *agentServer
}

// Listen takes the socket and the port; Serve answers on them.
func (a *API) Listen(o ServeOptions) (*Server, error) {
	s := &Server{a: a}
	if o.Listen != "" {
		if err := s.listenTCP(o); err != nil {
			return nil, err
		}
	}
	if o.UI != "" && a.UI != nil {
		if err := s.listenUI(o); err != nil {
			s.close()
			return nil, err
		}
	}
	if o.Socket != "" {
		l, err := listenUnix(o.Socket)
		if err != nil {
			s.close()
			return nil, err
		}
		s.socket = o.Socket
		s.listeners = append(s.listeners, l)
	}
	if o.Agents != "" {
		var err error
		if s.agents, err = a.listenAgents(o.Agents); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// AgentsAddr is where agents join, nil if nowhere.
func (s *Server) AgentsAddr() net.Addr {
	if s.agents == nil {
		return nil
	}
	return s.agents.listener.Addr()
}

// TCPAddr is where TCP is served, nil if nowhere.
func (s *Server) TCPAddr() net.Addr { return s.tcp }

// UIAddr is where the web UI is served, nil if nowhere.
func (s *Server) UIAddr() net.Addr {
	if s.ui == nil {
		return nil
	}
	return s.ui.Addr()
}

func checkLoopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen on %q: %w: want host:port, for example 127.0.0.1:7411", address, err)
	}
	ip := net.ParseIP(host)
	if host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("listen on %q: that is not loopback, and the token would travel in clear: use 127.0.0.1, and from elsewhere a tunnel to it (ssh -L)", address)
	}
	return nil
}

// listenUI takes the address of the web UI.
func (s *Server) listenUI(o ServeOptions) error {
	if err := checkLoopback(o.UI); err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.UI)
	if err != nil && o.UIMoves {
		if l, err = listenBeside(o.UI); err == nil {
			s.a.Log.Warn("the web UI has another port: its own is taken (choose one with --ui)", "wanted", o.UI, "address", l.Addr())
		}
	}
	if err != nil {
		return fmt.Errorf("serve the web UI on %s: %w: choose another address with --ui, or --ui none", o.UI, err)
	}
	s.ui = newGate(l, apiBounds, localUser)
	return nil
}

// Ports that are tried where the UI's own is taken: the same ones in the same order at each start, so that a bookmark and a session last. The API and the agents have the
// next ports of each by default.
const (
	besideStep  = 10
	besideTries = 9
)

// listenBeside takes a port near one that is taken, else any.
func listenBeside(address string) (net.Listener, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if port, err := strconv.Atoi(text); err == nil && port > 0 {
		for i := 1; i <= besideTries && port+i*besideStep < 1<<16; i++ {
			if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+i*besideStep))); err == nil {
				return l, nil
			}
		}
	}
	return net.Listen("tcp", net.JoinHostPort(host, "0"))
}

func (s *Server) listenTCP(o ServeOptions) error {
	err := checkLoopback(o.Listen)
	if err != nil {
		return err
	}
	if err = s.a.Tokens.OpenFile(o.TokenFile); err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w: choose another address with --listen, or --listen none", o.Listen, err)
	}
	s.tcp = l.Addr()
	s.gate = newGate(l, apiBounds, localUser)
	s.listeners = append(s.listeners, s.gate)
	return nil
}

// listenUnix listens on a socket of mode 0600. It is made in a directory that only its owner can enter, then moved: at no moment
// can others open it. A socket that nobody answers on is left over from a crash and replaced.
func listenUnix(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another weir answers there: stop it with `weir down`, or use another --name", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer os.RemoveAll(dir)
	fresh := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func (s *Server) close() {
	for _, l := range s.listeners {
		l.Close()
	}
	if s.ui != nil {
		s.ui.Close()
	}
	if s.agents != nil {
		s.agents.listener.Close()
	}
	if s.socket != "" {
		os.Remove(s.socket)
	}
}

// Serve answers until ctx ends; then it lets requests finish for a few seconds, and ends streams at once.
func (s *Server) Serve(ctx context.Context) error {
	defer s.close()
	if len(s.listeners) == 0 && s.agents == nil {
		return errors.New("serve: neither a socket nor a TCP address given")
	}
	streams, endStreams := context.WithCancel(context.Background())
	defer endStreams()
	// Each connection carries who its peer is, as far as the socket tells.
	srv := s.server(s.handler(), func(ctx context.Context, c net.Conn) context.Context {
		ctx = context.WithValue(ctx, streamsKey{}, streams)
		if who, unix := socketCaller(c); unix {
			ctx = WithCaller(ctx, who)
		}
		return withGate(ctx, c)
	})
	ended := make(chan error, len(s.listeners)+2)
	for _, l := range s.listeners {
		go func() { ended <- srv.Serve(l) }()
	}
	servers := []*http.Server{srv}
	// The web UI has a listener of its own: cookies count there only, and tokens do not.
	if s.ui != nil {
		forBrowsers := s.server(s.a.UI.Handler(s.a.mux, s.a.refuseBrowser), func(ctx context.Context, c net.Conn) context.Context {
			return withGate(context.WithValue(ctx, streamsKey{}, streams), c)
		})
		servers = append(servers, forBrowsers)
		s.a.UI.Serves(s.ui.Addr())
		defer s.a.UI.Serves(nil)
		go func() { ended <- forBrowsers.Serve(s.ui) }()
		go s.a.UI.KeepChecking(streams)
	}
	// Agents have a listener of their own, with TLS and other bounds.
	if s.agents != nil {
		forAgents := s.server(s.agents.handler(), func(ctx context.Context, c net.Conn) context.Context {
			return s.agents.connContext(context.WithValue(ctx, streamsKey{}, streams), c)
		})
		forAgents.HTTP2 = &http.HTTP2Config{SendPingTimeout: idleTimeout / 4, PingTimeout: headerTimeout}
		servers = append(servers, forAgents)
		go func() { ended <- s.agents.serve(forAgents) }()
		go s.a.Hosts.KeepDismissing(streams)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	// Watches end at once; other requests have a moment to end.
	endStreams()
	drain, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, srv := range servers {
		wg.Go(func() {
			if srv.Shutdown(drain) != nil {
				srv.Close()
			}
		})
	}
	wg.Wait()
	s.a.Audit.Settled(drain)
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API: %w", err)
	}
	return nil
}

func (s *Server) server(h http.Handler, connContext func(context.Context, net.Conn) context.Context) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.a.Log.Handler(), slog.LevelDebug),
		ConnContext:       connContext,
	}
}

type streamsKey struct{} // context of the connection: ends when streams have to

// StreamContext ends with the request or when the server wants to stop, whichever is first.
func StreamContext(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	if streams, ok := r.Context().Value(streamsKey{}).(context.Context); ok {
		stop := context.AfterFunc(streams, cancel)
		return ctx, func() { stop(); cancel() }
	}
	return ctx, cancel
}

// Handler serves the API without asking who calls.
func (a *API) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mux.ServeHTTP(w, r.WithContext(WithCaller(r.Context(), local)))
	})
}

// handler finds out who asks: who comes over TCP bears a token, for all but the health check; who comes over the Unix socket is asked by the kernel.
func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, known := r.Context().Value(callerKey{}).(Caller); known {
			s.a.mux.ServeHTTP(w, r)
			return
		}
		if r.URL.Path == "/healthz" {
			if !Shown(r) {
				w.Header().Set("Connection", "close") // it would be ended soon
			}
			s.a.mux.ServeHTTP(w, r)
			return
		}
		c, name, err := s.a.Tokens.Authenticate(r)
		if err == nil {
			err = Show(r)
		}
		if err != nil {
			s.a.refuseCaller(w, r, name, err)
			return
		}
		s.a.mux.ServeHTTP(w, r.WithContext(WithCaller(r.Context(), c)))
	})
}

// refuseCaller answers who cannot say who it is. Attempts are counted in the audit log by address and by the token that is named, if there is one.
func (a *API) refuseCaller(w http.ResponseWriter, r *http.Request, object string, err error) {
	p := ProblemOf(err)
	if !Shown(r) {
		w.Header().Set("Connection", "close")
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
		a.Audit.Tell(api.AuditRecord{Who: "nobody", From: PeerOf(r), Verb: "authenticate", Kind: KindTokens, Object: object, Status: p.Status, Problem: p.Error()}, true)
	}
	a.fail(&tracked{ResponseWriter: w}, r, err)
}

// refuseBrowser answers a browser that has no session, or that another site makes ask. Who shows nothing has tried nothing: that is in no audit log.
func (a *API) refuseBrowser(w http.ResponseWriter, r *http.Request, err error) {
	p := ProblemOf(err)
	if !Shown(r) {
		w.Header().Set("Connection", "close")
	}
	if p.Status == http.StatusForbidden || p.Status == http.StatusUnauthorized && r.Header.Get("Cookie") != "" {
		a.Audit.Tell(api.AuditRecord{Who: "nobody", From: PeerOf(r) + ", web UI", Verb: "authenticate", Kind: KindTokens, Status: p.Status, Problem: p.Error()}, true)
	}
	a.fail(&tracked{ResponseWriter: w}, r, err)
}
