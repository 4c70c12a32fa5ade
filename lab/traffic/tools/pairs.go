package tools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/lab/tied"
)

// End is where a program of a pair runs.
type End struct {
	Space  string   // network namespace
	Groups []string // files by which it enters cgroups: it writes "0" to each; none: it stays in ours
	CPUs   string   // processors that it may run on, as taskset takes them: "0-3,5"; empty: those of its cgroups
}

// Pair is a client, which sends, and its server.
type Pair struct {
	Client, Server End
	Address        netip.Addr // of the server
}

// PairOptions of streams of many pairs at once.
type PairOptions struct {
	Pairs    []Pair
	Program  string // iperf, iperf3 or sockperf
	UDP      bool   // iperf only
	Rate     int    // Mb/s that each stream of UDP offers
	Flows    int    // streams of a pair; 0: 1
	Message  int    // bytes of a write; 0: the program's default
	Port     int    // of the servers; 0: 20000
	Duration time.Duration

	Congestion string // iperf and iperf3: control of the senders; empty: that of their namespaces
	// Mark is called when the window begins and when it ends; nil: nothing is.
	Mark func() error
}

// PairCount is what one pair did in the window. Of TCP the receivers' and the senders' sockets are asked, of UDP their namespaces.
type PairCount struct {
	Bytes       uint64        `json:"bytes"` // that the server's sockets got
	Window      time.Duration `json:"window_ns"`
	Retransmits uint64        `json:"retransmits,omitempty"` // segments
	Sent        uint64        `json:"sent,omitempty"`        // datagrams
	Received    uint64        `json:"received,omitempty"`
}

// BitsPerSec that the server got.
func (c PairCount) BitsPerSec() float64 { return 8 * float64(c.Bytes) / c.Window.Seconds() }

// PairResult of all pairs.
type PairResult struct {
	Version string        `json:"version"`
	Argv    []string      `json:"argv"` // of the first client
	Pairs   []PairCount   `json:"pairs"`
	Ready   time.Duration `json:"ready_ns"` // from the common start until every pair had traffic
}

// MaxPairs is how many there can be at once: each has two processes.
const MaxPairs = 500

const (
	pairsPort  = 20000
	pairsReady = 30 * time.Second       // bounds the wait for traffic of every pair
	pairsWarm  = 200 * time.Millisecond // from then until the window begins
	pairsLook  = 10 * time.Millisecond

	pairsDatagram = 1470 // bytes, iperf's own
)

// ErrEnded says that a program did not run as long as it was to.
var ErrEnded = errors.New("ended too early")

// entrance puts a process into cgroups, waits until its third input ends, and becomes a program: all clients start when its writer is closed.
const entrance = `while [ "$1" != -- ]; do echo 0 >"$1" || exit 126; shift; done; shift; read -r _ <&3; exec 3<&- "$@"`

func (o PairOptions) check() error {
	if len(o.Pairs) < 1 || len(o.Pairs) > MaxPairs {
		return fmt.Errorf("%d pairs: want 1 to %d", len(o.Pairs), MaxPairs)
	}
	if !slices.Contains([]string{"iperf", "iperf3", "sockperf"}, o.Program) || o.UDP && o.Program != "iperf" {
		return fmt.Errorf("streams of many pairs by %q: want iperf, iperf3 or sockperf, for UDP iperf", o.Program)
	}
	return Installed(o.Program, "sh", "taskset")
}

// RunPairs runs streams of all pairs at once. A common window begins when every pair has traffic; what the servers' sockets got in it counts.
func RunPairs(ctx context.Context, o PairOptions) (r PairResult, err error) {
	o.Flows, o.Duration = max(o.Flows, 1), max(o.Duration, pairsLook)
	if o.Port == 0 {
		o.Port = pairsPort
	}
	if o.UDP && o.Message == 0 {
		o.Message = pairsDatagram
	}
	if err := o.check(); err != nil {
		return r, err
	}
	r.Version, r.Argv = version(o.Program), o.client(o.Pairs[0])
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := &crowd{o: o, cancel: cancel}
	defer func() {
		if cause := context.Cause(ctx); cause != nil { // a program's end, or the caller's: what it made fail is not what is wrong
			err = cause
		}
		cancel(nil)
		x.all.Wait()
		err = errors.Join(err, x.close())
	}()
	if err := x.start(ctx); err != nil {
		return r, err
	}
	if r.Ready, err = x.ready(ctx); err != nil {
		return r, err
	}
	r.Pairs, err = x.window(ctx)
	return r, err
}

// server is the command of a server, client that of a client.
func (o PairOptions) server(p Pair) []string {
	port := strconv.Itoa(o.Port)
	switch {
	case o.Program == "iperf3":
		return []string{"iperf3", "-s", "-p", port}
	case o.Program == "sockperf":
		return []string{"sockperf", "sr", "--tcp", "-i", p.Address.String(), "-p", port}
	case o.UDP:
		return []string{"iperf", "-s", "-u", "-p", port}
	}
	return []string{"iperf", "-s", "-p", port}
}

