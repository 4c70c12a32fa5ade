package search

import (
	"cmp"
	"slices"
	"time"
)

// class of a load for a goal.
type class uint8

const (
	undecided class = iota
	lowerBound
	upperBound
)

// load is what was measured at one load.
type load struct{ trials []Outcome }

// best is the least loss ratio seen.
func (l *load) best() float64 {
	least := 1.0
	for _, t := range l.trials {
		least = min(least, t.Loss)
	}
	return least
}

// full is the time of trials that are long enough for the goal.
func (l *load) full(g Goal) time.Duration {
	var sum time.Duration
	for _, t := range l.trials {
		if t.Duration >= g.Trial {
			sum += t.Duration
		}
	}
	return sum
}

// classify is the draft's load classification: short trials count against a load as far as they exceed what the exceed ratio allows them,
// and time that was not measured yet is taken at its best and at its worst.
func (l *load) classify(g Goal) class {
	var fullHigh, fullLow, shortHigh, shortLow float64 // seconds
	for _, t := range l.trials {
		d, high := t.Duration.Seconds(), t.Loss > g.Loss
		switch full := t.Duration >= g.Trial; {
		case full && high:
			fullHigh += d
		case full:
			fullLow += d
		case high:
			shortHigh += d
		default:
			shortLow += d
		}
	}
	balancing := shortLow * g.Exceed / (1 - g.Exceed)
	high := fullHigh + max(0, shortHigh-balancing)
	measured := high + fullLow
	whole := max(measured, g.Sum.Seconds())
	switch allowed := whole * g.Exceed; {
	case high > allowed:
		return upperBound
	case high+(whole-measured) <= allowed:
		return lowerBound
	}
	return undecided
}

// quantileLoss is the loss ratio of the trial at the goal's quantile of the time measured, the least lossy first.
func (l *load) quantileLoss(g Goal) float64 {
	var full []Outcome
	for _, t := range l.trials {
		if t.Duration >= g.Trial {
			full = append(full, t)
		}
	}
	slices.SortFunc(full, func(a, b Outcome) int { return cmp.Compare(a.Loss, b.Loss) })
	whole := max(l.full(g), g.Sum).Seconds()
	left := whole * (1 - g.Exceed)
	for _, t := range full {
		if left -= t.Duration.Seconds(); left <= 0 {
			return t.Loss
		}
	}
	if len(full) == 0 {
		return 0
	}
	return full[len(full)-1].Loss
}
