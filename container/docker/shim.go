package docker

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// shimPatience is how long the shim of a container that is gone may take to end by itself.
const shimPatience = time.Second

// endShim ends the shim of a container that the engine has removed. There should be none; but containerd forgets a shim, and lets it run, when the engine
// is killed while the shim makes or deletes a container. The id is the engine's, random and of a container of ours.
func endShim(ctx context.Context, id string) error {
	deadline := time.Now().Add(shimPatience)
	for {
		pids, err := shims(id)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			for _, pid := range pids {
				if err := killShim(pid, id); err != nil {
					return err
				}
			}
			deadline = time.Now().Add(shimPatience)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("shim of container %.12s: %w", id, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// shims are the processes of containerd's shims for an id.
func shims(id string) (pids []int, err error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if pid, err := strconv.Atoi(d.Name()); err == nil && isShim(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func isShim(pid int, id string) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	program, args, ok := bytes.Cut(raw, []byte{0})
	return err == nil && ok && strings.HasPrefix(filepath.Base(string(program)), "containerd-shim") && bytes.Contains(args, []byte("-id\x00"+id+"\x00"))
}

// killShim kills a process that is still the one it was.
func killShim(pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(fd)
	if !isShim(pid, id) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("end shim %d: %w", pid, err)
	}
	return nil
}
