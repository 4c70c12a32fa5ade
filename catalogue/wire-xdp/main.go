// Command wire-xdp is a network function: it hands each frame on, unchanged, between its ports, by AF_XDP sockets into which the platform leads them. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"net"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/xsk"
)

var handover = flag.String("xdp", xsk.File, "socket to hand the ports' AF_XDP sockets over at")

func main() { nf.Main("wire-xdp", 50, run) }

func run(ctx context.Context, s nf.Start) (err error) {
	told := s.Listen()
	defer told.Stop()
	w, err := xsk.Open(s.In, s.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for i, port := range []string{s.In, s.Out} {
		if l, err := net.InterfaceByName(port); err == nil && l.MTU+ethernet > xsk.MaxFrame {
			s.Log.Warn("longer frames are dropped", "port", port, "mtu", l.MTU, "longest", xsk.MaxFrame)
		}
		if err := xsk.Lead(ctx, *handover, port, 0, w.Socket(i)); err != nil {
			return err
		}
	}
	s.Log.Info("sockets in force", "in", s.In, "out", s.Out)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g := &loop{wire: w, ended: stop}
	err = nf.Serve(ctx, s.Log, g, told, nf.Work{Report: func() {
		c, err := w.Counters()
		if err != nil {
			s.Log.Warn("counter", "error", err)
			return
		}
		s.Log.Info("counter", "received up", c[0].Received, "received down", c[1].Received, "missed", c[0].Missed+c[1].Missed, "too long", c[0].Dropped+c[1].Dropped,
			"refused", c[0].Refused+c[1].Refused)
	}})
	return errors.Join(err, g.err)
}

// ethernet is the header and two VLAN tags.
const ethernet = 14 + 2*4

// loop hands frames on while it is up.
type loop struct {
	wire  *xsk.Wire
	ended func() // by itself
	stop  context.CancelFunc
	done  chan struct{}
	err   error // why it ended by itself
}

// Up lets frames pass.
func (l *loop) Up() error {
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.done = stop, make(chan struct{})
	go func() {
		defer close(l.done)
		if l.err = l.wire.Run(ctx); l.err != nil {
			l.ended()
		}
	}()
	return nil
}

// Down lets no more frames pass.
func (l *loop) Down() error {
	l.stop()
	<-l.done
	return nil
}
