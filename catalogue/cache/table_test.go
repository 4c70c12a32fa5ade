package main

import (
	"net/netip"
	"testing"
	"time"
)

func numberOf(id uint32) *number { return &number{id: id, all: &numbers{}} }

// TestAFullTableForgetsWhatIsOver: connections that both sides have ended make room for new ones, and others do not.
func TestAFullTableForgetsWhatIsOver(t *testing.T) {
	table, client, server := newTable(true), numberOf(1), numberOf(2)
	add := func(i int) *conn {
		c := &conn{key: key{client: station{addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 16), 1})}, clientPort: uint16(i)}, ends: ends{client: uint32(i), clientPort: uint16(i)}, client: client, server: server}
		table.add(c)
		return c
	}
	for i := range maxConnections {
		if !table.hasRoom() {
			t.Fatalf("no room for the connection %d", i)
		}
		add(i).opened = true
	}
	if table.hasRoom() {
		t.Error("open connections make room")
	}
	for _, c := range table.of {
		c.fin = [2]bool{true, true}
	}
	for i := range 1000 {
		if !table.hasRoom() || len(table.of) >= maxConnections {
			t.Fatalf("no room for the new connection %d: %d", i, len(table.of))
		}
		add(maxConnections + i)
	}
	if client.conns != maxConnections || server.conns != maxConnections {
		t.Errorf("%d and %d connections are counted", client.conns, server.conns)
	}
}

// TestIdleStationsMakeRoom: as many stations as there may be keep no further one out, and none with connections is forgotten. A server's number is never given again.
func TestIdleStationsMakeRoom(t *testing.T) {
	for _, reuses := range []bool{false, true} {
		n := numbers{of: map[neighbour]*number{}, reuses: reuses}
		given := map[uint32]bool{}
		who := func(i int) neighbour { return neighbour{mac: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}} }
		busy := n.take(who(0), time.Unix(0, 0))
		busy.hold(1)
		again := 0
		for i := 1; i < 2*maxStations; i++ {
			x := n.take(who(i), time.Unix(int64(i), 0))
			if x == nil || len(n.of) > maxStations {
				t.Fatalf("reuses %v: station %d: %v, %d are remembered", reuses, i, x, len(n.of))
			}
			if given[x.id] {
				again++
			}
			given[x.id] = true
		}
		if n.of[who(0)] != busy || n.of[who(1)] != nil || n.of[who(2*maxStations-1)] == nil {
			t.Errorf("reuses %v: the wrong ones are forgotten", reuses)
		}
		if reuses != (again > 0) {
			t.Errorf("reuses %v: %d numbers were given again", reuses, again)
		}
		busy.hold(-1)
		n.tick(time.Unix(3*maxStations, 0))
		if n.idle.Len() != len(n.of) {
			t.Errorf("reuses %v: %d of %d are idle", reuses, n.idle.Len(), len(n.of))
		}
	}
	all := numbers{of: map[neighbour]*number{}}
	for i := range maxStations {
		all.take(neighbour{mac: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}}, time.Unix(0, 0)).hold(1)
	}
	if all.take(neighbour{mac: [6]byte{4}}, time.Unix(0, 0)) != nil {
		t.Error("one with connections is forgotten")
	}
}
