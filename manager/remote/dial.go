package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
)

// Client is the manager's end of a connection: a Node. Make it with Dial.
type Client struct {
	host  string
	http  *http.Client
	conn  net.Conn
	ended chan struct{}
}

// Dial takes over a connection that the agent of a host has opened. It speaks with the first request. Done tells when the connection
// has ended, which the pings find out when nothing else does.
func Dial(host string, conn net.Conn) *Client {
	c := &Client{host: host, ended: make(chan struct{})}
	c.conn = &watchedConn{Conn: conn, closed: sync.OnceFunc(func() { close(c.ended) })}
	once := make(chan net.Conn, 1)
	once <- c.conn
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the connection beneath is TLS already
	c.http = &http.Client{Transport: &http.Transport{
		Protocols:          &protocols,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errConnEnded
			}
		},
	}}
	return c
}

// Open makes the first exchange, so that the pings begin.
func (c *Client) Open(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodGet, "/alive", nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.ended }

// Close ends the connection and all that goes on over it.
func (c *Client) Close() { _ = c.conn.Close() }

// Counters reads ports and rules live from the host's switch.
func (c *Client) Counters(ctx context.Context) (api.Counters, error) {
	var out api.Counters
	err := c.read(ctx, http.MethodGet, "/counters", nil, maxAnswer, &out)
	return out, err
}

// ImageList has the images of the host.
func (c *Client) ImageList(ctx context.Context) ([]api.Image, error) {
	var out []api.Image
	err := c.read(ctx, http.MethodGet, "/images", nil, maxAnswer, &out)
	return out, err
}

// Metrics are what the host's functions tell of themselves.
func (c *Client) Metrics(ctx context.Context) ([]api.FunctionMetrics, error) {
	var out []api.FunctionMetrics
	err := c.read(ctx, http.MethodGet, "/metrics", nil, maxAnswer, &out)
	return out, err
}

// Admit tells what the host has against what is new or changed in a document. The error: it did not say.
func (c *Client) Admit(ctx context.Context, d, changed api.Document) ([]api.Problem, error) {
	b, err := json.Marshal(admission{d, changed})
	if err != nil {
		return nil, err
	}
	var out []api.Problem
	err = c.read(ctx, http.MethodPost, "/admit", bytes.NewReader(b), maxVerdict, &out)
	return out, err
}

// Logs streams a function's output.
func (c *Client) Logs(ctx context.Context, function string, o container.LogOptions) (io.ReadCloser, error) {
	q := url.Values{}
	if o.Tail > 0 {
		q.Set("tail", strconv.Itoa(o.Tail))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	resp, err := c.do(ctx, http.MethodGet, "/functions/"+url.PathEscape(function)+"/logs?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// State is that of a function with a UID that moves to another host.
func (c *Client) State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error) {
	resp, err := c.do(ctx, http.MethodGet, "/functions/"+url.PathEscape(function)+"/state?"+url.Values{"uid": {uid}}.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode == http.StatusNoContent {
		return nil, 0, resp.Body.Close()
	}
	return resp.Body, resp.ContentLength, nil
}

// Capture streams the frames of a port as pcapng.
func (c *Client) Capture(ctx context.Context, kind api.Kind, name string, o api.CaptureOptions) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, "/capture/"+string(kind)+"/"+url.PathEscape(name)+"?"+o.Query().Encode(), nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Flows are those that a function has settled.
func (c *Client) Flows(ctx context.Context, function string, o api.FlowOptions) (api.SettledFlows, error) {
	var out api.SettledFlows
	err := c.read(ctx, http.MethodGet, "/functions/"+url.PathEscape(function)+"/flows?"+o.Query().Encode(), nil, maxVerdict, &out)
	return out, err
}

// Exec runs one more process in a function and returns its exit code.
func (c *Client) Exec(ctx context.Context, function string, e container.ExecSpec) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{"arg": e.Args, "env": e.Env}
	if e.TTY {
		q.Set("tty", "true")
	}
	body, frames := io.Pipe()
	defer frames.Close()
	resp, err := c.do(ctx, http.MethodPost, "/functions/"+url.PathEscape(function)+"/exec?"+q.Encode(), body)
	if err != nil {
		return -1, err
	}
	defer resp.Body.Close()
	return api.NewExecStream(resp.Body, frames).Run(ctx, api.ExecOptions{
		Args: e.Args, Env: e.Env, TTY: e.TTY, Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Resize: e.Resize,
	})
}

func (c *Client) read(ctx context.Context, method, path string, body io.Reader, limit int64, out any) error {
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
	case int64(len(raw)) > limit:
		err = fmt.Errorf("more than %d bytes", limit)
	case bytes.Count(raw, []byte{'{'}) > maxObjects || bytes.Count(raw, []byte{','}) > maxValues:
		err = errTooMany
	default:
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		return fmt.Errorf("answer of host %s: %w", c.host, err)
	}
	return nil
}

// Bounds of what an answer decodes to. A hostile host would fill an answer with empty objects, which take 3 bytes there and 250 in memory. An honest one at its limits (4,096
// ports, 32,768 rules) has about half.
const (
	maxObjects = 200_000
	maxValues  = 2_000_000
)

var errTooMany = fmt.Errorf("more than %d objects or %d values", maxObjects, maxValues)

func (c *Client) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+hostLabel+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("the agent of host %q cannot be asked: %v", c.host, err))
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	p := &api.ProblemError{}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "application/problem+json" || json.Unmarshal(b, p) != nil {
		if resp.StatusCode == http.StatusNotFound { // of the mux: Nodes refuse with a problem
			return nil, api.Refuse(http.StatusConflict, fmt.Sprintf("the agent of host %q is of a version that cannot be asked for this: upgrade it", c.host))
		}
		p = api.Refuse(resp.StatusCode, string(bytes.TrimSpace(b[:min(len(b), 200)])))
	}
	p.Status = resp.StatusCode
	return nil, p
}

// hostLabel stands in requests' URLs; the connection is there already.
const hostLabel = "agent"
