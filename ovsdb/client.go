package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Options of a connection; the zero value is usable.
type Options struct {
	MaxMessage int // bytes of one message; 0: 64 MiB
}

// writeTime bounds one write.
const writeTime = 10 * time.Second

// Client is a connection. All methods may be called from several goroutines.
type Client struct {
	opts Options
	nc   net.Conn
	done chan struct{}

	writing sync.Mutex

	mu      sync.Mutex
	err     error
	next    uint64
	waiting map[uint64]chan message
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// Dial connects to "unix:PATH" or "tcp:HOST:PORT".
func Dial(ctx context.Context, address string, o Options) (*Client, error) {
	network, at, ok := strings.Cut(address, ":")
	if !ok || at == "" || network != "unix" && network != "tcp" {
		return nil, fmt.Errorf("ovsdb: address %q: want unix:PATH or tcp:HOST:PORT", address)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, network, at)
	if err != nil {
		return nil, fmt.Errorf("ovsdb: connect to %s: %w", address, err)
	}
	return New(nc, o), nil
}

// New speaks the protocol on a connection.
func New(nc net.Conn, o Options) *Client {
	if o.MaxMessage == 0 {
		o.MaxMessage = 64 << 20
	}
	c := &Client{opts: o, nc: nc, done: make(chan struct{}), waiting: map[uint64]chan message{}}
	go c.read()
	return c
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is why the connection ended, nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection. Calls that wait fail with ErrClosed. Safe to call twice.
func (c *Client) Close() error {
	c.end(ErrClosed)
	return nil
}

func (c *Client) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	c.nc.Close()
	close(c.done)
}

// budget is a reader that ends when one message is too long.
type budget struct {
	r    io.Reader
	left int
}

var errTooLong = errors.New("message too long")

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

func (c *Client) read() {
	in := &budget{r: c.nc}
	d := json.NewDecoder(in)
	for {
		in.left = c.opts.MaxMessage
		var m message
		if err := d.Decode(&m); err != nil {
			c.end(readError(err, c.opts.MaxMessage))
			return
		}
		if err := c.dispatch(m); err != nil {
			c.end(err)
			return
		}
	}
}

func readError(err error, limit int) error {
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.Is(err, errTooLong):
		return fmt.Errorf("%w: longer than %d bytes", ErrMalformed, limit)
	case errors.As(err, &syntax), errors.As(err, &wrong), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w by the peer", ErrClosed)
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func (c *Client) dispatch(m message) error {
	switch {
	case m.Method == "echo":
		go func() { // the reader must not wait for the writer
			_ = c.write(map[string]any{"id": m.ID, "result": m.Params, "error": nil})
		}()
		return nil
	case m.Method != "":
		return nil // a notification that nobody asked for ("update", "locked", "stolen", of newer servers)
	}
	var id uint64
	if err := json.Unmarshal(m.ID, &id); err != nil {
		return fmt.Errorf("%w: reply with the id %s", ErrMalformed, clip(m.ID))
	}
	c.mu.Lock()
	reply := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if reply != nil { // else its caller has given up
		reply <- m
	}
	return nil
}

func clip(b []byte) string {
	if len(b) > 64 {
		return string(b[:64]) + "..."
	}
	return string(b)
}

func (c *Client) write(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("ovsdb: encode: %w", err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.nc.SetWriteDeadline(time.Now().Add(writeTime)); err == nil {
		_, err = c.nc.Write(b)
		if err == nil {
			return nil
		}
		c.end(fmt.Errorf("%w: write: %w", ErrClosed, err)) // half a message may be out
	}
	return c.reason()
}

func (c *Client) reason() error {
	if err := c.Err(); err != nil {
		return err
	}
	return ErrClosed
}

// Call sends a request and reads its result, which may be nil if nobody wants it. A refusal is a *RPCError. It also speaks to the control
// sockets of Open vSwitch's daemons, whose parameters and results are strings.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	reply := make(chan message, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.next++
	id := c.next
	c.waiting[id] = reply
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}
	if err := c.write(map[string]any{"id": id, "method": method, "params": params}); err != nil {
		forget()
		return err
	}
	select {
	case m := <-reply:
		return m.decode(method, result)
	case <-ctx.Done():
		forget()
		return fmt.Errorf("ovsdb: %s: %w", method, ctx.Err())
	case <-c.done:
		forget()
		select {
		case m := <-reply:
			return m.decode(method, result)
		default:
		}
		return fmt.Errorf("ovsdb: %s: %w", method, c.reason())
	}
}

func (m *message) decode(method string, result any) error {
	if len(m.Error) > 0 && string(m.Error) != "null" {
		return remoteError(method, m.Error)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return fmt.Errorf("ovsdb: %s: result: %w", method, err)
	}
	return nil
}

// Echo asks for a sign of life (4.1.11).
func (c *Client) Echo(ctx context.Context) error {
	return c.Call(ctx, "echo", []string{"weir"}, nil)
}

// Transact executes operations as one transaction (4.1.3) and returns a result each. If one fails, nothing is in force and the error
// is a *OpError.
func (c *Client) Transact(ctx context.Context, db string, ops ...Op) ([]Result, error) {
	params := make([]any, 0, len(ops)+1)
	params = append(params, db)
	for _, o := range ops {
		params = append(params, o.fields())
	}
	var replies []*struct {
		UUID    json.RawMessage
		Rows    []Row
		Count   int
		Error   string
		Details string
	}
	if err := c.Call(ctx, "transact", params, &replies); err != nil {
		return nil, err
	}
	results := make([]Result, len(ops))
	for i, r := range replies {
		if r == nil {
			continue // not executed, since one before failed
		}
		if r.Error != "" {
			e := &OpError{Index: i, Op: "commit", Code: r.Error, Details: r.Details}
			if i < len(ops) {
				f := ops[i].fields()
				e.Op, e.Table = f["op"].(string), f["table"].(string)
			}
			return nil, e
		}
		if i >= len(ops) {
			continue
		}
		results[i] = Result{Rows: r.Rows, Count: r.Count}
		if len(r.UUID) > 0 {
			v, err := DecodeValue(r.UUID)
			id, ok := v.(UUID)
			if err != nil || !ok {
				return nil, fmt.Errorf("ovsdb: transact: operation %d: uuid %s: %w", i, clip(r.UUID), ErrValue)
			}
			results[i].UUID = id
		}
	}
	if len(replies) < len(ops) {
		return nil, fmt.Errorf("ovsdb: transact: %d results for %d operations: %w", len(replies), len(ops), ErrMalformed)
	}
	return results, nil
}
