package model

import (
	"errors"
	"testing"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// Which of two entries of one priority a switch takes is not defined, unless they do the same.
func TestTwoEntriesOfOnePriority(t *testing.T) {
	const s1 = "of:0000000000000001"
	at := func(p flow.Port) fabric.At { return fabric.At{Switch: s1, Port: fabric.Port{Number: p}} }
	in := fabric.Input{Topology: fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{s1: {Name: "s1", Ports: []fabric.Port{{Number: 1}, {Number: 2}}}}},
		Endpoints: map[string]fabric.Endpoint{"e0": {At: at(1)}, "e1": {At: at(2)}}}
	n, err := New(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	frame, _, _ := flow.Witness(flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoTCP})
	send := func(narrow []fabric.Out) (int, error) {
		t.Helper()
		if err := n.Install(in, fabric.Output{Entries: map[fabric.SwitchID][]*fabric.Entry{s1: {
			{Cookie: 1, Priority: 7, Note: "wide", Outs: []fabric.Out{{Port: 2}}},
			{Cookie: 2, Priority: 7, Note: "narrow", Match: flow.Match{Proto: flow.ProtoTCP}, Outs: narrow},
		}}}); err != nil {
			t.Fatal(err)
		}
		r, err := n.Send("e0", frame)
		return len(r.Deliveries), err
	}
	if got, err := send([]fabric.Out{{Port: 2}}); got != 1 || err != nil {
		t.Errorf("that do the same: %d deliveries, %v", got, err)
	}
	if _, err := send(nil); !errors.Is(err, ErrTie) {
		t.Errorf("that do not: %v", err)
	}
	for want, name := range []string{"narrow", "wide"} {
		n.Tie = func(a, b *fabric.Entry) *fabric.Entry {
			if a.Note == name {
				return a
			}
			return b
		}
		if got, err := send(nil); got != want || err != nil {
			t.Errorf("the %s one is chosen: %d deliveries, %v", name, got, err)
		}
	}
}
