package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/pki"
)

// Timings of an agent's connections to managers.
const (
	dialTimeout   = 3 * time.Second // TCP and TLS, of one manager
	retryFirst    = 100 * time.Millisecond
	retryMax      = 5 * time.Second
	joinTimeout   = 30 * time.Second // one attempt
	renewTimeout  = 10 * time.Second
	imagesTimeout = 15 * time.Second // until a manager answers about an image
	askTimeout    = 5 * time.Second  // whether a certificate is accepted, before an agent begins
)

// member is this host as a member of a Weir elsewhere: its key and certificate, and the ways to the managers.
type member struct {
	host     string
	file     string   // where key and certificates are kept
	managers []string // host:port, each a manager of the same Weir
	log      *slog.Logger
	now      func() time.Time // this host's clock
	id       atomic.Pointer[pki.Identity]
	ahead    atomic.Int64 // ns, of the managers' clock before this host's, as heard last

	mu    sync.Mutex
	good  int // of managers, the one that answered last
	conns map[*memberConn]bool
}

// ErrNotJoined is about a host without a valid certificate, and without a token to join with.
var ErrNotJoined = errors.New("this host has not joined")

// identityFile holds an agent's key and certificates.
func identityFile(i instance.Instance) string { return filepath.Join(i.Root, "agent.pem") }

