package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/catalogue/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// start runs the function between two stations and waits until it forwards.
func start(t testing.TB, config string) (*rig.Rig, *rig.Process) {
	t.Helper()
	r := rig.New(t, false)
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(config), 0o644))
	p := r.Start(rig.Program(t), "-config", file, "-probe", rig.WriteProbe(t, dir), "-events", filepath.Join(dir, "events.sock"))
	p.Await("impairments in force")
	rig.Eventually(t, "probes pass", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	for r.Server.Receive(50*time.Millisecond) != nil { // those that came late
	}
	return r, p
}

// Frames of all kinds wait and leave as they came, tags included; what is not chosen does not wait.
func TestDelayOfFrames(t *testing.T) {
	r, p := start(t, `{"up": {"delay": "100ms"}, "match": ["ip"]}`)
	frames := [][]byte{}
	for _, kind := range [][]byte{{8, 0, 0x45, 0, 0, 40}, {0x86, 0xdd, 0x60, 0, 0, 0, 0, 6}, {0x81, 0, 0, 42, 8, 0, 0x45, 0, 0, 40}} {
		f := bytes.Repeat([]byte{7}, 60)
		copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
		copy(f[12:], kind)
		frames = append(frames, f)
	}
	for _, f := range frames {
		begin := time.Now()
		r.Client.Send(f)
		got := r.Server.Receive(rig.Patience)
		if took := time.Since(begin); !bytes.Equal(got, f) || took < 100*time.Millisecond {
			t.Errorf("% x came after %s as % x", f, took, got)
		}
		if !rig.Passes(r.Server, r.Client, f) { // the other way at once: the probe behind it does not pass it
			t.Errorf("% x did not pass down", f)
		}
	}
	r.PassUnchanged(50, 60, []byte{8, 6}, []byte{0x12, 0x34})
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	if out := p.Output(); !strings.Contains(out, "direction=up taken=3 lost=0") || !strings.Contains(out, "direction=down taken=0") {
		t.Errorf("counters: %s", out)
	}
}

// Real connections over a bad line, with offloads and without: what arrives is right.
func TestStreamsOverABadLine(t *testing.T) {
	r, _ := start(t, `{"up": {"delay": "2ms", "jitter": "1ms", "loss": "1%", "duplicate": "1%", "reorder": "1%", "hold": "3ms"}, "down": {"delay": "3ms", "rate": "200Mbit"}}`)
	r.Server.Echo("10.77.0.2:7000")
	want := bytes.Repeat([]byte("all bytes come, in order. "), 20_000)
	for _, offload := range []string{"on", "off"} {
		for _, s := range []*rig.Station{r.Client, r.Server} {
			rig.Command(t, s, "ethtool", "-K", s.Link.Name, "rx", offload, "tx", offload, "tso", offload, "gso", offload, "gro", offload)
		}
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7000")
		cancel()
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
		go func() { _, _ = c.Write(want) }()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("offloads %s: other bytes came back: %v", offload, err)
		}
		c.Close()
	}
	begin := time.Now()
	rig.Command(t, r.Client, "ping", "-q", "-c", "3", "-i", "0.05", "-W", "5", "10.77.0.2")
	if took := time.Since(begin); took < 4*time.Millisecond {
		t.Errorf("three answers after %s", took)
	}
}
