package cli_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"weir.dev/weir/api"
	"weir.dev/weir/cli"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/cli/service"
	"weir.dev/weir/instance"
)

// TestMain makes the commands a program `weir` that scripts run, with hooks in place of the daemon.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir": func() {
			os.Exit(cli.Main(cli.Options{
				Version: "test", Layouts: func(dir string) []string { return []string{dir} },
				Hooks: service.Hooks{
					Up: up, CheckRoot: checkRoot, Down: down, Features: features,
					Placements: []string{"most-available", "pack", "spread", "nearest"},
					Switches:   []string{"ebpf", "ovs"},
					Runtimes:   []string{"docker", "lxc", "oci"},
				},
			}, os.Args[1:]))
		},
	})
}

var longLine = strings.Repeat("x", 64<<10)

// up acts as the script says: a daemon that is ready, talks much, dies, or never comes up.
func up(ctx context.Context, o service.UpOptions) error {
	fmt.Fprintf(o.Stderr, "instance=%s root=%s listen=%q etcd=%q runtime=%s program=%s images=%s log=%s/%s dir=%s\n", o.Instance.Name, o.Instance.Root,
		o.Listen, o.Etcd, o.Host.Runtime, o.Runtime, o.ImagesDir, o.LogLevel, o.LogFormat, workDir())
	switch os.Getenv("TEST_UP") {
	case "dies":
		return command.WithCode(command.ExitForbidden, errors.New("kernel 5.4 lacks tcx (6.6) and clsact (4.5)"))
	case "talks": // more than a log is to hold
		for range 17 << 20 / len(longLine) {
			fmt.Fprintln(o.Stderr, longLine)
		}
	case "hangs":
		<-ctx.Done()
		fmt.Fprintln(o.Stderr, "asked to end")
		return nil
	}
	if pidFile := os.Getenv("TEST_PID_FILE"); pidFile != "" {
		if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			return err
		}
	}
	o.Ready()
	o.Ready()
	<-ctx.Done()
	fmt.Fprintln(o.Stderr, "asked to end")
	return ctx.Err()
}

// checkRoot takes a directory called foreign for one of others.
func checkRoot(i instance.Instance) error {
	if filepath.Base(i.Root) == "foreign" {
		return command.WithCode(command.ExitConflict, errors.New("it holds etcd of others"))
	}
	return nil
}

func workDir() string {
	dir, err := os.Getwd()
	if err != nil {
		return err.Error()
	}
	return dir
}

func down(_ context.Context, o service.DownOptions) error {
	if os.Getenv("TEST_DOWN") == "slow" {
		o.Progress("links", 10, 5000)
		time.Sleep(2500 * time.Millisecond)
	}
	_, err := fmt.Fprintf(o.Out, "removed %s, keep state %v\n", o.Instance.Name, o.KeepState)
	return err
}

func features(context.Context, instance.Instance) ([]api.Feature, error) {
	f := []api.Feature{{Name: "tcx", OK: true, Detail: "kernel 6.6"}}
	if os.Getenv("TEST_FEATURES") == "missing" {
		return append(f, api.Feature{Name: "bpffs", Detail: "mount it"}), errors.New("bpffs is missing: mount -t bpf bpf /sys/fs/bpf")
	}
	return f, nil
}

func TestScripts(t *testing.T) { scripts(t, "testdata/script") }

// TestBadInput: each case is a file or a command line, the exact message and the exit code.
func TestBadInput(t *testing.T) { scripts(t, "testdata/bad") }

func scripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir, UpdateScripts: *update, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			examples, err := filepath.Abs("../examples")
			env.Setenv("EXAMPLES", examples)
			env.Defer(func() { // a script that failed leaves its daemon
				if b, err := os.ReadFile(filepath.Join(env.WorkDir, "pid")); err == nil {
					if pid, err := strconv.Atoi(string(b)); err == nil {
						_ = end(pid)
					}
				}
			})
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "unhex": unhex, "fill": fill, "terminate": terminate, "terminal": terminal,
		},
	})
}

// exits CODE PROGRAM ARGS... runs a program that must end with the code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// unhex FILE BYTES writes bytes that no text file can hold.
func unhex(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: unhex FILE BYTES")
	}
	b, err := hex.DecodeString(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

// fill FILE SIZE writes a comment of that many bytes.
func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fill FILE SIZE")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	b := make([]byte, n)
	for i := range b {
		b[i] = '#'
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

// terminate FILE ends the process whose number is in the file, in order, and waits for its end.
func terminate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: terminate FILE")
	}
	pid, err := strconv.Atoi(ts.ReadFile(args[0]))
	ts.Check(err)
	ts.Check(end(pid))
	ts.Check(os.Remove(ts.MkAbs(args[0]))) // the number may soon be another's
}
