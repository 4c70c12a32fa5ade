// Command xsk is a function between two ports, in and out: it hands each frame on, unchanged, by AF_XDP sockets in copy mode, behind generic XDP, as the catalogue's
// wire-xdp does. It leads the frames into its sockets itself, so that studies have it without a Weir: it runs outside of containers, as root of the machine.
package main

import (
	"context"
	"errors"
	"fmt"

	"weir.dev/weir/bpf/xsk"
	"weir.dev/weir/catalogue/nf"
	wire "weir.dev/weir/catalogue/nf/xsk"
)

func main() { nf.Main("xsk", 50, run) }

func run(ctx context.Context, s nf.Start) (err error) {
	w, err := wire.Open(s.In, s.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for i, port := range []string{s.In, s.Out} {
		if err := xsk.Put(xsk.Queue{Link: port, Generic: true}, w.Socket(i)); err != nil {
			return fmt.Errorf("%w (capabilities CAP_BPF and CAP_NET_ADMIN, outside of user namespaces)", err)
		}
		defer func() { err = errors.Join(err, xsk.Remove(port)) }()
	}
	s.Log.Info("sockets in force", "in", s.In, "out", s.Out)
	err = w.Run(ctx)
	c, cerr := w.Counters()
	s.Log.Info("counter", "in", c[0], "out", c[1])
	return errors.Join(err, cerr)
}
