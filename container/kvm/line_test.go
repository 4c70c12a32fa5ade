package kvm

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/container/kvm/channel"
)

// A machine that sends frames, or what is none, as fast as it can is read no faster than the limit, and its line still ends at once.
func TestAFloodIsReadSlowly(t *testing.T) {
	frame, err := channel.Append(nil, channel.Frame{Kind: channel.Started, Payload: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	for name, piece := range map[string][]byte{"small frames": frame, "no frames": make([]byte, 4096)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			in, err := net.Listen("unix", filepath.Join(dir, controlSocket))
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			l, err := dial(context.Background(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			machine, err := in.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer machine.Close()
			begun := time.Now()
			if err := machine.SetWriteDeadline(begun.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			sent := 0
			for err == nil {
				var n int
				n, err = machine.Write(piece)
				sent += n
			}
			took := time.Since(begun)
			each := len(piece)
			if name == "small frames" {
				each += frameCost
			}
			waiting := (1 << 20) / max(len(piece), 128) // more than a socket and a buffer keep
			if most := int(mostBytes*took.Seconds()) + atOnce + waiting*each; sent/len(piece)*each > most {
				t.Errorf("%d pieces of %d bytes were read in %s: want at most %d", sent/len(piece), len(piece), took, most/each)
			}
			if sent < len(piece)*100 {
				t.Errorf("%d bytes were read: it has stopped", sent)
			}
			l.close()
		})
	}
}
