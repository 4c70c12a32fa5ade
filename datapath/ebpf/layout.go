package ebpf

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"weir.dev/weir/datapath"
)

// layout places lists in the table of lists. Equal lists share a place, and a list that was there before stays where it was: a commit
// that leaves a port's shapes alone writes nothing for it.
type layout struct {
	before map[string]uint32 // content -> first, of the former image
	placed map[string]uint32
}

func newLayout(old *image) layout {
	l := layout{before: map[string]uint32{}, placed: map[string]uint32{}}
	for first, count := range old.spans() {
		list := make([]listCopy, count)
		for i := range list {
			list[i] = old.lists[first+uint32(i)]
		}
		l.before[content(list)] = first
	}
	return l
}

// spans are the lists in use, by where they begin.
func (i *image) spans() iter.Seq2[uint32, uint16] {
	return func(yield func(uint32, uint16) bool) {
		for _, st := range i.stages {
			for _, s := range st.Stage {
				if s.Kind == kindClassify && !yield(s.First, s.Count) {
					return
				}
			}
		}
		for _, t := range i.tuples {
			if t.Action.Op == opSearch && !yield(t.Action.Rule, t.Action.Target) {
				return
			}
		}
	}
}

func content(list []listCopy) string {
	var b []byte
	for _, l := range list {
		b = binary.NativeEndian.AppendUint16(b, l.Mask)
		b = binary.NativeEndian.AppendUint32(b, l.Priority)
	}
	return string(b)
}

type span struct{ first, end int }

func (l *layout) place(jobs []*job, size int) error {
	var taken []span
	var rest []*job
	for _, j := range jobs {
		if len(j.list) == 0 {
			continue
		}
		c := content(j.list)
		if first, ok := l.placed[c]; ok {
			j.first = first
			continue
		}
		first, ok := l.before[c]
		if !ok {
			rest = append(rest, j)
			continue
		}
		l.placed[c] = first
		j.first = first
		taken = append(taken, span{int(first), int(first) + len(j.list)})
	}
	slices.SortFunc(taken, func(a, b span) int { return a.first - b.first })
	at, i := 0, 0
	for _, j := range rest {
		c := content(j.list)
		if first, ok := l.placed[c]; ok { // an equal one came before
			j.first = first
			continue
		}
		for i < len(taken) && at+len(j.list) > taken[i].first {
			at = max(at, taken[i].end)
			i++
		}
		if at+len(j.list) > size {
			return fmt.Errorf("%w: lists of rules' shapes take more than %d entries: raise the switch's Keys", datapath.ErrFull, size)
		}
		l.placed[c] = uint32(at)
		j.first = uint32(at)
		at += len(j.list)
	}
	return nil
}
