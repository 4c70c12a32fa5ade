package web

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"

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

// WantWebSocket is WantUpgrade for a WebSocket of a subprotocol.
func WantWebSocket(w http.ResponseWriter, r *http.Request, what, protocol string) error {
	if err := WantUpgrade(w, r, what, "websocket"); err != nil {
		return err
	}
	if !slices.Contains(websocket.Subprotocols(r), protocol) {
		return api.Refuse(http.StatusBadRequest, what+" over a WebSocket needs the header `Sec-WebSocket-Protocol: "+protocol+"`")
	}
	return nil
}

// UpgradeWebSocket takes a request's connection over for a WebSocket of a subprotocol, each of whose messages has at most so many bytes; nil: the answer is
// written, or the client is gone. What is written at once is one binary message; the messages that come are read one after another.
func UpgradeWebSocket(w http.ResponseWriter, r *http.Request, protocol string, limit int64) (io.ReadWriteCloser, error) {
	up := websocket.Upgrader{
		HandshakeTimeout: WriteTimeout,
		Subprotocols:     []string{protocol},
		CheckOrigin:      func(*http.Request) bool { return true }, // who has a cookie comes through package ui, which has checked; a token is no browser's
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			http.Error(w, reason.Error(), status)
		},
	}
	c, err := up.Upgrade(hijackable{w}, r, nil)
	if err != nil {
		return nil, nil
	}
	c.SetReadLimit(limit)
	return &socket{Conn: c}, nil
}

// hijackable gives a connection of which the writer is wrapped.
type hijackable struct{ http.ResponseWriter }

func (h hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(h.ResponseWriter).Hijack()
}

// socket is a WebSocket as a stream of bytes.
type socket struct {
	*websocket.Conn
	message io.Reader // that is read now
}

func (s *socket) Read(p []byte) (int, error) {
	for {
		if s.message == nil {
			kind, message, err := s.NextReader()
			if websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway) {
				err = io.EOF
			}
			if err == nil && kind != websocket.BinaryMessage {
				err = errors.New("a text message: want binary ones")
			}
			if err != nil {
				return 0, err
			}
			s.message = message
		}
		n, err := s.message.Read(p)
		if errors.Is(err, io.EOF) {
			s.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (s *socket) Write(p []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(WriteTimeout)); err != nil {
		return 0, err
	}
	if err := s.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close says so first, as far as that goes.
func (s *socket) Close() error {
	_ = s.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	return s.Conn.Close()
}

// buffered is a connection of which a part has been read already.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }
