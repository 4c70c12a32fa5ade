package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// A settled connection is busy without the function's knowledge: a full table does not take it for the one that was used least, until the switch would have given a packet of it.
func TestAFullTableKeepsSettledConnections(t *testing.T) {
	at := func(n int) key { return key{0, netip.MustParseAddrPort(fmt.Sprintf("10.9.0.1:%d", n))} }
	const settled, later, fresh = 1, 2, 3
	for name, x := range map[string]struct {
		carried bool
		after   time.Duration // from the settled one's last packet to the fresh one
		closes  bool
		goes    int
	}{
		"the switch may rewrite its packets":     {true, 4 * time.Minute, false, later},
		"it was silent for longer":               {true, 12 * time.Minute, false, settled},
		"the switch settles nothing":             {false, 4 * time.Minute, false, settled},
		"it closes, and all of its packets come": {true, 4 * time.Minute, true, settled},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			table := newTable(2)
			table.carried = func() bool { return x.carried }
			c := table.add(at(settled), 0, open, now)
			for n := range 2 * settleAfter {
				if got := table.settles(c, nf.Up, &nf.Packet{Part: nf.Whole}); got != (n >= settleAfter) {
					t.Errorf("packet %d settles it: %t", n, got)
				}
			}
			if x.closes {
				table.touch(c, closing, now)
			}
			table.add(at(later), 0, open, now.Add(x.after-time.Minute))
			table.add(at(fresh), 0, opening, now.Add(x.after))
			for n, want := range map[int]bool{settled: x.goes != settled, later: x.goes != later, fresh: true} {
				if there := table.all[at(n)] != nil; there != want {
					t.Errorf("connection %d is there: %t, want %t", n, there, want)
				}
			}
			if len(table.all) != 2 || table.evicted != 1 || table.most != 2 {
				t.Errorf("%d connections, %d evicted, the most of a station %d", len(table.all), table.evicted, table.most)
			}
			for len(table.list) > 0 {
				table.remove(table.list[0])
			}
			if len(table.all)+len(table.owners)+len(table.buckets)+table.most != 0 {
				t.Errorf("left when all is over: %d connections, %d stations", len(table.all), len(table.owners))
			}
		})
	}
}

// An instance that takes connections over takes those that the switch rewrites as used, too.
func TestSettledConnectionsAreExportedAsUsed(t *testing.T) {
	now := time.Now()
	b := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	b.table.carried = func() bool { return true }
	v := b.at[place{nf.TCP, netip.MustParseAddrPort("10.0.0.1:80")}]
	c := b.table.add(key{v.index, netip.MustParseAddrPort("10.9.0.1:1000")}, 0, open, now.Add(-6*time.Minute))
	b.table.move(c, true)
	same := newBalancer(stateConfig(t, oneState), nil, nil, nil)
	if _, _, err := same.restore(direct, b.export(direct, now), now); err != nil {
		t.Fatal(err)
	}
	if got := same.table.all[c.key]; got == nil || !got.used.Equal(now.Add(-time.Minute)) || got.settled {
		t.Errorf("%+v: want it used a minute ago, and not settled", got)
	}
}
