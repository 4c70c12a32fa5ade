package service

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/instance"
)

// UpOptions say how the daemon runs.
type UpOptions struct {
	DaemonOptions
	config.Manager
}

// DaemonOptions are common to `weir up`, `weir manager` and `weir agent`.
type DaemonOptions struct {
	Instance instance.Instance
	Host     config.Host
	Runtime  string // program of the runtime oci, a name or a path; "": its own default
	// FunctionMemory bounds a function whose spec names no limit, in bytes; 0: nothing does.
	FunctionMemory int64
	// FunctionCPUs and FunctionDisk (bytes a second) do the same for processors and disks.
	FunctionCPUs      Cores
	FunctionDisk      int64
	FunctionRings     int64    // bytes that the rings and queues of a function's sockets may take together; 0: nothing bounds them
	AcceptBridged     bool     // have the host's iptables accept what the switch's bridge forwards
	VulnerableRuntime bool     // accept a runtime with known container escapes
	KVMKernel         string   // of the virtual machines of the runtime kvm, a path or a pattern; "": looked for
	ImagesDir         string   // a further OCI layout to find images in
	Registries        []string // from which images that functions name are pulled
	Verify            []string // rules PATTERN=KEYFILE: images that need a signature
	LogLevel          string   // debug, info, warn, error
	LogFormat         string   // text or json
	Stderr            io.Writer
	// Ready is called once the daemon works and its manager knows the host; with --detach the command returns then. Safe to call twice.
	Ready func()
}

const (
	listenDefault = "127.0.0.1:7411"
	uiDefault     = "127.0.0.1:7410"
	// readyVariable passes the descriptor that `up` in the background closes when it is ready.
	readyVariable = "WEIR_INTERNAL_READY_FD"
	endGrace      = 10 * time.Second
)

func (a *commands) upCommand() *cobra.Command {
	o := UpOptions{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run Weir on this machine: API, state, agent and switch in one process",
		Long: `Run Weir on this machine until Ctrl-C or SIGTERM. What it made goes on forwarding then; the next "up" takes it over as it
is, and "weir down" removes it. The API listens on a Unix socket for root and on a loopback address with the token in
ROOT/token. With --agents further hosts can join (weir token create, weir agent); with --openflow Weir drives the switches
of an OpenFlow fabric.`,
		Example: `  weir up
  weir up --detach
  weir up --runtime docker
  weir up --runtime crun
  weir up --registry registry.example.org/nf --verify 'registry.example.org/nf/*=nf.pub'
  weir up --name lab --root /tmp/lab --listen none
  weir up --restore weir.backup
  weir up --etcd http://10.0.0.1:2379 --etcd http://10.0.0.2:2379
  weir up --host h1 --agents 10.0.0.1:7412 --underlay vxlan --underlay-address 10.0.0.1
  weir up --host h1 --agents 10.0.0.1:7412 --openflow 10.0.0.1:6653 --uplink eth1`,
		Args: command.NoArgs(),
	}
	a.managerFlags(cmd, &o)
	hostFlags(cmd.Flags(), &o.DaemonOptions, "local")
	cmd.Flags().StringVar(&o.Lab, "lab", "", "directory of the lab's runs, which the web UI lists and starts; none: there is no lab (default ROOT/lab)")
	return cmd
}

// readiness tells a waiting `up --detach`, if there is one. detached: there was one, so that this process's output goes into the log.
func readiness() (ready func(), detached bool) {
	fd, err := strconv.Atoi(os.Getenv(readyVariable))
	if err != nil {
		return func() {}, false
	}
	_ = os.Unsetenv(readyVariable) // not for the daemon's children
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "ready")
	return func() {
		_, _ = f.Write([]byte("ready\n")) // nobody reads: fine
		_ = f.Close()
	}, true
}

// detach runs this program again in the background and waits until it is ready or dead.
func (a *commands) detach(cmd *cobra.Command, i instance.Instance, timeout time.Duration) error {
	if c, err := api.Dial(api.Options{Socket: i.Socket()}); err == nil {
		running := c.Health(cmd.Context()) == nil
		c.Close()
		if running {
			return command.WithCode(command.ExitConflict, fmt.Errorf("instance %s is up already, at %s", i.Name, i.Socket()))
		}
	}
	if a.CheckRoot != nil { // before anything is left in a directory of others
		if err := a.CheckRoot(i); err != nil {
			return err
		}
	}
	log, begin, err := openLog(i)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, signal, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	defer ready.Close()
	child, err := background(cmd, i, log, signal)
	_ = signal.Close()
	if err != nil {
		return err
	}
	ctx, cancel := command.Ending(cmd.Context(), timeout, cmd.Name())
	defer cancel()
	up, died := make(chan struct{}), make(chan struct{})
	go func() { // one read: "ready", or the end of a child that is not
		b := make([]byte, 16)
		if n, _ := ready.Read(b); n > 0 {
			close(up)
		}
	}()
	go func() {
		_ = child.Wait() // how it ended is in its ProcessState
		close(died)
	}()
	p := a.Progress()
	defer p.Clear()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		p.Show("starting (pid %d)", child.Process.Pid)
		select {
		case <-tick.C:
		case <-up:
			p.Clear()
			return a.saySelf(ctx, cmd.Name(), i, child.Process.Pid, log.Name())
		case <-died:
			return command.WithCode(max(child.ProcessState.ExitCode(), command.ExitFailure),
				fmt.Errorf("the daemon ended at once (%v); %s has:\n%s", child.ProcessState, log.Name(), tail(log.Name(), begin)))
		case <-ctx.Done(): // half up is no state to leave behind
			putDown(child.Process, died)
			return fmt.Errorf("%w; %s has:\n%s", context.Cause(ctx), log.Name(), tail(log.Name(), begin))
		}
	}
}

