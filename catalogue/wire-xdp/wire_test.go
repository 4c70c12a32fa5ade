package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/agent/xdp"
	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) { rig.Main(m) }

// platform hears a function in a rig, and has the links that lead there finish frames, as the agent does.
func platform(t *testing.T, r *rig.Rig) (path string) {
	t.Helper()
	own, err := socket.SpaceAt(r.Netns)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path = filepath.Join(dir, "xdp.sock")
	s, err := xdp.Serve(filepath.Join(dir, "fresh"), path, func(from socket.Space) (string, bool) { return r.Netns, from == own })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, station := range []*rig.Station{r.Client, r.Server} {
		space, err := netns.At(station.Netns)
		if err != nil {
			t.Fatal(err)
		}
		if err := space.Finish(station.Link.Name); err != nil {
			t.Fatal(err)
		}
		space.Close()
	}
	return path
}

// Frames of all kinds pass both ways unchanged, and TCP of stations whose links finish frames.
func TestFramesPassUnchanged(t *testing.T) {
	r := rig.New(t, false)
	rig.WiresPass(t, r, 14, "-xdp", platform(t, r))
}

// Frames that no honest station sends pass as they came, too.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Program(t), "-xdp", platform(t, r))
	p.Await("in force")
	rig.Hostile{Frames: 1_000_000, MemoryKB: 24 << 10, Pass: 0.9}.Send(r, p.PID())
	p.Signal(syscall.SIGUSR1)
	p.Await("counter")
	p.Signal(syscall.SIGTERM)
	if err := p.End(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// Frames that are longer than a socket takes are dropped and counted, the log says so, and others pass on.
func TestLongFramesAreCounted(t *testing.T) {
	r := rig.New(t, false)
	path := platform(t, r)
	for space, links := range map[string][]string{r.Netns: {"in", "out"}, r.Client.Netns: {r.Client.Link.Name}, r.Server.Netns: {r.Server.Link.Name}} {
		at, err := netns.At(space)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if err := at.SetMTU(l, 3000); err != nil {
				t.Fatal(err)
			}
		}
		at.Close()
	}
	p := r.Start(rig.Program(t), "-xdp", path)
	p.Await("longer frames are dropped")
	p.Await("in force")
	frame := func(n int) []byte {
		f := make([]byte, n)
		copy(f, rig.Probe(2)[:12])
		f[12], f[13], f[n-1] = 0x12, 0x34, 9
		return f
	}
	for n, want := range map[int]bool{60: true, 1514: true, 1792: true, 1793: false, 3014: false} {
		if got := rig.Passes(r.Client, r.Server, frame(n)); got != want {
			t.Errorf("a frame of %d bytes: passes %t, want %t", n, got, want)
		}
	}
	p.Signal(syscall.SIGUSR1)
	p.Await(`"too long"=2`)
	if strings.Contains(p.Output(), "ends") {
		t.Error("it has ended")
	}
}

// Without what it needs the function says what that is, and ends.
func TestWhatIsMissingIsSaid(t *testing.T) {
	r := rig.New(t, false)
	path := platform(t, r)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a port":       {[]string{"-xdp", path, "-out", "elsewhere"}, "port elsewhere: "},
		"the platform": {[]string{"-xdp", path + ".none"}, "the image's label weir.xdp must be"},
	} {
		p := r.Start(rig.Program(t), c.args...)
		if err := p.End(); err == nil {
			t.Errorf("%s: it runs", name)
		}
		p.Await(c.says)
	}
}

// A port that goes ends the function: the agent starts another.
func TestAPortThatGoesEndsIt(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Program(t), "-xdp", platform(t, r))
	p.Await("in force")
	r.Server.Cut()
	if err := p.End(); err == nil {
		t.Error("it runs, or has ended without an error")
	}
	p.Await("network is down")
}
