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
)

// stateHead begins an exported state. Another form gets another number.
const stateHead = "weir-nat 1\n"

// record is a session in an exported state, big endian.
type record struct {
	Proto                            uint8
	Tags                             tags
	Client, Pool, Remote             [4]byte
	ClientPort, PoolPort, RemotePort uint16
	MAC                              [6]byte
	SilentNs                         int64
	Heard, Ended                     [2]bool
	Reset                            uint8
	Acks, Unproven                   bool
	Acked, FIN, First                uint32
}

// export is the table's state: every session, where it is translated to, and how far it has come.
func (t *table) export(now time.Time) []byte {
	out := bytes.NewBufferString(stateHead)
	for _, s := range t.all {
		r := record{
			Proto: s.inner.proto, Tags: s.inner.tags, Client: s.inner.client.Addr().As4(), Pool: s.pool.Addr().As4(), Remote: s.inner.remote.Addr().As4(),
			ClientPort: s.inner.client.Port(), PoolPort: s.pool.Port(), RemotePort: s.inner.remote.Port(), MAC: s.mac, SilentNs: now.Sub(s.seen).Nanoseconds(),
			Heard: s.heard, Ended: s.ended, Reset: uint8(s.reset), Acks: s.acks, Unproven: s.unproven, Acked: s.acked, FIN: s.fin, First: s.first,
		}
		_ = binary.Write(out, binary.BigEndian, &r) // into memory
	}
	return out.Bytes()
}

// restore takes sessions in that another table has exported, as far as they are still allowed and nothing here is in their way. An error: it is no such state, and
// nothing was taken in.
func (t *table) restore(state []byte, now time.Time) (taken, left int, err error) {
	rest, ok := bytes.CutPrefix(state, []byte(stateHead))
	size := binary.Size(record{})
	switch {
	case !ok:
		return 0, 0, fmt.Errorf("this is no state of a nat of this version: it begins with %.20q, want %q", state, stateHead)
	case len(rest)%size != 0:
		return 0, 0, errors.New("the state is cut off")
	case len(rest)/size > maxSessions:
		return 0, 0, fmt.Errorf("the state has %d sessions, want at most %d", len(rest)/size, maxSessions)
	}
	all := make([]record, len(rest)/size)
	if err := binary.Read(bytes.NewReader(rest), binary.BigEndian, all); err != nil {
		return 0, 0, err
	}
	for i := range all {
		if s := all[i].session(now); s != nil && t.fits(s) {
			t.take(s)
			taken++
		} else {
			left++
		}
	}
	return taken, left, nil
}

// session of a record; nil: it is none that a table could have, or over.
func (r *record) session(now time.Time) *session {
	at := func(b [4]byte, port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4(b), port) }
	if r.Proto != nf.TCP && r.Proto != nf.UDP && r.Proto != icmp || r.Reset > uint8(sure) || r.SilentNs < 0 {
		return nil
	}
	s := &session{
		inner: inner{r.Proto, r.Tags, at(r.Client, r.ClientPort), at(r.Remote, r.RemotePort)}, pool: at(r.Pool, r.PoolPort), mac: r.MAC,
		seen: now.Add(-time.Duration(r.SilentNs)), heard: r.Heard, ended: r.Ended, reset: reset(r.Reset), acks: r.Acks, acked: r.Acked, fin: r.FIN, unproven: r.Unproven, first: r.First,
	}
	if now.Sub(s.seen) > s.lasts() {
		return nil
	}
	return s
}

// fits tells whether the configuration allows a session and no other one has its place.
func (t *table) fits(s *session) bool {
	k := s.inner
	if t.inner[k] != nil || t.outer[s.outer()] != nil || !t.cfg.client(k.client.Addr()) {
		return false
	}
	pool, m := place{k.proto, k.tags, s.pool}, t.mapped[place{k.proto, k.tags, k.client}]
	if t.forwarded(k.proto, s.pool) {
		return t.forward[place{proto: k.proto, at: s.pool}] == k.client && t.room(k, !s.unproven)
	}
	if s.unproven || !slices.Contains(t.cfg.Pool, s.pool.Addr()) || m != nil && m.pool != s.pool || m == nil && t.taken[pool] {
		return false
	}
	return t.room(k, true)
}

// take a session that fits.
func (t *table) take(s *session) {
	k := s.inner
	who := station{k.tags, k.client.Addr()}
	if t.homes[who] == nil && !t.forwarded(k.proto, s.pool) {
		t.homes[who] = &home{addr: s.pool.Addr()}
	}
	t.add(s)
	t.met(s, s.mac)
	if s.unproven {
		t.waiting = append(t.waiting, s)
	}
}
