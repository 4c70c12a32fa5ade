package solo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// Case is what is sent to a function, and what is expected of it.
type Case struct {
	Name string
	// Frames that enter at the ports, in the order of their times where there are some at both; a tap has In alone.
	In, Out []Frame
	// Frames that are to come out. nil: nothing is expected there, and nothing is compared; empty: none.
	AtOut, AtIn []Frame
	Events      []string // reasons of events that it is to raise
	Ignore      []string // see Ignorable
	Interval    time.Duration
	Timeout     time.Duration // for its start, and for what is to come out
}

// Defaults of a Case.
const (
	DefaultInterval = time.Millisecond
	DefaultTimeout  = 10 * time.Second
)

// When frames are waited for.
const (
	quiet   = 300 * time.Millisecond // nothing more is expected, and nothing has come for so long
	idle    = time.Second            // nothing is known of what is expected, and nothing has come for so long
	turn    = 50 * time.Millisecond  // before frames that enter at the other port
	looking = 5 * time.Millisecond
)

// Result of a Case.
type Result struct {
	Name        string       `json:"name,omitempty"`
	Passed      bool         `json:"passed"`
	Image       string       `json:"image"`
	Digest      string       `json:"digest"`
	Runtime     string       `json:"runtime"`
	Sent        Counts       `json:"sent"`
	Received    Counts       `json:"received"`
	Differences []Difference `json:"differences"`
	Failures    []string     `json:"failures"` // what else was not as expected
	Notes       []string     `json:"notes"`    // what an author should know
	Events      []Raised     `json:"events"`
	Log         string       `json:"log"`
	ElapsedNs   int64        `json:"elapsed_ns"`

	AtOut, AtIn []Frame `json:"-"` // what came
}

// Counts of frames at the ports.
type Counts struct {
	In  int `json:"in"` // of a tap: at tap
	Out int `json:"out"`
}

// Raised is an event.
type Raised struct {
	Severity api.Severity `json:"severity"`
	Reason   string       `json:"reason"`
	Message  string       `json:"message"`
}

