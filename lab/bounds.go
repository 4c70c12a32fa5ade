package lab

import (
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// Bound is a variant whose generator may have been what limited it: its NDR and PDR are lower bounds.
type Bound struct {
	Variant study.Variant `json:"variant"`
	Limited int           `json:"limited"` // blocks
	Of      int           `json:"of"`      // valid ones
}

func bounds(p study.Part, records []study.Record) (out []Bound) {
	for _, v := range p.Variants() {
		b := Bound{Variant: v}
		for _, r := range records {
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
	return fmt.Sprintf("%s: limited by the generator, whose ceiling is less than %g times the result, in %d of %d trials: a lower bound", strings.Join(b.Variant, " "), experiment.Headroom, b.Limited, b.Of)
}