// enter finds the host's certificate, or joins with a token. It waits for a manager that cannot be reached, until ctx ends; a refusal is
// an error.
func enter(ctx context.Context, o AgentOptions) (*member, error) {
	m := &member{host: o.Host.Name, file: identityFile(o.Instance), managers: o.Managers, log: o.Log, now: o.Now, conns: map[*memberConn]bool{}}
	id, err := pki.LoadIdentity(m.file)
	switch {
	case pki.Missing(err):
		if id, err = pki.NewIdentity(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("the host's identity: %w", err)
	}
	if m.host == "" {
		if m.host, err = ownName(id); err != nil {
			return nil, err
		}
	}
	if id.Joined() && id.Host() != m.host {
		return nil, fmt.Errorf("this instance has joined as host %s, not %s: leave --host out, or take it down first (weir down) and join anew", id.Host(), m.host)
	}
	m.id.Store(id)
	if id.Joined() {
		_, until := id.Valid()
		switch valid := m.now().Before(until); {
		case o.TokenFile == "" && valid:
			return m, nil
		case o.TokenFile == "":
			return m, m.stillMember(ctx)
		case valid && !errors.Is(m.asks(ctx), api.ErrUnauthorized):
			return m, nil
		case valid: // it was deleted, or another took its place: it joins as a new one does
			m.log.Info("the certificate is no longer accepted: joining with the token", "host", m.host)
			if id, err = pki.NewIdentity(); err != nil {
				return nil, err
			}
		}
	}
	if o.TokenFile == "" {
		return nil, fmt.Errorf("%w: make a token at the manager (weir token create) and give it with --token-file", ErrNotJoined)
	}
	token, err := readToken(o.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return m, m.join(ctx, id, token)
}

// stillMember asks the manager about a certificate that has expired by this host's clock: the manager's decides. When no manager answers,
// the host goes on with what is in force.
func (m *member) stillMember(ctx context.Context) error {
	_, until := m.id.Load().Valid()
	err := m.asks(ctx)
	if errors.Is(err, api.ErrUnauthorized) {
		return fmt.Errorf("%w: %w", ErrNotJoined, err)
	}
	m.log.Warn("the certificate has expired by this host's clock: is it right? synchronise it with the manager's (NTP), or join again with a new token (weir token create)",
		"host", m.now().UTC(), "certificate_until", until, "manager_says", err)
	return nil
}

// asks a manager whether it accepts the certificate.
func (m *member) asks(ctx context.Context) error {
	c, err := m.client()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err = c.Beat(ctx, m.host, m.now())
	return err
}

// managersNow is the time by the managers' clock, which judges certificates.
func (m *member) managersNow() time.Time { return m.now().Add(time.Duration(m.ahead.Load())) }

// ownName is the machine's name, as far as it can be a host's.
func ownName(id *pki.Identity) (string, error) {
	if id.Joined() {
		return id.Host(), nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this machine: %w: give one with --host", err)
	}
	name, _, _ = strings.Cut(strings.ToLower(name), ".")
	if err := api.CheckName(name); err != nil {
		return "", fmt.Errorf("this machine's %w: give one with --host", err)
	}
	return name, nil
}

// maxTokenFile bounds a token file in bytes.
const maxTokenFile = 4096

func readToken(path string) (pki.Token, error) {
	var f io.ReadCloser = os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return pki.Token{}, fmt.Errorf("join token: %w", err)
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return pki.Token{}, fmt.Errorf("join token: %w", err)
	}
	t, err := pki.ParseToken(string(b))
	if err != nil {
		return pki.Token{}, fmt.Errorf("join token in %s: %w", path, err)
	}
	return t, nil
}

// join asks the managers in turn until one answers. The key is kept first: asked again after a lost answer, the manager knows it.
func (m *member) join(ctx context.Context, id *pki.Identity, token pki.Token) error {
	if err := id.Save(m.file); err != nil {
		return err
	}
	request, err := id.Request(m.host)
	if err != nil {
		return err
	}
	wait := retryFirst
	for turn := 0; ; turn++ {
		address := m.managers[turn%len(m.managers)]
		answer, err := m.joinAt(ctx, address, token, string(request))
		if err == nil {
			return m.joined(id, answer, token)
		}
		if !errors.Is(err, api.ErrUnreachable) && !errors.Is(err, api.ErrBusy) || errors.Is(err, pki.ErrNotManager) {
			return fmt.Errorf("join the manager at %s: %w", address, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("join the manager at %s: %w (the last try: %w)", address, context.Cause(ctx), err)
		}
		if turn < len(m.managers) {
			m.log.Warn("join: trying again until the manager answers", "manager", address, "error", err)
		}
		if err := pause(ctx, &wait); err != nil {
			return err
		}
	}
}

func (m *member) joinAt(ctx context.Context, address string, token pki.Token, request string) (api.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	c, err := api.Dial(api.Options{URL: "https://" + address, DialTLS: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialTLS(ctx, address, pki.Joining(token, "http/1.1"), nil)
	}})
	if err != nil {
		return api.Certificate{}, err
	}
	defer c.Close()
	return c.Join(ctx, api.JoinRequest{ID: token.ID, Secret: token.Secret, Host: m.host, Request: request, Time: m.now()})
}

func (m *member) joined(id *pki.Identity, a api.Certificate, token pki.Token) error {
	id, err := id.With([]byte(a.Certificate), []byte(a.Authority), token.Authority)
	if err != nil {
		return err
	}
	if err := id.Save(m.file); err != nil {
		return err
	}
	m.id.Store(id)
	m.log.Info("joined", "host", m.host, "certificate_until", a.Expires)
	return nil
}

// keepCurrent renews the certificate at two thirds of its life by the managers' clock, with a new key each time, until ctx ends.
func (m *member) keepCurrent(ctx context.Context, c *api.Client) {
	wait, told := retryFirst, false
	for {
		from, until := m.id.Load().Valid()
		if left := pki.RenewAt(from, until).Sub(m.managersNow()); left > 0 {
			if !sleep(ctx, min(left, api.Beat)) { // then that clock may be known better
				return
			}
			continue
		}
		err := m.renew(ctx, c)
		if err == nil {
			wait, told = retryFirst, false
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			m.log.Warn("renew the host's certificate: trying again", "valid_until", until, "error", err)
		}
		if pause(ctx, &wait) != nil {
			return
		}
	}
}

func (m *member) renew(ctx context.Context, c *api.Client) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	old := m.id.Load()
	id, err := pki.NewIdentity()
	if err != nil {
		return err
	}
	request, err := id.Request(m.host)
	if err != nil {
		return err
	}
	answer, err := c.Renew(ctx, api.CertificateRequest{Request: string(request)})
	if err != nil {
		return err
	}
	if id, err = id.With([]byte(answer.Certificate), []byte(answer.Authority), old.AuthorityHash()); err != nil {
		return err
	}
	if err := id.Save(m.file); err != nil {
		return err
	}
	m.id.Store(id)
	m.log.Info("certificate renewed", "host", m.host, "certificate_until", answer.Expires)
	m.redial(id)
	return nil
}

