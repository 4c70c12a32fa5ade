package machine

import (
	"io"
	"os/exec"
	"testing"
)

// What a process holds is counted, and not when it has ended: the shell keeps 64 MiB of text.
func TestPSSHasWhatAProcessHolds(t *testing.T) {
	c := exec.Command("/bin/sh", "-c", `x=$(head -c 67108864 /dev/zero | tr '\0' x); echo held; read -r end`)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("held\n"))); err != nil {
		t.Fatal(err)
	}
	its := func(pid int) bool { return pid == c.Process.Pid }
	with, err := PSS(its)
	if err != nil || with>>20 < 60 || with>>20 > 400 {
		t.Errorf("%d MiB, %v: want 64 and what the shell takes for itself", with>>20, err)
	}
	all, err := PSS(Others)
	if err != nil || all < with {
		t.Errorf("all others have %d bytes, %v: one of them has %d", all, err, with)
	}
	_ = in.Close()
	_ = c.Wait() // read fails
	if after, err := PSS(its); err != nil || after != 0 {
		t.Errorf("%d bytes of a process that has ended, %v", after, err)
	}
}
