package main

import (
	"testing"

	"weir.dev/weir/catalogue/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

// Frames of all kinds pass both ways unchanged, and TCP whose segments nobody has cut.
func TestFramesPassUnchanged(t *testing.T) { rig.WiresPass(t, rig.New(t, false), 14) }

// Without what it needs the function says what that is, and ends.
func TestAPortThatIsNotThere(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Program(t), "-out", "elsewhere")
	if err := p.End(); err == nil {
		t.Error("it runs")
	}
	p.Await("port elsewhere: ")
}
