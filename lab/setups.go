package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab/study"
)

// onceText is a limit of runs of older versions.
const onceText = "Each variant was set up once and kept through all blocks: how far chains differ that are made alike is not in the intervals, nor in the comparisons of the baseline with itself."

// setUpOnce tells whether a trial was measured that does not say on which set-up: by a version that kept one through all blocks. A trial whose set-up
// failed stands on none.
func setUpOnce(records []study.Record) bool {
	return slices.ContainsFunc(records, func(r study.Record) bool { return len(r.Values) > 0 && r.Setup == "" })
}

// severalSetups are the blocks of a part whose trials do not all stand on one set-up. The duplicate has one of its own.
func severalSetups(records []study.Record) (blocks []int) {
	first := map[int]string{} // by block
	for _, r := range records {
		if r.Setup == "" || r.Trial.Duplicate && !strings.Contains(r.Setup, ",") {
			continue
		}
		if one, ok := first[r.Trial.Block]; !ok && !strings.Contains(r.Setup, ",") {
			first[r.Trial.Block] = r.Setup
		} else if one != r.Setup {
			blocks = append(blocks, r.Trial.Block)
		}
	}
	slices.Sort(blocks)
	return slices.Compact(blocks)
}

// SetupsText says so; empty: all trials of each block stand on one.
func (r PartResult) SetupsText() string {
	var blocks []string
	for _, b := range r.Setups {
		blocks = append(blocks, strconv.Itoa(b+1))
	}
	if len(blocks) == 0 {
		return ""
	}
	return fmt.Sprintf("Blocks whose trials do not all stand on one set-up, since the run was cut off in them or memory was short: %s.", strings.Join(blocks, ", "))
}
