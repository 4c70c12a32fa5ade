package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Stall is a time on CLOCK_MONOTONIC in which a CPU did not run or, with Thread, in which the sender did not have the CPU.
type Stall struct {
	CPU    int           `json:"cpu"`
	Begin  time.Duration `json:"begin_ns"`
	End    time.Duration `json:"end_ns"`
	Thread bool          `json:"thread,omitempty"`
}

// Stalls of a run, in the order in which they began. Unlisted is how many more there were than the list has room for.
type Stalls struct {
	List     []Stall `json:"list,omitempty"`
	Unlisted uint64  `json:"unlisted,omitempty"`
}

// A frame is missing because of a stall if it was due from Before its begin to After(rate) its end. Nothing that a run measures changes these times.
//
// Before: a sender may send a frame StallCatchUp late. After: see there.
const (
	Before       = 2 * time.Millisecond
	StallCatchUp = time.Millisecond
	leastAfter   = 20 * time.Millisecond
	backlog      = 1000 // frames: net.core.netdev_max_backlog
)

// After a stall of a run with so many frames a second. The queue in front of the path's CPU is full when the stall ends, and each crossing on the way
// goes through that queue: it takes nothing until the frames in it are done, which takes a path at its limit about as long as they take to come. At least 20 ms,
// in which a sender that was late sends an eighth more for 8 ms.
func After(rate float64) time.Duration {
	if rate <= 0 {
		return leastAfter
	}
	return max(leastAfter, time.Duration(backlog/rate*float64(time.Second)))
}

// Span of time.
type Span struct{ Begin, End time.Duration }

// Spans are the times near stalls of a run with so many frames a second, in their order; none overlaps another.
func (s Stalls) Spans(rate float64) (out []Span) {
	after := After(rate)
	for _, x := range s.List {
		span := Span{x.Begin - Before, x.End + after}
		if n := len(out); n > 0 && out[n-1].End >= span.Begin {
			out[n-1].End = max(out[n-1].End, span.End)
			continue
		}
		out = append(out, span)
	}
	return out
}

// Time is how long the stalls took; those of two CPUs at once count once.
func (s Stalls) Time() (sum time.Duration) {
	var until time.Duration
	for _, x := range s.List {
		sum += max(0, x.End-max(x.Begin, until))
		until = max(until, x.End)
	}
	return sum
}

// Stalled are the frames of a paced run that were due near a stall. Of those, Lost were sent and did not arrive, and Skipped were not sent.
type Stalled struct {
	Due     uint64 `json:"due"`
	Lost    uint64 `json:"lost"`
	Skipped uint64 `json:"skipped"`
}

// Traced is a generator that knows of every frame of a paced run when it was due, and whether it was sent and arrived.
type Traced interface {
	Generator
	// OnThread is called by the thread that sends, on the CPU that it sends from, just before it begins.
	OnThread(f func(thread, cpu int) error)
	// Window of the run: from the first slot to the end of the last, on CLOCK_MONOTONIC.
	Window() (begin, end time.Duration)
	// Missing counts the frames that were due in the spans. They are in order and do not overlap.
	Missing(spans []Span) (Stalled, error)
}

// Cutter is a generator whose paced run can end early.
type Cutter interface {
	Traced
	// Cut makes the run that goes on one of a shorter duration, which is over in a moment. Window and Missing may be called meanwhile.
	Cut() error
}

// Watch sees stalls. Begin forgets all before; a thread that is not 0 has the CPU for itself. Read gives those before the end of a run, and Peek those
// that have ended so far in a run that goes on.
type Watch interface {
	Begin(thread, cpu int) error
	Peek() (Stalls, error)
	Read(end time.Duration) (Stalls, error)
}

// SendWatched makes one paced run of a generator, and counts apart what is missing near stalls. If enough is not nil and the generator is a Cutter, the run ends
// once enough says so of its frames so far: of the count it is given it may use Intended (those that were due), Sent, Skipped, Lost and Stalled. Its counts are then
// those of a shorter run. What enough was told may have been more: a stall is seen when it is over.
func SendWatched(ctx context.Context, g Traced, s Spec, w Watch, enough func(Count) bool) (c Count, stalls Stalls, err error) {
	g.OnThread(w.Begin)
	defer g.OnThread(nil)
	early := func() error { return nil }
	if x, ok := g.(Cutter); ok && enough != nil {
		early = lookOut(x, s, w, enough)
	}
	c, err = Send(ctx, g, s)
	lookErr := early()
	if err = errors.Join(err, lookErr); err != nil {
		return c, stalls, err
	}
	begin, end := g.Window()
	if stalls, err = w.Read(end); err != nil {
		return c, stalls, err
	}
	for len(stalls.List) > 0 && stalls.List[0].End < begin-After(s.Rate) {
		stalls.List = stalls.List[1:]
	}
	if c.Stalled, err = g.Missing(stalls.Spans(s.Rate)); err != nil {
		return c, stalls, fmt.Errorf("frames that were due near stalls: %w", err)
	}
	return c, stalls, nil
}

// How a run is looked at while it goes on: how often, and how long after a frame was due its fate is known, with the stalls before it. That is when so many
// more frames were due as the queues of a long chain hold. A look reads two bits of each frame that was due since the last one: some ten microseconds for
// a million frames a second.
const (
	lookEach     = time.Second
	settled      = 200 * time.Millisecond
	settledAfter = 32 * backlog // frames
)

// lookOut looks at a run that begins, and cuts it. The function that it gives ends that.
func lookOut(g Cutter, s Spec, w Watch, enough func(Count) bool) (end func() error) {
	over, ended := make(chan struct{}), make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		again := time.NewTicker(lookEach)
		defer again.Stop()
		var sum Count
		var from time.Duration
		for {
			select {
			case <-over:
				return
			case <-again.C:
			}
			var until time.Duration
			if until, err = look(g, s, w, from, &sum); err != nil {
				return
			}
			if from = until; enough(sum) {
				err = g.Cut()
				return
			}
		}
	}()
	return func() error { close(over); <-ended; return err }
}

// look adds the frames that were due since from to a sum, and tells until when it did.
func look(g Cutter, s Spec, w Watch, from time.Duration, sum *Count) (until time.Duration, err error) {
	begin, end := g.Window()
	if end == 0 { // it has not begun
		return from, nil
	}
	now, err := Monotonic()
	if err != nil {
		return from, err
	}
	from, until = max(from, begin), min(now, end)-After(s.Rate)-settled-time.Duration(settledAfter/s.Rate*float64(time.Second))
	if until <= from {
		return from, nil
	}
	stalls, err := w.Peek()
	if err != nil {
		return from, err
	}
	all, err := g.Missing([]Span{{from, until}})
	if err != nil {
		return from, err
	}
	var spans []Span
	if stalls.Unlisted > 0 { // as if all were near one
		spans = []Span{{from, until}}
	} else {
		for _, x := range stalls.Spans(s.Rate) {
			if x = (Span{max(x.Begin, from), min(x.End, until)}); x.Begin < x.End {
				spans = append(spans, x)
			}
		}
	}
	near, err := g.Missing(spans)
	sum.Intended += all.Due
	sum.Sent += all.Due - all.Skipped
	sum.Skipped += all.Skipped
	sum.Lost += all.Lost
	sum.Unique = sum.Sent - sum.Lost
	sum.Stalled.Due += near.Due
	sum.Stalled.Lost += near.Lost
	sum.Stalled.Skipped += near.Skipped
	return until, err
}

// Monotonic is the clock of frames and stalls.
func Monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