// client speaks to whichever manager answers.
func (m *member) client() (*api.Client, error) {
	return api.Dial(api.Options{URL: "https://" + m.managers[0], DialTLS: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return m.dialAny(ctx)
	}})
}

// images are those of whichever manager answers.
func (m *member) images() image.Peer {
	return image.Peer{URL: "https://" + m.managers[0], Name: "the manager", Client: &http.Client{Transport: &http.Transport{
		DialTLSContext:    func(ctx context.Context, _, _ string) (net.Conn, error) { return m.dialAny(ctx) },
		ForceAttemptHTTP2: true, ResponseHeaderTimeout: imagesTimeout, IdleConnTimeout: time.Minute, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: imagesTimeout},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// dialAny tries the managers, the one that answered last first.
func (m *member) dialAny(ctx context.Context) (net.Conn, error) {
	m.mu.Lock()
	first := m.good
	m.mu.Unlock()
	var errs []error
	for i := range m.managers {
		n := (first + i) % len(m.managers)
		c, err := m.dial(ctx, m.managers[n], "h2", "http/1.1")
		if err == nil {
			m.mu.Lock()
			m.good = n
			m.mu.Unlock()
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// dial connects to one manager with the certificate of now.
func (m *member) dial(ctx context.Context, address string, protocols ...string) (net.Conn, error) {
	id := m.id.Load()
	return dialTLS(ctx, address, id.Client(m.now, protocols...), func(c net.Conn) net.Conn {
		t := &memberConn{Conn: c, m: m, id: id}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.conns[t] = true
		return t
	})
}

func dialTLS(ctx context.Context, address string, config *tls.Config, wrap func(net.Conn) net.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := (&net.Dialer{KeepAlive: 10 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		c = wrap(c)
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	return t, nil
}

// memberConn is a connection that ends when its certificate is replaced: a manager looks at it with each request.
type memberConn struct {
	net.Conn
	m  *member
	id *pki.Identity
}

func (c *memberConn) Close() error {
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	return c.Conn.Close()
}

// redial ends the connections with former certificates. What goes on over them begins again where it was.
func (m *member) redial(now *pki.Identity) {
	m.mu.Lock()
	var old []*memberConn
	for c := range m.conns {
		if c.id != now {
			old = append(old, c)
		}
	}
	m.mu.Unlock()
	for _, c := range old {
		_ = c.Conn.Close()
	}
}

// pause waits, twice as long each time, somewhat at random so that many hosts do not come at once.
func pause(ctx context.Context, wait *time.Duration) error {
	d := *wait/2 + rand.N(*wait/2+1)
	*wait = min(2**wait, retryMax)
	if !sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// CheckManagers makes host:port of the addresses that a user gave for managers: https://HOST:PORT or HOST:PORT.
func CheckManagers(given []string) ([]string, error) {
	var out []string
	for _, g := range given {
		address, ok := strings.CutPrefix(g, "https://")
		if !ok && strings.Contains(g, "://") {
			return nil, fmt.Errorf("manager %q: want https://HOST:PORT", g)
		}
		address = strings.TrimSuffix(address, "/")
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || port == "" || strings.ContainsAny(address, "/@?# ") {
			return nil, fmt.Errorf("manager %q: want https://HOST:PORT, the address of its --agents", g)
		}
		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no manager given: want https://HOST:PORT with --manager")
	}
	return out, nil
}
