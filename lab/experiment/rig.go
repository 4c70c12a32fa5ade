package experiment

import (
	"errors"
	"fmt"
	goruntime "runtime"

	"weir.dev/weir/cpuset"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
)

// Factors of how frames are put in, and of what sends them.
const (
	factorMode           = "mode"
	factorRepresentation = "representation"
	factorGenerator      = "generator"
)

// Modes. What the two measure is not the same, and never compared.
const (
	modeLoss = "loss" // the path has a CPU of its own; the sender does not wait, and what the path does not take is lost in a queue before it
	modeCost = "cost" // closed loop: one CPU makes the frames and does the work of the whole path; time is cost, and a trial that lost a frame has none
)

// Representations of what passes a path.
const (
	asOwn   = "own"   // what the platform forwards
	asSkb   = "skb"   // socket buffers
	asFrame = "frame" // XDP frames: no socket buffer is made on the way, nor at the end
)

// rigFactors are the factors of a rig.
func rigFactors() []Factor {
	return []Factor{
		{Name: factorMode, Default: modeCost, Check: oneOf(modeCost, modeLoss),
			About: "cost: one CPU sends and does the work of the path (closed loop; no figure if a frame is lost); loss: the path has another CPU, and frames are lost in front of it"},
		{Name: factorRepresentation, Default: asOwn, Check: oneOf(asOwn, asSkb, asFrame),
			About: "skb: socket buffers, put in as if just received; frame: XDP frames all the way; own: whichever the platform forwards"},
	}
}

// rig is how frames are put into a platform and where they are counted.
type rig struct {
	mode, representation string
	sender, chain        int // CPUs
	process              bool
	first                bool // the sender comes before other programs on its CPU
}

// rigOf levels on a kind of platform; why says what contradicts itself or cannot be had here.
func rigOf(l Levels, k platform.Kind) (r rig, why string) {
	r = rig{mode: l.or(factorMode, modeCost), representation: l.or(factorRepresentation, asOwn), process: k.Process}
	if r.representation == asOwn {
		r.representation = asSkb
		if k.Frames && !k.Skbs {
			r.representation = asFrame
		}
	}
	switch {
	case !k.Frames && !k.Skbs:
		return r, fmt.Sprintf("platform %s: nothing can be put in there but through sockets", k.Name)
	case r.representation == asFrame && !k.Frames:
		return r, fmt.Sprintf("platform %s forwards socket buffers: an XDP frame that enters becomes one, so there is no representation %s to measure; want %s", k.Name, asFrame, asSkb)
	case r.representation == asSkb && !k.Skbs:
		return r, fmt.Sprintf("platform %s forwards XDP frames: what enters as a socket buffer leaves as a frame, so there is no representation %s to measure; want %s", k.Name, asSkb, asFrame)
	case r.mode == modeCost && k.Process:
		return r, fmt.Sprintf("platform %s forwards in a process of its own: there is no mode %s, in which one CPU does it all; want %s", k.Name, modeCost, modeLoss)
	}
	var err error
	if r.sender, r.chain, err = twoCPUs(); err != nil && (r.mode == modeLoss || r.sender < 0) {
		return r, fmt.Sprintf("mode %s: %s", r.mode, err)
	}
	return r, ""
}

// twoCPUs are the first two that this process may use. Only the first is known with an error.
func twoCPUs() (first, second int, err error) {
	own, err := cpuset.Allowed()
	switch {
	case err != nil:
		return -1, -1, err
	case len(own) > 1:
		return own[0], own[1], nil
	}
	return own[0], -1, fmt.Errorf("sender and path need a CPU each, and this process has %d", goruntime.GOMAXPROCS(0))
}

// generator of a rig on a path.
func (r rig) generator(p platform.Path, batch int) (*xdp.Generator, error) {
	o := xdp.Options{
		In: xdp.Place{Space: p.Space, Link: p.Link}, Sink: xdp.Place{Space: p.To, Link: platform.Station}, Batch: batch,
		CPU: r.sender, Apart: r.mode == modeLoss && !r.process, Chain: r.chain, First: r.first,
	}
	if r.representation == asFrame {
		o.In, o.Frames, o.SinkFrames = xdp.Place{Space: p.FrameSpace, Link: p.FrameLink}, true, true
	}
	return xdp.New(o)
}

// works is the CPU that does the path's work, if it is to be one.
func (r rig) works() (cpu int, one bool) {
	if r.mode == modeCost {
		return r.sender, true
	}
	return r.chain, !r.process
}

// kind is the representation in words.
func (r rig) kind() string {
	return map[string]string{asSkb: "skb", asFrame: "XDP frame"}[r.representation]
}

// label says in words what a rig measures; it stands beside each result.
func (r rig) label() string {
	switch {
	case r.mode == modeCost:
		return fmt.Sprintf("cost per packet (closed loop: CPU %d makes the frames and forwards them)", r.sender)
	case r.process:
		return fmt.Sprintf("loss-limited (sender on CPU %d, path in a process of its own)", r.sender)
	}
	by := map[string]string{asSkb: "receive packet steering", asFrame: "cpumap"}[r.representation]
	return fmt.Sprintf("loss-limited (sender on CPU %d, path on CPU %d by %s)", r.sender, r.chain, by)
}

// batch is how many frames enter at a time on a path of so many wires, at most. Variants that are compared may take fewer, each another number: see
// Batched.
//
// Mode cost is a closed loop only if the path is done with a batch before the next enters. Otherwise a bridge's path overflows. Its veths have no NAPI, so
// each crossing of one hands the packet on through the CPU's backlog (netif_rx), one queue of net.core.netdev_max_backlog (1,000) packets for all
// crossings of all frames. Behind a batch the kernel works on that queue for some rounds of net.core.netdev_budget (300) packets: ten at most, for
// 2 ms at most (MAX_SOFTIRQ_TIME), and for no further round if another thread wants the CPU. It leaves the rest to ksoftirqd, a thread like any
// other. The sender goes on, and puts the next batch behind what is left, until the queue is full and the kernel drops. So a batch makes no more
// crossings than one round takes, which is done in any case.
//
// In mode loss the path has a CPU of its own, and a queue in front of it that may be full: what matters is that frames enter evenly.
func (r rig) batch(wires int) int {
	most := 10 * roundFrames
	if r.mode == modeCost {
		most = roundFrames
	}
	return min(xdp.DefaultBatch, max(1, most/crossings(wires)))
}

// roundFrames is net.core.netdev_budget as kernels have it by themselves. It is not read: a batch should not differ from machine to machine.
const roundFrames = 300

// crossings of veths on a path of so many wires.
func crossings(wires int) int { return 2*wires + 2 }

// closing closes a generator at the end of a function.
func closing(g traffic.Generator, err *error) { *err = errors.Join(*err, g.Close()) }
