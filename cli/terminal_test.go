package cli_test

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// end asks a process that a test started to end, and waits until it has.
func end(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if n, err := unix.Poll(poll, 100); err == nil && n == 1 {
			return nil
		}
	}
	return fmt.Errorf("process %d did not end", pid)
}

// pty makes a pseudo-terminal: what the program sees is tty.
func pty() (master, tty *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("pseudo-terminal: %w", err)
	}
	return master, tty, nil
}

// raw waits until the program has switched its terminal to hand keys through.
func raw(master *os.File) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		t, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
		if err != nil {
			return fmt.Errorf("terminal: %w", err)
		}
		if t.Lflag&unix.ICANON == 0 {
			return nil
		}
	}
	return fmt.Errorf("the terminal did not become raw")
}
