// Package uplink shows this host to the router at its interface into the fabric, by signed link discovery frames (IEEE 802.1AB).
package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	"weir.dev/weir/openflow/lldp"
)

// Timings of link discovery (IEEE 802.1AB-2016, 9.2.5: fast).
const (
	every = time.Second
	ttl   = 3 // seconds
	// The router takes frames of a host that it does not know for forged: the manager's word has to reach it first, if it can.
	introduced  = 100 * time.Millisecond
	introduceIn = 3 * time.Second
)

// Announcer sends the frames. All fields are needed.
type Announcer struct {
	Host, Interface string
	Key             func() []byte   // as the manager last told it; empty: not yet
	Known           <-chan struct{} // closed once the manager knows this host
	Hurry           <-chan struct{} // a frame is wanted now: the link came up, or the key arrived
	Log             *slog.Logger
	Now             func() time.Time
}

// Run sends a frame each second until ctx ends.
func (a *Announcer) Run(ctx context.Context) {
	var sequence lldp.Sequence
	out, err := openPacketSocket()
	if err != nil {
		a.Log.Error("link discovery", "error", err)
		return
	}
	defer out.Close()
	host, err := netns.At("")
	if err != nil {
		a.Log.Error("link discovery", "error", err)
		return
	}
	defer host.Close()
	// The router ignores hosts that it does not know: wait until the manager and then the router have heard of this one.
	select {
	case <-a.Known:
	case <-time.After(introduceIn):
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(introduced):
	case <-ctx.Done():
		return
	}
	// The same failure is logged once.
	failed := ""
	tick := time.NewTicker(every)
	defer tick.Stop()
	for wait := false; ; wait = true {
		if wait {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			case <-a.Hurry:
			}
		}
		key := a.Key()
		if len(key) == 0 {
			continue
		}
		text := ""
		if err := a.say(host, out, key, sequence.Next(a.Now())); err != nil {
			if text = err.Error(); text != failed {
				a.Log.Warn("link discovery", "interface", a.Interface, "error", err)
			}
		}
		failed = text
	}
}

func (a *Announcer) say(host *netns.Space, out *os.File, key []byte, sequence uint64) error {
	l, err := host.Link(a.Interface)
	if err != nil {
		return err
	}
	if !l.Up || !l.Carrier {
		return nil
	}
	frame, err := lldp.Encode(lldp.Frame{Source: l.MAC, Chassis: lldp.HostChassis(a.Host), Port: a.Interface, TTL: ttl, Sequence: sequence}, key)
	if err != nil {
		return err
	}
	return send(out, l.Index, frame)
}

// openPacketSocket gives a socket that sends frames past qdiscs and tc programs, and receives nothing.
func openPacketSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("packet socket: bypass qdiscs: %w", err)
	}
	return os.NewFile(uintptr(fd), "link discovery"), nil
}

func send(f *os.File, index int, frame []byte) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = c.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	})
	if errors.Is(sent, unix.ENOBUFS) || errors.Is(sent, unix.EAGAIN) { // the device is busy: the next one is near
		sent = nil
	}
	return errors.Join(err, sent)
}
