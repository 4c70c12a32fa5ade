package nf

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPackedEventsAreBounded(t *testing.T) {
	var p Packed
	now := time.Unix(1000, 0)
	p.Add("a", "first")
	for i := range 3 {
		p.Add("b", fmt.Sprint("b", i))
	}
	got := p.due(now)
	if len(got) == 2 && got[0] > got[1] {
		got[0], got[1] = got[1], got[0]
	}
	if d := cmp.Diff([]string{"b2 (and 2 more like it)", "first"}, got); d != "" {
		t.Error(d)
	}
	p.Add("a", "second")
	if got := p.due(now.Add(packedEvery - 1)); got != nil {
		t.Errorf("too soon: %q", got)
	}
	if d := cmp.Diff([]string{"second"}, p.due(now.Add(packedEvery))); d != "" {
		t.Error(d)
	}
	if got := p.due(now.Add(2 * packedEvery)); got != nil || len(p.kinds) != 0 {
		t.Errorf("%q, %d kinds remembered", got, len(p.kinds))
	}
	for i := range 10 * maxPacked {
		p.Add(fmt.Sprint(i), "x")
	}
	if len(p.kinds) != maxPacked+1 || len(p.due(now.Add(3*packedEvery))) != eventsALook {
		t.Errorf("%d kinds", len(p.kinds))
	}
}
