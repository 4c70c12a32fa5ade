package stall

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"weir.dev/weir/lab/tied"
)

// awake keeps a CPU from being idle, by a program that runs when nothing else wants the CPU (SCHED_IDLE). A virtual CPU that is idle is given back to the
// hypervisor, which wakes it up for a timer up to tens of milliseconds late: that would look like a stall, and delays the first frame that comes.
type awake struct{ cmd *exec.Cmd }

// spin for ever. The program ends with this process, however that ends: see package tied.
const spin = `while :; do :; done`

// keepAwake makes the program for a CPU. It is stopped at first.
func keepAwake(cpu int) (*awake, error) {
	a := &awake{exec.Command("taskset", "--cpu-list", strconv.Itoa(cpu), "chrt", "--idle", "0", "sh", "-c", spin)}
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.cmd.WaitDelay = time.Second
	if err := tied.Start("", a.cmd); err != nil {
		return nil, fmt.Errorf("keep CPU %d awake (taskset and chrt of util-linux): %w", cpu, err)
	}
	if err := a.signal(syscall.SIGSTOP); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

func (a *awake) signal(s syscall.Signal) error {
	if err := a.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal what keeps a CPU awake: %w", err)
	}
	return nil
}

func (a *awake) close() error {
	err := a.cmd.Process.Kill()
	var ended *exec.ExitError
	if werr := a.cmd.Wait(); werr != nil && !errors.As(werr, &ended) {
		err = errors.Join(err, werr)
	}
	return err
}
