package main

import (
	"cmp"
	"slices"
)

const (
	maxTalkers = 1024
	topTalkers = 10
)

// talkers counts what addresses send, of those that send most: an address that comes when there is no room takes the place of the one that sent least, and its
// count ("space saving", Metwally 2005). So who sends more than the whole divided by 1024 is there; counts are too high rather than too low.
type talkers map[string]*talker

type talker struct {
	Address string `json:"address"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

func (ts talkers) add(address string, packets, bytes uint64) {
	if packets == 0 {
		return
	}
	t := ts[address]
	if t == nil {
		t = &talker{}
		if len(ts) >= maxTalkers {
			for _, x := range ts {
				if t.Address == "" || x.Bytes < t.Bytes {
					t = x
				}
			}
			delete(ts, t.Address)
		}
		t.Address = address
		ts[address] = t
	}
	t.Packets += packets
	t.Bytes += bytes
}

// top are those that sent most.
func (ts talkers) top() []talker {
	var all []talker
	for _, t := range ts {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b talker) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Address, b.Address)) })
	return all[:min(len(all), topTalkers)]
}
