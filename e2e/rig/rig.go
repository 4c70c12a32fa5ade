// Package rig drives the real binary for the demo and the scenarios: a Weir of its own name in a network
// namespace of its own, stations in further namespaces, commands run inside them, and everything removed at the end.
package rig

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weir.dev/weir/netns"
)

// Rig is one Weir under control. Make it with New; Close removes all of it.
type Rig struct {
	Name   string // of the instance
	Netns  string // where the daemon runs
	Root   string // its state directory
	Bin    string
	Images string
	Verb   string   // instead of "up": "manager"
	Args   []string // further arguments of it
	Extra  []string // of its environment
	// LogFile takes what the daemon prints; default Root/daemon.log.
	LogFile string

	above  string // of Options.Open: holds the state directory
	daemon *exec.Cmd
	done   chan struct{} // closed when the daemon has ended
	log    *os.File
	spaces []string
	procs  []*exec.Cmd
}

// Options choose names; zero: random ones.
type Options struct {
	Name  string
	Netns string
	Args  []string
	Open  bool // anybody gets as far as the state directory, as in /var/lib, and Weir makes it
}

// New makes the daemon's namespace and state directory; nothing runs yet.
func New(o Options) (*Rig, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("root is needed (network namespaces, BPF, containers): use sudo")
	}
	id := make([]byte, 3)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "t" + hex.EncodeToString(id)
	}
	if o.Netns == "" {
		o.Netns = "weir-" + o.Name
	}
	r := &Rig{Name: o.Name, Netns: o.Netns, Args: o.Args}
	var err error
	if r.Bin, r.Images, err = Programs(); err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "weir-"+o.Name+"-")
	if err != nil {
		return nil, err
	}
	r.Root = root
	if o.Open {
		if err := os.Chmod(root, 0o755); err != nil {
			return nil, errors.Join(err, os.RemoveAll(root))
		}
		r.Root, r.above = filepath.Join(root, "state"), root
	}
	if err := r.Namespace(o.Netns); err != nil {
		return nil, errors.Join(err, os.RemoveAll(root))
	}
	return r, nil
}

// Programs are the binary and the images to test: WEIR_BIN, WEIR_IMAGES, or what `make build` has made.
func Programs() (bin, images string, err error) {
	if bin = os.Getenv("WEIR_BIN"); bin == "" {
		top, err := Top()
		if err != nil {
			return "", "", fmt.Errorf("%w, or set WEIR_BIN", err)
		}
		bin = filepath.Join(top, "bin", "weir")
	}
	if _, err := os.Stat(bin); err != nil {
		return "", "", fmt.Errorf("%w: build it with `make build`", err)
	}
	return bin, cmp.Or(os.Getenv("WEIR_IMAGES"), filepath.Join(filepath.Dir(bin), "images")), nil
}

// Top is the directory of go.mod above the working directory.
func Top() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory: run it in the repository")
		}
	}
	return "", err
}

// Namespace makes a station's namespace under /run/netns with its loopback up. An existing one is an error: it is somebody else's.
func (r *Rig) Namespace(name string) error {
	if netns.Exists(netns.Path(name)) {
		return fmt.Errorf("network namespace %s exists already and is not ours: remove it (`ip netns del %s`) or use another name", name, name)
	}
	if err := netns.Create(netns.Path(name), netns.Options{}); err != nil {
		return err
	}
	r.spaces = append(r.spaces, name)
	return nil
}

// Command is a command inside a namespace ("" the daemon's); only the network namespace changes.
func (r *Rig) Command(ctx context.Context, space string, argv ...string) *exec.Cmd {
	if space == "" {
		space = r.Netns
	}
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + netns.Path(space)}, argv...)...)
}

// Run runs a command inside a namespace and returns its standard output; its errors carry what it printed.
func (r *Rig) Run(ctx context.Context, space string, argv ...string) (string, error) {
	return output(r.Command(ctx, space, argv...))
}

// Start runs a command inside a namespace until Close or its end.
func (r *Rig) Start(space string, argv ...string) (*exec.Cmd, error) {
	c := r.Command(context.Background(), space, argv...)
	if err := c.Start(); err != nil {
		return nil, err
	}
	r.procs = append(r.procs, c)
	return c, nil
}

// Env is the environment that addresses this instance.
func (r *Rig) Env() []string {
	return slices.Concat(os.Environ(), []string{"WEIR_NAME=" + r.Name, "WEIR_ROOT=" + r.Root, "WEIR_IMAGES=" + r.Images, "WEIR_YES=true", "NO_COLOR=1"}, r.Extra)
}

