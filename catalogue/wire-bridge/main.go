// Command wire-bridge is a network function: a Linux bridge hands each frame on, unchanged, between its ports. See README.md.
package main

import (
	"context"

	"weir.dev/weir/catalogue/nf"
)

func main() { nf.Main("wire-bridge", 50, run) }

func run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	b, err := nf.NewBridge("wire", s.In, s.Out)
	if err != nil {
		return err
	}
	defer b.Close()
	s.Log.Info("bridge in force", "in", s.In, "out", s.Out)
	return nf.Serve(ctx, s.Log, b, told, nf.Work{
		Report: func() { s.Log.Info("the kernel forwards: its counters are those of the ports") },
	})
}
