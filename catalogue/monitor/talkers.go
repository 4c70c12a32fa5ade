package main

import (
	"cmp"
	"container/heap"
	"slices"
)

const (
	maxTalkers = 1024
	topTalkers = 10
)

// talkers counts what addresses send, of those that send most. When there is no room, a new address takes the place of the address that sent least, and its
// count ("space saving", Metwally 2005). So each address that sends more than the whole divided by 1024 is there; counts are too high rather than too low.
// An addition takes a number of steps that grows with the logarithm of how many there are: a scan of addresses costs little.
type talkers struct {
	by        map[station]*ranked
	rank      rank
	displaced uint64 // addresses that others took the place of
}

type talker struct {
	Address string `json:"address"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ranked is what a station sends, with its place in the rank.
type ranked struct {
	station        station
	packets, bytes uint64
	at             int
}

// rank is a heap: the talker that sent least is the first.
type rank []*ranked

func (r rank) Len() int           { return len(r) }
func (r rank) Less(i, j int) bool { return r[i].bytes < r[j].bytes }
func (r rank) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

// Push and Pop are heap.Interface's.
func (r *rank) Push(x any) {
	if t, ok := x.(*ranked); ok {
		t.at = len(*r)
		*r = append(*r, t)
	}
}

func (r *rank) Pop() any {
	last := len(*r) - 1
	t := (*r)[last]
	*r = (*r)[:last]
	return t
}

func newTalkers() *talkers { return &talkers{by: map[station]*ranked{}} }

func (ts *talkers) add(s station, packets, bytes uint64) {
	if packets == 0 {
		return
	}
	t := ts.by[s]
	switch {
	case t != nil:
	case len(ts.rank) < maxTalkers:
		t = &ranked{station: s}
		heap.Push(&ts.rank, t)
		ts.by[s] = t
	default:
		ts.displaced++
		t = ts.rank[0]
		delete(ts.by, t.station)
		t.station = s
		ts.by[s] = t
	}
	t.packets += packets
	t.bytes += bytes
	heap.Fix(&ts.rank, t.at)
}

// top are those that sent most.
func (ts *talkers) top() []talker {
	all := make([]talker, 0, len(ts.rank))
	for _, t := range ts.rank {
		all = append(all, talker{t.station.String(), t.packets, t.bytes})
	}
	slices.SortFunc(all, func(a, b talker) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Address, b.Address)) })
	return all[:min(len(all), topTalkers)]
}
