package ovs

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

type counter = datapath.Counter

// counters are those of rules and ports. They never go back, while entries, and Open vSwitch itself, come and go: an owner's counter is what was counted by
// entries that are gone, and what those that are there count.
type counters struct {
	home       *home.Home
	connection *connection
	ports      *ports
	counts     counts
	saved      time.Time
	losses     hostlink.Losses
	unsent     map[flow.Port]uint64 // as Open vSwitch has told last, by its ports
}

// counts is counters.json.
type counts struct {
	Gone map[owner]counter
	Last map[uint64]counter // by the entry's cookie, as last read
}

// MarshalText makes an owner a key of JSON objects.
func (o owner) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d/%x", o.Kind, o.ID), nil }

// UnmarshalText reads it.
func (o *owner) UnmarshalText(b []byte) error {
	kind, id, _ := strings.Cut(string(b), "/")
	k, err := strconv.ParseUint(kind, 10, 8)
	if err != nil {
		return err
	}
	o.Kind = ownerKind(k)
	o.ID, err = strconv.ParseUint(id, 16, 64)
	return err
}

func (s *counters) load() error {
	_, err := s.home.Store.Read("counters.json", &s.counts)
	if s.counts.Gone == nil {
		s.counts.Gone = map[owner]counter{}
	}
	if s.counts.Last == nil {
		s.counts.Last = map[uint64]counter{}
	}
	return err
}

func (s *counters) save() error {
	s.saved = time.Now()
	return s.home.Store.Write("counters.json", &s.counts)
}

func plus(a, b counter) counter {
	return counter{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

// saw an entry's counter. One that went back began anew: the switch had been restarted.
func (c *counts) saw(e *entry, now counter) {
	last := c.Last[e.cookie]
	if now.Packets < last.Packets || now.Bytes < last.Bytes {
		c.fold(e)
	}
	c.Last[e.cookie] = now
}

// fold keeps what an entry that is gone has counted.
func (c *counts) fold(e *entry) {
	last, ok := c.Last[e.cookie]
	if !ok {
		return
	}
	for _, o := range e.owners {
		c.Gone[o] = plus(c.Gone[o], last)
	}
	delete(c.Last, e.cookie)
}

// sums of all owners.
func (s *counters) sums(installed entrySet) map[owner]counter {
	all := make(map[owner]counter, len(installed))
	for o, c := range s.counts.Gone {
		all[o] = c
	}
	for _, e := range installed {
		last := s.counts.Last[e.cookie]
		for _, o := range e.owners {
			all[o] = plus(all[o], last)
		}
	}
	return all
}

// learned tables and the one that empties itself are not ours to compare.
func kept(table uint8) bool {
	switch table {
	case tableSources, tableExits, tableMACs, tableDrain:
		return false
	}
	return table < tables
}

// read those of all entries.
func (s *counters) read(ctx context.Context, installed entrySet) error {
	stats, err := s.connection.of.Flows(ctx, openflow.FlowStatsRequest{Table: openflow.TableAll})
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	entries := installed.byCookie()
	for i := range stats {
		if e := entries[stats[i].Cookie]; e != nil && kept(stats[i].Table) {
			s.counts.saw(e, counter{Packets: stats[i].Packets, Bytes: stats[i].Bytes})
		}
	}
	return nil
}

// readLosses reads what ports could not send: frames that are larger than the link's MTU, for example.
func (s *counters) readLosses(ctx context.Context) error {
	stats, err := s.connection.of.PortStats(ctx, openflow.PortAny)
	if err != nil {
		return fmt.Errorf("read statistics of ports: %w", err)
	}
	s.unsent = make(map[flow.Port]uint64, len(stats))
	for _, p := range stats {
		for _, n := range []uint64{p.TxDropped, p.TxErrors} {
			if n != ^uint64(0) { // it is not counted
				s.unsent[flow.Port(p.Port)] += n
			}
		}
	}
	return nil
}

// maxSingle bounds how many entries are asked for one by one.
const maxSingle = 16

// readBefore reads the counters of entries that are about to go, if anybody still wants to know.
func (s *counters) readBefore(ctx context.Context, going []*entry, installed entrySet) error {
	if len(going) == 0 {
		return nil
	}
	if len(going) > maxSingle {
		return s.read(ctx, installed)
	}
	for _, e := range going {
		stats, err := s.connection.of.Flows(ctx, openflow.FlowStatsRequest{Table: e.table, Cookie: e.cookie, CookieMask: ^uint64(0)})
		if err != nil {
			return fmt.Errorf("read an entry: %w", err)
		}
		for i := range stats {
			s.counts.saw(e, counter{Packets: stats[i].Packets, Bytes: stats[i].Bytes})
		}
	}
	return nil
}

// follow a transition that is in force.
func (s *counters) follow(t transition) {
	for _, e := range t.going {
		s.counts.fold(e)
	}
	for from, to := range t.carry {
		if last, ok := s.counts.Last[from]; ok {
			s.counts.Last[to] = last
			delete(s.counts.Last, from)
		}
	}
}

// forget owners that are no more; these are the rules in force.
func (s *counters) forget(inForce []flow.Rule) {
	rules := make(map[uint64]bool, len(inForce))
	for i := range inForce {
		rules[inForce[i].Cookie] = true
	}
	for o := range s.counts.Gone {
		if o.Kind == ownRule && !rules[o.ID] || o.Kind != ownRule && s.ports.all[flow.Port(o.ID)] == nil {
			delete(s.counts.Gone, o)
		}
	}
}
