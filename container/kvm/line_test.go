package kvm

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
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

// A machine whose connections never end, and that opens and closes more without end, has a bounded number of goroutines.
func TestOpensWithoutEndAreBounded(t *testing.T) {
	dir := t.TempDir()
	control, err := net.Listen("unix", filepath.Join(dir, controlSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	events := filepath.Join(dir, "events")
	silent, err := net.Listen("unix", events) // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	l, err := dial(context.Background(), dir, []string{events})
	if err != nil {
		t.Fatal(err)
	}
	machine, err := control.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	before := runtime.NumGoroutine()
	id := uint32(1)
	send := func(f channel.Frame) {
		t.Helper()
		raw, err := channel.Append(nil, f)
		if err == nil {
			_, err = machine.Write(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	go func() { // what the daemon answers
		b := make([]byte, 4096)
		for {
			if _, err := machine.Read(b); err != nil {
				return
			}
		}
	}()
	for range connections {
		send(channel.Frame{Kind: channel.Open, Stream: id, Payload: []byte{0}})
		id += 2
	}
	for range 2000 {
		send(channel.Frame{Kind: channel.Open, Stream: id, Payload: []byte{0}})
		send(channel.Frame{Kind: channel.Close, Stream: id})
		id += 2
	}
	time.Sleep(200 * time.Millisecond) // the last ones are read
	if n := runtime.NumGoroutine() - before; n > 4*(connections+channel.MaxStreams) {
		t.Errorf("%d goroutines more, want at most %d", n, 4*(connections+channel.MaxStreams))
	}
	l.close()
}
