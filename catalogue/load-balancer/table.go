package main

import (
	"container/list"
	"net/netip"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// key names a connection: the client's end and the service.
type key struct {
	service uint8
	client  netip.AddrPort
}

// phase of a connection.
type phase int

const (
	opening phase = iota // the target has not answered, or the client has said nothing since
	open
	datagrams // open, of UDP
	closing
	phases
)

// silence after which a connection is forgotten. An open one that goes on later gets the same target from the hash, as long as the targets are the same.
var silence = [phases]time.Duration{opening: 30 * time.Second, open: time.Hour, datagrams: 2 * time.Minute, closing: 30 * time.Second}

// connection has a target.
type connection struct {
	key
	target   uint8
	phase    phase
	answered bool
	guessed  bool // from what a target sent: its client has not spoken
	used     time.Time
	seen     [2]uint8 // packets while it is open, by direction, up to settleAfter
	owner    *owner
	inPhase  *list.Element
	inOwner  *list.Element
	at       int // in the table's list; gone: it is in no table any more
}

const gone = -1

// settleAfter packets in a direction the switch is told of it: a short exchange is not worth a word.
const settleAfter = 8

// settles tells whether the switch can rewrite the further packets in the direction of this one, which belongs to the connection: it keeps its target as long as
// it is open, and the function sees what ends it. Of datagrams it sees each, as their target may go down.
func (c *connection) settles(d nf.Dir, p *nf.Packet) bool {
	if c.phase != open || c.guessed || p.Part != nf.Whole {
		return false
	}
	if c.seen[d] < settleAfter {
		c.seen[d]++
		return false
	}
	return true
}

// owner is a station with connections, the least recently used one first.
type owner struct {
	addr     netip.Addr
	all      *list.List
	inBucket *list.Element
}

// table of connections. It is pure: times are given. When it is full, a station with the most connections loses its least recently used one: so nobody can
// take others' places. Those that only open have half of it at most, and the oldest of them goes first: forged senders take no place of open ones.
type table struct {
	room    int
	all     map[key]*connection
	list    []*connection      // in no order
	phases  [phases]*list.List // of *connection, the least recently used first
	owners  map[netip.Addr]*owner
	buckets map[int]*list.List // of *owner, by the number of their connections
	most    int                // of a station
	evicted uint64             // open ones
	crowded uint64             // opening ones
}

func newTable(room int) *table {
	t := &table{room: room, all: map[key]*connection{}, owners: map[netip.Addr]*owner{}, buckets: map[int]*list.List{}}
	for i := range t.phases {
		t.phases[i] = list.New()
	}
	return t
}

// find a connection and note that it is used.
func (t *table) find(k key, now time.Time) *connection {
	c := t.all[k]
	if c != nil {
		t.touch(c, c.phase, now)
	}
	return c
}

// touch notes a use, and the phase.
func (t *table) touch(c *connection, to phase, now time.Time) {
	c.used = now
	if to == c.phase {
		t.phases[to].MoveToBack(c.inPhase)
	} else {
		t.phases[c.phase].Remove(c.inPhase)
		c.phase = to
		c.inPhase = t.phases[to].PushBack(c)
	}
	c.owner.all.MoveToBack(c.inOwner)
}

// add a connection that is not there.
func (t *table) add(k key, target uint8, to phase, now time.Time) *connection {
	if to == opening && t.phases[opening].Len() >= t.room/2 {
		t.crowded++
		t.remove(t.phases[opening].Front().Value.(*connection))
	}
	if len(t.all) >= t.room {
		t.evicted++
		heaviest := t.buckets[t.most].Front().Value.(*owner)
		t.remove(heaviest.all.Front().Value.(*connection))
	}
	who := station.Owner(k.client.Addr())
	o := t.owners[who]
	if o == nil {
		o = &owner{addr: who, all: list.New()}
		t.owners[who] = o
	}
	c := &connection{key: k, target: target, phase: to, used: now, owner: o, at: len(t.list)}
	t.list = append(t.list, c)
	c.inPhase, c.inOwner = t.phases[to].PushBack(c), o.all.PushBack(c)
	t.all[k] = c
	t.rank(o, o.all.Len()-1)
	return c
}

func (t *table) remove(c *connection) {
	delete(t.all, c.key)
	last := t.list[len(t.list)-1]
	t.list[c.at], last.at, c.at = last, c.at, gone
	t.list[len(t.list)-1] = nil
	t.list = t.list[:len(t.list)-1]
	t.phases[c.phase].Remove(c.inPhase)
	c.owner.all.Remove(c.inOwner)
	t.rank(c.owner, c.owner.all.Len()+1)
}

// rank puts an owner, which had before connections, into the bucket of its number.
func (t *table) rank(o *owner, before int) {
	if old := t.buckets[before]; before > 0 {
		if old.Remove(o.inBucket); old.Len() == 0 {
			delete(t.buckets, before)
		}
	}
	n := o.all.Len()
	if n == 0 {
		delete(t.owners, o.addr)
	} else {
		if t.buckets[n] == nil {
			t.buckets[n] = list.New()
		}
		o.inBucket = t.buckets[n].PushBack(o)
	}
	t.most = max(t.most, n)
	for t.most > 0 && t.buckets[t.most] == nil {
		t.most--
	}
}

// expire forgets what was silent for long.
func (t *table) expire(now time.Time) {
	for p, l := range t.phases {
		for e := l.Front(); e != nil && now.Sub(e.Value.(*connection).used) > silence[p]; e = l.Front() {
			t.remove(e.Value.(*connection))
		}
	}
}
