package services

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"weir.dev/weir/netns"
)

// HTTPOptions of requests over connections that stay.
type HTTPOptions struct {
	From, To  string        // namespaces of clients and server
	Address   netip.Addr    // that clients ask, at port 80
	Clients   int           // connections; 0: 8
	Body      int           // bytes of an answer; 0: 16384
	Forbidden string        // path that has to be answered with 403 before the run begins; empty: none
	Cached    bool          // a cache on the way answers: the server says that its answers may be kept, and is hardly asked
	Warm      time.Duration // how long the same is asked before what counts
	Duration  time.Duration
	Began     func() // called when what counts begins; nil: nobody
}

const (
	httpPort  = 80
	allowed   = "/allowed/page"
	host      = "www.example"
	answersIn = 20 * time.Second // bounds the wait for one answer
)

// HTTP serves in the namespace To and asks from From.
func HTTP(ctx context.Context, o HTTPOptions) (Result, error) {
	if o.Clients == 0 {
		o.Clients = 8
	}
	if o.Body == 0 {
		o.Body = 16 << 10
	}
	err := check(o.Address, o.Clients, o.Duration)
	if o.Body < 1 || o.Body > MaxBody {
		err = errors.Join(err, fmt.Errorf("%d bytes: want 1 to %d", o.Body, MaxBody))
	}
	if err != nil {
		return Result{}, fmt.Errorf("http: %w", err)
	}
	end, err := o.serve()
	if err != nil {
		return Result{}, fmt.Errorf("http: %w", err)
	}
	r, err := o.ask(ctx)
	asked, ended := end()
	if most := uint64(o.Clients) + r.Answers/100; o.Cached && err == nil && asked > most {
		err = fmt.Errorf("the server was asked %d times for %d answers: want a cache that answers, so at most %d", asked, r.Answers, most)
	}
	if err = errors.Join(err, ended); err != nil {
		err = fmt.Errorf("http: %w", err)
	}
	return r, err
}

// serve answers requests until end, which tells how many there were.
func (o HTTPOptions) serve() (end func() (asked uint64, err error), err error) {
	var l net.Listener
	if err := netns.Do(o.To, func() (err error) { l, err = net.Listen("tcp4", fmt.Sprint(":", httpPort)); return err }); err != nil {
		return nil, err
	}
	body := bytes.Repeat([]byte("weir measures. "), o.Body/15+1)[:o.Body]
	var requests atomic.Uint64
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		if o.Cached {
			w.Header().Set("Cache-Control", "max-age=3600")
		}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // a client that is gone says so itself
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return func() (uint64, error) {
		err := s.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return requests.Load(), err
	}, nil
}

// connection of a client.
type connection struct {
	c    net.Conn
	r    *bufio.Reader
	over bool // the other side ends it with the last answer
}

func (o HTTPOptions) dial(ctx context.Context) (c connection, err error) {
	err = netns.Do(o.From, func() error {
		for end := time.Now().Add(answersIn); ; { // the server between the stations may have just begun
			var d net.Dialer
			if c.c, err = d.DialContext(ctx, "tcp4", netip.AddrPortFrom(o.Address, httpPort).String()); err == nil {
				return nil
			}
			if ctx.Err() != nil || time.Now().After(end) {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	if err == nil {
		c.r = bufio.NewReaderSize(c.c, 64<<10)
	}
	return c, err
}

// get a path: the status and how long the content is.
func (c *connection) get(path string) (status, length int, err error) {
	if err := c.c.SetDeadline(time.Now().Add(answersIn)); err != nil {
		return 0, 0, err
	}
	if _, err := io.WriteString(c.c, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nUser-Agent: weir-lab\r\n\r\n"); err != nil {
		return 0, 0, err
	}
	a, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, 0, err
	}
	defer a.Body.Close()
	c.over = a.Close
	n, err := io.Copy(io.Discard, a.Body)
	return a.StatusCode, int(n), err
}

// ask over all connections at once.
func (o HTTPOptions) ask(ctx context.Context) (Result, error) {
	if o.Forbidden != "" {
		c, err := o.dial(ctx)
		if err != nil {
			return Result{}, err
		}
		status, _, err := c.get(o.Forbidden)
		_ = c.c.Close() // it has told
		if err != nil || status != http.StatusForbidden {
			return Result{}, fmt.Errorf("%s, which is forbidden: status %d, %w: want 403", o.Forbidden, status, err)
		}
	}
	all := make([]connection, o.Clients)
	defer func() {
		for _, c := range all {
			if c.c != nil {
				_ = c.c.Close()
			}
		}
	}()
	for i := range all {
		var err error
		if all[i], err = o.dial(ctx); err != nil {
			return Result{}, err
		}
		if err := o.once(ctx, &all[i]); err != nil {
			return Result{}, err
		}
	}
	if o.Warm > 0 {
		if _, err := o.over(ctx, all, o.Warm); err != nil {
			return Result{}, err
		}
	}
	if o.Began != nil {
		o.Began()
	}
	return o.over(ctx, all, o.Duration)
}

// over all connections at once it is asked for a time.
func (o HTTPOptions) over(ctx context.Context, all []connection, length time.Duration) (Result, error) {
	loops := make([]loop, len(all))
	begin := time.Now()
	end := begin.Add(length)
	var g errgroup.Group
	for i := range all {
		g.Go(func() error {
			for at := time.Now(); at.Before(end) && ctx.Err() == nil; {
				if err := o.once(ctx, &all[i]); err != nil {
					return err
				}
				now := time.Now()
				loops[i].took(now.Sub(at))
				at = now
			}
			return ctx.Err()
		})
	}
	err := g.Wait()
	return sum(loops, time.Since(begin)), err
}

// once asks, and begins another connection where the server ends this one: most do after so many answers.
func (o HTTPOptions) once(ctx context.Context, c *connection) error {
	status, n, err := c.get(allowed)
	if err == nil && (status != http.StatusOK || n != o.Body) {
		err = fmt.Errorf("status %d, %d bytes: want 200, %d", status, n, o.Body)
	}
	if err == nil && c.over {
		_ = c.c.Close() // it is over
		*c, err = o.dial(ctx)
	}
	return err
}
