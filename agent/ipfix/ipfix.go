// Package ipfix hands on what functions export of flows, IPFIX messages (RFC 7011), to the one collector that the host's administrator has named. A function has no network by
// which it could reach a collector. It writes a message in each datagram to a socket in its container; each leaves in a datagram of UDP. Functions are taken as hostile: they
// choose no receiver, messages are checked, and size and rate are bounded.
package ipfix

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"weir.dev/weir/agent/socket"
)

// Bounds of what a function may send. What comes faster waits in the socket, and then in the function.
const (
	MaxMessage = 1400 // bytes
	perSecond  = 500  // messages
	burst      = 1000
	redial     = 5 * time.Second
)

// Relay of one function's messages.
type Relay struct {
	in   *net.UnixConn
	path string
	to   netip.AddrPort
	log  *slog.Logger
	stop context.CancelFunc
	done sync.WaitGroup
}

// Serve takes messages at path, which is made at fresh, in the same file system, and sends them to a collector.
func Serve(fresh, path string, to netip.AddrPort, log *slog.Logger) (*Relay, error) {
	in, err := socket.Datagrams(fresh, path)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Relay{in: in, path: path, to: to, log: log, stop: stop}
	r.done.Go(func() { r.run(ctx) })
	return r, nil
}

// Close ends it. One that is nil is closed already.
func (r *Relay) Close() {
	if r == nil {
		return
	}
	r.stop()
	_ = r.in.Close()
	r.done.Wait()
	_ = os.Remove(r.path)
}

// run until Close. Each function has a socket of UDP of its own: for the collector it is an exporter of its own.
func (r *Relay) run(ctx context.Context) {
	limit := rate.NewLimiter(perSecond, burst)
	out := &sender{to: r.to, log: r.log}
	defer out.close()
	refused := false
	b := make([]byte, MaxMessage+1)
	for {
		n, err := r.in.Read(b)
		if err != nil || limit.Wait(ctx) != nil {
			return
		}
		if err := Check(b[:n]); err != nil {
			if !refused {
				r.log.Warn("a function exports what is no IPFIX message; further ones are dropped without a line", "error", err)
				refused = true
			}
			continue
		}
		out.send(b[:n], time.Now())
	}
}

// sender of datagrams. Nobody waits for it: what cannot be sent is lost, as datagrams are, and the log says when that begins and ends.
type sender struct {
	to     netip.AddrPort
	log    *slog.Logger
	conn   *net.UDPConn
	tried  time.Time
	failed bool
}

func (s *sender) send(message []byte, now time.Time) {
	var err error
	if s.conn == nil {
		if now.Sub(s.tried) < redial {
			return
		}
		s.tried = now
		if s.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.to)); err != nil {
			s.conn = nil
		}
	}
	if err == nil {
		_, err = s.conn.Write(message)
	}
	if failed := err != nil; failed != s.failed {
		s.failed = failed
		if failed {
			s.log.Warn("flow records are lost: the collector cannot be reached", "collector", s.to, "error", err)
		} else {
			s.log.Info("flow records go to the collector", "collector", s.to)
		}
	}
}

func (s *sender) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

const (
	version       = 10
	messageHeader = 16
	setHeader     = 4
	firstData     = 256 // ids of sets: below there are 2, templates, and 3, templates of options; the rest is reserved
)

// Check says why bytes are no IPFIX message (RFC 7011, section 3). What is in its sets is the collector's to read.
func Check(b []byte) error {
	switch {
	case len(b) > MaxMessage:
		return fmt.Errorf("a message of more than %d bytes", MaxMessage)
	case len(b) < messageHeader:
		return fmt.Errorf("a message of %d bytes: want at least %d", len(b), messageHeader)
	case binary.BigEndian.Uint16(b) != version:
		return fmt.Errorf("version %d: want %d", binary.BigEndian.Uint16(b), version)
	case int(binary.BigEndian.Uint16(b[2:])) != len(b):
		return fmt.Errorf("length %d in a message of %d bytes: want one message in a datagram", binary.BigEndian.Uint16(b[2:]), len(b))
	}
	for b = b[messageHeader:]; len(b) > 0; {
		if len(b) < setHeader {
			return errors.New("the last set is cut short")
		}
		id, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if n < setHeader || n > len(b) {
			return fmt.Errorf("a set of %d bytes where %d are left", n, len(b))
		}
		if id < firstData && id != 2 && id != 3 {
			return fmt.Errorf("set id %d: want 2, 3, or 256 and more", id)
		}
		b = b[n:]
	}
	return nil
}
