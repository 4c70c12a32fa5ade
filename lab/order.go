package lab

import (
	"fmt"
	"slices"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Distrust says why nothing is claimed of a part.
type Distrust struct {
	Part   string `json:"part"`
	Reason string `json:"reason"`
}

// orderChance is the probability with which a part whose order is random is distrusted all the same.
const orderChance = 0.001

// misordered tells why the order in which a part's trials were made cannot be taken for a random one; empty: it can. The schedule that follows from the
// seed is random, so trials have to be made in its order (those that take turns draw theirs anew); and whatever the schedule is, no level may come
// earlier than the others of its group, on the whole, or later.
func misordered(p study.Part, schedule []study.Trial, records []study.Record) string {
	if _, turns := experiment.All()[p.Experiment].(experiment.Stepped); !turns {
		if t, ok := outOfTurn(schedule, records); ok {
			return fmt.Sprintf("trial %s was not made when the seed wanted it: the order was not random", t.Key())
		}
	}
	positions, levels := positionsOf(p, records)
	for _, level := range levels {
		of := positions[level]
		if chance := stats.PositionsP(of) * float64(len(levels)); chance < orderChance {
			return fmt.Sprintf("%s was not measured in random order: in %d blocks and groups its mean position is %.2f, where %.2f is the middle (chance makes this in %.2g of such runs)",
				level, len(of), meanPosition(of), middlePosition(of), chance)
		}
	}
	return ""
}

// outOfTurn is the first record that comes before one that the schedule has earlier.
func outOfTurn(schedule []study.Trial, records []study.Record) (study.Trial, bool) {
	turn := make(map[string]int, len(schedule))
	for i, t := range schedule {
		turn[t.Key()] = i
	}
	for i := 1; i < len(records); i++ {
		if turn[records[i].Trial.Key()] < turn[records[i-1].Trial.Key()] {
			return records[i].Trial, true
		}
	}
	return study.Trial{}, false
}

// positionsOf each level of the compared factor among the trials of its group and block, by the time at which they began; levels in their order, the
// duplicate as one more.
func positionsOf(p study.Part, records []study.Record) (by map[string][]stats.Position, levels []string) {
	compared, _ := p.Factor(p.Compare)
	for _, l := range compared.Levels {
		levels = append(levels, l)
		if l == p.Baseline {
			levels = append(levels, again(l))
		}
	}
	groups := map[string][]study.Record{}
	for _, r := range records {
		if r.Skipped == "" {
			k := fmt.Sprintf("%d/%s", r.Trial.Block, p.Group(r.Trial.Variant))
			groups[k] = append(groups[k], r)
		}
	}
	by = map[string][]stats.Position{}
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b study.Record) int { return a.Begun.Compare(b.Begun) })
		for i, r := range group {
			level := p.Level(r.Trial.Variant, p.Compare)
			if r.Trial.Duplicate {
				level = again(level)
			}
			by[level] = append(by[level], stats.Position{At: i + 1, Of: len(group)})
		}
	}
	return by, levels
}

// again names the duplicate of a level.
func again(level string) string { return level + " again" }

func meanPosition(of []stats.Position) float64 {
	sum := 0
	for _, p := range of {
		sum += p.At
	}
	return float64(sum) / float64(len(of))
}

func middlePosition(of []stats.Position) float64 {
	sum := 0
	for _, p := range of {
		sum += p.Of + 1
	}
	return float64(sum) / 2 / float64(len(of))
}

// disown takes a part's verdicts back: its figures stay, and nothing is claimed of them.
func (r *PartResult) disown(why string) {
	for _, g := range r.Groups {
		for i := range g.Metrics {
			g.Metrics[i].Comparison.Disown()
		}
	}
	for i := range r.Claims {
		r.Claims[i] = r.Claims[i].untestable("nothing is claimed of this part: %s", why)
	}
}

// String says it in words.
func (d Distrust) String() string {
	return fmt.Sprintf("part %s: %s; nothing is claimed of it", d.Part, d.Reason)
}
