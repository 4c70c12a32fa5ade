package web

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"weir.dev/weir/api"
)

// Flushing sends each piece at once.
func Flushing(w http.ResponseWriter) io.Writer { return flushing{w, http.NewResponseController(w)} }

type flushing struct {
	w io.Writer
	c *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	if err := f.c.SetWriteDeadline(time.Now().Add(WriteTimeout)); err != nil {
		return 0, err
	}
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}

// Slots bound how many do something at once.
type Slots chan struct{}

// Take takes a slot, or refuses.
func (s Slots) Take(what string) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	default:
		return nil, api.Refuse(http.StatusServiceUnavailable, "too many "+what+" at once: close some or try again later")
	}
}

// WantUpgrade refuses a request that does not ask for a protocol.
func WantUpgrade(w http.ResponseWriter, r *http.Request, what, protocol string) error {
	if strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		return nil
	}
	w.Header().Set("Upgrade", protocol)
	return api.Refuse(http.StatusUpgradeRequired, what+" needs the headers `Connection: Upgrade` and `Upgrade: "+protocol+"`")
}

// Upgrade takes a request's connection over for another protocol; nil without an error: the client is gone.
func Upgrade(w http.ResponseWriter, protocol string) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("upgrade to %s: %w", protocol, err)
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol); err != nil {
		conn.Close()
		return nil, nil
	}
	return buffered{conn, rw.Reader}, nil
}

// buffered is a connection of which a part has been read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
