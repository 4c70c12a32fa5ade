package tools

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/tied"
)

// maxOutput of one program that is kept.
const maxOutput = 4 << 20

// Raw is how a result came about.
type Raw struct {
	Argv    []string `json:"argv"`
	Version string   `json:"version,omitempty"`
	Output  string   `json:"output"`
}

// ErrMissing says that a program is not installed; the text names the Debian package.
var ErrMissing = errors.New("not installed")

// packages by program.
func packageOf(program string) string {
	switch program {
	case "ping":
		return "iputils-ping"
	case "nc":
		return "netcat-openbsd"
	case RealTime, "taskset":
		return "util-linux"
	case "xz":
		return "xz-utils"
	case "busybox":
		return "busybox-static"
	case "dd":
		return "coreutils"
	case "lxc-start":
		return "lxc"
	case "systemd-nspawn":
		return "systemd-container"
	}
	return program
}

// Installed tells whether the programs are there.
func Installed(programs ...string) error {
	var errs []error
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w (apt-get install %s)", p, ErrMissing, packageOf(p)))
		}
	}
	return errors.Join(errs...)
}

// client runs a program in a namespace to its end.
func client(ctx context.Context, space string, argv ...string) (Raw, error) {
	r := Raw{Argv: argv}
	if err := Installed(argv[0]); err != nil {
		return r, err
	}
	r.Version = version(argv[0])
	out, problems := &tied.Output{Most: maxOutput}, &tied.Output{Most: maxOutput}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, problems
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	bound(cmd)
	err := tied.Start(space, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	r.Output = out.String()
	if err != nil {
		return r, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), errors.Join(err, ctx.Err()), strings.TrimSpace(problems.String()))
	}
	return r, nil
}

// bound makes a program end with us and with its context.
func bound(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
}

// server starts a program in a namespace and waits until it listens at the port. The caller ends it.
func server(ctx context.Context, space, network string, port int, argv ...string) (end func(), err error) {
	if err := Installed(argv[0]); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	problems := &tied.Output{Most: maxOutput}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = problems, problems
	bound(cmd)
	if err := tied.Start(space, cmd); err != nil {
		cancel()
		return nil, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() {
		cancel()
		<-ended
	}
	deadline := time.After(5 * time.Second)
	for {
		up, err := listens(space, network, port)
		switch {
		case err != nil:
			stop()
			return nil, err
		case up:
			return stop, nil
		}
		select {
		case err := <-ended:
			cancel()
			return nil, fmt.Errorf("%s ended before it listened: %v: %s", strings.Join(argv, " "), err, strings.TrimSpace(problems.String()))
		case <-deadline:
			stop()
			return nil, fmt.Errorf("%s does not listen at %s port %d: %s", strings.Join(argv, " "), network, port, strings.TrimSpace(problems.String()))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// version is the first line that a program says about itself; empty if it does not.
func version(program string) string {
	flag := "--version"
	switch program {
	case "ping", "nuttcp":
		flag = "-V"
	case "nc":
		flag = "-h"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, program, flag).CombinedOutput() // iperf ends with 1
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(line)
}
