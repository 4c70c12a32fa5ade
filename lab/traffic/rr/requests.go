package rr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

// Bounds of a run.
const (
	MaxConnections = 256
	MaxBytes       = 1 << 20 // of a request or a response
	MaxDuration    = time.Hour
)

// Options of requests and responses.
type Options struct {
	From, To    string     // namespaces of clients and server
	Address     netip.Addr // of the server
	Connections int        // 0: 1
	Request     int        // bytes; 0: 1
	Response    int        // bytes; 0: 1
	Duration    time.Duration
	Congestion  string // control, of both ends; empty: that of the namespaces
}

// Result of requests and responses. Requests to Answers are of the whole run, the first transaction of every connection and those that ended
// behind the window included; Transactions and what follows are of the window alone.
type Result struct {
	Connections  int             `json:"connections"`
	Request      int             `json:"request_bytes"`
	Response     int             `json:"response_bytes"`
	Requests     uint64          `json:"requests"` // sent by clients
	Served       uint64          `json:"served"`   // received by the server
	Responses    uint64          `json:"responses"`
	Answers      uint64          `json:"answers"` // received by clients
	Wrong        uint64          `json:"wrong"`   // that were not of the request
	Transactions uint64          `json:"transactions"`
	Seconds      float64         `json:"seconds"`
	PerSec       float64         `json:"transactions_per_second"`
	Least        uint64          `json:"least"` // transactions of a connection
	Most         uint64          `json:"most"`
	Latency      traffic.Latency `json:"latency"` // of a transaction, at the client
	// PerConnection is the transactions of each.
	PerConnection []float64     `json:"-"`
	Congestion    string        `json:"congestion"`
	CPU           time.Duration `json:"cpu_ns"` // of both ends' threads
}

// Check says what does not balance.
func (r Result) Check() error {
	switch {
	case r.Requests != r.Served || r.Served != r.Responses || r.Responses != r.Answers:
		return fmt.Errorf("%d requests sent, %d served, %d responses sent, %d received: want all the same", r.Requests, r.Served, r.Responses, r.Answers)
	case r.Wrong > 0:
		return fmt.Errorf("%d answers were to another request", r.Wrong)
	case r.Latency.Count != r.Transactions:
		return fmt.Errorf("%d latencies of %d transactions", r.Latency.Count, r.Transactions)
	}
	return nil
}

func (o Options) check() error {
	var errs []error
	if !o.Address.IsValid() {
		errs = append(errs, errors.New("want the server's address"))
	}
	if o.Connections < 1 || o.Connections > MaxConnections {
		errs = append(errs, fmt.Errorf("%d connections: want 1 to %d", o.Connections, MaxConnections))
	}
	if min(o.Request, o.Response) < 1 || max(o.Request, o.Response) > MaxBytes {
		errs = append(errs, fmt.Errorf("%d and %d bytes: want 1 to %d", o.Request, o.Response, MaxBytes))
	}
	if o.Duration <= 0 || o.Duration > MaxDuration {
		errs = append(errs, fmt.Errorf("duration %s: want more than 0, at most %s", o.Duration, MaxDuration))
	}
	return errors.Join(errs...)
}

// buckets of a histogram, up to minutes.
const buckets = 34 * traffic.SubBuckets

// client is one connection's client: what it counts.
type client struct {
	requests, answers, wrong uint64
	latency                  traffic.Latency
}

// server is one connection's server.
type server struct{ served, responses uint64 }

// Run sends requests over all connections at once, on each the next one when the answer to the last is there. All begin together, when every
// connection has made one transaction.
func Run(ctx context.Context, o Options) (r Result, err error) {
	o.Connections, o.Request, o.Response = max(o.Connections, 1), max(o.Request, 1), max(o.Response, 1)
	if err := o.check(); err != nil {
		return r, fmt.Errorf("requests: %w", err)
	}
	e := &ends{congestion: o.Congestion}
	defer func() { err = errors.Join(err, e.closeAll()) }()
	near, far, err := e.connected(o.From, o.To, o.Address, o.Connections)
	if err != nil {
		return r, fmt.Errorf("requests: %w", err)
	}
	if r.Congestion, err = congestion(near[0]); err != nil {
		return r, err
	}
	c := newCrew(ctx, e)
	clients, servers := make([]client, o.Connections), make([]server, o.Connections)
	ready, begin := make(chan struct{}, o.Connections), make(chan struct{})
	var end time.Time // written before begin is closed
	for i := range o.Connections {
		c.start("server", func() error { return servers[i].serve(far[i], o) })
		c.start("client", func() error {
			clients[i].latency = traffic.Latency{Buckets: make([]uint64, buckets)}
			err := clients[i].warm(near[i], o)
			ready <- struct{}{}
			if err != nil {
				return err
			}
			<-begin
			return clients[i].ask(near[i], o, end)
		})
	}
	for range o.Connections {
		<-ready // also of who failed: bounded by stuck
	}
	end = time.Now().Add(o.Duration)
	close(begin)
	if err := c.wait(); err != nil {
		return r, fmt.Errorf("requests: %w", err)
	}
	r.Connections, r.Request, r.Response, r.Seconds, r.CPU = o.Connections, o.Request, o.Response, o.Duration.Seconds(), c.cpu
	r.add(clients, servers)
	return r, nil
}

