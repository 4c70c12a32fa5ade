package lab

import (
	"fmt"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// FewBlocks says of which parts a run in this mode can find no difference, however clear it is: they have too few blocks for the correction of as many
// comparisons (Holm). Blocks that are void make it worse. can tells whether a variant can be measured at all; nil: all can.
func FewBlocks(s study.Study, m study.Mode, can func(study.Part, study.Variant) bool) (out []string) {
	for _, p := range s.Parts {
		plan := p.Plan(m)
		levels := map[string]map[string]bool{} // that are compared with the baseline, by group
		most, where := 0, ""
		for _, v := range p.Variants() {
			level := p.Level(v, p.Compare)
			if level == p.Baseline || p.Leaves(plan, v) || can != nil && !can(p, v) {
				continue
			}
			g := p.Group(v)
			if levels[g] == nil {
				levels[g] = map[string]bool{}
			}
			levels[g][level] = true
			if n := len(levels[g]); n > most {
				most, where = n, g
			}
		}
		if need := stats.LeastBlocks(most); most > 0 && plan.Blocks < need {
			comparisons := "one comparison"
			if most > 1 {
				comparisons = fmt.Sprintf("%d comparisons", most)
			}
			text := fmt.Sprintf("part %s, --%s: blocks: %d, too few to find a difference in %s with %s: want %d", p.Name, m, plan.Blocks, comparisons, p.Baseline, need)
			if where != "" {
				text += " (" + where + ")"
			}
			out = append(out, text)
		}
	}
	return out
}
