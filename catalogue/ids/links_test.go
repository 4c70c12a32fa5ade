package main

import (
	"bytes"
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// Doors with a wire instead of Suricata. It gets complete frames, whatever senders leave to the hardware, and nothing while the doors are shut.
func TestDoors(t *testing.T) {
	r := rig.New(t, false)
	doors := make([]*door, 2)
	open := func(i int, port string) {
		t.Helper()
		r.Do(r.Netns, func() (err error) { doors[i], err = openDoor(port); return err })
	}
	open(0, "in")
	open(1, "out")
	var frames, incomplete atomic.Int64
	var loop *nf.Frames
	r.Do(r.Netns, func() (err error) {
		loop, err = nf.OpenFrames(nf.Options{In: "in-i", Out: "out-i", Handle: func(_ nf.Dir, f nf.Frame) nf.Verdict {
			frames.Add(1)
			if f.Segmented() || f.ChecksumMissing() || len(f.Data) > 1514+tags {
				incomplete.Add(1)
			}
			return nf.Pass
		}})
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait(); loop.Close() })

	nothingPasses(t, r)
	must(t, doors[0].Up())
	nothingPasses(t, r)
	must(t, doors[1].Up())
	from := []byte{2, 0, 0, 0, 0, 8}
	rest := append([]byte{0x12, 0x34}, make([]byte, 46)...)
	for name, x := range map[string]struct {
		to, from []byte
		passes   bool
	}{
		"STP":                        {[]byte{1, 0x80, 0xc2, 0, 0, 0}, from, true},
		"pause":                      {[]byte{1, 0x80, 0xc2, 0, 0, 1}, from, false},
		"LACP":                       {[]byte{1, 0x80, 0xc2, 0, 0, 2}, from, false},
		"802.1X":                     {[]byte{1, 0x80, 0xc2, 0, 0, 3}, from, true},
		"GARP":                       {[]byte{1, 0x80, 0xc2, 0, 0, 0x21}, from, true},
		"broadcast":                  {bytes.Repeat([]byte{0xff}, 6), from, true},
		"from a group":               {[]byte{2, 0, 0, 0, 0, 9}, []byte{3, 0, 0, 0, 0, 8}, false},
		"from nobody":                {[]byte{2, 0, 0, 0, 0, 9}, make([]byte, 6), false},
		"from somebody like nobody":  {[]byte{2, 0, 0, 0, 0, 9}, []byte{0, 0, 0, 0, 0, 8}, true},
		"to the port's own address":  {doors[0].port.Attrs().HardwareAddr, from, true},
		"to the inner one's address": {doors[0].inner.Attrs().HardwareAddr, from, true},
	} {
		for tagged, tag := range map[string][]byte{"": nil, ", with a tag": {0x81, 0, 0x20, 7}} {
			f := bytes.Join([][]byte{x.to, x.from, tag, rest}, nil)
			if rig.Passes(r.Client, r.Server, f) != x.passes || rig.Passes(r.Server, r.Client, f) != x.passes {
				t.Errorf("%s%s: want %v", name, tagged, x.passes)
			}
		}
	}

	r.Server.Echo("10.77.0.2:7")
	dialing, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(dialing, "tcp4", "10.77.0.2:7")
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = c.Write(sent) })
	got := make([]byte, len(sent))
	_, err = io.ReadFull(c, got)
	writing.Wait()
	must(t, err)
	if !bytes.Equal(got, sent) {
		t.Error("other bytes come back")
	}
	if n, bad := frames.Load(), incomplete.Load(); bad > 0 || n < int64(2*len(sent)/1500) {
		t.Errorf("of %d frames that came to be inspected %d are not complete", n, bad)
	}

	must(t, doors[0].Down())
	must(t, doors[1].Down())
	nothingPasses(t, r)
	loop.Do(func() { loop.Send(nf.Up, nf.NewFrame(rig.Probe(88))) })
	if f := r.Server.Receive(300 * time.Millisecond); f != nil {
		t.Errorf("a frame leaves by a door that is shut: % x", f)
	}
	for i, port := range []string{"in", "out"} { // as after a crash: what is left is open
		must(t, doors[i].Up())
		doors[i].Close()
		open(i, port)
		defer doors[i].Close()
	}
	nothingPasses(t, r)
}
