package search

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// verify a path of some capacity; outcome, if it is there, says what becomes of a trial.
func verify(t testing.TB, v *Verification, outcome func(load float64) (Kind, float64)) (Verified, int) {
	t.Helper()
	n := 0
	for load, _, ok := v.Next(); ok; load, _, ok = v.Next() {
		if n++; n > 100 {
			t.Fatal("does not end")
		}
		v.Add(outcome(load))
	}
	return v.Result(), n
}

func capacity(c float64) func(float64) (Kind, float64) {
	return func(load float64) (Kind, float64) { return Counts, max(0, 1-c/load) }
}

// TestVerifiesWhatThePathTakes: wherever a search has ended, what is verified passes, and what lies a little above does not.
func TestVerifiesWhatThePathTakes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := rapid.Float64Range(2e4, 2e6).Draw(rt, "capacity")
		begin := c * rapid.Float64Range(0.5, 8).Draw(rt, "begin")
		loss := rapid.SampledFrom([]float64{ndr, pdr}).Draw(rt, "loss")
		r, n := verify(t, Verify(Goal{Loss: loss}, begin, 1e3), capacity(c))
		truth := c / (1 - loss)
		if r.Load <= 0 || r.Load > truth || r.Upper != 0 && (r.Upper < truth*(1-1e-9) || (r.Upper-r.Load)/r.Upper > VerifyWidth) || r.Upper == 0 && r.Load != begin {
			rt.Fatalf("capacity %.0f from %.0f on: %+v after %d trials", c, begin, r, n)
		}
		if most := (1+verifyHalves)*(1+VerifyTrials) + verifySteps; n > most {
			rt.Fatalf("%d trials: want at most %d", n, most)
		}
	})
}

// TestOneLostFrameRefuses: a load is refused by any of its trials; PDR does not take exactly its loss.
func TestOneLostFrameRefuses(t *testing.T) {
	n := 0
	r, _ := verify(t, Verify(Goal{}, 1000, 1), func(load float64) (Kind, float64) {
		if n++; n == VerifyTrials {
			return Counts, 1e-9
		}
		return Counts, 0
	})
	if r.Upper != 1000 || r.Load >= 1000 || r.Load < 900 {
		t.Errorf("%+v", r)
	}
	r, _ = verify(t, Verify(Goal{Loss: pdr}, 1000, 1), func(load float64) (Kind, float64) {
		if load == 1000 {
			return Counts, pdr
		}
		return Counts, pdr * 0.999
	})
	if r.Upper != 1000 || r.Load == 0 {
		t.Errorf("%+v", r)
	}
}

// TestShortTrialsFirst: each load has one, and those that lose in it have no long one.
func TestShortTrialsFirst(t *testing.T) {
	v := Verify(Goal{}, 1000, 1)
	long := map[float64]int{}
	for load, short, ok := v.Next(); ok; load, short, ok = v.Next() {
		if !short {
			long[load]++
		}
		v.Add(capacity(900)(load))
	}
	r := v.Result()
	if r.Load <= 0 || r.Load > 900 || long[r.Load] != VerifyTrials {
		t.Errorf("%+v by %d long trials", r, long[r.Load])
	}
	for load, n := range long {
		if load > 900 || n != VerifyTrials {
			t.Errorf("%d long trials at %.0f", n, load)
		}
	}
	v = Verify(Goal{}, 1000, 1)
	v.OnlyLong()
	if _, n := verify(t, v, capacity(1e6)); n != VerifyTrials {
		t.Errorf("%d trials without short ones, want %d", n, VerifyTrials)
	}
	v = Verify(Goal{}, 1000, 1)
	v.Add(Stalled, 0)
	if _, short, ok := v.Next(); !short || !ok {
		t.Error("a stalled short trial is not made again")
	}
}

// TestNothingVerifies: the result is none, and says between which loads.
func TestNothingVerifies(t *testing.T) {
	r, n := verify(t, Verify(Goal{Name: "NDR"}, 1000, 1), capacity(0.1))
	if r.Load != 0 || n != verifySteps+1 || !strings.Contains(r.Why, "not found between") || !strings.Contains(r.Why, "and 1000 frames") {
		t.Errorf("%+v after %d trials", r, n)
	}
	r, n = verify(t, Verify(Goal{}, 1000, 940), capacity(0.1))
	if r.Load != 0 || r.Upper != 940 || n != 3 {
		t.Errorf("%+v after %d trials: nothing below the least load is tried", r, n)
	}
	if r, n := verify(t, Verify(Goal{}, 0, 1), capacity(1)); r.Load != 0 || n != 0 {
		t.Errorf("without a load: %+v", r)
	}
}

// TestStallsSayNothing: a trial in which the machine stalled is made again, some times; its loss plays no part.
func TestStallsSayNothing(t *testing.T) {
	n := 0
	r, _ := verify(t, Verify(Goal{}, 1000, 1), func(load float64) (Kind, float64) {
		if n++; n%2 == 0 {
			return Stalled, 1
		}
		return Counts, 0
	})
	if r.Load != 1000 || r.Why != "" {
		t.Errorf("%+v", r)
	}
	r, n = verify(t, Verify(Goal{}, 1000, 1), func(float64) (Kind, float64) { return Stalled, 0 })
	if r.Load != 0 || n != verifyVoids+1 || !strings.Contains(r.Why, "the machine stalls") {
		t.Errorf("%+v after %d trials", r, n)
	}
}

// TestNotOffered: a load that the generator cannot send is not verified.
func TestNotOffered(t *testing.T) {
	r, _ := verify(t, Verify(Goal{}, 1000, 1), func(load float64) (Kind, float64) {
		if load > 700 {
			return NotOffered, 0
		}
		return Counts, 0
	})
	if r.Load > 700 || r.Load < 650 {
		t.Errorf("%+v", r)
	}
}

// TestKnownLoad: what lost nothing also loses little.
func TestKnownLoad(t *testing.T) {
	v := Verify(Goal{Loss: pdr}, 1000, 1)
	v.Known(900)
	r, _ := verify(t, v, capacity(1))
	if r.Load != 900 || math.Abs(r.Upper/900-1) > 2*VerifyWidth {
		t.Errorf("%+v", r)
	}
	v = Verify(Goal{Loss: pdr}, 800, 1)
	v.Known(900)
	if r, n := verify(t, v, capacity(1)); r.Load != 900 || n != 0 {
		t.Errorf("%+v after %d trials", r, n)
	}
}
