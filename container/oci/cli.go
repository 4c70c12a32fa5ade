package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// callMark is an environment variable of every runtime process that we start: INSTANCE/VERB/ID. It does not reach the container.
// A new process of the instance finds by it the calls that a killed one left in flight.
const callMark = "WEIR_RUNTIME_CALL"

// cliError is what a failed runtime call said.
type cliError struct {
	verb string
	text string
	err  error
}

func (e *cliError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("%s: %v", e.verb, e.err)
	}
	return e.verb + ": " + e.text
}

func (e *cliError) Unwrap() error { return e.err }

// command prepares a runtime call. Its process group is its own, so that a terminal's ^C to the daemon does not reach it, and its
// standard streams are files, so that it ends well when the daemon is killed.
func (r *Runtime) command(ctx context.Context, id, log string, args []string) *exec.Cmd {
	verb := args[0]
	cmd := exec.CommandContext(ctx, r.cli, append([]string{"--root", r.stateDir(), "--log", log, "--log-format", "json"}, args...)...)
	cmd.Env = append(os.Environ(), callMark+"="+r.mark(verb, id))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (r *Runtime) mark(verb, id string) string { return r.inst.Name + "/" + verb + "/" + id }

func (r *Runtime) callLog(id string) string { return filepath.Join(r.dir(), "call-"+id+".log") }

// call runs one runtime command. out, if any, becomes the container's standard output and error.
func (r *Runtime) call(ctx context.Context, id string, out *os.File, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	log := r.callLog(id)
	defer os.Remove(log)
	cmd := r.command(ctx, id, log, args)
	if out != nil { // a nil *os.File is no nil io.Writer
		cmd.Stdout, cmd.Stderr = out, out
	}
	err := startSparing(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return r.failed(ctx, args[0], log, err)
	}
	return nil
}

// startSparing starts a command with SIGXFSZ blocked, for itself and whatever it executes: a full log (maxLog) must end nobody. The mask of blocked signals
// passes through fork, exec and Go's runtime, and so through runc into the container. To ignore the signal would not do: what runc, a Go program, finds
// ignored it handles, and what is handled is the default again for the program that it executes, which is death.
func startSparing(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the child has the mask of the thread that forks
	defer runtime.UnlockOSThread()
	var set, before unix.Sigset_t
	n := uint(unix.SIGXFSZ) - 1
	bits := uint(unsafe.Sizeof(set.Val[0])) * 8
	set.Val[n/bits] = 1 << (n % bits)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, &before); err != nil {
		return fmt.Errorf("block SIGXFSZ: %w", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }() // the kernel's own mask: it cannot be wrong
	return cmd.Start()
}

// output runs a runtime command that makes nothing, for what it prints.
func (r *Runtime) output(ctx context.Context, id string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	log := r.callLog(id)
	defer os.Remove(log)
	var out bytes.Buffer
	cmd := r.command(ctx, id, log, args)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return nil, r.failed(ctx, args[0], log, err)
	}
	return out.Bytes(), nil
}

func (r *Runtime) failed(ctx context.Context, verb, log string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return &cliError{verb: filepath.Base(r.cli) + " " + verb, text: lastError(log), err: err}
}

// lastError is the last error in a runtime's JSON log.
func lastError(log string) string {
	raw, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	text := ""
	for line := range bytes.Lines(raw) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			text = entry.Msg
		}
	}
	return condense(text)
}

var (
	noise      = regexp.MustCompile(`(runc (create|run|exec|start) failed: |container_linux\.go:\d+: |unable to start container process: |starting container process caused: |error during container init: )`)
	noCommand  = regexp.MustCompile(`exec: \\?"([^"\\]*)\\?": (executable file not found in \$PATH|stat [^:]*: no such file or directory)`)
	noMountDir = regexp.MustCompile(`error mounting \\?"([^"\\]*)\\?" to rootfs at \\?"([^"\\]*)\\?".*(read-only file system|no such file or directory)`)
)

// condense takes the layers off a runtime's message, so that the cause stands first.
func condense(text string) string {
	return strings.TrimSpace(noise.ReplaceAllString(text, ""))
}

// explain turns a runtime's message into one that says what to do.
func explain(err error, s container.Spec) error {
	var cli *cliError
	if !errors.As(err, &cli) {
		return err
	}
	switch {
	case noCommand.MatchString(cli.text):
		return fmt.Errorf("command %q not found in the image: name one that it has: %w", noCommand.FindStringSubmatch(cli.text)[1], err)
	case noMountDir.MatchString(cli.text):
		m := noMountDir.FindStringSubmatch(cli.text)
		return fmt.Errorf("mount %s: the image has no %s and its root is read-only: %w", m[1], m[2], err)
	case strings.Contains(cli.text, "no space left on device"):
		return fmt.Errorf("disk full: free some space under the instance's directories: %w", err)
	case strings.Contains(cli.text, "permission denied") && strings.Contains(cli.text, "exec"):
		return fmt.Errorf("command %q is not executable in the image: %w", s.Args[0], err)
	}
	return err
}

// endStrayCalls waits for runtime calls that a killed process of this instance left in flight: they end by themselves in a moment.
// Those that serve a client that is gone (exec), and those that hang, are killed. Exec's process in the container is ended too,
// by the runtime, which forwards SIGTERM.
func (r *Runtime) endStrayCalls(ctx context.Context) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	prefix := []byte(callMark + "=" + r.inst.Name + "/")
	deadline, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for _, d := range procs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, _, err := openProcess(pid, 0)
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + d.Name() + "/environ")
		verb := ""
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if rest, ok := bytes.CutPrefix(v, prefix); ok {
				verb, _, _ = strings.Cut(string(rest), "/")
			}
		}
		if verb != "" {
			if verb == "exec" {
				_ = p.signal(unix.SIGTERM)
			}
			p.waitOrKill(deadline)
		}
		p.close()
	}
	return ctx.Err()
}

// waitOrKill polls, as it is rare and short.
func (p *process) waitOrKill(ctx context.Context) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := func() (yes bool) {
		raw, err := p.file.SyscallConn()
		if err != nil {
			return true
		}
		if err := raw.Control(func(fd uintptr) { yes = readable(int(fd)) }); err != nil {
			return true
		}
		return yes
	}
	for !over() {
		select {
		case <-ctx.Done():
			_ = p.signal(unix.SIGKILL)
			return
		case <-tick.C:
		}
	}
}
