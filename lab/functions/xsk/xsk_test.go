package main

import (
	"testing"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) { rig.Main(m) }

// Frames of all kinds pass both ways unchanged, TCP too, from stations that send whole frames; what does not fit is counted.
func TestFramesPassUnchanged(t *testing.T) {
	r := rig.New(t, false)
	for _, s := range []*rig.Station{r.Client, r.Server} { // what comes must be whole
		space, err := netns.At(s.Netns)
		if err != nil {
			t.Fatal(err)
		}
		if err := space.Offloads(s.Link.Name, false); err != nil {
			t.Fatal(err)
		}
		space.Close()
	}
	rig.WiresPass(t, r, 60)
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
