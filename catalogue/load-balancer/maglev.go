package main

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// slots of a table: a prime, 100 times as many as targets.
const slots = 16381

// none is a slot of a table without targets.
const none = 0xff

// maglev makes a table of slots (Eisenbud and others, NSDI 2016, 3.4): each target has its part of them, by weight, and if one goes, few slots of others change.
// Those of weight 0 have none. It follows from names and weights alone, so that every instance has the same one.
func maglev(names []string, weights []int) *[slots]uint8 {
	type permutation struct{ offset, skip, at, due uint64 }
	var table [slots]uint8
	for i := range table {
		table[i] = none
	}
	most := 0
	all := make([]permutation, len(names))
	for i, name := range names {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name))
		x := mix(h.Sum64())
		all[i] = permutation{offset: x % slots, skip: mix(x)%(slots-1) + 1}
		most = max(most, weights[i])
	}
	if most == 0 {
		return &table
	}
	for filled := 0; ; {
		for i := range all {
			p := &all[i]
			if p.due += uint64(weights[i]); p.due < uint64(most) { // not yet its turn
				continue
			}
			p.due -= uint64(most)
			slot := (p.offset + p.at*p.skip) % slots
			for table[slot] != none {
				p.at++
				slot = (p.offset + p.at*p.skip) % slots
			}
			table[slot] = uint8(i)
			p.at++
			if filled++; filled == slots {
				return &table
			}
		}
	}
}

// hashOf a client, the same in every instance.
func hashOf(client netip.AddrPort) uint64 {
	b := client.Addr().As16()
	return mix(mix(binary.BigEndian.Uint64(b[:])^uint64(client.Port())<<40) ^ binary.BigEndian.Uint64(b[8:]))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
