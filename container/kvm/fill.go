package kvm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel/launcher"
)

// filler fills a machine's memory from a template's, and then is QEMU: the pages count to the group of the process that writes them first, as the kernel charges memory
// to processes and not to threads.
type filler struct {
	parts       []part // of the template's memory
	says, heard *os.File
	list        *launcher.Program
}

// part of a file that is no hole.
type part struct{ at, end int64 }

const (
	smallHole  = 64 << 10  // is filled, too
	mostParts  = 1000      // of a template's memory, which has about ten
	mostAtOnce = 512 << 20 // bytes: one call copies less than 2 GiB
)

// copies has the machine's memory filled before QEMU starts. It is the first that the command is told: descriptors count from there.
func (c *command) copies(from *template) error {
	f := &filler{}
	var err error
	if f.parts, err = parts(from.ram); err != nil {
		return fmt.Errorf("template: %w", err)
	}
	if f.heard, f.says, err = os.Pipe(); err != nil {
		return err
	}
	c.filler, c.files = f, []*os.File{nil, nil, from.ram, f.says} // the launcher and its list come later
	return nil
}

func (f *filler) close() {
	f.says.Close()
	f.heard.Close()
}

// parts finds what of a file is there.
func parts(f *os.File) (all []part, err error) {
	for end := int64(0); ; {
		at, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all, nil // the rest is a hole
		}
		if err == nil {
			end, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
		}
		if err != nil {
			return nil, err
		}
		if n := len(all); n > 0 && at-all[n-1].end <= smallHole {
			at, all = all[n-1].at, all[:n-1]
		}
		for ; end-at > mostAtOnce; at += mostAtOnce {
			all = append(all, part{at, at + mostAtOnce})
		}
		if all = append(all, part{at, end}); len(all) > mostParts {
			return nil, fmt.Errorf("its memory has more than %d parts", mostParts)
		}
	}
}

// Descriptors of the process that fills.
const (
	memoryFD = launcher.FirstFile + iota
	fillerFD // for what it says
)

// before has a command executed by the process that has filled the memory.
func (f *filler) before(cmd *exec.Cmd, c *command) (done func(), err error) {
	p := launcher.New(fillerFD)
	p.Anyone = true
	for _, part := range f.parts {
		const what = "fill the memory of the virtual machine"
		from := p.Bytes(binary.NativeEndian.AppendUint64(nil, uint64(part.at)))
		p.Call(what, unix.SYS_LSEEK, launcher.Int(c.ram), launcher.Int(part.at), launcher.Int(unix.SEEK_SET))
		p.Call(what, unix.SYS_SENDFILE, launcher.Int(c.ram), launcher.Int(memoryFD), from, launcher.Int(part.end-part.at))
		// Back to the file's beginning: there is none if less was written than is to be.
		p.Call(what+" to the end", unix.SYS_LSEEK, launcher.Int(c.ram), launcher.Int(-part.end), launcher.Int(unix.SEEK_CUR))
	}
	for fd := launcher.FirstFile - 2; fd <= fillerFD; fd++ {
		p.Call("close files at execve", unix.SYS_FCNTL, launcher.Int(fd), launcher.Int(unix.F_SETFD), launcher.Int(unix.FD_CLOEXEC))
	}
	p.Execute(append([]string{cmd.Path}, cmd.Args[1:]...), nil)
	run, done, err := p.Command(context.Background(), nil)
	if err != nil {
		return nil, err
	}
	copy(c.files, run.ExtraFiles)
	cmd.Path, cmd.Args, f.list = run.Path, run.Args, p
	return done, nil
}

// wait returns when the process is another program.
func (f *filler) wait(ctx context.Context) error {
	f.says.Close()
	defer context.AfterFunc(ctx, func() { _ = f.heard.SetReadDeadline(time.Unix(1, 0)) })()
	_, err := f.list.Hear(f.heard, func(launcher.Said) bool { return false })
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	return nil
}