// Try runs a function, sends what a case has, and compares what comes out. An error says that it could not be tried; what the function does wrong is in the
// result.
func Try(ctx context.Context, o Options, c Case) (r Result, err error) {
	begin := time.Now()
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	f, err := Prepare(ctx, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Image.Contract.Tap && (c.AtOut != nil || c.AtIn != nil || len(c.Out) > 0) {
		return r, fmt.Errorf("%w: %s is a tap: it gets copies at its one port and hands nothing on", ErrCase, o.Image)
	}
	r = Result{Name: c.Name, Image: o.Image, Digest: f.Image.Digest, Runtime: f.Runtime, Differences: []Difference{}, Failures: []string{}, Notes: []string{}, Events: []Raised{}}
	t := &trial{f: f, c: c}
	if err := t.plug(); err != nil {
		return r, err
	}
	if err := f.start(ctx); err != nil {
		return r, err
	}
	// What the function does wrong from here on is its failure.
	err = f.ready(ctx, c.Timeout)
	if err == nil {
		r.Sent, err = t.send(ctx)
	}
	if err == nil {
		err = t.await(ctx)
	}
	if errors.Is(err, ErrEnded) || errors.Is(err, ErrTimeout) {
		r.Failures, err = append(r.Failures, err.Error()), nil
	}
	if err != nil {
		return r, err
	}
	t.judge(&r)
	f.Stop()
	r.Log = f.Log()
	for _, e := range f.Events() {
		r.Events = append(r.Events, Raised{e.Severity, e.Reason, e.Message})
	}
	for _, want := range c.Events {
		if !slices.ContainsFunc(r.Events, func(e Raised) bool { return e.Reason == want }) {
			r.Failures = append(r.Failures, fmt.Sprintf("event %s was not raised", want))
		}
	}
	r.Passed = len(r.Failures) == 0 && len(r.Differences) == 0
	r.ElapsedNs = time.Since(begin).Nanoseconds()
	return r, nil
}

// trial is one case under way.
type trial struct {
	f *Function
	c Case
}

// plug makes the function's links and opens their other ends.
func (t *trial) plug() error {
	tap := t.f.Image.Contract.Tap
	if err := t.f.boxes.Plug(t.f.box, tap, t.f.o.MTU); err != nil {
		return err
	}
	for _, side := range flow.SidesOf(tap) {
		if err := t.f.openPort(homeOf(t.f.inst).path, t.f.boxes.Link(t.f.box, side), side); err != nil {
			return err
		}
	}
	return nil
}

// sending is a frame and where it enters.
type sending struct {
	Frame
	side flow.Side
	n    int
}

// schedule merges what enters at the ports.
func (t *trial) schedule() (all []sending) {
	first := flow.In
	if t.f.Image.Contract.Tap {
		first = flow.Tap
	}
	for i, f := range t.c.In {
		all = append(all, sending{f, flow.Side(first), i + 1})
	}
	for i, f := range t.c.Out {
		all = append(all, sending{f, flow.Out, i + 1})
	}
	if len(t.c.Out) > 0 {
		slices.SortStableFunc(all, func(a, b sending) int { return a.Time.Compare(b.Time) })
	}
	return all
}

func (t *trial) send(ctx context.Context) (n Counts, err error) {
	last := flow.Side(flow.Sides)
	for _, s := range t.schedule() {
		wait := t.c.Interval
		if last != flow.Sides && s.side != last {
			wait = max(wait, turn)
		}
		last = s.side
		if err := t.f.pass(ctx, wait); err != nil {
			return n, err
		}
		if err := t.f.ports[s.side].send(s.Data); err != nil {
			return n, fmt.Errorf("%w: send frame %d into %s: %w", ErrFile, s.n, s.side, err)
		}
		if s.side == flow.Out {
			n.Out++
		} else {
			n.In++
		}
	}
	return n, nil
}

// await waits for what is to come out.
func (t *trial) await(ctx context.Context) error {
	begin := time.Now()
	for deadline := begin.Add(t.c.Timeout); time.Now().Before(deadline); {
		if err := t.f.pass(ctx, looking); err != nil {
			return err
		}
		known, whole, last := false, true, begin
		for side, want := range map[flow.Side][]Frame{flow.Out: t.c.AtOut, flow.In: t.c.AtIn} {
			p := t.f.ports[side]
			if p == nil {
				continue
			}
			n, _, at := p.seen()
			if at.After(last) {
				last = at
			}
			if want != nil {
				known, whole = true, whole && n >= len(want)
			}
		}
		raised := t.f.Events()
		for _, want := range t.c.Events {
			known = true
			whole = whole && slices.ContainsFunc(raised, func(e api.Event) bool { return e.Reason == want })
		}
		since := time.Since(last)
		if known && whole && since >= quiet || !known && since >= idle {
			return nil
		}
	}
	return nil // what is missing is a difference
}

// judge compares.
func (t *trial) judge(r *Result) {
	for side, p := range t.f.ports {
		if p == nil {
			continue
		}
		got := p.close()
		want := t.c.AtOut
		if flow.Side(side) == flow.Out {
			r.AtOut, r.Received.Out = got, len(got)+p.more
		} else {
			r.AtIn, r.Received.In, want = got, len(got)+p.more, t.c.AtIn
		}
		if want != nil {
			r.Differences = append(r.Differences, Compare(flow.Side(side).String(), want, got, t.c.Ignore)...)
		}
		if p.more > 0 {
			r.Failures = append(r.Failures, fmt.Sprintf("port %s: %d frames beyond %d, or %d bytes, were not looked at", flow.Side(side), p.more, maxFrames, maxFrameBytes))
		}
		if p.spoken > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("port %s: %d frames of the function's own interface were dropped, as a switch does without the label weir.speaks", flow.Side(side), p.spoken))
		}
	}
}
