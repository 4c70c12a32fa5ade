// Package launcher runs lists of system calls in a program of 1.3 KB (launcher.c), so that a process can change step by step and then be another program:
// leave the host and be a container's, what fork and exec of a Go process cannot do, as its threads may not change their user namespace, and what a runtime
// with a language's own start-up would take ten times as long for. The launcher runs where nothing can be relied on, no C library and no file of the host.
//
// It owns the lists' form, the launcher, and what is heard of it. What the lists have in them is package steps' and the engines'.
package launcher

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

//go:generate clang --target=x86_64-linux-gnu -Os -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pic -nostdlib -static -fuse-ld=lld -Wl,--build-id=none,-z,noexecstack,-z,norelro,--strip-all -o launcher_amd64.elf launcher.c
//go:generate clang --target=aarch64-linux-gnu -Os -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-pic -nostdlib -static -fuse-ld=lld -Wl,--build-id=none,-z,noexecstack,-z,norelro,--strip-all -o launcher_arm64.elf launcher.c
//go:generate sh -c "{ clang --version | head -n 1; sha256sum launcher.c; } >launcher.sum"

// ErrMachine says that there is no launcher for this machine's processor.
var ErrMachine = errors.New("no launcher for this kind of processor")

// Name of the file that a process of the launcher executes, as /proc/PID/exe has it until the container's program takes its place.
const Name = "weir-launcher"

const sealExec = 0x20 // F_SEAL_EXEC, since Linux 6.3: the mode cannot change

// exe is the launcher in memory: whoever runs it can change nothing of it. It is made anew for each run, as programs of a container can get hold of it: by
// /proc/PID/exe of a process that is about to be theirs, or as the interpreter of a script. A container's root that is the host's owns it, and could take
// its mode from it.
func (p *Program) exe() (*os.File, error) {
	if len(code) == 0 {
		return nil, ErrMachine
	}
	return p.memory(Name, 0o500, code)
}

// File is p in memory, for Again.
func (p *Program) File() (*os.File, error) {
	raw, err := p.encode()
	if err != nil {
		return nil, err
	}
	return p.memory("program", 0o400, raw)
}

// memory makes a file that cannot be changed any more. It is for the host's root alone, unless Anyone may run p.
func (p *Program) memory(name string, mode os.FileMode, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every such file can be executed
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	if p.Anyone {
		mode |= mode>>3 | mode>>6
	}
	f := os.NewFile(uintptr(fd), name)
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		if _, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals|sealExec); errors.Is(err, unix.EINVAL) {
			_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("launcher: %w", err), f.Close())
	}
	return f, nil
}

// Ready tells why nothing can be launched here; nil: it can.
func Ready() error {
	f, err := new(Program).exe()
	if err != nil {
		return err
	}
	return f.Close()
}
