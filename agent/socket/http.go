package socket

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
)

// Conns of one function at a time. Further ones wait in the kernel, where they cost this process no descriptor; one that says nothing for a second is closed.
const Conns = 4

// PerSecond connections and as many requests of one function are taken, and Burst at once; what comes faster waits, for no goroutine but its connection's.
const (
	PerSecond = 200
	Burst     = 400
)

// HTTP is a server at a socket of a function. Functions are taken as hostile: connections, times and rates are bounded; what a handler reads is its own to bound.
type HTTP struct {
	http   *http.Server
	socket string
	stop   context.CancelFunc
}

// paced accepts connections no faster than it may.
type paced struct {
	net.Listener
	ctx   context.Context
	limit *rate.Limiter
}

func (p paced) Accept() (net.Conn, error) {
	if p.limit.Wait(p.ctx) != nil {
		return nil, net.ErrClosed
	}
	return p.Listener.Accept()
}

// Serve listens at path, which is made at fresh, in the same file system.
func Serve(fresh, path string, h http.Handler) (*HTTP, error) {
	l, err := Listen(fresh, path)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	requests := rate.NewLimiter(PerSecond, Burst)
	s := &HTTP{socket: path, stop: stop, http: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests.Wait(r.Context()) == nil { // else nobody is there to answer
				h.ServeHTTP(w, r)
			}
		}),
		ReadHeaderTimeout: time.Second, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second, IdleTimeout: time.Second, MaxHeaderBytes: 4 << 10,
	}}
	go func() {
		_ = s.http.Serve(netutil.LimitListener(paced{l, ctx, rate.NewLimiter(PerSecond, Burst)}, Conns))
	}() // ends with Close
	return s, nil
}

// Close ends it. One that is nil is closed already.
func (s *HTTP) Close() {
	if s != nil {
		s.stop()
		_ = s.http.Close()
		_ = os.Remove(s.socket)
	}
}
