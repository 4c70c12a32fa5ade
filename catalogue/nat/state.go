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

// copies are the table's sessions as they are, see nf.Copies.
func (t *table) copies(do nf.Between) []session {
	return nf.Copies(do, func() []*session { return t.all }, func(s *session) bool { return !s.gone })
}

// export is the table's state: every session, where it is translated to, and how far it has come.
func (t *table) export(do nf.Between, now time.Time) []byte {
	out := []byte(stateHead)
	for _, s := range t.copies(do) {
		out, _ = binary.Append(out, binary.BigEndian, &record{ // its size is known
			Proto: s.inner.proto, Tags: s.inner.tags, Client: s.inner.client.Addr().As4(), Pool: s.pool.Addr().As4(), Remote: s.inner.remote.Addr().As4(),
			ClientPort: s.inner.client.Port(), PoolPort: s.pool.Port(), RemotePort: s.inner.remote.Port(), MAC: s.mac, SilentNs: max(now.Sub(s.used(now)), 0).Nanoseconds(),
			Heard: s.heard, Ended: s.ended, Reset: uint8(s.reset), Acks: s.acks, Unproven: s.unproven, Acked: s.acked, FIN: s.fin, First: s.first,
		})
	}
	return out
}

// used is when a session may have been used last: of one that the switch translates not all packets come.
func (s *session) used(now time.Time) time.Time {
	if at := s.seen.Add(settledLasts); s.settled[nf.Up] || s.settled[nf.Down] {
		if at.Before(now) {
			return at
		}
		return now
	}
	return s.seen
}

// restore takes sessions in that another table has exported, as far as they are still allowed and nothing here is in their way. An error: it is no such state, and
// nothing was taken in.
func (t *table) restore(do nf.Between, state []byte, now time.Time) (taken, left int, err error) {
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
	sessions := make([]*session, 0, len(all))
	for i := range all {
		if s := all[i].session(now); s != nil {
			sessions = append(sessions, s)
		}
	}
	for some := range slices.Chunk(sessions, nf.AtOnce) {
		do(func() {
			for _, s := range some {
				if t.fits(s) {
					t.take(s)
					taken++
				}
			}
		})
	}
	return taken, len(all) - taken, nil
}

// follow fills a table that is not in force yet with the sessions of one that is, as far as its own configuration allows them. Frames go on meanwhile. What they change is noted
// and followed, until it is of few sessions: rest does these, between the same two frames between which the table comes into force.
func (t *table) follow(do nf.Between, old *table, few int, now time.Time) (rest func()) {
	do(func() { old.follows, old.changes = true, nil })
	all := old.copies(do)
	for i := range all {
		t.renew(&all[i], now)
	}
	for range maxRounds {
		var changed []*session
		do(func() {
			if len(old.changes) > few {
				changed, old.changes = old.changes, nil
			}
		})
		for some := range slices.Chunk(changed, nf.AtOnce) {
			as := make([]session, 0, len(some))
			do(func() {
				for _, s := range some {
					s.noted = false
					as = append(as, *s)
				}
			})
			for i := range as {
				t.renew(&as[i], time.Now())
			}
		}
		if len(changed) == 0 {
			break
		}
	}
	return func() {
		for _, s := range old.changes {
			as := *s
			t.renew(&as, time.Now())
		}
		old.follows, old.changes = false, nil
	}
}

// maxRounds bounds how often a table catches up with another one before it does so while frames wait.
const maxRounds = 16

// renew has a session of another table as it is there: s is a copy of it.
func (t *table) renew(s *session, now time.Time) {
	had := t.inner[s.inner]
	if had != nil && (s.gone || had.pool != s.pool || had.unproven != s.unproven) {
		t.remove(had)
		had = nil
	}
	s.seen, s.settled, s.seenOf, s.noted = s.used(now), [2]bool{}, [2]uint8{}, false
	switch {
	case s.gone:
	case had != nil:
		s.at = had.at
		*had = *s
		t.met(had, s.mac)
	case t.fits(s):
		own := *s // s may be one of many in one piece of memory
		t.take(&own)
	}
}

// change notes a session for who follows.
func (t *table) change(s *session) {
	if t.follows && !s.noted {
		s.noted = true
		t.changes = append(t.changes, s)
	}
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