// putDown ends a daemon that does not come up, the hard way if it must.
func putDown(p *os.Process, died <-chan struct{}) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-died:
	case <-time.After(endGrace):
		_ = p.Kill()
		<-died
	}
}

// background starts the daemon's command in a session of its own, with the same flags but --detach.
func background(cmd *cobra.Command, i instance.Instance, log, signal *os.File) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start in the background: %w", err)
	}
	child := exec.Command(self, backgroundArgs(cmd, i)...)
	child.Dir = "/"
	child.Stdout, child.Stderr = log, log
	if tokenFromStdin(cmd) {
		child.Stdin = os.Stdin // read until its end, once
	}
	child.ExtraFiles = []*os.File{signal}
	child.Env = append(os.Environ(), readyVariable+"=3")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("start in the background: %w", err)
	}
	return child, nil
}

// tokenFromStdin tells whether the daemon's join token comes from standard input.
func tokenFromStdin(cmd *cobra.Command) bool {
	t := cmd.Flags().Lookup("token-file")
	return t != nil && t.Value.String() == "-"
}

// backgroundArgs repeats the flags that were set, on the command line or by the environment. Paths become absolute: the daemon
// does not stay in this directory.
func backgroundArgs(cmd *cobra.Command, i instance.Instance) []string {
	args := []string{cmd.Name(), "--detach=false"}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		switch {
		case !f.Changed || f.Name == "detach":
			return
		case f.Name == "token-file" && value == "-":
		case f.Name == "root":
			value = i.Root
		case f.Name == "lab" && value == "none":
		case f.Name == "images", f.Name == "token-file", strings.HasPrefix(f.Name, "etcd-"), f.Name == "secret-key", f.Name == "restore", f.Name == "lab", f.Name == "kvm-kernel",
			f.Name == "runtime" && strings.Contains(value, "/"):
			value = absolute(value)
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				if pattern, key, ok := strings.Cut(v, "="); f.Name == "verify" && ok && key != "none" {
					v = pattern + "=" + absolute(key)
				}
				args = append(args, "--"+f.Name+"="+v)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

// absolute path of one that may be relative; of none there is none.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return path // there is no working directory: the daemon says that it does not find the file
	}
	return abs
}

// uiAddress is where the web UI is; "": nowhere.
func uiAddress(ctx context.Context, i instance.Instance) string {
	c, err := api.Dial(api.Options{Socket: i.Socket()})
	if err != nil {
		return ""
	}
	defer c.Close()
	s, _ := c.Session(ctx) // not told: it is not there, for whoever asks
	return s.UI
}

// sayUI prints where the web UI is: on a terminal a link that opens it once, elsewhere none, since what is written there may be kept.
func sayUI(ctx context.Context, w io.Writer, i instance.Instance) {
	address := uiAddress(ctx, i)
	if address == "" {
		return
	}
	if _, terminal := command.Terminal(w); terminal {
		if c, err := api.Dial(api.Options{Socket: i.Socket()}); err == nil {
			defer c.Close()
			if l, err := c.SessionLink(ctx); err == nil {
				fmt.Fprintf(w, "web UI: %s (once, until %s; another link: weir ui)\n", l.URL, l.Expires.Local().Format(time.TimeOnly))
				return
			}
		}
	}
	fmt.Fprintf(w, "web UI: %s (weir ui prints a link to sign in)\n", address)
}

func (a *commands) saySelf(ctx context.Context, command string, i instance.Instance, pid int, log string) error {
	what, where := "weir", "API at "+i.Socket()+", "
	switch command {
	case "manager":
		what = "weir's manager"
	case "agent":
		what, where = "weir's agent", ""
	}
	if a.Structured() {
		out := map[string]any{"name": i.Name, "pid": pid, "socket": i.Socket(), "log": log}
		if where == "" {
			delete(out, "socket")
		} else if address := uiAddress(ctx, i); address != "" {
			out["ui"] = address
		}
		return a.Encode(out)
	}
	if _, err := fmt.Fprintf(a.Stdout, "%s is up (pid %d), %slog in %s\n", what, pid, where, log); err != nil || where == "" {
		return err
	}
	sayUI(ctx, a.Stdout, i)
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
