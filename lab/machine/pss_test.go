package machine

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
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

// A file in memory counts once, whether a process that has it maps it, or another does, or nobody: a virtual machine's memory is one, and QEMU has not touched all of what
// is in it.
func TestPSSHasFilesInMemory(t *testing.T) {
	const size, mappedSize = 64 << 20, 24 << 20
	fd, err := unix.MemfdCreate("weir-test memory", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memory")
	for part := bytes.Repeat([]byte("memory.."), 1<<17); ; { // not at once: what the test needs itself is to be little
		if _, err := file.Write(part); err != nil {
			t.Fatal(err)
		}
		if at, err := file.Seek(0, io.SeekCurrent); err != nil || at == size {
			break
		}
	}
	if err := file.Truncate(2 * size); err != nil { // what is not there does not count
		t.Fatal(err)
	}
	var its []int
	for range 2 { // it counts once, although two have it
		c := exec.Command("/bin/sh", "-c", "read -r end")
		c.ExtraFiles = []*os.File{file}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_ = c.Wait() // read fails
		}()
		its = append(its, c.Process.Pid)
	}
	check := func(what string, counts func(int) bool, want int64) {
		t.Helper()
		const others = 16 << 20 // what two shells, or the test, take for themselves
		got, err := PSS(counts)
		if err != nil || got < want || got > want+others {
			t.Errorf("%s: %d MiB (%v), want %d to %d", what, got>>20, err, want>>20, (want+others)>>20)
		}
	}
	theirs := func(pid int) bool { return slices.Contains(its, pid) }
	check("mapped by nobody", theirs, size)
	mapped, err := unix.Mmap(fd, 0, mappedSize, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	check("a part is another's", theirs, size-mappedSize)
	mine, err := PSS(func(pid int) bool { return pid == os.Getpid() })
	if err != nil {
		t.Fatal(err)
	}
	both, err := PSS(func(pid int) bool { return pid == os.Getpid() || theirs(pid) })
	if more := both - mine; err != nil || more < -16<<20 || more > 16<<20 {
		t.Errorf("with those who have the same file: %d MiB more (%v)", more>>20, err)
	}
	file.Close()
	if less, err := PSS(func(pid int) bool { return pid == os.Getpid() }); err != nil || less < size || less > mine+16<<20 {
		t.Errorf("%d MiB of a process that only maps it, %d of one that also has it open (%v)", less>>20, mine>>20, err)
	}
}
