package fabric

import (
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/flow"
)

func TestPortMasksMatchEachPortOfARangeOnceAndNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint16Range(1, 65535).Draw(t, "first")
		last := rapid.Uint16Range(first, 65535).Draw(t, "last")
		masks := PortMasks(nil, flow.PortRange{First: first, Last: last})
		if n := len(masks); n == 0 || n > 30 || n > int(last)-int(first)+1 {
			t.Fatalf("%d masks", n)
		}
		for p := range 1 << 16 {
			hits := 0
			for _, m := range masks {
				if uint16(p)&m.Mask == m.Port {
					hits++
				}
			}
			if want := p >= int(first) && p <= int(last); (hits == 1) != want || hits > 1 {
				t.Fatalf("port %d is matched %d times", p, hits)
			}
		}
	})
}

func TestPortMasksOfCommonRanges(t *testing.T) {
	for _, x := range []struct {
		r    flow.PortRange
		want int
	}{
		{flow.PortRange{}, 1},
		{flow.PortRange{First: 80, Last: 80}, 1},
		{flow.PortRange{First: 6000, Last: 6007}, 8}, // each by itself: any switch takes them
		{flow.PortRange{First: 1024, Last: 65535}, 6},
		{flow.PortRange{First: 1, Last: 65534}, 30},
	} {
		if got := PortMasks(nil, x.r); len(got) != x.want {
			t.Errorf("%d-%d: %d masks, want %d: %v", x.r.First, x.r.Last, len(got), x.want, got)
		}
	}
}
