package desk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/lab/study"
)

// What a run's process is told of its place: functions and the daemon come before it.
const (
	nice     = 5   // the switch's work in the kernel knows no such order
	oomScore = 500 // it is the first that the kernel kills for memory
)

// logFile of a run's directory has what its process wrote. It is a file, not a pipe: a process that writes to a pipe whose daemon was killed would be killed itself.
const logFile = "run.log"

// job is a run that goes on.
type job struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended

	mu     sync.Mutex
	reason string // why it was ended
}

// end the run in order. Only the first call counts: a second signal would end the process at once, and leave what it made.
func (j *job) end(why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reason == "" {
		j.reason = why
		_ = j.cmd.Process.Signal(syscall.SIGTERM) // it has ended, if that fails
	}
}

// why a run that goes on is ended; "" it is not.
func (j *job) why() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reason == "" {
		return ""
	}
	return "ends: takes down what it made"
}

// begin a run's process, and wait until it has a journal.
func (d *Desk) begin(ctx context.Context, name string, args []string) error {
	at := filepath.Join(d.Dir, name)
	log, err := os.OpenFile(filepath.Join(at, logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("run of the lab: %w", err)
	}
	defer log.Close()
	j := &job{name: name, cmd: d.command(args), done: make(chan struct{})}
	j.cmd.Stdout, j.cmd.Stderr = log, log
	if err := d.take(j); err != nil {
		return err
	}
	if err := start(j.cmd, func(err error) { d.ended(j, err) }); err != nil {
		d.leave(j)
		return fmt.Errorf("run of the lab: %w", err)
	}
	d.Log.Info("a run of the lab begins", "run", name, "process", j.cmd.Process.Pid)
	go d.watch(j)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(startTimeout)
	for !study.Busy(at) {
		select {
		case <-j.done:
			if _, err := stat(at, study.JournalFile); err == nil {
				return nil
			}
			return api.Refuse(http.StatusConflict, "the run did not begin: "+d.how(name))
		case <-late:
			j.end("it did not begin")
			return api.Refuse(http.StatusGatewayTimeout, fmt.Sprintf("the run did not begin within %s: see the daemon's log", startTimeout))
		case <-ctx.Done():
			j.end("cancelled")
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// take makes it the one run.
func (d *Desk) take(j *job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayStart(); err != nil {
		return err
	}
	d.job = j
	delete(d.said, j.name)
	return nil
}

func (d *Desk) leave(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.job == j {
		d.job = nil
	}
}

// how a run ended that this process began.
func (d *Desk) how(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said[name]
}

// ended notes how a run's process ended.
func (d *Desk) ended(j *job, err error) {
	j.mu.Lock()
	text := j.reason
	j.mu.Unlock()
	if err != nil && text == "" {
		text = lastOf(filepath.Join(d.Dir, j.name, logFile))
		if text == "" {
			text = err.Error()
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() < 0 {
			text = "its process was killed (" + exit.Error() + "): what was measured is kept, and it can go on"
		}
	}
	d.Log.Info("a run of the lab has ended", "run", j.name, "why", text)
	d.mu.Lock()
	if len(d.said) > maxListed {
		clear(d.said)
	}
	if text != "" {
		d.said[j.name] = clip(text)
	}
	d.mu.Unlock()
	d.leave(j)
	close(j.done)
}

// watch ends a run that takes too long or too much of the disk.
func (d *Desk) watch(j *job) {
	began := time.Now()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-j.done:
			return
		case <-tick.C:
		}
		var free unix.Statfs_t
		switch n := sizeOf(filepath.Join(d.Dir, j.name)); {
		case time.Since(began) > maxTime:
			j.end(fmt.Sprintf("ended after %s, the most: it can go on", maxTime))
		case n > maxRunBytes:
			j.end(fmt.Sprintf("ended: its directory has %d MiB, the most is %d", n>>20, maxRunBytes>>20))
		case unix.Statfs(d.Dir, &free) == nil && int64(free.Bavail)*free.Bsize < minFree/2:
			j.end(fmt.Sprintf("ended: the disk has less than %d MiB free", minFree>>21))
		}
	}
}

// command of this program, with no more of the daemon's environment than a program needs.
func (d *Desk) command(args []string) *exec.Cmd {
	c := exec.Command(d.Program, slices.Concat(args[:2], d.Args, args[2:])...)
	c.Env = []string{"TERM=dumb"}
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	c.Dir = "/"
	return c
}

// start a process that gets SIGHUP when this one ends, however that does. It may get it several times: a process that is killed dies thread by thread, and the kernel hands
// its children from one to the next. The commands of this program end in order at the first SIGHUP, and do not mind more; a second SIGTERM would end them at once.
// ended is called once, from a thread of its own: the kernel signals when the thread ends that started the process, so that thread waits for it and has no other work.
func start(c *exec.Cmd, ended func(error)) error {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGHUP, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function, and its priority with it
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice)
		if err := c.Start(); err != nil {
			started <- err
			return
		}
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.Process.Pid), []byte(fmt.Sprint(oomScore)), 0) // it has ended, if that fails
		started <- nil
		ended(c.Wait())
	}()
	return <-started
}

// tail keeps the end of what is written.
type tail struct{ b []byte }

const maxTail = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > maxTail {
		t.b = slices.Clone(t.b[len(t.b)-maxTail:])
	}
	return len(p), nil
}

func (t *tail) last() string { return lastLine(t.b) }

// lastLine that is not empty, without the program's name.
func lastLine(b []byte) string {
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return strings.TrimPrefix(strings.TrimSpace(string(lines[len(lines)-1])), "weir: ")
}

// lastOf a file is its last line.
func lastOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(info.Size(), maxTail))
	if _, err := f.ReadAt(b, info.Size()-int64(len(b))); err != nil {
		return ""
	}
	return lastLine(b)
}
