// Package tied starts programs that end with this process, however it ends.
package tied

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

type order struct {
	space string
	cmd   *exec.Cmd
	done  chan error
}

var (
	orders = make(chan order)
	begin  sync.Once
)

// Start starts a command, in a network namespace (a path, or a name as package netns has it), or in this thread's if that is empty. The kernel kills it when this process ends. It would
// do so, too, when the thread ends that has started it, and threads of Go end: so all are started by one that stays.
func Start(space string, cmd *exec.Cmd) error {
	begin.Do(func() { go serve() })
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	o := order{space, cmd, make(chan error, 1)}
	orders <- o
	return <-o.done
}

func serve() {
	runtime.LockOSThread() // for ever
	for o := range orders {
		o.done <- start(o.space, o.cmd)
	}
}

func start(space string, cmd *exec.Cmd) (err error) {
	if space == "" {
		return cmd.Start()
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	there, err := netns.Open(space)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", space, err)
	}
	defer func() {
		if berr := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); berr != nil {
			err = errors.Join(err, fmt.Errorf("leave network namespace %s: %w", space, berr))
		}
	}()
	return cmd.Start()
}
