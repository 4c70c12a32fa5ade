package stats

import (
	"encoding/json"
	"math"
	"slices"
)

// Exact are ranges of values that were measured: both ends are the value. NaN stays NaN: there is none.
func Exact(values []float64) []Interval {
	out := make([]Interval, len(values))
	for i, v := range values {
		out[i] = Interval{v, v}
	}
	return out
}

// Point tells whether both ends are the same: the value itself.
func (i Interval) Point() bool { return i.Low == i.High }

// missing tells whether a block has no value.
func (i Interval) missing() bool {
	return math.IsNaN(i.Low) || math.IsNaN(i.High) || math.IsInf(i.Low, 1) || i.Low > i.High
}

// Open tells how a median is known whose values are ranges.
type Open string

const (
	Closed  Open = ""         // exactly
	AtLeast Open = "at least" // the figure is its lower end
	AtMost  Open = "at most"  // the figure is its upper end
)

// MedianRange is the median of values of which only ranges are known, and its interval: the lowest and the highest that they can be. The figure is the end
// that is known (see Open); ok is false if neither end says anything, or there are no values.
func MedianRange(x []Interval, level float64) (median float64, open Open, interval Interval, ok bool) {
	low, high := ends(x)
	median, open, ok = middle(low, high, 0)
	return median, open, outer(low, high, level), ok
}

// ends of the ranges, sorted.
func ends(x []Interval) (low, high []float64) {
	for _, v := range x {
		if !v.missing() {
			low, high = append(low, v.Low), append(high, v.High)
		}
	}
	slices.Sort(low)
	slices.Sort(high)
	return low, high
}

// middle is the median of values between sorted low and sorted high, or the end of it that is known. A lower end at none says nothing, and neither does an
// upper end at +Inf. If both ends are known it is the lower one.
func middle(low, high []float64, none float64) (median float64, open Open, ok bool) {
	if len(low) == 0 {
		return math.NaN(), Closed, false
	}
	least, most := medianSorted(low), medianSorted(high)
	switch {
	case least == most && !math.IsInf(least, 0):
		return least, Closed, true
	case least > none && !math.IsInf(least, 0):
		return least, AtLeast, true
	case !math.IsInf(most, 0) && !math.IsNaN(most):
		return most, AtMost, true
	}
	return math.NaN(), Closed, false
}

// outer is the interval of the median that holds for all values between sorted low and sorted high.
func outer(low, high []float64, level float64) Interval {
	return Interval{medianInterval(low, level).Low, medianInterval(high, level).High}
}

// jsonInterval has null where there is no end.
type jsonInterval struct {
	Low  *float64 `json:"low"`
	High *float64 `json:"high"`
}

// MarshalJSON writes an end that is infinite as null: JSON has no infinity.
func (i Interval) MarshalJSON() ([]byte, error) {
	var j jsonInterval
	if !math.IsInf(i.Low, 0) {
		j.Low = &i.Low
	}
	if !math.IsInf(i.High, 0) {
		j.High = &i.High
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (i *Interval) UnmarshalJSON(b []byte) error {
	var j jsonInterval
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*i = Interval{math.Inf(-1), math.Inf(1)}
	if j.Low != nil {
		i.Low = *j.Low
	}
	if j.High != nil {
		i.High = *j.High
	}
	return nil
}
