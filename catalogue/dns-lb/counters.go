package main

import "sync/atomic"

// counters of what was decided. Frames that pass because nothing in them is ours are not counted here.
type counters struct {
	answered   atomic.Uint64 // queries, by UDP and TCP
	unanswered atomic.Uint64 // queries for which no answer could be made
	foreign    atomic.Uint64 // answers of servers for names of ours, or that clients may take for such; dropped
	malformed  atomic.Uint64 // datagrams in which another may read a name; dropped
	tcpConns   atomic.Uint64 // connections to port 53 that were opened
	tcpRefused atomic.Uint64 // that were one too many
	tcpDropped atomic.Uint64 // frames
}

func (c *counters) decided(f fate) {
	switch f {
	case answered:
		c.answered.Add(1)
	case dropped:
		c.unanswered.Add(1)
	case passes:
	}
}
