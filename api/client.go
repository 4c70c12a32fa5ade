package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	callTimeout    = 2 * time.Minute // of a call whose context has no deadline
	maxAnswerBytes = 256 << 20
	maxProblem     = 4 << 20
	pingAfter      = 2 * time.Second // of silence
	pingTimeout    = 3 * time.Second
	awayFor        = 5 * time.Second // a daemon that is started again is back within
	awayPoll       = 100 * time.Millisecond
)

// Options say where the API is. The zero value is not usable.
type Options struct {
	Socket string // path of the Unix socket; wins over URL
	URL    string // http://127.0.0.1:PORT
	Token  string // bearer token, needed with http
	// DialTLS, if set, makes the connections of an https URL, TLS included: agents know managers by certificates of their own.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	Away    time.Duration // how long a manager may be out of reach while something is waited for; default 5 s
}

// Client speaks to the manager. Safe for use by several goroutines.
type Client struct {
	http  *http.Client
	base  string // http://host
	where string // as messages name it
	token string
	away  time.Duration
}

// Dial makes a client. It connects with the first call; an address that is none is refused here.
func Dial(o Options) (*Client, error) {
	t := &http.Transport{
		MaxIdleConns:        16,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
	if o.DialTLS != nil {
		t.DialTLSContext, t.ForceAttemptHTTP2 = o.DialTLS, true
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout} // finds a connection whose other end is gone
	}
	c := &Client{http: &http.Client{Transport: t}, token: o.Token, away: cmp.Or(o.Away, awayFor)}
	switch {
	case o.Socket != "":
		c.base, c.where = "http://weir", o.Socket
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", o.Socket)
		}
	case o.URL != "":
		u, err := url.Parse(o.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("address %q: want http://HOST:PORT, for example http://127.0.0.1:7411", o.URL)
		}
		c.base, c.where = strings.TrimSuffix(u.String(), "/"), u.Host
	default:
		return nil, errors.New("neither a socket nor a URL given: want the path of weir's API socket, for example /run/weir/0/api.sock")
	}
	return c, nil
}

// Close drops idle connections. Watches end with their contexts.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Endpoints are the switch ports where users' traffic enters.
func (c *Client) Endpoints() Resource[Endpoint, EndpointSpec] {
	return resource[Endpoint, EndpointSpec](c, KindEndpoint)
}

// Functions are the running network functions; for their verbs see Start, Stop, Restart, Logs and Exec.
func (c *Client) Functions() Resource[Function, FunctionSpec] {
	return resource[Function, FunctionSpec](c, KindFunction)
}

// Chains are the ordered lists of functions.
func (c *Client) Chains() Resource[Chain, ChainSpec] { return resource[Chain, ChainSpec](c, KindChain) }

// Policies say which traffic goes through which chain.
func (c *Client) Policies() Resource[Policy, PolicySpec] {
	return resource[Policy, PolicySpec](c, KindPolicy)
}

// Hosts are the machines with an agent.
func (c *Client) Hosts() Resource[Host, HostSpec] { return resource[Host, HostSpec](c, KindHost) }

// Switches are the OpenFlow switches of the fabric; the router writes them.
func (c *Client) Switches() Reader[Switch] { return Reader[Switch]{c, KindSwitch} }

// Assignments are what the router wants of hosts' switches; each bears its host's name.
func (c *Client) Assignments() Reader[Assignment] { return Reader[Assignment]{c, KindAssignment} }

// Events are what was worth telling.
func (c *Client) Events() Reader[Event] { return Reader[Event]{c, KindEvent} }

// Operations are the long actions, running and past.
func (c *Client) Operations() Reader[Operation] { return Reader[Operation]{c, KindOperation} }

// Apply checks a whole document and commits it in one step or not at all; with Plan it only says what would change.
func (c *Client) Apply(ctx context.Context, r ApplyRequest) (ApplyResult, error) {
	var out ApplyResult
	_, err := c.call(ctx, http.MethodPost, "/v1/apply", r, &out)
	return out, err
}

// Delete deletes many objects in one step, or none. It does not wait until they are gone: a watch tells.
func (c *Client) Delete(ctx context.Context, r DeleteRequest) (DeleteResult, error) {
	var out DeleteResult
	_, err := c.call(ctx, http.MethodPost, "/v1/delete", r, &out)
	return out, err
}

// Drain moves a host's functions to others, or with Plan says which would move. It does not wait until they have left: the host's status tells.
func (c *Client) Drain(ctx context.Context, host string, r DrainRequest) (DrainResult, error) {
	var out DrainResult
	_, err := c.call(ctx, http.MethodPost, "/v1/hosts/"+url.PathEscape(host)+"/drain", r, &out)
	return out, err
}

