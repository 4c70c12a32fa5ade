package discovery

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/router/fabric"
)

// bed is a network of switches whose cables are in memory.
type bed struct {
	n      *Network
	now    time.Time
	cables map[Seat]Seat
}

func newBed(switches int, ports uint32) *bed {
	b := &bed{now: time.Unix(1000, 0), cables: map[Seat]Seat{}}
	b.n = New(Options{Key: make([]byte, lldp.MinKey), Known: func(string) bool { return true }, Log: slog.New(slog.DiscardHandler)}, b.now)
	for id := range uint64(switches) {
		d := &Switch{DPID: id + 1, Name: fmt.Sprint("s", id+1), ID: fabric.SwitchID(lldp.SwitchChassis(id + 1)), Connected: true, Primed: true, Ports: map[uint32]*Port{}}
		b.n.Switches[d.DPID] = d
		for p := range ports {
			b.n.SetPort(d, openflow.PortDesc{Port: openflow.Port(p + 1), Name: fmt.Sprint("eth", p+1)}, nil, b.now)
		}
	}
	return b
}

func (b *bed) at(dpid uint64, port uint32) Seat { return Seat{b.n.Switches[dpid].ID, port} }

func (b *bed) cable(x, y Seat) { b.cables[x], b.cables[y] = y, x }

// run lets time pass. What switches are told to send goes over the cables.
func (b *bed) run(d time.Duration) (events []string) {
	for end := b.now.Add(d); b.now.Before(end); b.now = b.now.Add(50 * time.Millisecond) {
		b.n.Tick(b.now, func() ([]Missing, map[flow.MAC]bool) { return nil, nil })
		for f := b.n.Take(); len(f.Out)+len(f.Events) > 0; f = b.n.Take() {
			for _, e := range f.Events {
				events = append(events, e.Reason)
			}
			for dpid, messages := range f.Out {
				for _, m := range messages {
					out := m.(*openflow.PacketOut)
					port := out.Actions[0].(openflow.Output).Port
					if to, there := b.cables[b.at(dpid, uint32(port))]; there {
						b.n.FrameIn(b.n.switchOf(to.ID), to.Port, out.Data, b.now)
					}
				}
			}
		}
	}
	return events
}

func TestLinksAndEdgePortsAreFound(t *testing.T) {
	b := newBed(2, 2)
	b.cable(b.at(1, 1), b.at(2, 1))
	b.run(time.Second)
	found := b.n.Survey(b.now)
	link := CableOf(fabric.At{Switch: b.at(1, 1).ID, Port: fabric.Port{Number: 1}}, fabric.At{Switch: b.at(2, 1).ID, Port: fabric.Port{Number: 1}})
	if len(found.Links) != 1 || found.Links[link] != 1 || len(found.Ports[1]) != 2 || len(found.Ports[2]) != 2 {
		t.Errorf("found %+v", found)
	}
	if edges := b.n.Edges(); len(edges) != 2 || !edges[b.at(1, 2)] || !edges[b.at(2, 2)] {
		t.Errorf("edge ports %v", edges)
	}
	b.n.CompareLinks(found.Links, b.now)
	clear(b.cables) // where neither end sees it
	b.run(2 * missedAfter)
	if cost := b.n.Survey(b.now).Links[link]; cost != silentCost {
		t.Errorf("a silent link costs %d", cost)
	}
	b.run(silentFor)
	found = b.n.Survey(b.now)
	if len(found.Links) != 0 {
		t.Errorf("a link that is silent for long is there yet: %v", found.Links)
	}
	b.n.CompareLinks(found.Links, b.now)
	if f := b.n.Take(); len(f.Events) != 1 || f.Events[0].Reason != "LinkLost" {
		t.Errorf("events %+v", f.Events)
	}
}

// A station that answers keeps its address. One that is silent loses it to who claims it.
func TestAClaimHoldsWhenTheOwnerIsSilent(t *testing.T) {
	b := newBed(1, 3)
	b.run(time.Second)
	owner := flow.MAC{2, 0, 0, 0, 0, 1}
	frame := func(port uint32) {
		b.n.FrameIn(b.n.Switches[1], port, append(append([]byte{255, 255, 255, 255, 255, 255}, owner[:]...), make([]byte, 48)...), b.now)
	}
	at := func() uint32 { return b.n.Stations.by[owner].At.Port }
	frame(1)
	frame(2)
	b.run(100 * time.Millisecond)
	frame(1) // it answers
	if b.run(2 * time.Second); at() != 1 {
		t.Errorf("the station is at port %d although it answers at port 1", at())
	}
	frame(2)
	if b.run(2 * time.Second); at() != 2 {
		t.Errorf("the station is at port %d although it is silent there", at())
	}
}
