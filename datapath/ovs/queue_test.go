package ovs

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/suite"
)

// A switch in user space gets no processor for a while: what comes meanwhile waits, also after it was started anew and at ports that were
// added later. Without queues of our own some 200 frames of these 5000 would arrive.
func TestFramesWaitForASwitchThatGetsNoProcessor(t *testing.T) {
	const frames = 5000
	r, alice, bob := steered(t, factory)
	procs := ours(r).processes.own
	mark := []byte("waits for a processor")
	frame := slices.Concat(bob.MAC[:], alice.MAC[:], []byte{0x12, 0x34}, mark, make([]byte, 33))
	stall := func(t *testing.T) {
		bob.Forget()
		pid := procs.SwitchPID()
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for range frames {
			alice.Send(t, frame)
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		suite.Until(t, "all frames", func() bool { return len(bob.Frames(mark)) >= frames })
		if n := len(bob.Frames(mark)); n != frames {
			t.Errorf("%d frames arrived, want %d", n, frames)
		}
	}
	t.Run("ports as they were added", stall)
	before := procs.SwitchPID()
	kill(t, before)
	suite.Until(t, "Open vSwitch is there again", func() bool {
		pid := procs.SwitchPID()
		return pid != 0 && pid != before
	})
	r.Wire("another") // waits for the connection
	t.Run("ovs-vswitchd started anew", stall)
}
