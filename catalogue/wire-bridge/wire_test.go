package main

import (
	"syscall"
	"testing"

	"weir.dev/weir/catalogue/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// Frames of all kinds pass both ways unchanged, and TCP whose segments nobody has cut.
func TestFramesPassUnchanged(t *testing.T) { rig.WiresPass(t, rig.New(t, false), 14) }

// Frames that no honest station sends, up to jumbo frames, pass as they came, too.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Program(t), "-probe", rig.WriteProbe(t, t.TempDir()))
	p.Await("in force")
	rig.Hostile{Frames: 1_000_000, MTU: 9000, MemoryKB: 24 << 10, Pass: 0.8}.Send(r, p.PID())
	p.Signal(syscall.SIGTERM)
	if err := p.End(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// Without what it needs the function says what that is, and ends.
func TestAPortThatIsNotThere(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Program(t), "-out", "elsewhere")
	if err := p.End(); err == nil {
		t.Error("it runs")
	}
	p.Await("port elsewhere: ")
}