func (o PairOptions) client(p Pair) []string {
	seconds := strconv.Itoa(int((o.Duration + 2*pairsReady) / time.Second)) // it is ended when the window is over
	port, to := strconv.Itoa(o.Port), p.Address.String()
	if o.Program == "sockperf" {
		return []string{"sockperf", "tp", "--tcp", "-i", to, "-p", port, "-t", seconds, "-m", strconv.Itoa(o.Message)}
	}
	argv := []string{o.Program, "-c", to, "-p", port, "-t", seconds, "-P", strconv.Itoa(o.Flows)}
	if o.Program == "iperf3" {
		argv = append(argv, "-i", "0")
	}
	if o.Message > 0 {
		argv = append(argv, "-l", strconv.Itoa(o.Message))
	}
	if o.Program == "iperf" && !o.UDP {
		argv = append(argv, "-C") // without greetings, for which a server waits a short time only
	}
	switch {
	case o.UDP:
		argv = append(argv, "-u", "-b", strconv.Itoa(o.Rate)+"M")
	case o.Congestion != "" && o.Program == "iperf3":
		argv = append(argv, "-C", o.Congestion)
	case o.Congestion != "":
		argv = append(argv, "-Z", o.Congestion)
	}
	return argv
}

// crowd is the programs of all pairs.
type crowd struct {
	o      PairOptions
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	pids   []struct{ client, server int }
	books  []books
	begun  time.Time
}

// start all servers, then all clients, which wait for each other.
func (x *crowd) start(ctx context.Context) error {
	x.pids, x.books = make([]struct{ client, server int }, len(x.o.Pairs)), make([]books, len(x.o.Pairs))
	at, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	for i, p := range x.o.Pairs {
		if x.pids[i].server, err = x.program(ctx, p.Server, at, x.o.server(p)); err != nil {
			return errors.Join(err, at.Close())
		}
	}
	if err := errors.Join(x.listen(ctx), at.Close()); err != nil {
		return err
	}
	barrier, release, err := os.Pipe()
	if err != nil {
		return err
	}
	for i, p := range x.o.Pairs {
		if x.pids[i].client, err = x.program(ctx, p.Client, barrier, x.o.client(p)); err != nil {
			break
		}
	}
	err = errors.Join(err, barrier.Close())
	x.begun = time.Now()
	return errors.Join(err, release.Close())
}

// program of an end. It is not to end by itself.
func (x *crowd) program(ctx context.Context, e End, barrier *os.File, argv []string) (pid int, err error) {
	launch := append(append([]string{"-c", entrance, "sh"}, e.Groups...), "--")
	if e.CPUs != "" {
		launch = append(launch, "taskset", "-c", e.CPUs)
	}
	cmd := exec.CommandContext(ctx, "sh", append(launch, argv...)...)
	cmd.ExtraFiles = []*os.File{barrier}
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	problems := &tied.Output{Most: maxOutput}
	cmd.Stdout, cmd.Stderr = problems, problems // sockperf says on either what is wrong
	bound(cmd)
	if err := tied.Start(e.Space, cmd); err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	x.all.Go(func() {
		err := cmd.Wait()
		x.cancel(fmt.Errorf("%s: %w: %v: %s", strings.Join(argv, " "), ErrEnded, err, strings.TrimSpace(problems.String()))) // the first one counts
	})
	return cmd.Process.Pid, nil
}

// listen waits until all servers do.
func (x *crowd) listen(ctx context.Context) error {
	network := "tcp"
	if x.o.UDP {
		network = "udp"
	}
	for _, p := range x.o.Pairs {
		if err := Listening(ctx, p.Server.Space, network, x.o.Port); err != nil {
			return fmt.Errorf("%s: server: %w", x.o.Program, err)
		}
	}
	return nil
}

// look again soon.
func look(ctx context.Context) error { return rest(ctx, pairsLook) }

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// ready waits until every pair has traffic.
func (x *crowd) ready(ctx context.Context) (time.Duration, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, pairsReady, fmt.Errorf("%s: not every pair has traffic after %s", x.o.Program, pairsReady))
	defer cancel()
	for i := 0; i < len(x.o.Pairs); {
		there, err := x.books[i].open(x.o, x.pids[i].client, x.pids[i].server)
		if err != nil {
			return 0, err
		}
		if there {
			i++
			continue
		}
		if err := look(bounded); err != nil {
			return 0, err
		}
	}
	return time.Since(x.begun), rest(ctx, pairsWarm)
}

// window counts what the pairs do in the options' time. Each pair's counts are read with a time of its own.
func (x *crowd) window(ctx context.Context) ([]PairCount, error) {
	mark := x.o.Mark
	if mark == nil {
		mark = func() error { return nil }
	}
	if err := mark(); err != nil {
		return nil, err
	}
	first, err := x.read()
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, x.o.Duration); err != nil {
		return nil, err
	}
	last, err := x.read()
	if err := errors.Join(err, mark()); err != nil {
		return nil, err
	}
	out := make([]PairCount, len(first))
	for i, a := range first {
		b := last[i]
		out[i] = PairCount{
			Bytes: b.bytes - a.bytes, Window: b.at.Sub(a.at), Retransmits: b.retransmits - a.retransmits, Sent: b.sent - a.sent, Received: b.received - a.received,
		}
		if x.o.UDP {
			out[i].Bytes = out[i].Received * uint64(x.o.Message)
		}
	}
	return out, nil
}

func (x *crowd) read() (out []reading, err error) {
	out = make([]reading, len(x.books))
	for i := range x.books {
		if out[i], err = x.books[i].read(); err != nil {
			return nil, fmt.Errorf("pair %d: %w", i+1, err)
		}
	}
	return out, nil
}

func (x *crowd) close() error {
	var errs []error
	for i := range x.books {
		errs = append(errs, x.books[i].close())
	}
	return errors.Join(errs...)
}
