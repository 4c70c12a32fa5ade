package datagrams

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// Forwarder is a processor: a thread that sends on the payload of each datagram that it receives.
type Forwarder struct {
	cancel context.CancelFunc
	done   chan error
}

// Forward starts a processor in a namespace, which listens at a port there.
func Forward(space string, at, to netip.AddrPort) (*Forwarder, error) {
	in, err := socket(space)
	if err != nil {
		return nil, err
	}
	out, err := socket(space)
	if err != nil {
		return nil, errors.Join(err, unix.Close(in))
	}
	err = unix.Bind(in, address(at))
	if err == nil {
		err = unix.Connect(out, address(to))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("processor at %s: %w", at, err), unix.Close(in), unix.Close(out))
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Forwarder{cancel, make(chan error, 1)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := forward(ctx, in, out)
		f.done <- errors.Join(err, unix.Close(in), unix.Close(out))
	}()
	return f, nil
}

func forward(ctx context.Context, in, out int) error {
	b := make([]byte, MaxPayload)
	for ctx.Err() == nil {
		n, err := unix.Read(in, b)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED):
			continue
		case err != nil:
			return fmt.Errorf("processor: receive: %w", err)
		}
		if err := unix.Send(out, b[:n], 0); err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("processor: send: %w", err)
		}
	}
	return nil
}

// Close ends it.
func (f *Forwarder) Close() error {
	f.cancel()
	return <-f.done
}
