package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/pki"
)

// Times of the agents' listener.
const (
	HandshakeTimeout = 10 * time.Second
	sayAgain         = 10 * time.Minute // failures of one address are logged once in this time
	authorityTimeout = 20 * time.Second
	maxTold          = 4096 // addresses of which failures are logged
)

// agentServer is the listener of agents elsewhere: TLS, with a certificate for all but joining.
type agentServer struct {
	a         *API
	listener  net.Listener // TCP
	authority *pki.Authority
	addresses []string
	ready     chan net.Conn         // handshakes that are done
	told      bounded.Rates[string] // failures that were logged
	images    imageGate

	mu   sync.Mutex
	cert *tls.Certificate
}

func (x *API) listenAgents(address string) (*agentServer, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen for agents on %q: %w: want ADDRESS:PORT, for example 0.0.0.0:7412", address, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), authorityTimeout)
	defer cancel()
	a, err := x.Keys.Authority(ctx)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for agents on %s: %w: choose another address with --agents", address, err)
	}
	s := &agentServer{
		a: x, authority: a, addresses: addresses(host), ready: make(chan net.Conn),
		told:     bounded.Rates[string]{Burst: 1, Refill: sayAgain, Max: maxTold},
		listener: newGate(l, agentBounds, sourceAddress),
	}
	if _, err := s.certificate(nil); err != nil {
		l.Close()
		return nil, err
	}
	return s, nil
}

// addresses are those by which a listener is reached, for its certificate.
func addresses(host string) []string {
	ip := net.ParseIP(host)
	if host != "" && (ip == nil || !ip.IsUnspecified()) {
		return []string{host}
	}
	var out []string
	if name, err := os.Hostname(); err == nil {
		out = append(out, name)
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return out
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			out = append(out, n.IP.String())
		}
	}
	return out
}

// certificate is that of the listener; it is made anew in time.
func (s *agentServer) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.a.Now()
	if s.cert != nil && now.Before(pki.RenewAt(s.cert.Leaf.NotBefore, s.cert.Leaf.NotAfter)) {
		return s.cert, nil
	}
	c, err := s.authority.Manager(now, pki.ManagerLife, s.addresses...)
	if err != nil {
		return nil, err
	}
	s.cert = &c
	return s.cert, nil
}

func (s *agentServer) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: s.certificate, Time: s.a.Now,
		ClientAuth:             tls.RequestClientCert, // judged by the handler, which can say what is wrong with it
		SessionTicketsDisabled: true,
	}
}

// serve answers until the listener is closed.
func (s *agentServer) serve(srv *http.Server) error {
	config := s.config()
	go s.accept(config)
	return srv.Serve(tlsListener{s})
}

// accept does the handshakes, each in its own goroutine, for which the connections are bounded.
func (s *agentServer) accept(config *tls.Config) {
	defer close(s.ready)
	var wg sync.WaitGroup
	defer wg.Wait()
	ended, end := context.WithCancel(context.Background())
	defer end()
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors left, for example
			s.a.Log.Error("accept an agent", "error", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ended.Done():
			}
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ended, HandshakeTimeout)
			defer cancel()
			t := tls.Server(c, config)
			if err := t.HandshakeContext(ctx); err != nil {
				s.warn(HostOf(c.RemoteAddr().String()), "someone does not speak TLS with the agents' listener", err)
				c.Close()
				return
			}
			select {
			case s.ready <- t:
			case <-ctx.Done():
				t.Close()
			}
		})
	}
}

// tlsListener hands out connections whose handshake is done.
type tlsListener struct{ s *agentServer }

func (l tlsListener) Accept() (net.Conn, error) {
	c, ok := <-l.s.ready
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l tlsListener) Close() error   { return l.s.listener.Close() }
func (l tlsListener) Addr() net.Addr { return l.s.listener.Addr() }

// Agent is who presents a valid certificate; known, but not joined: see checkMember.
type Agent struct{ Host, Key string }

// certified is an agent and until when its certificate is valid.
type certified struct {
	Agent
	until time.Time
}

