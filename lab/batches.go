package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/study"
)

// batch of a trial whose frames pass in batches: that of the trials of its group that the block has already, or else the smallest that any variant of the
// group takes. It stays as it is for the rest of the block. What is set up later and takes less loses frames, so its trial does not count.
func (s *state) batch(p study.Part, t study.Trial) int {
	group := p.Group(t.Variant)
	for _, r := range slices.Backward(s.Journal.Records) {
		if r.Trial.Part != t.Part || r.Trial.Block != t.Block {
			break
		}
		if n := experiment.BatchOf(r.Conditions); n > 0 && p.Group(r.Trial.Variant) == group {
			return n
		}
	}
	least := 0
	for _, v := range p.Variants() {
		if p.Group(v) != group {
			continue
		}
		for _, duplicate := range []bool{false, true} {
			if b, ok := s.ready[key(v, duplicate)].(experiment.Batched); ok && (least == 0 || b.Takes() < least) {
				least = b.Takes()
			}
		}
	}
	return least
}

// unlikeBatches are the groups of blocks, by groupKey, whose trials did not all have the same batch, and why none of them counts.
func unlikeBatches(s study.Study, records []study.Record) map[string]string {
	sizes := map[string][]int{}
	for _, r := range records {
		p, ok := partOf(s, r.Trial.Part)
		n := experiment.BatchOf(r.Conditions)
		if !ok || r.Void != "" || r.Skipped != "" {
			continue
		}
		k := groupKey(p, r.Trial)
		if !slices.Contains(sizes[k], n) {
			sizes[k] = append(sizes[k], n)
		}
	}
	out := map[string]string{}
	for k, n := range sizes {
		if len(n) < 2 {
			continue
		}
		slices.Sort(n)
		var texts []string
		for _, size := range n {
			if size == 0 {
				texts = append(texts, "an unknown number of")
				continue
			}
			texts = append(texts, strconv.Itoa(size))
		}
		out[k] = fmt.Sprintf("refused: batches differ: %s frames enter at a time in what is compared", strings.Join(texts, " and "))
	}
	return out
}

// groupKey names what a trial is compared with: its part, block and group.
func groupKey(p study.Part, t study.Trial) string {
	return fmt.Sprintf("%s/%d/%s", t.Part, t.Block, p.Group(t.Variant))
}
