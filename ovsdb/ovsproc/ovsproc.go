// Package ovsproc owns private Open vSwitch processes: a database, an ovsdb-server and an ovs-vswitchd that keep all their files in
// one directory and run in one network namespace, beside any other Open vSwitch of the machine. They are nobody's children:
// they live on when the process that started them dies, as containers do, so that a switch forwards while its driver is away. It forwards in
// user space (datapath_type netdev); the kernel's datapath (openvswitch.ko) belongs to the machine's own.
//
// It knows nothing about what the database holds.
package ovsproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
	"weir.dev/weir/ovsdb"
)

// Schema is where Debian and Red Hat put the database's schema.
const Schema = "/usr/share/openvswitch/vswitch.ovsschema"

// maxDir leaves room for a socket's name: the kernel's limit for a socket's path is 107 bytes.
const maxDir = 80

// ErrNotInstalled says that a program of Open vSwitch is missing.
var ErrNotInstalled = errors.New("not installed; Open vSwitch is wanted (Debian: apt-get install openvswitch-switch)")

// Options of a private Open vSwitch.
type Options struct {
	Dir   string // absolute, at most 80 bytes: database, sockets, pid files, logs; made if missing
	Netns string // path, or name under /run/netns; "" the calling thread's own
	// Switch is the program in the place of ovs-vswitchd, such as one with DPDK; "": that.
	Switch string
	// Kernel lets it have datapaths of the kernel, too, in its namespace.
	Kernel bool
	// Polls: threads of it never wait for frames. Then it has no priority over other processes, which would starve.
	Polls bool
}

// Process is a handle on the processes of one directory; it holds nothing open.
type Process struct{ o Options }

// At is a handle without starting anything.
func At(o Options) *Process { return &Process{o} }

// Start makes what is missing: the database, ovsdb-server, ovs-vswitchd. Safe to call again, after any crash: what runs is left
// alone. It returns when both answer.
func Start(ctx context.Context, o Options) (*Process, error) {
	p := &Process{o}
	if err := p.start(ctx); err != nil {
		return nil, fmt.Errorf("start Open vSwitch in %s: %w", o.Dir, err)
	}
	return p, nil
}

func (p *Process) start(ctx context.Context) error {
	if !filepath.IsAbs(p.o.Dir) || len(p.o.Dir) > maxDir {
		return fmt.Errorf("directory: want an absolute path of at most %d bytes (sockets' paths are short)", maxDir)
	}
	if err := Installed(); err != nil {
		return err
	}
	if err := os.MkdirAll(p.o.Dir, 0o700); err != nil {
		return err
	}
	release, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := p.createDatabase(ctx); err != nil {
		return err
	}
	if err := p.StartServer(ctx); err != nil {
		return err
	}
	if err := p.run(ctx, "ovs-vsctl", "--db="+p.DB(), "--no-wait", "--timeout=10", "init"); err != nil {
		return err
	}
	return p.StartSwitch(ctx)
}

// find a program, also where root's path does not lead.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, ErrNotInstalled)
}

// Installed tells what is missing to run an Open vSwitch of one's own, nil if nothing is.
func Installed() error {
	for _, program := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"} {
		if _, err := find(program); err != nil {
			return err
		}
	}
	if _, err := os.Stat(Schema); err != nil {
		return fmt.Errorf("schema %s: %w", Schema, ErrNotInstalled)
	}
	return nil
}

// Paths of the directory.
func (p *Process) Dir() string               { return p.o.Dir }
func (p *Process) Socket() string            { return filepath.Join(p.o.Dir, "db.sock") }
func (p *Process) DB() string                { return "unix:" + p.Socket() }
func (p *Process) Mgmt(bridge string) string { return filepath.Join(p.o.Dir, bridge+".mgmt") }

// SwitchControl is the unixctl socket of ovs-vswitchd, for `ovs-appctl -t`.
func (p *Process) SwitchControl() string { return filepath.Join(p.o.Dir, switchd+".ctl") }

const (
	server  = "ovsdb-server"
	switchd = "ovs-vswitchd"
)

