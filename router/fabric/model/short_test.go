package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
)

// crowd adds stations that nobody speaks to, and gives some switches tables that do not hold them all.
func (b *builder) crowd(t *rapid.T) {
	var at []fabric.At
	for n := range len(b.in.Endpoints) {
		at = append(at, b.in.Endpoints[fmt.Sprint("e", n)].At)
	}
	for n := range rapid.IntRange(0, 60).Draw(t, "crowd") {
		b.in.Stations = append(b.in.Stations, fabric.Station{MAC: flow.MAC{6, 0, 0, 0, 0, byte(n)}, At: rapid.SampledFrom(at).Draw(t, "crowd at")})
	}
	for n := range len(b.in.Switches) {
		id := fabric.SwitchID(fmt.Sprintf("of:%016x", n+1))
		s, there := b.in.Switches[id]
		if !there {
			continue
		}
		if s.Tables = slices.Clone(s.Tables); len(s.Tables) == 0 {
			s.Tables = make([]uint32, 1)
		}
		s.Tables[min(1, len(s.Tables)-1)] = rapid.SampledFrom([]uint32{0, 30, 40, 60, 1000}).Draw(t, "size")
		b.in.Switches[id] = s
	}
}

// Where tables do not hold the entries of all stations, each frame still meets what its policies say and arrives once; others may get a
// flooded copy, once, its sender none.
func TestStationsWithoutEntriesAreReached(t *testing.T) {
	left := 0
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		b.crowd(t)
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
			name := fmt.Sprint("p", i)
			p := b.in.Policies[name]
			p.Mode = api.ModeSelective // others are about what comes by a port, flooded copies included
			b.in.Policies[name] = p
		}
		in, out := unserved(t, b.in)
		for id, all := range out.Short {
			for _, s := range all {
				left += s.LeftOut
				if used := len(slices.DeleteFunc(slices.Clone(out.Entries[id]), func(e *fabric.Entry) bool { return e.Table != s.Table })); s.LeftOut > 0 && used > s.Size {
					t.Fatalf("%s has %d entries: %v", id, used, s)
				}
			}
		}
		n := up(t, in, nil)
		if err := n.Install(in, out); err != nil {
			t.Fatal(err, describe(in, out))
		}
		for range 8 {
			from, frame := b.drawFrame(t)
			if frame[0]&1 == 1 {
				agree(t, n, in, out, from, frame, nil)
				continue
			}
			want := oracle.Predict(in, from, frame, nil)
			r, err := n.Send(from, frame)
			if err != nil {
				t.Fatal(err, strings.Join(r.Trail, "\n"), describe(in, out))
			}
			got := seen(in, r, false)
			to := want.Arrives
			for name := range got.Arrives {
				if strings.HasSuffix(name, " again") || name == from && !everywhere(in) {
					t.Fatalf("%s gets a frame of %s\n%s\n%s", name, from, strings.Join(r.Trail, "\n"), describe(in, out))
				}
				if to[name] == nil {
					delete(got.Arrives, name)
				}
			}
			want.Policies = nil
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("from %s: -want +got\n%s\n%s\n%s", from, diff, strings.Join(r.Trail, "\n"), describe(in, out))
			}
		}
	})
	if left == 0 {
		t.Error("no station was left out: the test proves nothing")
	}
}

// everywhere tells whether a policy catches frames wherever they enter: nobody knows then where they came from when they leave its chain.
func everywhere(in fabric.Input) bool {
	for _, p := range in.Policies {
		_, from := in.Endpoints[p.From]
		_, to := in.Endpoints[p.To]
		if !from && !to {
			return true
		}
	}
	return false
}
