package lab

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// rangeOf a value of a record: itself, unless the trial says that it is a bound.
func rangeOf(p study.Part, r *study.Record, metric string, value stats.Interval) stats.Interval {
	if p.Experiment != experiment.NDR {
		return value
	}
	for _, goal := range []string{experiment.GoalNDR, experiment.GoalPDR} {
		if experiment.MetricOf(goal) != metric {
			continue
		}
		var raw experiment.NDRRaw
		_ = json.Unmarshal(r.Raw, &raw) // of former versions it may be missing; newer ones without are refused
		of, ok := raw.Range(goal)
		switch {
		case len(raw.Verification) == 0 && r.Values[experiment.ValueLimited] == 1: // of versions that did not verify
			return stats.Interval{Low: value.Low, High: math.Inf(1)}
		case len(raw.Verification) == 0:
			return value
		case !ok:
			return stats.Interval{Low: math.NaN(), High: math.NaN()}
		case of.Low == 0:
			return stats.Interval{Low: 0, High: of.High / 1e6}
		case !of.Point():
			return stats.Interval{Low: value.Low, High: math.Inf(1)}
		}
	}
	return value
}

// Ranges of the value by block; NaN where there is none.
func (v Value) Ranges() []stats.Interval {
	out := make([]stats.Interval, len(v.Blocks))
	for i, at := range v.Blocks {
		switch {
		case at != nil:
			out[i] = stats.Interval{Low: *at, High: *at}
		case len(v.Bounds) > i && v.Bounds[i] != nil:
			out[i] = *v.Bounds[i]
		default:
			out[i] = stats.Interval{Low: math.NaN(), High: math.NaN()}
		}
	}
	return out
}

// FoundText says in how many blocks there is a result, and in how many the generator may be what limits it. Empty: in all, and it limits none.
func (v Value) FoundText() string {
	var parts []string
	if v.NotFound > 0 {
		parts = append(parts, fmt.Sprintf("found in %d of %d blocks", v.N-v.NotFound, v.N))
	}
	if v.Limited > 0 {
		parts = append(parts, fmt.Sprintf("a lower bound in %d of %d blocks, limited by the generator", v.Limited, v.N))
	}
	return strings.Join(parts, "; ")
}

// OpenSign stands before a figure that is a bound: "≥ ", "≤ ".
func OpenSign(o stats.Open) string {
	return map[stats.Open]string{stats.AtLeast: "≥ ", stats.AtMost: "≤ "}[o]
}

// Bound is a variant whose generator may have been what limited it: its NDR or its PDR, or its rate under overload, is a lower bound.
type Bound struct {
	Variant study.Variant `json:"variant"`
	Rate    bool          `json:"rate,omitempty"` // under overload
	Limited int           `json:"limited"`        // trials
	Of      int           `json:"of"`             // valid ones
}

func bounds(p study.Part, records []study.Record) (out []Bound) {
	for _, v := range p.Variants() {
		b := Bound{Variant: v, Rate: p.Experiment == experiment.PPS}
		for _, r := range records {
			if b.Rate && r.Void == "" && slices.Equal(r.Trial.Variant, v) {
				if limited, ok := experiment.Underfed(r.Raw); ok {
					b.Of++
					if limited {
						b.Limited++
					}
				}
			}
			if limited, ok := r.Values[experiment.ValueLimited]; ok && r.Void == "" && slices.Equal(r.Trial.Variant, v) {
				b.Limited += int(limited)
				b.Of++
			}
		}
		if b.Limited > 0 {
			out = append(out, b)
		}
	}
	return out
}

// String says it in words.
func (b Bound) String() string {
	if b.Rate {
		return fmt.Sprintf("%s: limited by the generator, which sent less than %g times what arrived, in %d of %d trials: its rate is a lower bound", strings.Join(b.Variant, " "), experiment.Headroom, b.Limited, b.Of)
	}
	return fmt.Sprintf("%s: limited by the generator, whose ceiling is less than %g times the result, in %d of %d trials: its NDR or its PDR is a lower bound", strings.Join(b.Variant, " "), experiment.Headroom, b.Limited, b.Of)
}
