package experiment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"weir.dev/weir/lab/traffic"
)

// Frames are the raw counts of a step that offers a load: what the journal keeps of it. The step's values follow from them; see Values and Check.
type Frames struct {
	Intended uint64          `json:"intended"`
	Sent     uint64          `json:"sent"`
	Skipped  uint64          `json:"skipped"` // the generator was too late for these
	Late     uint64          `json:"late"`
	Received uint64          `json:"received"`
	Unique   uint64          `json:"unique"`
	Lost     uint64          `json:"lost"`
	Stalled  traffic.Stalled `json:"stalled"` // of the above, what was due near stalls of the CPUs
	Away     time.Duration   `json:"stalled_ns"`
	Length   time.Duration   `json:"length_ns"`
	Stalls   int             `json:"stalls"` // how many, and of them the first
	List     []traffic.Stall `json:"list,omitempty"`
	// Shared: one CPU makes the frames and does the path's work. What it could not send counts as lost: the path had taken its time.
	Shared bool `json:"shared,omitempty"`
}

// mostListed stalls of a step are in the journal.
const mostListed = 64

func framesOf(c traffic.Count, s traffic.Stalls, shared bool) Frames {
	f := Frames{
		Intended: c.Intended, Sent: c.Sent, Skipped: c.Skipped, Late: c.Late, Received: c.Received, Unique: c.Unique, Lost: c.Lost, Stalled: c.Stalled,
		Away: s.Time(), Length: c.Took, Stalls: len(s.List) + int(s.Unlisted), List: s.List[:min(len(s.List), mostListed)], Shared: shared,
	}
	if s.Unlisted > 0 { // where they were is not known: all frames may have been due near one
		f.Stalled = traffic.Stalled{Due: f.Intended, Lost: f.Lost, Skipped: f.Skipped}
	}
	return f
}

// Values of the step. What was due near stalls is left out, in all but what is said of it.
func (f Frames) Values() map[string]float64 {
	due := float64(f.Intended - min(f.Intended, f.Stalled.Due))
	lost := float64(f.missing() - min(f.missing(), f.Stalled.Lost))
	skipped := float64(f.Skipped - min(f.Skipped, f.Stalled.Skipped))
	v := map[string]float64{ValueLostIn: float64(f.Stalled.Lost), ValueStalled: ratio(float64(f.Stalled.Due), float64(f.Intended)), ValueAway: ratio(f.Away.Seconds(), f.Length.Seconds())}
	if f.Shared {
		v[ValueLost] = lost + skipped
		v[ValueLoss] = ratio(lost+skipped, due)
		return v
	}
	v[ValueLost], v[ValueLoss] = lost, ratio(lost, due-skipped)
	v[ValueOffered] = 1 - ratio(skipped, due)
	return v
}

// over tells whether the frames so far show that a trial that may lose less than most frames, or none, will not verify: it may end then. A trial that may
// not count since the machine stalls goes on.
func (f Frames) over(most float64) bool {
	v := f.Values()
	return v[ValueLost] > 0 && v[ValueLost] >= most && v[ValueStalled] <= MostStalled
}

// cutShort tells why a trial that has ended early says nothing of its load; empty: it has lost too much, or is made again since the machine stalls.
func (f Frames) cutShort(most float64) string {
	if v := f.Values(); !f.over(most) && v[ValueStalled] <= MostStalled {
		return fmt.Sprintf("the trial has ended early, for frames that are not missing: %v, where %v are too many", v[ValueLost], max(most, 1))
	}
	return ""
}

// missing are the frames that were sent and did not arrive, whatever Lost says.
func (f Frames) missing() uint64 { return f.Sent - min(f.Unique, f.Sent) }

// ratio of a part; 0 of nothing.
func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// Check reports counts that contradict each other, and values that do not follow from them. The values were rounded to 6 digits.
func (f Frames) Check(values map[string]float64) error {
	switch {
	case f.Unique > f.Sent || f.Lost != f.missing():
		return fmt.Errorf("%d of %d frames arrived, and %d are said to be lost: want %d", f.Unique, f.Sent, f.Lost, f.missing())
	case f.Sent+f.Skipped != f.Intended:
		return fmt.Errorf("%d frames were sent and %d not, of %d", f.Sent, f.Skipped, f.Intended)
	case f.Stalled.Lost > f.Lost || f.Stalled.Skipped > f.Skipped || f.Stalled.Lost+f.Stalled.Skipped > f.Stalled.Due || f.Stalled.Due > f.Intended:
		return fmt.Errorf("near stalls %d frames were due, %d lost and %d not sent: that is more than %d, %d and %d in all", f.Stalled.Due, f.Stalled.Lost, f.Stalled.Skipped, f.Intended, f.Lost, f.Skipped)
	case f.Stalled.Due > 0 && f.Stalls == 0:
		return fmt.Errorf("%d frames were due near stalls, and there was no stall", f.Stalled.Due)
	}
	return follow(values, f.Values())
}

// follow reports values that are not those that follow from the counts of frames. They may have been rounded to 6 digits.
func follow(values, counts map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		got, ok := values[name]
		if want := counts[name]; !ok || math.Abs(got-want) > 1e-5*math.Abs(want) {
			return fmt.Errorf("%s is said to be %v: the counts of frames say %v", name, got, want)
		}
	}
	return nil
}