// Report is an agent's news.
func (c *Client) Report(ctx context.Context, r StatusReport) error {
	_, err := c.call(ctx, http.MethodPost, "/v1/status", r, nil)
	return err
}

// Fabric is the router's news.
func (c *Client) Fabric(ctx context.Context, r FabricReport) error {
	_, err := c.call(ctx, http.MethodPost, "/v1/fabric", r, nil)
	return err
}

// SwitchRules reads a fabric switch's entries live.
func (c *Client) SwitchRules(ctx context.Context, name string) (SwitchRules, error) {
	var out SwitchRules
	_, err := c.call(ctx, http.MethodGet, "/v1/switches/"+url.PathEscape(name)+"/rules", nil, &out)
	return out, err
}

// SwitchCounters reads the counters of a fabric switch's ports live.
func (c *Client) SwitchCounters(ctx context.Context, name string) (SwitchCounters, error) {
	var out SwitchCounters
	_, err := c.call(ctx, http.MethodGet, "/v1/switches/"+url.PathEscape(name)+"/counters", nil, &out)
	return out, err
}

// Counters reads a host's ports and rules live from its switch.
func (c *Client) Counters(ctx context.Context, host string) (Counters, error) {
	var out Counters
	_, err := c.call(ctx, http.MethodGet, "/v1/hosts/"+url.PathEscape(host)+"/counters", nil, &out)
	return out, err
}

// Path gives the ports that a policy's packets really meet, with live counters.
func (c *Client) Path(ctx context.Context, policy string) (PolicyPath, error) {
	var out PolicyPath
	_, err := c.call(ctx, http.MethodGet, "/v1/policies/"+url.PathEscape(policy)+"/path", nil, &out)
	return out, err
}

// Trace tells what becomes of a packet.
func (c *Client) Trace(ctx context.Context, q TraceQuery) (Trace, error) {
	v := url.Values{}
	for name, value := range map[string]string{"from": q.From, "to": q.To, "match": q.Match, "source": q.Source, "destination": q.Destination} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for name, value := range map[string]int{"source_port": q.SourcePort, "vlan": q.VLAN} {
		if value != 0 {
			v.Set(name, strconv.Itoa(value))
		}
	}
	var out Trace
	_, err := c.call(ctx, http.MethodGet, "/v1/trace?"+v.Encode(), nil, &out)
	return out, err
}

// Health is nil when the manager answers and its store works.
func (c *Client) Health(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, "/healthz", nil, nil)
	return err
}

// Returns waits until the manager answers again: one that is started anew, after a crash or for an upgrade, is soon back. One that stays out of
// reach for Options.Away, because it was taken down, is ErrUnreachable.
func (c *Client) Returns(ctx context.Context) error {
	tick := time.NewTicker(awayPoll)
	defer tick.Stop()
	for gone := time.Now(); ; {
		err := c.Health(ctx)
		if !errors.Is(err, ErrUnreachable) { // also where ctx has ended, and where it answers that it is not well
			return nil
		}
		if time.Since(gone) > c.away {
			return fmt.Errorf("%w (waited %v for it)", err, c.away)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// call does one request with a JSON body and decodes a JSON answer into out, if it is not nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any, conds ...Cond) (*http.Response, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	header := http.Header{}
	for _, cond := range conds {
		header.Set(cond.header, cond.value)
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
		kind := "application/json"
		if method == http.MethodPatch {
			kind = "application/merge-patch+json"
		}
		header.Set("Content-Type", kind)
	}
	resp, err := c.do(ctx, method, path, header, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxProblem)) // lets the connection be used again
		return resp, nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(out); err != nil {
		return nil, fmt.Errorf("%s %s: answer of %s: %w", method, path, c.where, err)
	}
	return resp, nil
}

// do sends a request and turns every answer that is no success into an error. The caller closes the body.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	return c.send(ctx, method, path, header, body, 0)
}

// send is do with a body whose length net/http cannot know; 0: it can.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body io.Reader, length int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if length > 0 {
		req.ContentLength = length
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, problemOf(resp)
}

// unreachable says what to do about an error of the transport.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("weir at %s: %w", c.where, context.Cause(ctx))
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w at %s: permission denied: run it as root, or use the loopback address with the token", ErrUnreachable, c.where)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w at %s: is weir up? start it with `weir up`", ErrUnreachable, c.where)
	}
	return fmt.Errorf("%w at %s: %w", ErrUnreachable, c.where, err)
}

// problemOf reads the problem from an answer; one that is no problem document becomes one.
func problemOf(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	p := &ProblemError{}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "application/problem+json" || json.Unmarshal(b, p) != nil {
		p = Refuse(resp.StatusCode, strings.TrimSpace(string(b[:min(len(b), 200)])))
	}
	p.Status = resp.StatusCode
	return p
}