// Up starts the daemon in the foreground of a process of its own and waits until it answers.
func (r *Rig) Up(ctx context.Context) error {
	if r.log == nil {
		f, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		r.log = f
	}
	c := r.Command(context.Background(), "", append([]string{r.Bin, cmp.Or(r.Verb, "up")}, r.Args...)...)
	c.Env = r.Env()
	c.Stdout, c.Stderr = r.log, r.log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { _ = c.Wait(); close(done) }()
	r.daemon, r.done = c, done
	for look := 0; ; look++ {
		if r.listens(ctx) || look%50 == 49 { // before that the command would only say that nobody does
			if _, err := r.Weir(ctx, "status", "-o", "json"); err == nil {
				return nil
			}
		}
		select {
		case <-done:
			return fmt.Errorf("weir up ended: %s\n%s", c.ProcessState, r.Log(30))
		case <-ctx.Done():
			return fmt.Errorf("weir up does not answer: %w\n%s", ctx.Err(), r.Log(30))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *Rig) logFile() string {
	return cmp.Or(r.LogFile, filepath.Join(cmp.Or(r.above, r.Root), "daemon.log"))
}

// PID of the daemon.
func (r *Rig) PID() int { return r.daemon.Process.Pid }

// Kill ends the daemon with a signal and waits for its end.
func (r *Rig) Kill(s syscall.Signal) error {
	if r.daemon == nil {
		return nil
	}
	if err := r.daemon.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-r.done
	r.daemon = nil
	return nil
}

// Log is the end of the daemon's log.
func (r *Rig) Log(lines int) string {
	b, err := os.ReadFile(r.logFile())
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Weir runs a command of the binary against this instance.
func (r *Rig) Weir(ctx context.Context, args ...string) (string, error) {
	return r.WeirInput(ctx, "", args...)
}

// WeirInput is Weir with a standard input. It runs in the daemon's network namespace.
func (r *Rig) WeirInput(ctx context.Context, stdin string, args ...string) (string, error) {
	c := r.WeirCommand(ctx, args...)
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	return output(c)
}

// WeirCommand is a command of the binary that has not begun.
func (r *Rig) WeirCommand(ctx context.Context, args ...string) *exec.Cmd {
	c := r.Command(ctx, "", append([]string{r.Bin}, args...)...)
	c.Env = r.Env()
	return c
}

// Get decodes what `weir get ... -o json` prints; see Look.
func (r *Rig) Get(ctx context.Context, into any, args ...string) error {
	if Look(ctx, r.socket(), into, args...) {
		return nil
	}
	out, err := r.Weir(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// Apply applies a document and waits until it is in force.
func (r *Rig) Apply(ctx context.Context, document string, args ...string) (string, error) {
	return r.WeirInput(ctx, document, append([]string{"apply", "-f", "-"}, args...)...)
}

// ExitError is a command that ended with a code other than 0.
type ExitError struct {
	Argv   []string
	Code   int
	Stderr string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit code %d: %s", strings.Join(e.Argv, " "), e.Code, strings.TrimSpace(e.Stderr))
}

func output(c *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.String(), &ExitError{Argv: c.Args, Code: exit.ExitCode(), Stderr: errs.String() + out.String()}
	}
	return out.String(), err
}

// Close takes everything down: Weir by `weir down`, then the stations' processes and namespaces, the state directory.
func (r *Rig) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if _, err := r.Weir(ctx, "down"); err != nil {
		errs = append(errs, err, fmt.Errorf("daemon log:\n%s", r.Log(30)))
	}
	if r.daemon != nil {
		select {
		case <-r.done:
		case <-time.After(10 * time.Second):
			errs = append(errs, errors.New("the daemon outlived `weir down`"), r.Kill(syscall.SIGKILL))
		}
	}
	return errors.Join(append(errs, r.Discard())...)
}

// Discard is Close for a rig whose Weir never ran.
func (r *Rig) Discard() error {
	var errs []error
	for _, c := range r.procs {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	r.procs = nil
	for _, s := range r.spaces {
		errs = append(errs, netns.Delete(netns.Path(s)))
	}
	if r.log != nil {
		errs = append(errs, r.log.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(cmp.Or(r.above, r.Root)))...)
}

// streamGrace is how much longer than its time a stream may take, on a busy machine.
const streamGrace = time.Minute

// Iperf is one TCP stream from one station to another for some seconds, in bits per second at the receiver; more are further arguments
// of the sender. Without "-C NAME" among them the congestion control is the machine's own.
func (r *Rig) Iperf(ctx context.Context, from, to, addr string, port, seconds int, more ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+streamGrace)
	defer cancel()
	server, err := r.Start(to, "iperf3", "-s", "-1", "-p", strconv.Itoa(port))
	if err != nil {
		return 0, err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	if err := r.Listening(ctx, to, port); err != nil {
		return 0, err
	}
	argv := []string{"iperf3", "-c", addr, "-p", strconv.Itoa(port), "-t", strconv.Itoa(seconds), "-J"}
	out, err := r.Run(ctx, from, append(argv, more...)...)
	if err != nil {
		return 0, err
	}
	var j struct {
		End struct {
			Sum struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
			Congestion string `json:"sender_tcp_congestion"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &j); err != nil {
		return 0, fmt.Errorf("iperf3's output: %w", err)
	}
	if at := slices.Index(more, "-C"); at >= 0 && at+1 < len(more) && j.End.Congestion != more[at+1] {
		return 0, fmt.Errorf("iperf3 used congestion control %q: want %s", j.End.Congestion, more[at+1])
	}
	return j.End.Sum.Bits, nil
}

// Listening waits until a TCP port is open in a namespace.
func (r *Rig) Listening(ctx context.Context, space string, port int) error {
	for {
		out, err := r.Run(ctx, space, "ss", "-Hltn", "sport", "=", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		if out != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens on port %d in %s: %w", port, space, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Ping is the average round trip of count echo requests; more are further arguments of ping.
func (r *Rig) Ping(ctx context.Context, from, addr string, count int, interval string, more ...string) (time.Duration, error) {
	argv := append([]string{"ping", "-q", "-n", "-c", strconv.Itoa(count), "-i", interval, "-W", "1"}, more...)
	out, err := r.Run(ctx, from, append(argv, addr)...)
	if err != nil {
		return 0, err
	}
	_, after, ok := strings.Cut(out, "rtt min/avg/max/mdev = ")
	parts := strings.Split(after, "/")
	if !ok || len(parts) < 2 {
		return 0, fmt.Errorf("ping's output: %q", out)
	}
	ms, err := strconv.ParseFloat(parts[1], 64)
	if err != nil {
		return 0, fmt.Errorf("ping's output: %w", err)
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}
