// Package traffic is what all generators of the lab have in common: what to send, how a run goes (arm, start, stop, drain, read), and what
// came of it. Generators: traffic/xdp. A generator never decides whether a run counts; it tells everything that the decision needs.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Bytes of an Ethernet frame on the wire, FCS included and preamble not, as RFC 2544 counts them.
const (
	MinFrame = 64
	MaxFrame = 1518
	FCS      = 4
)

// IMIX is the simple mix of 7, 4 and 1 frames of 64, 594 and 1518 bytes, spread evenly.
func IMIX() []int { return []int{64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 64, 594} }

// Flow is one UDP flow.
type Flow struct {
	SrcMAC, DstMAC   [6]byte
	Src, Dst         netip.Addr // both IPv4 or both IPv6
	SrcPort, DstPort uint16     // DstPort is the same for all flows of a run
	VLAN             uint16     // 0 untagged
}

// Spec is what to send.
type Spec struct {
	Flows    []Flow
	Sizes    []int         // wire sizes in turn; see IMIX
	Rate     float64       // frames a second over all flows; 0: as fast as it goes
	Duration time.Duration // from start to stop
	Strict   bool          // the sink compares every byte with what was sent; costs time there
	CatchUp  time.Duration // paced: a sender that was late makes good for so long at most; 0: as the generator does by itself
}

// Validate says what no generator can send.
func (s Spec) Validate() error {
	var errs []error
	if len(s.Flows) == 0 || len(s.Sizes) == 0 {
		errs = append(errs, errors.New("want at least one flow and one size"))
	}
	for i, f := range s.Flows {
		if !f.Src.IsValid() || f.Src.Is4() != f.Dst.Is4() || !f.Dst.IsValid() {
			errs = append(errs, fmt.Errorf("flow %d: addresses %s and %s: want two of one family", i, f.Src, f.Dst))
		}
		if f.VLAN > 4094 {
			errs = append(errs, fmt.Errorf("flow %d: VLAN %d: want 0 to 4094", i, f.VLAN))
		}
		if f.DstPort != s.Flows[0].DstPort || f.DstPort == 0 {
			errs = append(errs, fmt.Errorf("flow %d: destination port %d: want that of all flows, not 0", i, f.DstPort))
		}
		for _, size := range s.Sizes {
			if least := f.Least(); size < least || size > MaxFrame {
				errs = append(errs, fmt.Errorf("flow %d: %d bytes: want %d to %d", i, size, least, MaxFrame))
			}
		}
	}
	if s.CatchUp < 0 || s.CatchUp > time.Second {
		errs = append(errs, fmt.Errorf("a late sender makes good for %s: want 0 to 1s", s.CatchUp))
	}
	if s.Rate < 0 || s.Duration <= 0 || s.Duration > time.Hour {
		errs = append(errs, fmt.Errorf("rate %v for %s: want a rate of at least 0 for up to an hour", s.Rate, s.Duration))
	}
	return errors.Join(errs...)
}

// Fields are the bytes of a payload that a generator writes anew in each frame.
const Fields = 14

// Least is the smallest wire size that a frame of the flow can have.
func (f Flow) Least() int { return max(f.overhead()+FCS, MinFrame) }

func (f Flow) overhead() int {
	n := 14 + 20 + 8 + Fields
	if f.Src.Is6() {
		n += 20
	}
	if f.VLAN != 0 {
		n += 4
	}
	return n
}

// Count is what came of a run. Sent + Skipped = Intended for a paced run; Unique + Lost = Sent.
type Count struct {
	Intended   uint64        `json:"intended"`   // by rate and time; equal to Sent at full speed
	Sent       uint64        `json:"sent"`       //
	Skipped    uint64        `json:"skipped"`    // the generator was too late for these
	Late       uint64        `json:"late"`       // the generator was held up: they left later or, skipped, not at all
	Received   uint64        `json:"received"`   // frames of this run at the sink, bad ones too
	Unique     uint64        `json:"unique"`     // different frames that arrived whole
	Lost       uint64        `json:"lost"`       //
	Duplicated uint64        `json:"duplicated"` //
	Reordered  uint64        `json:"reordered"`  // after a later one of the flow (RFC 4737)
	Corrupted  uint64        `json:"corrupted"`  // fields (or, with Strict, anything) changed
	Foreign    uint64        `json:"foreign"`    // of an earlier run
	Early      uint64        `json:"early"`      // arrived before they were sent: the clocks are broken
	Bytes      uint64        `json:"bytes"`      // received, without FCS
	Took       time.Duration `json:"took_ns"`    // from the first slot to the last
	Span       time.Duration `json:"span_ns"`    // from the first arrival to the last
	CPUs       uint64        `json:"cpus"`       // where they were counted: bit i is CPU i, 64 like 0
	Latency    Latency       `json:"latency"`
	Stalled    Stalled       `json:"stalled,omitzero"` // of a watched run: frames that were due near stalls of its CPUs
}

