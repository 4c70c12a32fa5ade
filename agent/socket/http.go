package socket

import (
	"net/http"
	"os"
	"time"

	"golang.org/x/net/netutil"
)

// Conns of one function at a time. Further ones wait in the kernel, where they cost this process no descriptor; one that says nothing for a second is closed.
const Conns = 4

// HTTP is a server at a socket of a function. Functions are taken as hostile: connections and times are bounded; what a handler reads is its own to bound.
type HTTP struct {
	http   *http.Server
	socket string
}

// Serve listens at path, which is made at fresh, in the same file system.
func Serve(fresh, path string, h http.Handler) (*HTTP, error) {
	l, err := Listen(fresh, path)
	if err != nil {
		return nil, err
	}
	s := &HTTP{socket: path, http: &http.Server{
		Handler: h, ReadHeaderTimeout: time.Second, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second, IdleTimeout: time.Second, MaxHeaderBytes: 4 << 10,
	}}
	go func() { _ = s.http.Serve(netutil.LimitListener(l, Conns)) }() // ends with Close
	return s, nil
}

// Close ends it. One that is nil is closed already.
func (s *HTTP) Close() {
	if s != nil {
		_ = s.http.Close()
		_ = os.Remove(s.socket)
	}
}