// lock keeps two starts of one directory apart.
func (p *Process) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(filepath.Join(p.o.Dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	locked := func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }
	if err := await(ctx, locked); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// await asks again and again, until it is so or ctx ends.
func await(ctx context.Context, so func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// createDatabase makes it in one step: a crash leaves none or a whole one.
func (p *Process) createDatabase(ctx context.Context) error {
	db := filepath.Join(p.o.Dir, "conf.db")
	if _, err := os.Stat(db); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(db + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.run(ctx, "ovsdb-tool", "create", db+".new", Schema); err != nil {
		return err
	}
	return os.Rename(db+".new", db)
}

// StartServer starts ovsdb-server alone, if it does not run.
func (p *Process) StartServer(ctx context.Context) error {
	if p.pid(server) > 0 {
		return nil
	}
	return p.daemon(ctx, server, p.common(server, "--remote=punix:"+p.Socket(), filepath.Join(p.o.Dir, "conf.db"))...)
}

// StartSwitch starts ovs-vswitchd alone, if it does not run.
func (p *Process) StartSwitch(ctx context.Context) error {
	if p.pid(switchd) > 0 {
		return nil
	}
	args := []string{p.DB()}
	if !p.o.Kernel {
		args = append(args, "--disable-system")
	}
	if err := p.daemon(ctx, switchd, p.common(switchd, args...)...); err != nil {
		return err
	}
	if p.o.Polls {
		return nil
	}
	// Where the kernel shares processors between sessions first (sched(7), autogroup), that counts among those of one session only.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", p.pid(switchd)), []byte(priority), 0)
	return nil
}

// daemon starts a program. One that was killed a moment ago may still hold its pid file's lock: that is waited for.
func (p *Process) daemon(ctx context.Context, program string, args ...string) error {
	var err error
	begin := time.Now()
	_ = await(ctx, func() bool {
		err = p.run(ctx, program, args...)
		if err == nil || !strings.Contains(err.Error(), "already running") || time.Since(begin) > patience {
			return true
		}
		if p.pid(program) > 0 {
			err = nil // somebody else started it
			return true
		}
		return false
	})
	return err
}

// common arguments. With --detach the program returns when it is ready, and its daemon belongs to init.
func (p *Process) common(program string, more ...string) []string {
	path := func(end string) string { return filepath.Join(p.o.Dir, program+end) }
	return append([]string{"--pidfile=" + path(".pid"), "--unixctl=" + path(".ctl"), "--log-file=" + path(".log"),
		"-vconsole:off", "-vsyslog:off", "-vfile:info", "--no-chdir", "--detach"}, more...)
}

// priority of the switch among other processes, as Open vSwitch's own start script has it: while the user-space datapath waits for a
// processor, frames are lost as soon as the receive queues of its ports are full (a few hundred frames).
const priority = "-10"

// runTime bounds one program's run, or its start.
const runTime = 30 * time.Second

// run a program to its end (of a daemon: until it has detached) in the namespace.
func (p *Process) run(ctx context.Context, program string, args ...string) error {
	path := p.o.Switch
	if program != switchd || path == "" {
		var err error
		if path, err = find(program); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	out, err := os.OpenFile(filepath.Join(p.o.Dir, program+".out"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if nice, err := find("nice"); err == nil && program == switchd && !p.o.Polls {
		path, args = nice, append([]string{"-n", priority, path}, args...)
	}
	c := exec.CommandContext(ctx, path, args...)
	c.Env = append(os.Environ(), "OVS_RUNDIR="+p.o.Dir, "OVS_LOGDIR="+p.o.Dir, "OVS_DBDIR="+p.o.Dir, "LC_ALL=C")
	c.Stdout, c.Stderr = out, out // a file: a daemon that kept a pipe open would keep us waiting
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if p.o.Netns == "" {
		err = c.Start()
	} else {
		err = netns.Do(p.o.Netns, c.Start)
	}
	if err == nil {
		err = c.Wait()
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	text, _ := os.ReadFile(out.Name())
	return fmt.Errorf("%s: %w: %s", program, err, lastLine(string(text)))
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// Running tells which of the two processes live.
func (p *Process) Running() (server, vswitchd bool) { return p.ServerPID() > 0, p.SwitchPID() > 0 }

// ServerPID is the process id of ovsdb-server, 0 if it does not run.
func (p *Process) ServerPID() int { return p.pid(server) }

// SwitchPID is the process id of ovs-vswitchd, 0 if it does not run.
func (p *Process) SwitchPID() int { return p.pid(switchd) }

// pid of a program by its pid file, which may be stale: the process must have been started with that very file.
func (p *Process) pid(program string) int {
	pid := p.written(program)
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty for one that ended and was not waited for
	if pid == 0 || err != nil || !strings.Contains(string(args), "--pidfile="+p.pidFile(program)+"\x00") {
		return 0
	}
	return pid
}

// written is what the pid file says, 0 if there is none.
func (p *Process) written(program string) int {
	text, err := os.ReadFile(p.pidFile(program))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

func (p *Process) pidFile(program string) string { return filepath.Join(p.o.Dir, program+".pid") }

// Stop ends both processes, ovs-vswitchd first. The database stays. Not running: nil.
func (p *Process) Stop(ctx context.Context) error {
	return errors.Join(p.StopSwitch(ctx), p.StopServer(ctx))
}

// StopSwitch ends ovs-vswitchd: nothing is forwarded until it is started again.
func (p *Process) StopSwitch(ctx context.Context) error { return p.end(ctx, switchd, unix.SIGTERM) }

// StopServer ends ovsdb-server: forwarding goes on, nothing can be changed.
func (p *Process) StopServer(ctx context.Context) error { return p.end(ctx, server, unix.SIGTERM) }

// patience with a process that was asked to end.
const patience = 3 * time.Second

// end asks, and after a while insists. The process file descriptor keeps the id from meaning another process.
func (p *Process) end(ctx context.Context, program string, sig unix.Signal) error {
	pid := p.pid(program)
	if pid == 0 {
		return p.gone(ctx, program)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", program, err)
	}
	defer unix.Close(fd)
	if p.pid(program) != pid {
		return nil // it ended meanwhile
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stop %s: %w", program, err)
	}
	asked := time.Now()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("stop %s: %w", program, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stop %s: %w", program, err)
		}
		if time.Since(asked) > patience {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %s: %w", program, err)
			}
			asked = time.Now()
		}
	}
}

// dying bounds how long a killed process may take to let go of what it holds.
const dying = 10 * time.Second

// gone waits for a process that was killed and still ends: it has no arguments any more, but its files and taps.
func (p *Process) gone(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	over := func() bool {
		pid := p.written(program)
		return pid == 0 || !exiting(pid)
	}
	if err := await(ctx, over); err != nil {
		return fmt.Errorf("%s was killed and does not end: %w", program, err)
	}
	return nil
}

// exiting: the kernel is taking the process down, and a thread of it may still hold its files (proc(5), stat: flags, num_threads).
func exiting(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	st, err := p.Stat()
	over := st.State == "Z" && st.NumThreads == 1 // nobody has waited for it yet
	return err == nil && st.Flags&pfExiting != 0 && !over
}

const pfExiting = 0x4 // linux/sched.h

// files that Destroy removes: all that Start makes and the programs leave in the directory.
var files = []string{"conf.db", "conf.db.new", ".conf.db.~lock~", ".conf.db.new.~lock~", "lock", "db.sock", "ovsdb-tool.out", "ovs-vsctl.out",
	server + ".pid", server + ".ctl", server + ".log", server + ".log.1", server + ".out",
	switchd + ".pid", switchd + ".ctl", switchd + ".log", switchd + ".log.1", switchd + ".out"}

// cleanup lets ovs-vswitchd end and take away what would outlive it: the taps of bridges.
func (p *Process) cleanup(ctx context.Context) {
	pid := p.SwitchPID()
	if pid == 0 {
		return
	}
	_ = unix.Kill(pid, unix.SIGCONT) // somebody may have stopped it, and been killed
	c, err := ovsdb.Dial(ctx, "unix:"+p.SwitchControl(), ovsdb.Options{})
	if err != nil {
		return // it will be ended by a signal
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c.Call(ctx, "exit", []string{"--cleanup"}, nil) == nil {
		select {
		case <-c.Done():
		case <-ctx.Done():
		}
	}
}

// Destroy ends the processes and removes their files, and the directory if nothing else is in it. Nothing there: nil. Taps of bridges go
// with a ovs-vswitchd that runs; one that was killed leaves them in the namespace.
func (p *Process) Destroy(ctx context.Context) error {
	p.cleanup(ctx)
	if err := p.Stop(ctx); err != nil {
		return fmt.Errorf("destroy Open vSwitch in %s: %w", p.o.Dir, err)
	}
	left, err := filepath.Glob(filepath.Join(p.o.Dir, "*.mgmt")) // of bridges, when ovs-vswitchd was killed
	if err != nil {
		return err
	}
	for _, pattern := range []string{"*.snoop", ".*.pid.tmp*", "*.pid.tmp*"} {
		more, err := filepath.Glob(filepath.Join(p.o.Dir, pattern))
		if err != nil {
			return err
		}
		left = append(left, more...)
	}
	for _, name := range files {
		left = append(left, filepath.Join(p.o.Dir, name))
	}
	var errs []error
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	os.Remove(p.o.Dir) // if nothing else is there
	return errors.Join(errs...)
}
