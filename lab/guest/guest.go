package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"weir.dev/weir/container"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/tied"
)

// ErrOther says that this machine makes guests of another kind in its place.
var ErrOther = errors.New("not on this machine")

// Spec of a guest. Two that are equal are one guest.
type Spec struct {
	Kind   string
	N      int // tells guests apart that are alike
	CPUs   int // of a container or a machine; 0: all. Processes of the host have no limit
	Memory int // MiB, of every kind; 0: no limit, of a machine machineMemory
	Data   int // MiB that it is going to write to Data; 0: it has no such directory
	Mbits  int // of its line to a peer; 0: it has none
}

// maxText of a program that is kept.
const maxText = mib

// machineMemory is what a machine has without a limit, in MiB.
const machineMemory = 512

// Guest is where programs run.
type Guest struct {
	Spec
	site *Site
	id   string
	rt   *platform.Runtime // nil: it is made by docker run
	line *platform.Line
}

// makeData makes the directory that it writes to.
func (g *Guest) makeData() error {
	if g.Data == 0 {
		return nil
	}
	if why := NoDisk(g.Kind); why != "" {
		return fmt.Errorf("%w: %s", ErrOther, why)
	}
	if err := room(g.site.inst.Root, int64(g.Data)*mib, "a file"); err != nil {
		return err
	}
	return os.MkdirAll(g.data(), 0o755)
}

func (g *Guest) start(ctx context.Context) (err error) {
	if err := g.makeData(); err != nil {
		return err
	}
	if g.Kind == DockerRun {
		return g.startDocker(ctx)
	}
	if g.rt, err = g.site.runtime(ctx, driver(g.Kind)); err != nil {
		return err
	}
	spec := g.container()
	if g.Mbits > 0 {
		if g.line, err = platform.NewLine(g.site.inst, g.id, platform.LineOptions{Mbits: g.Mbits, Node: !OnHost(g.Kind), Silent: machine(g.Kind)}); err != nil {
			return err
		}
		spec.Netns = g.line.Guest
	}
	if err := g.rt.Run(ctx, spec); err != nil {
		return err
	}
	if !machine(g.Kind) {
		return nil
	}
	if err := g.checkProcessor(); err != nil || g.line == nil {
		return err
	}
	return g.address(ctx)
}

// container is the guest as a runtime makes it: the lab's program waits in it.
func (g *Guest) container() container.Spec {
	// Package kernel bounds every file of a container whose root is read-only.
	s := container.Spec{ID: g.id, Rootfs: g.site.root(), ReadOnly: g.Data == 0, Args: []string{Probe, "wait"}, Memory: int64(g.Memory) * mib}
	if !OnHost(g.Kind) {
		s.CPUs = float64(g.CPUs)
	}
	if g.Data > 0 {
		s.Mounts = []container.Mount{{Source: g.data(), Target: Data}}
	}
	if machine(g.Kind) {
		s.Capabilities = []string{"CAP_NET_ADMIN"} // it sets its own address
		if s.Memory == 0 {
			s.Memory = machineMemory * mib
		}
		if s.CPUs == 0 {
			s.CPUs = float64(runtime.NumCPU()) // as a container without a limit has
		}
	}
	return s
}

// data is the directory behind Data.
func (g *Guest) data() string { return filepath.Join(g.site.inst.Root, "data", g.id) }

// checkProcessor refuses a machine of the other kind than this host makes.
func (g *Guest) checkProcessor() error {
	switch {
	case g.Kind == VM && g.Emulated():
		return fmt.Errorf("%w: no machine boots with /dev/kvm, its processor would be emulated, which is the level %s", ErrOther, Emulated)
	case g.Kind == Emulated && !g.Emulated():
		return fmt.Errorf("%w: machines boot with /dev/kvm, which is the level %s", ErrOther, VM)
	}
	return nil
}

// Emulated tells that the guest's processor is.
func (g *Guest) Emulated() bool {
	return machine(g.Kind) && strings.HasPrefix(g.rt.Note(), platform.Emulated)
}

