// Command xsk is a function between two ports, in and out: it hands each frame on, unchanged, by AF_XDP sockets in copy mode, behind generic XDP. It stands beside
// the catalogue's wires in studies, and is no function of a Weir: nothing but root of the machine may load its program.
//
// It takes frames as they are on a wire, of at most 1792 bytes. AF_XDP has no description of what a sender on the same machine left to the hardware: longer
// frames are dropped and counted, and a checksum that is missing stays missing.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

func main() { nf.Main("xsk", 50, run) }

// Pauses of the loop: when nothing comes, and when a port does not take all that it was given.
const (
	idle = 100 * time.Millisecond
	full = time.Millisecond
)

func run(ctx context.Context, s nf.Start) (err error) {
	w, err := openWire(s.In, s.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	s.Log.Info("sockets in force", "in", s.In, "out", s.Out, "frames", frames)
	err = w.run(ctx)
	for i, name := range []string{s.In, s.Out} {
		st, serr := w.sockets[i].statistics()
		s.Log.Info("counter", "port", name, "handed on", w.sockets[i].received.Load(), "dropped", st.Rx_dropped, "no room", st.Rx_ring_full, "no memory", st.Rx_fill_ring_empty_descs,
			"refused", st.Tx_invalid_descs, "error", serr)
	}
	return err
}

// run hands frames on until ctx ends.
func (w *wire) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fds := []unix.PollFd{{Fd: int32(w.sockets[0].fd), Events: unix.POLLIN}, {Fd: int32(w.sockets[1].fd), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		up, err := w.hand(w.sockets[0], w.sockets[1])
		if err != nil {
			return fmt.Errorf("send at out: %w", err)
		}
		down, err := w.hand(w.sockets[1], w.sockets[0])
		if err != nil {
			return fmt.Errorf("send at in: %w", err)
		}
		if up+down > 0 {
			continue
		}
		pause := idle
		if w.sockets[0].tx.ready()+w.sockets[1].tx.ready() > 0 {
			pause = full
			fds[0].Events, fds[1].Events = 0, 0
		} else {
			fds[0].Events, fds[1].Events = unix.POLLIN, unix.POLLIN
		}
		if _, err := unix.Poll(fds, int(pause/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for frames: %w", err)
		}
	}
	return nil
}
