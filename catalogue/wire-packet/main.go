// Command wire-packet is a network function: it hands each frame on, unchanged, between its ports, by packet sockets. See README.md.
package main

import (
	"context"

	"weir.dev/weir/catalogue/nf"
)

func main() { nf.Main("wire-packet", 50, run) }

func run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	frames, err := nf.OpenFrames(s.Options())
	if err != nil {
		return err
	}
	defer frames.Close()
	s.Log.Info("sockets in force", "in", s.In, "out", s.Out)
	return frames.Serve(ctx, told, nf.Work{
		Report: func() {
			frames.Do(func() {
				c := frames.Counters()
				s.Log.Info("counter", "received up", c.Received[nf.Up], "received down", c.Received[nf.Down], "sent up", c.Sent[nf.Up], "sent down", c.Sent[nf.Down],
					"missed", c.Missed[nf.Up]+c.Missed[nf.Down], "unread", c.Unread[nf.Up]+c.Unread[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down], "described", c.Described)
			})
		},
	})
}
