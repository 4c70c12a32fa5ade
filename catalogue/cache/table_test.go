package main

import (
	"net/netip"
	"testing"
)

// TestAFullTableForgetsWhatIsOver: connections that both sides have ended make room for new ones, and others do not.
func TestAFullTableForgetsWhatIsOver(t *testing.T) {
	table, client, server := newTable(), &number{id: 1}, &number{id: 2}
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
