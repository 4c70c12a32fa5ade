package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/lab/platform"
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
		if len(r.Values) > 0 { // of some nothing may be known
			measured[level] = true
		}
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

// Emulated tells whether it says that a processor is emulated.
func (c Condition) Emulated() bool {
	return c.Name == platform.ConditionMachines && strings.HasPrefix(c.Value, platform.Emulated)
}

// EmulatedText says of which levels an emulated processor was measured; empty: of none. It belongs to each figure.
func (r PartResult) EmulatedText() string {
	var texts []string
	for _, c := range r.Conditions {
		if c.Emulated() {
			texts = append(texts, fmt.Sprintf("%s: emulation is measured, no processor that runs machines (%s).", cmp.Or(strings.Join(c.Levels, ", "), "All levels"), c.Value))
		}
	}
	return strings.Join(texts, " ")
}

// ConditionsText is one line: "GRO, TSO off (ebpf), on (bridges); congestion control cubic". Switches that are the same everywhere are told together.
func ConditionsText(conditions []Condition) string {
	var order []string // of names
	values := map[string][]string{}
	switches := map[string]bool{}
	for _, c := range conditions {
		text := c.Value
		if len(c.Levels) > 0 {
			text += " (" + strings.Join(c.Levels, ", ") + ")"
		}
		if values[c.Name] == nil {
			order, switches[c.Name] = append(order, c.Name), true
		}
		values[c.Name] = append(values[c.Name], text)
		switches[c.Name] = switches[c.Name] && isSwitch(c.Value)
	}
	var out []string
	told := map[string]bool{}
	for _, name := range order {
		if told[name] {
			continue
		}
		names := []string{name}
		for _, other := range order {
			if other != name && switches[name] && switches[other] && slices.Equal(values[name], values[other]) {
				names, told[other] = append(names, other), true
			}
		}
		out = append(out, strings.Join(names, ", ")+" "+strings.Join(values[name], ", "))
	}
	return strings.Join(out, "; ")
}

// isSwitch tells whether a value says of something that it is on or off.
func isSwitch(value string) bool {
	return slices.Contains([]string{"on", "off", "0", "1"}, value)
}
