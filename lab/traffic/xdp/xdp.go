package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

// DefaultBatch is how many frames enter between two runs of the network's softirq.
const DefaultBatch = 64

// MaxBatch is the kernel's.
const MaxBatch = 256

// Options say where frames enter and where they are counted.
type Options struct {
	// In: frames enter as if this interface had received them (representation: skb). With Frames they leave through it instead, as XDP frames
	// (representation: frame); a veth takes them only if an XDP program or GRO is on at its other end.
	In     Place
	Frames bool
	// Sink: where frames of the run are counted and taken out. With SinkFrames by an XDP program, else at tc ingress.
	Sink       Place
	SinkFrames bool
	Batch      int // 0: DefaultBatch
	CPU        int // that generates, and does the softirq work of what it sends; -1: any
	// Apart: the work of what is sent is done on another CPU, Chain: frames go there by a cpumap, skbs by receive packet steering of In's link.
	// The sender does not wait then; what the chain does not take is lost in a queue on the way.
	Apart bool
	Chain int
	// First: the sender comes before the other programs on its CPU, where the kernel lets it. It needs a CPU of its own, and another for the rest.
	First bool
}

// A sender that was held up makes good for at most catchUp, or what the run's spec says: of each faster frames one more leaves than are due. What
// is later yet is skipped.
const (
	catchUp = 20 * time.Millisecond
	faster  = 8
)

// queue of frames on their way to another CPU.
const queue = 2048

// Generator implements traffic.Generator.
type Generator struct {
	*Sink
	o      Options
	undo   []func() error
	thread func(thread, cpu int) error // see OnThread
	meta   [24]byte                    // struct xdp_md
	room   []byte
	mu     sync.Mutex // over the window, and over the plan of a run that goes on
	began  time.Duration
	ended  time.Duration
	cut    chan struct{} // closed when the run was cut
	over   atomic.Bool   // the run
	closed bool
}

// New loads and attaches. Errors of kernels without live frames (before 5.18) or tcx (before 6.6) name the feature.
func New(o Options) (*Generator, error) {
	if o.Batch == 0 {
		o.Batch = DefaultBatch
	}
	if o.Batch < 1 || o.Batch > MaxBatch {
		return nil, fmt.Errorf("batch of %d frames: want 1 to %d", o.Batch, MaxBatch)
	}
	if o.Apart && (o.CPU < 0 || o.Chain < 0 || o.CPU == o.Chain) {
		return nil, fmt.Errorf("sender on CPU %d, chain on CPU %d: want two different ones", o.CPU, o.Chain)
	}
	s, err := NewSink(o.Sink, o.SinkFrames)
	if err != nil {
		return nil, err
	}
	g := &Generator{Sink: s, o: o}
	g.plan.Burst = uint32(o.Batch)
	if err := netns.Do(o.In.Space, g.openIn); err != nil {
		return nil, errors.Join(fmt.Errorf("generator at %s: %w", o.In.Link, err), g.Close())
	}
	return g, nil
}

func (g *Generator) openIn() error {
	ifi, err := net.InterfaceByName(g.o.In.Link)
	if err != nil {
		return err
	}
	if g.o.Frames {
		g.plan.Redirect = uint32(ifi.Index)
		if !g.o.Apart {
			return nil
		}
		g.plan.Apart, g.plan.Cpu = 1, uint32(g.o.Chain)
		if err := g.maps.Elsewhere.Put(uint32(g.o.Chain), struct{ Size, Program uint32 }{queue, uint32(g.maps.Onward.FD())}); err != nil {
			return fmt.Errorf("a queue to CPU %d (cpumap with a program, Linux 5.9): %w", g.o.Chain, err)
		}
		return nil
	}
	binary.NativeEndian.PutUint32(g.meta[12:], uint32(ifi.Index)) // ingress_ifindex
	if g.o.Apart {
		undo, err := steer(g.o.In.Link, g.o.Chain)
		if err != nil {
			return err
		}
		g.undo = append(g.undo, undo)
	}
	return g.withGRO()
}

