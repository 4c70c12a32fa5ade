package cli_test

import (
	"fmt"
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
