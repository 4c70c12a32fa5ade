package openflow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Controller does the handshake on a new connection to a switch and asks for its features. It closes nc if that fails.
// A peer that does not speak 1.3 gets the error message that the protocol wants; the error is a *VersionError.
func Controller(ctx context.Context, nc net.Conn, o Options) (*Conn, error) {
	c := newConn(nc, o, asController)
	err := c.handshake(ctx, func() error {
		if err := c.hello(); err != nil {
			return err
		}
		return c.askFeatures()
	})
	if err != nil {
		return nil, err
	}
	c.run()
	return c, nil
}

// Switch does the handshake as a switch on a new connection to a controller; it answers echo and features requests itself. It closes nc if
// that fails.
func Switch(ctx context.Context, nc net.Conn, f FeaturesReply, o Options) (*Conn, error) {
	c := newConn(nc, o, asSwitch)
	c.features = f
	if err := c.handshake(ctx, c.hello); err != nil {
		return nil, err
	}
	c.run()
	return c, nil
}

// handshake bounds f by ctx and Options.Handshake; it closes the connection if f fails.
func (c *Conn) handshake(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(c.o.Handshake)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.nc.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.nc.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return c.nc.SetDeadline(time.Time{})
	}
	c.nc.Close()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("openflow: handshake with %s: %w", c.nc.RemoteAddr(), err)
}

// writeNow writes a message before the writer runs. In memory (net.Pipe) both ends may write at once, so it does not wait.
func (c *Conn) writeNow(version uint8, m Message) (wait func() error, err error) {
	c.xid++
	b, err := appendVersion(nil, version, c.xid, m)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { _, err := c.nc.Write(b); done <- err }()
	return func() error { return <-done }, nil
}

// hello exchanges hello messages and agrees on version 1.3 (6.3.1).
func (c *Conn) hello() error {
	wait, err := c.writeNow(Version13, &Hello{Versions: 1 << Version13})
	if err != nil {
		return err
	}
	head, err := c.r.Peek(headerLen)
	if err != nil {
		return fmt.Errorf("read hello: %w", unexpected(err))
	}
	if t, n := Type(head[1]), be.Uint16(head[2:]); head[0] == 0 || head[0] > 0x7f || t != TypeHello && t != TypeError || n < headerLen || n > 2048 {
		return fmt.Errorf("%w: it begins with %q", ErrNotOpenFlow, head)
	}
	b, err := readMessage(c.r, nil)
	if err != nil {
		return fmt.Errorf("read hello: %w", unexpected(err))
	}
	if err := wait(); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	_, m, err := Decode(b)
	if err != nil {
		return err
	}
	h, ok := m.(*Hello)
	if !ok {
		if e, ok := m.(*Error); ok {
			return e
		}
		return fmt.Errorf("peer begins with %s, want hello", m.Type())
	}
	if h.speaks13() {
		return nil
	}
	v := &VersionError{Versions: h.Versions, Highest: h.Highest}
	// The error is in the peer's version if that is lower, so that it can read it.
	wait, err = c.writeNow(min(max(h.Highest, 1), Version13), &Error{Code: HelloIncompatible, Data: []byte("only OpenFlow 1.3 (wire version 0x04) is spoken here")})
	if err == nil {
		err = wait()
	}
	if err != nil {
		return errors.Join(v, err)
	}
	return v
}

// speaks13: a version bitmap decides; without one the lower of the two highest versions is used.
func (h *Hello) speaks13() bool {
	if h.Versions != 0 {
		return h.Versions&(1<<Version13) != 0
	}
	return h.Highest >= Version13
}

// askFeatures reads until the features reply; what comes before it becomes events, echo requests are answered.
func (c *Conn) askFeatures() error {
	wait, err := c.writeNow(Version13, &FeaturesRequest{})
	if err != nil {
		return err
	}
	xid := c.xid
	var buf []byte
	for range 64 {
		if buf, err = readMessage(c.r, buf); err != nil {
			return fmt.Errorf("read features: %w", unexpected(err))
		}
		got, m, err := Decode(buf)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *FeaturesReply:
			c.features = *m
			return wait()
		case *Error:
			if got == xid || m.Kind() == ErrHelloFailed {
				return m
			}
		case *EchoRequest:
			if err := wait(); err != nil {
				return err
			}
			b, err := Append(nil, got, &EchoReply{m.Data})
			if err != nil {
				return err
			}
			if _, err := c.nc.Write(b); err != nil {
				return err
			}
			wait = func() error { return nil }
		case *PacketIn, *PortStatus, *FlowRemoved:
			if err := c.deliver(Event{got, m}); err != nil {
				return err
			}
		}
	}
	return errors.New("64 messages came, but no features reply")
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w by peer", ErrClosed)
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}
