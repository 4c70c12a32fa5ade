package stats

import (
	"math/rand/v2"
	"testing"
)

// repeated places, each Of so many.
func repeated(n, at, of int) (out []Position) {
	for range n {
		out = append(out, Position{at, of})
	}
	return out
}

func TestPositionsAreExact(t *testing.T) {
	for _, c := range []struct {
		positions []Position
		want      float64
	}{
		{nil, 1},
		{repeated(1, 2, 3), 1},                                // the middle
		{repeated(1, 1, 4), 0.5},                              // first or last
		{repeated(6, 1, 3), 2.0 / 729},                        // first in each of six blocks of three, or last
		{repeated(6, 3, 3), 2.0 / 729},                        //
		{append(repeated(2, 1, 2), Position{2, 2}), 1},        // 4 of 8 ways are as far on either side
		{append(repeated(3, 1, 2), Position{1, 5}), 2.0 / 40}, // all the first
	} {
		near(t, "p", PositionsP(c.positions), c.want, 1e-12)
	}
	// More than are counted exactly: the same, nearly, as just below the bound.
	rng := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		var few []Position
		for range exactPlaces / 4 {
			few = append(few, Position{1 + rng.IntN(4), 4})
		}
		exact, normal := PositionsP(few), PositionsP(append(repeated(1, 3, 5), few...)) // one more, in its middle
		near(t, "p of many", normal, exact, 0.02)
	}
}

// TestRandomOrderIsSeldomSuspected: as seldom as the p-value says.
func TestRandomOrderIsSeldomSuspected(t *testing.T) {
	got := share(simulate(func(seed uint64) bool {
		rng := rand.New(rand.NewPCG(seed, 83))
		var of []Position
		for range 12 {
			of = append(of, Position{1 + rng.IntN(5), 5})
		}
		return PositionsP(of) < 0.05
	}), yes)
	if got < 0.03 || got > 0.06 { // sums are whole numbers: a little less than 0.05
		t.Errorf("%.3f of random orders have p < 0.05", got)
	}
}
