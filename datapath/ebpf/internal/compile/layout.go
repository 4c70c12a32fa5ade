package compile

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weir.dev/weir/datapath"
)

// layout places lists in the table of lists. Equal lists share a Place, and a list that was there before stays where it was: a commit
// that leaves a port's shapes alone writes nothing for it.
type layout struct {
	before map[string]uint32 // content -> first, of the former image
	placed map[string]uint32
}

func newLayout(old *Image) layout {
	l := layout{before: map[string]uint32{}, placed: map[string]uint32{}}
	for first, count := range old.Spans() {
		list := make([]listCopy, count)
		for i := range list {
			list[i] = old.Lists[first+uint32(i)]
		}
		l.before[content(list)] = first
	}
	return l
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
	// Lists that were there before keep their places.
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
	// The rest goes into the gaps between these, in order.
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