// address of a machine's own interface.
func (g *Guest) address(ctx context.Context) error {
	own, _ := platform.LineAddresses()
	for _, args := range [][]string{{"addr", "add", own.String(), "dev", platform.Station}, {"link", "set", platform.Station, "up"}} {
		if _, err := g.Run(ctx, append([]string{Program("busybox"), "ip"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// startDocker makes it as a user does, by `docker run`. Its namespace gets the end of the line when it is there.
func (g *Guest) startDocker(ctx context.Context) error {
	e, err := g.site.startEngine(ctx)
	if err != nil {
		return err
	}
	args := []string{"run", "-d", "--name", g.id, "--network", "none", "--read-only"}
	if g.CPUs > 0 {
		args = append(args, "--cpus", strconv.Itoa(g.CPUs))
	}
	if g.Memory > 0 {
		limit := strconv.Itoa(g.Memory) + "m"
		args = append(args, "--memory", limit, "--memory-swap", limit)
	}
	if g.Data > 0 {
		args = append(args, "-v", g.data()+":"+Data)
	}
	corpora, err := filepath.Glob(filepath.Join(g.site.root(), "corpus-*[0-9]"))
	if err != nil {
		return err
	}
	for _, c := range corpora {
		args = append(args, "-v", c+":/"+filepath.Base(c)+":ro")
	}
	if _, err := e.Docker(ctx, nil, append(args, guestImage, Probe, "wait")...); err != nil {
		return err
	}
	if g.Mbits == 0 {
		return nil
	}
	space, err := e.Space(ctx, g.id)
	if err != nil {
		return err
	}
	g.line, err = platform.NewLine(g.site.inst, g.id, platform.LineOptions{Mbits: g.Mbits, Node: true, Guest: space})
	return err
}

// Line to its peer.
func (g *Guest) Line() *platform.Line { return g.line }

// Run a program to its end, and give what it printed. An exit code other than 0 is an error, with what it said.
func (g *Guest) Run(ctx context.Context, argv ...string) (string, error) {
	out := &tied.Output{Most: maxText}
	err := g.exec(ctx, nil, out, argv...)
	return out.String(), err
}

// output is where a program prints to.
type output interface {
	io.Writer
	fmt.Stringer
}

// exec a program to its end.
func (g *Guest) exec(ctx context.Context, in io.Reader, out output, argv ...string) (err error) {
	problems, code := &tied.Output{Most: maxText}, 0
	if g.rt == nil {
		args := []string{"exec", g.id}
		if in != nil {
			args = []string{"exec", "--interactive", g.id}
		}
		err = g.site.engine.Pipe(ctx, in, out, problems, append(args, argv...)...)
	} else if code, err = g.rt.Exec(ctx, g.id, container.ExecSpec{Args: argv, Stdin: in, Stdout: out, Stderr: problems}); err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), errors.Join(err, context.Cause(ctx)), strings.TrimSpace(problems.String()+" "+out.String()))
	}
	return nil
}

// Together runs a program in several guests, each to its end, and gives how long each took. None begins before all are about to.
func Together(ctx context.Context, guests []*Guest, argv ...string) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, len(guests))
	there, gate := make(chan struct{}, len(guests)), make(chan struct{})
	all, ctx := errgroup.WithContext(ctx)
	for i, g := range guests {
		all.Go(func() error {
			out := &announced{Output: tied.Output{Most: maxText}, there: there}
			if err := g.exec(ctx, barrier{ctx, gate}, out, append([]string{Probe, "begin"}, argv...)...); err != nil {
				return err
			}
			ns, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(out.String(), announcement)), 10, 64)
			if err != nil || ns <= 0 {
				return fmt.Errorf("%s: %q: want nanoseconds", Probe, out)
			}
			took[i] = time.Duration(ns)
			return nil
		})
	}
	late := time.AfterFunc(patience, func() { cancel(fmt.Errorf("not every guest is about to begin after %s", patience)) })
	for range guests {
		select {
		case <-there:
		case <-ctx.Done():
		}
	}
	late.Stop()
	close(gate)
	return took, all.Wait()
}

// announcement of a program that is about to begin.
const announcement = "ready\n"

// announced is output that begins with an announcement.
type announced struct {
	tied.Output
	there chan<- struct{} // has room
	told  bool
}

func (a *announced) Write(b []byte) (int, error) {
	n, err := a.Output.Write(b)
	if !a.told && strings.HasPrefix(a.String(), announcement) {
		a.told = true
		a.there <- struct{}{}
	}
	return n, err
}

// barrier is an input that is empty, and ends when its gate opens.
type barrier struct {
	ctx  context.Context // of the programs that wait
	gate <-chan struct{}
}

func (b barrier) Read([]byte) (int, error) {
	select {
	case <-b.gate:
	case <-b.ctx.Done():
	}
	return 0, io.EOF
}

// Ready waits until its first process has said so, in its log.
func (g *Guest) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		said, err := g.log(ctx)
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(said, "ready"):
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the guest has not come up in %s: %w", patience, ctx.Err())
		}
		time.Sleep(time.Millisecond) // its own processors are not for the question
	}
}

// log is the first line of what its first process printed.
func (g *Guest) log(ctx context.Context) (string, error) {
	if g.rt == nil {
		return g.site.engine.Docker(ctx, nil, "logs", g.id)
	}
	r, err := g.rt.Logs(ctx, g.id, container.LogOptions{})
	if err != nil {
		return "", err
	}
	defer r.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}

// Conditions under which it runs.
func (g *Guest) Conditions() map[string]string {
	out := map[string]string{"services": g.site.servicesText(g.Kind)}
	if machine(g.Kind) {
		out[platform.ConditionMachines] = g.rt.Note()
	}
	if g.line != nil {
		out["network"] = "a card of its own"
		if g.line.Node != "" {
			out["network"] = "a port of a bridge"
		}
	}
	out["memory limit"] = "none"
	if c := g.container(); c.Memory > 0 {
		out["memory limit"] = fmt.Sprintf("%d MiB", c.Memory/mib)
	}
	return out
}

// Close removes a guest that Start has made.
func (g *Guest) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return g.remove(ctx)
}

func (g *Guest) remove(ctx context.Context) error {
	var errs []error
	switch {
	case g.rt != nil:
		errs = append(errs, g.rt.Delete(ctx, g.id))
	case g.site.engine != nil:
		_, err := g.site.engine.Docker(ctx, nil, "rm", "--force", g.id)
		errs = append(errs, err)
	}
	if g.line != nil {
		errs = append(errs, g.line.Close())
	}
	if g.Data > 0 {
		errs = append(errs, os.RemoveAll(g.data()))
	}
	return errors.Join(errs...)
}