// withGRO turns NAPI on at a veth: only then has it a receive queue for frames to enter at.
func (g *Generator) withGRO() error {
	const feature = "rx-gro"
	have, err := ethtool.Features(g.o.In.Link)
	if err != nil {
		return err
	}
	if have[feature].Active {
		return nil
	}
	if err := ethtool.Change(g.o.In.Link, map[string]bool{feature: true}); err != nil {
		return fmt.Errorf("turn GRO on: %w", err)
	}
	g.undo = append(g.undo, func() error {
		return netns.Do(g.o.In.Space, func() error {
			return ethtool.Change(g.o.In.Link, map[string]bool{feature: false})
		})
	})
	return nil
}

// SetBatch changes how many frames enter at a time, from the next run on: few for delays, since the first of a batch waits for the last. How many
// may follow at once when the sender was late stays as it is.
func (g *Generator) SetBatch(n int) error {
	if n < 1 || n > MaxBatch {
		return fmt.Errorf("batch of %d frames: want 1 to %d", n, MaxBatch)
	}
	g.o.Batch = n
	return nil
}

// Arm prepares a run.
func (g *Generator) Arm(_ context.Context, spec traffic.Spec) error {
	g.over.Store(false)
	g.began, g.ended, g.cut = 0, 0, make(chan struct{})
	if err := g.Sink.Arm(spec); err != nil {
		return err
	}
	late := catchUp
	if spec.CatchUp > 0 {
		late = spec.CatchUp
	}
	g.plan.Slack, g.plan.Faster = uint32(min(spec.Rate*late.Seconds(), math.MaxUint32)), faster
	g.room = make([]byte, g.plan.Room)
	binary.NativeEndian.PutUint32(g.meta[4:], g.plan.Room) // data_end
	return g.maps.Generated.Put(uint32(0), &trafficDeparted{})
}

// Start sends and returns when the run is over. The program runs already before the first slot is due, since its frames take a while to
// make; if that lasts beyond at, the run begins as soon as they are there. What the scheduler or a hypervisor holds up later counts as late, and
// as skipped if it lasts long.
func (g *Generator) Start(ctx context.Context, at time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := make(chan error, 1)
	go func() {
		err := g.schedule(ctx, at)
		if err != nil {
			cancel()
		}
		began <- err
	}()
	err := netns.Do(g.o.In.Space, func() error { return g.send(ctx) })
	cancelled := ctx.Err()
	cancel()
	switch planned := <-began; {
	case err != nil:
		return fmt.Errorf("send from %s: %w", g.o.In.Link, err)
	case planned != nil:
		return planned
	}
	return cancelled
}

// schedule waits until the program runs and lets it begin.
func (g *Generator) schedule(ctx context.Context, at time.Time) error {
	for {
		var out trafficDeparted
		if err := g.maps.Generated.Lookup(uint32(0), &out); err != nil {
			return fmt.Errorf("read the generator: %w", err)
		}
		if out.Spins > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wakeAgain):
		}
	}
	now, err := traffic.Monotonic()
	if err != nil {
		return err
	}
	begin := max(now+wakeAgain, now+time.Until(at))
	if err := g.plot(begin, begin+g.spec.Duration); err != nil {
		return err
	}
	wait := time.NewTimer(begin + g.spec.Duration - now)
	defer wait.Stop()
	for cut := g.cut; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-cut:
			cut = nil
			wait.Reset(cutLead)
		case <-wait.C:
			g.over.Store(true)
			return nil
		}
	}
}

// plot the window of a run.
func (g *Generator) plot(begin, end time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.began, g.ended = begin, end
	g.plan.Start, g.plan.Stop = uint64(begin), uint64(end)
	return g.putPlan()
}

// cutLead is how long a run goes on that was cut: the sender has not come further when it hears of it, even if this thread does not run for a while.
const cutLead = 50 * time.Millisecond

// Cut implements traffic.Cutter.
func (g *Generator) Cut() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, err := traffic.Monotonic()
	if err != nil {
		return err
	}
	end := now + cutLead
	if g.spec.Rate == 0 || now < g.began || end >= g.ended {
		return nil
	}
	g.ended = end
	g.plan.Stop, g.plan.Limit = uint64(end), uint64(math.Floor(g.spec.Rate*(end-g.began).Seconds()))
	close(g.cut)
	return g.putPlan()
}

