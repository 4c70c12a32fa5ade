package lab

import (
	"cmp"
	"slices"
	"strings"

	"weir.dev/weir/lab/study"
)

// Condition is one under which trials of a part were made, as it was read back from the machine.
type Condition struct {
	Name   string   `json:"name"`
	Value  string   `json:"value"`
	Levels []string `json:"levels,omitempty"` // of the compared factor; empty: all that were measured
}

func conditionsOf(p study.Part, records []study.Record) (out []Condition) {
	type pair struct{ name, value string }
	levels := map[pair]map[string]bool{}
	measured := map[string]bool{}
	var pairs []pair
	for _, r := range records {
		level := p.Level(r.Trial.Variant, p.Compare)
		for name, value := range r.Conditions {
			k := pair{name, value}
			if levels[k] == nil {
				levels[k], pairs = map[string]bool{}, append(pairs, k)
			}
			levels[k][level], measured[level] = true, true
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.value, b.value)) })
	compared, _ := p.Factor(p.Compare)
	for _, k := range pairs {
		c := Condition{Name: k.name, Value: k.value}
		if len(levels[k]) < len(measured) {
			for _, l := range compared.Levels {
				if levels[k][l] {
					c.Levels = append(c.Levels, l)
				}
			}
		}
		out = append(out, c)
	}
	return out
}

// ConditionsText is one line: "congestion control cubic; GRO off (ebpf), on (bridges)".
func ConditionsText(conditions []Condition) string {
	var b strings.Builder
	for i, c := range conditions {
		switch {
		case i > 0 && conditions[i-1].Name == c.Name:
			b.WriteString(", ")
		case i > 0:
			b.WriteString("; " + c.Name + " ")
		default:
			b.WriteString(c.Name + " ")
		}
		b.WriteString(c.Value)
		if len(c.Levels) > 0 {
			b.WriteString(" (" + strings.Join(c.Levels, ", ") + ")")
		}
	}
	return b.String()
}
