package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Start asks for a function to run. The operation tells when it does.
func (c *Client) Start(ctx context.Context, function string) (Operation, error) {
	return c.verb(ctx, function, "start")
}

// Stop asks for a function to stop; its ports stay.
func (c *Client) Stop(ctx context.Context, function string) (Operation, error) {
	return c.verb(ctx, function, "stop")
}

// Restart asks for a function to be stopped, if it runs, and started.
func (c *Client) Restart(ctx context.Context, function string) (Operation, error) {
	return c.verb(ctx, function, "restart")
}

func (c *Client) verb(ctx context.Context, function, verb string) (Operation, error) {
	var op Operation
	_, err := c.call(ctx, http.MethodPost, "/v1/functions/"+url.PathEscape(function)+"/"+verb, nil, &op)
	return op, err
}

// Wait follows an operation until it is completed or has failed, for good or for now. The error is about the following,
// not about the operation: see its State and Message. A manager that stays away is ErrUnreachable; see Returns.
func (c *Client) Wait(ctx context.Context, name string) (Operation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for d := range c.Operations().Watch(ctx, 0, ListOptions{Name: name}) {
		switch d.Type {
		case DeltaReset:
			if len(d.Items) == 0 {
				return Operation{}, Refuse(http.StatusNotFound, fmt.Sprintf("operation %q not found", name))
			}
			d.Object = d.Items[0]
		case DeltaDelete:
			return d.Object, Refuse(http.StatusNotFound, fmt.Sprintf("operation %q is forgotten: it was among the oldest", name))
		case DeltaError:
			if errors.Is(d.Err, ErrBadRequest) || errors.Is(d.Err, ErrUnauthorized) || errors.Is(d.Err, ErrNotFound) {
				return Operation{}, d.Err
			}
			if err := c.Returns(ctx); err != nil {
				return Operation{}, err
			}
			continue
		}
		if d.Object.State.Settled() {
			return d.Object, nil
		}
	}
	return Operation{}, fmt.Errorf("operation %s: %w", name, context.Cause(ctx))
}

// Settled tells whether nothing more is to be expected soon. FAILED_TEMP can still become COMPLETED: the agent retries.
func (s OperationState) Settled() bool { return s != OpStarting && s != OpProcessing }

// LogOptions select from a function's output.
type LogOptions struct {
	Tail   int  // last N lines; 0 all
	Follow bool // until ctx ends
}

// Logs streams what a function writes to its standard output and error. The caller closes it.
func (c *Client) Logs(ctx context.Context, function string, o LogOptions) (io.ReadCloser, error) {
	q := url.Values{}
	if o.Tail > 0 {
		q.Set("tail", strconv.Itoa(o.Tail))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	resp, err := c.do(ctx, http.MethodGet, "/v1/functions/"+url.PathEscape(function)+"/logs?"+q.Encode(), nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// MaxState bounds the state that an instance of a function hands over, in bytes.
const MaxState = 16 << 20

// FunctionState reads the state of a function that has moved, from its former host: for the agent of its host only. nil: it has none.
func (c *Client) FunctionState(ctx context.Context, function string) ([]byte, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/agent/state/"+url.PathEscape(function), nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	n := resp.ContentLength
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return nil, nil
	case n < 0 || n > MaxState:
		return nil, fmt.Errorf("a state of %d bytes: want at most %d", n, MaxState)
	}
	state := make([]byte, n)
	if _, err := io.ReadFull(resp.Body, state); err != nil {
		return nil, fmt.Errorf("state of function %s: %w", function, err)
	}
	return state, nil
}

// ExecOptions say what to run in a function, and where its streams go. Nil streams are empty or dropped.
type ExecOptions struct {
	Args           []string
	Env            []string // NAME=value
	TTY            bool     // then Stderr gets nothing: a terminal has one stream
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan [2]uint16 // columns, rows; with TTY
}

// Exec runs a process in a running function and returns its exit code. A Stdin that blocks may keep one goroutine
// until it returns.
func (c *Client) Exec(ctx context.Context, function string, o ExecOptions) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := url.Values{"arg": o.Args, "env": o.Env}
	if o.TTY {
		q.Set("tty", "true")
	}
	header := http.Header{"Connection": {"Upgrade"}, "Upgrade": {ExecProtocol}}
	resp, err := c.upgrade(ctx, "/v1/functions/"+url.PathEscape(function)+"/exec?"+q.Encode(), header)
	if err != nil {
		return -1, err
	}
	defer resp.Close()
	defer context.AfterFunc(ctx, func() { resp.Close() })() // a blocked read ends with ctx
	s := NewExecStream(resp, resp)
	code, err := s.Run(ctx, o)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return -1, fmt.Errorf("exec in function %s: %w", function, err)
	}
	return code, nil
}

// Run is the caller's side of a process behind a stream: it sends what o has and distributes what comes back until the exit code comes.
// The connection has to be closed when ctx ends. A Stdin that blocks may keep one goroutine until it returns.
func (s *ExecStream) Run(ctx context.Context, o ExecOptions) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if o.Stdin != nil {
			_, _ = io.Copy(s.Writer(ExecStdin), o.Stdin) // a broken connection shows in Receive
		}
		_ = s.Send(ExecStdinClose, nil)
	}()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-o.Resize:
				if !ok {
					return
				}
				p := binary.BigEndian.AppendUint16(nil, size[0])
				_ = s.Send(ExecResize, binary.BigEndian.AppendUint16(p, size[1]))
			}
		}
	}()
	return execOutput(s, o)
}

// upgrade makes a request that leaves HTTP, and returns the connection.
func (c *Client) upgrade(ctx context.Context, path string, header http.Header) (io.ReadWriteCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("POST %s: %w", path, err)
	}
	req.Header = header
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer resp.Body.Close()
		return nil, problemOf(resp)
	}
	return conn, nil
}

// execOutput distributes what comes back until the exit code comes.
func execOutput(s *ExecStream, o ExecOptions) (int, error) {
	write := func(w io.Writer, p []byte) error {
		if w == nil {
			return nil
		}
		_, err := w.Write(p)
		return err
	}
	for {
		t, p, err := s.Receive()
		if err == nil {
			switch t {
			case ExecStdout:
				err = write(o.Stdout, p)
			case ExecStderr:
				err = write(o.Stderr, p)
			case ExecError:
				err = errors.New(string(p))
			case ExecExit:
				if len(p) == 4 {
					return int(int32(binary.BigEndian.Uint32(p))), nil
				}
				err = fmt.Errorf("exit frame of %d bytes: want 4", len(p))
			}
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("connection ended before the exit code came: was the manager stopped?")
		}
		if err != nil {
			return -1, err
		}
	}
}