// runAttr is the part of union bpf_attr for BPF_PROG_RUN.
type runAttr struct {
	prog, retval, sizeIn, sizeOut uint32
	dataIn, dataOut               uint64
	repeat, duration              uint32
	contextIn, contextOut         uint32
	context, contextOutAddress    uint64
	flags, cpu, batch, _          uint32
}

const (
	progRun       = 10     // BPF_PROG_RUN
	runLiveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	wakeAgain     = time.Millisecond
)

// send runs the program on this thread, again and again until the plan's time is over. The library's Run would begin anew after a signal and
// could not be stopped: here a signal ends a run.
func (g *Generator) send(ctx context.Context) error {
	if restore, err := g.pin(); err != nil {
		return err
	} else if restore != nil {
		defer restore()
	}
	tid := unix.Gettid()
	if g.thread != nil {
		if err := g.thread(tid, g.o.CPU); err != nil {
			return err
		}
	}
	finished, stopped := make(chan struct{}), make(chan struct{})
	go func() { // interrupts the system call at the end
		defer close(stopped)
		wake := time.NewTicker(wakeAgain) // again, since the signal may come between two calls
		defer wake.Stop()
		for {
			if ctx.Err() != nil {
				g.over.Store(true)
			}
			if g.over.Load() {
				_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // which Go's runtime takes as its own and ignores
			}
			select {
			case <-finished:
				return
			case <-wake.C:
			}
		}
	}()
	var failed error
	for !g.over.Load() {
		if err := g.runOnce(); err != nil && !errors.Is(err, unix.EINTR) {
			failed = err
			break
		}
	}
	close(finished)
	<-stopped
	return failed
}

func (g *Generator) runOnce() error {
	a := runAttr{
		prog: uint32(g.maps.Generate.FD()), sizeIn: uint32(len(g.room)), dataIn: address(&g.room[0]),
		repeat: math.MaxInt32, flags: runLiveFrames, batch: uint32(g.o.Batch),
	}
	if !g.o.Frames {
		a.contextIn, a.context = uint32(len(g.meta)), address(&g.meta[0])
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, progRun, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(g)
	if errno != 0 {
		return errno
	}
	return nil
}

func address(b *byte) uint64 { return uint64(uintptr(unsafe.Pointer(b))) }

// pin keeps this thread, and with it the softirq work of what it sends, on one CPU.
func (g *Generator) pin() (restore func(), err error) {
	if g.o.CPU < 0 {
		return nil, nil
	}
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return nil, fmt.Errorf("affinity: %w", err)
	}
	one.Set(g.o.CPU)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("run on CPU %d: %w", g.o.CPU, err)
	}
	behind := func() {}
	if g.o.First {
		behind = first()
	}
	return func() { behind(); _ = unix.SchedSetaffinity(0, &old) }, nil
}

// Read gives the counts of the run.
func (g *Generator) Read() (traffic.Count, error) {
	var out trafficDeparted
	if err := g.maps.Generated.Lookup(uint32(0), &out); err != nil {
		return traffic.Count{}, fmt.Errorf("read the generator: %w", err)
	}
	c, err := g.Sink.Read(out.Sent, g.ended-g.began)
	c.Late = out.Late
	return c, err
}

// OnThread implements traffic.Traced.
func (g *Generator) OnThread(f func(thread, cpu int) error) { g.thread = f }

// Window implements traffic.Traced.
func (g *Generator) Window() (begin, end time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.began, g.ended
}

// Missing implements traffic.Traced.
func (g *Generator) Missing(spans []traffic.Span) (traffic.Stalled, error) {
	begin, _ := g.Window()
	departed := func(first, end uint64) ([]uint64, error) { return words(g.maps.Departures, first, end) }
	return g.Sink.Missing(begin, departed, spans)
}

// Close detaches everything and leaves the links as they were.
func (g *Generator) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	var errs []error
	for _, undo := range g.undo {
		errs = append(errs, undo())
	}
	return errors.Join(append(errs, g.Sink.Close())...)
}

var _ traffic.Cutter = (*Generator)(nil)