// Rate in frames a second that were really sent.
func (c Count) Rate() float64 { return float64(c.Sent) / c.Took.Seconds() }

// OnTime is the share of the intended frames that left when they were due, or next to it.
func (c Count) OnTime() float64 {
	return float64(min(c.Sent, c.Intended-min(c.Late, c.Intended))) / float64(max(c.Intended, 1))
}

// Plain is what is missing apart from stalls: of the frames that were due then, those that were sent and lost, and those that were not sent.
func (c Count) Plain() (due, lost, skipped uint64) {
	return c.Intended - min(c.Intended, c.Stalled.Due), c.Lost - min(c.Lost, c.Stalled.Lost), c.Skipped - min(c.Skipped, c.Stalled.Skipped)
}

// Goodput in unique frames a second.
func (c Count) Goodput() float64 { return float64(c.Unique) / c.Took.Seconds() }

// Pace in frames a second at which unique frames arrived, by the sink's clock; 0 with fewer than two.
func (c Count) Pace() float64 {
	if c.Unique < 2 || c.Span <= 0 {
		return 0
	}
	return float64(c.Unique-1) / c.Span.Seconds()
}

// LossRatio of what should have been sent: what the generator skipped counts as lost.
func (c Count) LossRatio() float64 {
	if c.Intended == 0 {
		return 0
	}
	return 1 - float64(min(c.Unique, c.Intended))/float64(c.Intended)
}

// Check reports a run whose books do not balance.
func (c Count) Check() error {
	switch {
	case c.Unique > c.Sent:
		return fmt.Errorf("%d different frames arrived of %d sent", c.Unique, c.Sent)
	case c.Unique+c.Lost != c.Sent || c.Sent+c.Skipped != c.Intended:
		return fmt.Errorf("the books do not balance: %+v", c)
	case c.Received != c.Unique+c.Duplicated+c.Corrupted:
		return fmt.Errorf("%d frames arrived: %d different, %d again, %d corrupted", c.Received, c.Unique, c.Duplicated, c.Corrupted)
	case c.Stalled.Lost > c.Lost || c.Stalled.Skipped > c.Skipped || c.Stalled.Lost+c.Stalled.Skipped > c.Stalled.Due || c.Stalled.Due > c.Intended:
		return fmt.Errorf("of %d frames, %d lost, %d not sent, were near stalls: %+v", c.Intended, c.Lost, c.Skipped, c.Stalled)
	case c.Early > 0:
		return fmt.Errorf("%d frames arrived before they were sent", c.Early)
	}
	return nil
}

// Generator sends one run after another. Methods are called in the order of the interface; Arm begins the next run.
type Generator interface {
	// Arm prepares a run and clears all counts.
	Arm(ctx context.Context, s Spec) error
	// Start sends from at on until the run's duration is over or ctx ends, and returns then.
	Start(ctx context.Context, at time.Time) error
	// Drain waits until nothing has arrived for quiet, at most for limit.
	Drain(ctx context.Context, quiet, limit time.Duration) error
	// Read gives the counts. Nothing reads counters while traffic runs.
	Read() (Count, error)
	Close() error
}

// Waiting for the last frames of a run.
const (
	quietFrames = 20 * time.Millisecond
	drainFrames = 10 * time.Second
	leadIn      = 5 * time.Millisecond
)

// Send makes one run of a generator, from arming to reading.
func Send(ctx context.Context, g Generator, s Spec) (Count, error) {
	if err := g.Arm(ctx, s); err != nil {
		return Count{}, err
	}
	if err := g.Start(ctx, time.Now().Add(leadIn)); err != nil {
		return Count{}, err
	}
	if err := g.Drain(ctx, quietFrames, drainFrames); err != nil {
		return Count{}, err
	}
	return g.Read()
}
