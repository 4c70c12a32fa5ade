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
	settled  bool     // while it is open: the switch may rewrite its client's further packets, without telling
	owner    *owner
	inPhase  *list.Element
	inOwner  *list.Element
	at       int // in the table's list; gone: it is in no table any more
}

const gone = -1

// settleAfter packets in a direction the switch is told of it: a short exchange is not worth a word.
const settleAfter = 8

// settledLasts is how long at most the switch rewrites the packets of a settled connection before it gives one to the function.
const settledLasts = 5 * time.Minute

// settles tells whether the switch can rewrite the further packets in the direction of this one, which belongs to the connection: it keeps its target as long as
// it is open, and the function sees what ends it. Of datagrams it sees each, as their target may go down.
func (t *table) settles(c *connection, d nf.Dir, p *nf.Packet) bool {
	if c.phase != open || c.guessed || p.Part != nf.Whole {
		return false
	}
	if c.seen[d] < settleAfter {
		c.seen[d]++
		return false
	}
	if d == nf.Up && !c.settled { // it is the client's packets that a use is known by
		t.move(c, true)
	}
	return true
}

// owner is a station with connections: those that come to the function, and those that are settled, each the least recently seen one first.
type owner struct {
	addr          netip.Addr
	come, settled *list.List
	inBucket      *list.Element
}

func (o *owner) len() int { return o.come.Len() + o.settled.Len() }

// with has the connections of which c is one.
func (o *owner) with(c *connection) *list.List {
	if c.settled {
		return o.settled
	}
	return o.come
}

// table of connections. It is pure: times are given. When it is full, a station with the most connections loses its least recently used one: so nobody can
// take others' places. A settled one counts as used as long as the switch may rewrite its packets. Those that only open have half of it at most, and the oldest of them goes first: forged senders take no place of open ones.
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
	carried func() bool        // the switch carries out what settles; nil: it does not
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
	t.move(c, c.settled && to == open)
}

// move a connection to the end of those of its station that are settled, or come.
func (t *table) move(c *connection, settled bool) {
	if settled == c.settled {
		c.owner.with(c).MoveToBack(c.inOwner)
		return
	}
	c.owner.with(c).Remove(c.inOwner)
	c.settled = settled
	c.inOwner = c.owner.with(c).PushBack(c)
}

// lastUsed is when a connection may have been used last: of one that the switch rewrites not all packets come.
func (t *table) lastUsed(c *connection, now time.Time) time.Time {
	if !c.settled || t.carried == nil || !t.carried() {
		return c.used
	}
	if at := c.used.Add(settledLasts); at.Before(now) {
		return at
	}
	return now
}

// leastUsed connection of a station.
func (t *table) leastUsed(o *owner, now time.Time) *connection {
	come, settled := o.come.Front(), o.settled.Front()
	if settled == nil || come != nil && !t.lastUsed(settled.Value.(*connection), now).Before(come.Value.(*connection).used) {
		return come.Value.(*connection)
	}
	return settled.Value.(*connection)
}

// add a connection that is not there.
func (t *table) add(k key, target uint8, to phase, now time.Time) *connection {
	if to == opening && t.phases[opening].Len() >= t.room/2 {
		t.crowded++
		t.remove(t.phases[opening].Front().Value.(*connection))
	}
	if len(t.all) >= t.room {
		t.evicted++
		t.remove(t.leastUsed(t.buckets[t.most].Front().Value.(*owner), now))
	}
	who := station.Owner(k.client.Addr())
	o := t.owners[who]
	if o == nil {
		o = &owner{addr: who, come: list.New(), settled: list.New()}
		t.owners[who] = o
	}
	c := &connection{key: k, target: target, phase: to, used: now, owner: o, at: len(t.list)}
	t.list = append(t.list, c)
	c.inPhase, c.inOwner = t.phases[to].PushBack(c), o.come.PushBack(c)
	t.all[k] = c
	t.rank(o, o.len()-1)
	return c
}

func (t *table) remove(c *connection) {
	delete(t.all, c.key)
	last := t.list[len(t.list)-1]
	t.list[c.at], last.at, c.at = last, c.at, gone
	t.list[len(t.list)-1] = nil
	t.list = t.list[:len(t.list)-1]
	t.phases[c.phase].Remove(c.inPhase)
	c.owner.with(c).Remove(c.inOwner)
	t.rank(c.owner, c.owner.len()+1)
}

// rank puts an owner, which had before connections, into the bucket of its number.
func (t *table) rank(o *owner, before int) {
	if old := t.buckets[before]; before > 0 {
		if old.Remove(o.inBucket); old.Len() == 0 {
			delete(t.buckets, before)
		}
	}
	n := o.len()
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
