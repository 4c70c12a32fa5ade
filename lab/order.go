package lab

import (
	"cmp"
	"fmt"
	"maps"
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
// seed is random, so trials have to be made in its order. Those that take turns draw theirs anew for each round of steps, by the seed, too. And whatever the
// schedule is, no level may come earlier than the others of its group, on the whole, or later.
func misordered(p study.Part, schedule []study.Trial, records []study.Record, j *study.Journal) string {
	var groups [][]made
	what := "blocks and groups"
	if _, turns := experiment.All()[p.Experiment].(experiment.Stepped); turns {
		groups, what = rounds(p, records, j), "rounds of steps"
		if t, n, ok := outOfRound(j.Header.Seed, groups); ok {
			return fmt.Sprintf("step %d of trial %s was not made when the seed wanted it: the order was not random", n, t.Key())
		}
	} else {
		groups = groupsOf(p, records)
		if t, ok := outOfTurn(schedule, records); ok {
			return fmt.Sprintf("trial %s was not made when the seed wanted it: the order was not random", t.Key())
		}
	}
	positions, levels := positionsOf(p, groups)
	for _, level := range levels {
		of := positions[level]
		if chance := stats.PositionsP(of) * float64(len(levels)); chance < orderChance {
			return fmt.Sprintf("%s was not measured in random order: in %d %s its mean position is %.2f, where %.2f is the middle (chance makes this in %.2g of such runs)",
				level, len(of), what, meanPosition(of), middlePosition(of), chance)
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

// made is a trial, or a step of one.
type made struct {
	trial study.Trial
	n     int   // of the step
	at    int64 // when it was made, before what has more
}

// groupsOf trials that were in random order with each other: those of a block and of a group.
func groupsOf(p study.Part, records []study.Record) [][]made {
	groups := map[string][]made{}
	for _, r := range records {
		if r.Skipped == "" {
			k := fmt.Sprintf("%d/%s", r.Trial.Block, p.Group(r.Trial.Variant))
			groups[k] = append(groups[k], made{r.Trial, 0, r.Begun.UnixNano()})
		}
	}
	return slices.Collect(maps.Values(groups))
}

// rounds of steps that were in random order with each other: those with the same number, of the trials of a block and of a group. A trial that is over has no
// more of them.
func rounds(p study.Part, records []study.Record, j *study.Journal) [][]made {
	groups := map[string][]made{}
	for _, r := range records {
		for _, s := range j.StepsOf(r.Trial) {
			k := fmt.Sprintf("%d/%s/%d", r.Trial.Block, p.Group(r.Trial.Variant), s.N)
			groups[k] = append(groups[k], made{r.Trial, s.N, int64(s.Line)})
		}
	}
	return slices.Collect(maps.Values(groups))
}

// outOfRound is a step that was made before one of its round that had drawn less.
func outOfRound(seed uint64, rounds [][]made) (t study.Trial, n int, ok bool) {
	for _, round := range rounds {
		slices.SortStableFunc(round, func(a, b made) int { return cmp.Compare(a.at, b.at) })
		for i := 1; i < len(round); i++ {
			if a, b := round[i-1], round[i]; draw(seed, a.trial, a.n) > draw(seed, b.trial, b.n) {
				return a.trial, a.n, true
			}
		}
	}
	return study.Trial{}, 0, false
}

// positionsOf each level of the compared factor among what was in random order with each other, by the time at which it began; levels in their order, the
// duplicate as one more.
func positionsOf(p study.Part, groups [][]made) (by map[string][]stats.Position, levels []string) {
	compared, _ := p.Factor(p.Compare)
	for _, l := range compared.Levels {
		levels = append(levels, l)
		if l == p.Baseline {
			levels = append(levels, again(l))
		}
	}
	by = map[string][]stats.Position{}
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b made) int { return cmp.Compare(a.at, b.at) })
		for i, m := range group {
			level := p.Level(m.trial.Variant, p.Compare)
			if m.trial.Duplicate {
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