type (
	agentKey struct{} // agent: who asks
	certKey  struct{} // *x509.Certificate of a connection, or nil
	peerKey  struct{} // string: the address it came from, without port
)

// withAgent notes who asks.
func withAgent(ctx context.Context, a Agent) context.Context {
	return context.WithValue(ctx, agentKey{}, a)
}

// AgentOf is the agent that asks, if one does and not an administrator.
func AgentOf(ctx context.Context) (Agent, bool) {
	a, ok := ctx.Value(agentKey{}).(Agent)
	return a, ok
}

// PeerOf is the address that a request came from, without its port.
func PeerOf(r *http.Request) string {
	if p, ok := r.Context().Value(peerKey{}).(string); ok {
		return p
	}
	return HostOf(r.RemoteAddr)
}

// HostOf is an address without its port.
func HostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// connContext notes what TLS knows of a connection.
func (s *agentServer) connContext(ctx context.Context, c net.Conn) context.Context {
	ctx = context.WithValue(ctx, peerKey{}, HostOf(c.RemoteAddr().String()))
	var cert *x509.Certificate
	if t, ok := c.(*tls.Conn); ok {
		if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 {
			cert = certs[0]
		}
	}
	return withGate(context.WithValue(ctx, certKey{}, cert), c)
}

// handler lets agents do what agents may, and anybody join.
func (s *agentServer) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != JoinPath && r.URL.Path != "/healthz" {
			who, err := s.who(r)
			if err == nil {
				err = Show(r)
			}
			if err == nil {
				err = mayAgent(r, who.Host)
			}
			var ctx context.Context
			var leave func()
			if err == nil {
				ctx, leave, err = s.a.Hosts.Enter(withAgent(r.Context(), who.Agent), who.Agent, who.until.Sub(s.a.Now()))
			}
			if err != nil {
				s.warn(PeerOf(r), "an agent is refused", err)
				s.a.auditAgent(r, who, err)
				s.a.fail(&tracked{ResponseWriter: w}, r, err)
				return
			}
			defer leave()
			r = r.WithContext(ctx)
			if isImages(r) {
				s.serveImages(w, r, who.Host)
				return
			}
		}
		s.a.mux.ServeHTTP(w, r)
	})
}

// auditAgent records that an agent, or somebody at its listener, is refused.
func (a *API) auditAgent(r *http.Request, who certified, err error) {
	p := ProblemOf(err)
	if p.Status != http.StatusUnauthorized && p.Status != http.StatusForbidden {
		return
	}
	rec := api.AuditRecord{Who: "nobody", From: PeerOf(r), Verb: strings.ToLower(r.Method), Object: r.URL.Path, Status: p.Status, Problem: p.Error()}
	if p.Status == http.StatusUnauthorized { // whatever it asked for
		rec.Verb, rec.Object = "authenticate", ""
	}
	if who.Host != "" {
		rec.Who, rec.Role = "host "+who.Host, api.RoleAgent
	}
	a.Audit.Tell(rec, true)
}

// who checks a connection's certificate, at each request anew: it may expire or be replaced meanwhile.
func (s *agentServer) who(r *http.Request) (certified, error) {
	cert, _ := r.Context().Value(certKey{}).(*x509.Certificate)
	if cert == nil {
		return certified{}, api.Refuse(http.StatusUnauthorized, "this listener is for agents, which show a certificate: join with a token first (weir agent)")
	}
	host, err := s.authority.Check(cert, s.a.Now())
	if err != nil {
		return certified{}, api.Refuse(http.StatusUnauthorized, err.Error())
	}
	who := certified{Agent{Host: host, Key: pki.KeyHash(cert)}, cert.NotAfter}
	if err := s.a.Hosts.Check(r.Context(), who.Host, who.Key); err != nil {
		return certified{}, err
	}
	return who, nil
}

// warn says the same of one address once in a while.
func (s *agentServer) warn(peer, message string, err error) {
	if s.told.Take(peer+" "+message, s.a.Now()) {
		s.a.Log.Warn(message+" (said once in "+sayAgain.String()+" of an address)", "peer", peer, "error", err)
	}
}
