package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// stateHead begins an exported state. Another form gets another number.
const stateHead = "weir-load-balancer 1\n"

// mostExported bounds the connections in a state: what the platform hands over has 16 MiB at most. Those that were used last are in it.
const mostExported = 200_000

// record is a connection in an exported state, big endian. Addresses are of 16 bytes, those of IPv4 mapped.
type record struct {
	Proto                           uint8
	Virtual, Client, Target         [16]byte
	VirtualPort, ClientPort, AtPort uint16
	Phase                           uint8
	Answered                        bool
	SilentNs                        int64
}

// copies are the table's connections as they are, see nf.Copies; without guesses, which are made again.
func (t *table) copies(do nf.Between) []connection {
	return nf.Copies(do, func() []*connection { return t.list }, func(c *connection) bool { return c.at != gone && !c.guessed })
}

// export is the table's state: every connection whose client has spoken, and its target.
func (b *balancer) export(do nf.Between, now time.Time) []byte {
	all := b.table.copies(do)
	for i := range all {
		all[i].used = b.table.lastUsed(&all[i], now)
	}
	slices.SortFunc(all, func(x, y connection) int { return y.used.Compare(x.used) })
	out := []byte(stateHead)
	for _, c := range all[:min(len(all), mostExported)] {
		v := b.services[c.service] // neither services nor their targets change
		at := v.members[c.target].at
		out, _ = binary.Append(out, binary.BigEndian, &record{ // its size is known
			Proto: v.place.proto, Virtual: v.place.at.Addr().As16(), VirtualPort: v.place.at.Port(), Client: c.client.Addr().As16(), ClientPort: c.client.Port(),
			Target: at.Addr().As16(), AtPort: at.Port(), Phase: uint8(c.phase), Answered: c.answered, SilentNs: max(now.Sub(c.used), 0).Nanoseconds(),
		})
	}
	return out
}

// restore takes connections in that another instance has exported, as far as their service and target are still there and nothing here is in their way. An error:
// it is no such state, and nothing was taken in.
func (b *balancer) restore(do nf.Between, state []byte, now time.Time) (taken, left int, err error) {
	rest, ok := bytes.CutPrefix(state, []byte(stateHead))
	size := binary.Size(record{})
	switch {
	case !ok:
		return 0, 0, fmt.Errorf("this is no state of a load-balancer of this version: it begins with %.25q, want %q", state, stateHead)
	case len(rest)%size != 0:
		return 0, 0, errors.New("the state is cut off")
	case len(rest)/size > mostExported:
		return 0, 0, fmt.Errorf("the state has %d connections, want at most %d", len(rest)/size, mostExported)
	}
	all := make([]record, len(rest)/size)
	if err := binary.Read(bytes.NewReader(rest), binary.BigEndian, all); err != nil {
		return 0, 0, err
	}
	slices.Reverse(all) // the least recently used one first, as the table has them
	for some := range slices.Chunk(all, nf.AtOnce) {
		do(func() {
			for i := range some {
				if b.take(&some[i], now) {
					taken++
				}
			}
		})
	}
	return taken, len(all) - taken, nil
}

// take a connection in; false: there is no place for it.
func (b *balancer) take(r *record, now time.Time) bool {
	at := func(a [16]byte, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
	}
	v := b.at[place{r.Proto, at(r.Virtual, r.VirtualPort)}]
	client := at(r.Client, r.ClientPort)
	if v == nil {
		return false
	}
	target, known := v.number[at(r.Target, r.AtPort)]
	if !known || r.Phase >= uint8(phases) || r.SilentNs < 0 || client.Port() == 0 || !station.Single(client.Addr()) || client.Addr().Is4() != v.place.at.Addr().Is4() {
		return false
	}
	if (phase(r.Phase) == datagrams) && r.Proto != nf.UDP || time.Duration(r.SilentNs) > silence[r.Phase] || len(b.table.all) >= b.table.room {
		return false
	}
	k := key{v.index, client}
	if b.table.all[k] != nil {
		return false
	}
	c := b.table.add(k, target, phase(r.Phase), now.Add(-time.Duration(r.SilentNs)))
	c.answered = r.Answered
	return true
}
