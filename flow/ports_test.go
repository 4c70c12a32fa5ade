package flow

import (
	"testing"

	"pgregory.net/rapid"
)

func TestMasksMatchEachPortOfARangeOnceAndNoOther(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, r PortRange) {
		masks := r.AppendMasks(nil)
		if n := len(masks); n == 0 || n > 30 || n > int(r.Last)-int(r.First)+1 {
			t.Fatalf("%d masks of %v", n, r)
		}
		for p := range 1 << 16 {
			hits := 0
			for _, m := range masks {
				if uint16(p)&m.Mask == m.Port {
					hits++
				}
			}
			want := 0
			if p >= int(r.First) && p <= int(r.Last) {
				want = 1
			}
			if hits != want {
				t.Fatalf("port %d is in %d masks of %v, want %d", p, hits, r, want)
			}
		}
	}
	for _, r := range []PortRange{{80, 80}, {0, 1}, {1, 65534}, {1000, 2999}, {0, 65535}, {65535, 65535}} {
		check(t, r)
	}
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint16().Draw(t, "first")
		check(t, PortRange{first, rapid.Uint16Range(max(first, 1), 65535).Draw(t, "last")})
	})
}

func TestMasksOfCommonRanges(t *testing.T) {
	for r, want := range map[PortRange]int{{}: 1, {80, 80}: 1, {6000, 6007}: 1, {1024, 65535}: 6, {1, 65534}: 30, {0, 65535}: 1} {
		if got := r.AppendMasks(nil); len(got) != want {
			t.Errorf("%v: %d masks, want %d: %v", r, len(got), want, got)
		}
	}
	if got := (PortRange{}).AppendMasks(nil)[0]; got != (PortMask{}) {
		t.Errorf("any port: %v", got)
	}
}