// connected pairs of sockets between two namespaces.
func (e *ends) connected(from, to string, at netip.Addr, n int) (near, far []int, err error) {
	listener, where, err := e.listen(to, at, n)
	if err != nil {
		return nil, nil, err
	}
	if near, err = e.make(from, family(at), n); err != nil {
		return nil, nil, err
	}
	// One after another: the accepted one is the connected one.
	for _, fd := range near {
		if err := connect(fd, where); err != nil {
			return nil, nil, err
		}
		other, err := e.accept(listener)
		if err != nil {
			return nil, nil, err
		}
		far = append(far, other)
	}
	return near, far, e.close(listener)
}

// serve answers every request with its number until the client has no more.
func (s *server) serve(fd int, o Options) error {
	in, out := make([]byte, o.Request), make([]byte, o.Response)
	for {
		switch err := readFull(fd, in); {
		case errors.Is(err, io.EOF):
			return unix.Shutdown(fd, unix.SHUT_WR)
		case err != nil:
			return err
		}
		s.served++
		copy(out, in[:min(len(in), number)])
		if err := writeAll(fd, out); err != nil {
			return err
		}
		s.responses++
	}
}

// number of bytes at the beginning of requests and responses that hold the request's number, where there is room.
const number = 8

// warm makes one transaction that no latency counts.
func (c *client) warm(fd int, o Options) error {
	return c.loop(fd, o, func(time.Time, time.Time) bool { return false })
}

// ask until the window is over, then let the server end.
func (c *client) ask(fd int, o Options, end time.Time) error {
	err := c.loop(fd, o, func(began, ended time.Time) bool {
		if ended.After(end) {
			return false
		}
		c.record(ended.Sub(began))
		return true
	})
	if err != nil {
		return err
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	if err := readFull(fd, make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("behind the last answer: want the end: %w", errors.Join(err, errLeft))
	}
	return nil
}

var errLeft = errors.New("something else came")

// loop makes transactions as long as the caller wants more.
func (c *client) loop(fd int, o Options, more func(began, ended time.Time) bool) error {
	out, in := make([]byte, o.Request), make([]byte, o.Response)
	var want [number]byte
	common := min(len(out), len(in), number)
	for began := time.Now(); ; {
		binary.LittleEndian.PutUint64(want[:], c.requests)
		copy(out, want[:])
		if err := writeAll(fd, out); err != nil {
			return err
		}
		c.requests++
		if err := readFull(fd, in); err != nil {
			return err
		}
		c.answers++
		ended := time.Now()
		if !slices.Equal(in[:common], want[:common]) {
			c.wrong++
		}
		if !more(began, ended) {
			return nil
		}
		began = ended
	}
}

func (c *client) record(d time.Duration) {
	l := &c.latency
	l.Buckets[min(traffic.Bucket(uint64(max(d, 0))), len(l.Buckets)-1)]++
	if l.Count == 0 || d < l.Min {
		l.Min = d
	}
	l.Count, l.Sum, l.Max = l.Count+1, l.Sum+d, max(l.Max, d)
}

// add up what the connections counted.
func (r *Result) add(clients []client, servers []server) {
	r.Latency.Buckets = make([]uint64, buckets)
	for i, c := range clients {
		r.Requests, r.Answers, r.Wrong = r.Requests+c.requests, r.Answers+c.answers, r.Wrong+c.wrong
		r.Served, r.Responses = r.Served+servers[i].served, r.Responses+servers[i].responses
		n := c.latency.Count
		if i == 0 || n < r.Least {
			r.Least = n
		}
		r.Most, r.Transactions, r.PerConnection = max(r.Most, n), r.Transactions+n, append(r.PerConnection, float64(n))
		if n == 0 {
			continue
		}
		for b, k := range c.latency.Buckets {
			r.Latency.Buckets[b] += k
		}
		if r.Latency.Count == 0 || c.latency.Min < r.Latency.Min {
			r.Latency.Min = c.latency.Min
		}
		r.Latency.Count, r.Latency.Sum, r.Latency.Max = r.Latency.Count+n, r.Latency.Sum+c.latency.Sum, max(r.Latency.Max, c.latency.Max)
	}
	r.PerSec = float64(r.Transactions) / r.Seconds
}
