package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forked makes a system call in a child with one thread: with several, as a program in Go has, the kernel refuses some of them for that alone.
func forked(number uintptr, args ...uintptr) error { return forkedAny([]uintptr{number}, args...) }

// forkedAny makes several system calls, up to the first that goes through. Its error is that of the last one.
func forkedAny(numbers []uintptr, args ...uintptr) error {
	var a [4]uintptr
	copy(a[:], args)
	syscall.ForkLock.Lock()
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for _, number := range numbers {
			if _, _, errno = syscall.RawSyscall6(number, a[0], a[1], a[2], a[3], 0, 0); errno == 0 {
				break
			}
		}
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return errno
	}
	return ended(int(pid))
}

// killed is the signal that ended a child.
type killed struct{ unix.Signal }

func (k killed) Error() string { return "killed: " + k.String() }

// callTimeout bounds a child's system call. One that is refused returns, or ends the child, at once.
const callTimeout = 3 * time.Second

// ended is what a child says with its exit code, or how it was killed.
func ended(pid int) error {
	slow := time.AfterFunc(callTimeout, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	defer slow.Stop()
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			return err
		}
		break
	}
	if ws.Signaled() {
		return killed{ws.Signal()}
	}
	if code := ws.ExitStatus(); code != 0 {
		return unix.Errno(code)
	}
	return nil
}

// childCalls makes system calls in a child. A filter may end what makes one, without a word to the program's other threads. Only an error or the filter's signal is a
// refusal: a call that waits, or has another signal, is one that the kernel makes.
func childCalls(verdict string, numbers []uintptr, args ...uintptr) (string, string) {
	err := forkedAny(numbers, args...)
	k, ok := errors.AsType[killed](err)
	switch {
	case ok && k.Signal == unix.SIGSYS && len(numbers) > 1: // which leaves the rest
		var tries []func() (string, string)
		for _, number := range numbers {
			tries = append(tries, func() (string, string) { return childCalls(verdict, []uintptr{number}, args...) })
		}
		return anyOf(tries...)
	case ok && k.Signal != unix.SIGSYS:
		return verdict, fmt.Sprintf("one of the system calls %d is made: %v", numbers, err)
	}
	return no(err, verdict, fmt.Sprintf("one of the system calls %d is made", numbers))
}

// clones makes a child by a system call, of which it is told whether there is one. The child ends at once.
func clones(verdict string, number uintptr, args ...uintptr) (string, string) {
	var a [6]uintptr
	copy(a[:], args)
	syscall.ForkLock.Lock()
	pid, _, errno := syscall.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno == 0 && pid == 0 {
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	syscall.ForkLock.Unlock()
	if errno != 0 {
		return refused, errno.Error()
	}
	_ = ended(int(pid))
	return verdict, fmt.Sprintf("system call %d made a process", number)
}

// enters tries to enter a namespace that a file stands for.
func enters(path string) (string, string) {
	f, err := os.Open(path)
	if err != nil {
		return refused, err.Error()
	}
	defer f.Close()
	return no(forked(unix.SYS_SETNS, f.Fd(), 0), escaped, "entered "+path)
}

// cloneArgs is struct clone_args of <linux/sched.h>, its first version.
type cloneArgs struct{ flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64 }

func clone3(flags uint64) (string, string) {
	args := cloneArgs{flags: flags, exitSignal: uint64(unix.SIGCHLD)}
	return clones(escaped, unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
}
