package search

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms  = time.Millisecond
	ndr = 0.0
	pdr = 0.005
)

func goals() []Goal {
	return []Goal{
		{Name: "NDR", Loss: ndr, Exceed: 0.5, Trial: 200 * ms, Sum: 2200 * ms, Width: 0.01, First: 50 * ms},
		{Name: "PDR", Loss: pdr, Exceed: 0.5, Trial: 200 * ms, Sum: 2200 * ms, Width: 0.01, First: 50 * ms},
	}
}

// run searches a system whose loss is given; it returns the search and how long its trials took together.
func run(t testing.TB, c Config, loss func(Trial) float64) (*Search, time.Duration) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	var took time.Duration
	for {
		next, ok := s.Next()
		if !ok {
			return s, took
		}
		if next.Load < c.Min || next.Load > c.Max || next.Duration <= 0 {
			t.Fatalf("trial %+v is out of range", next)
		}
		took += next.Duration
		if s.Trials() > 5000 {
			t.Fatal("does not end")
		}
		s.Add(Outcome{Trial: next, Loss: loss(next)})
	}
}

// limit loses what exceeds a capacity.
func limit(capacity float64) func(Trial) float64 {
	return func(t Trial) float64 { return max(0, 1-capacity/t.Load) }
}

func TestFindsAnyLimitWithinItsWidth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacity := math.Exp(rapid.Float64Range(math.Log(2e3), math.Log(9e6)).Draw(rt, "capacity"))
		s, took := run(t, Config{Min: 1e3, Max: 1e7, Goals: goals()}, limit(capacity))
		for i, r := range s.Results() {
			truth := capacity
			if i == 1 {
				truth = capacity / (1 - pdr)
			}
			if !r.Settled || r.Lower > truth*(1+1e-9) || r.Upper < truth*(1-1e-9) || (r.Upper-r.Lower)/r.Upper > 0.01 {
				rt.Fatalf("capacity %.0f: %+v after %d trials", capacity, r, s.Trials())
			}
		}
		if took > 2*time.Minute {
			rt.Fatalf("took %s of trials", took)
		}
	})
}

func TestNoiseDoesNotMoveTheResult(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const capacity = 250_000
		noisy := func(tr Trial) float64 { // in a quarter of the trials something else takes up to half of the machine
			l := limit(capacity)(tr)
			if rng.Float64() < 0.25 {
				l = max(l, rng.Float64()*0.5)
			}
			return l
		}
		s, took := run(t, Config{Min: 1e3, Max: 2e6, Goals: goals()}, noisy)
		for i, r := range s.Results() {
			want := capacity / (1 - []float64{ndr, pdr}[i])
			if !r.Settled || r.Lower > want*1.0001 || r.Upper < want*0.9999 {
				t.Errorf("seed %d: %+v, want %.0f", seed, r, want)
			}
		}
		t.Logf("seed %d: %d trials, %s", seed, s.Trials(), took)
	}
}

func TestEndsOfTheRange(t *testing.T) {
	s, _ := run(t, Config{Min: 10, Max: 100, Goals: goals()}, limit(1e9))
	if r := s.Results()[0]; r.Lower != 100 || r.Upper != 0 || !r.Settled || r.Throughput != 100 {
		t.Errorf("everything passes: %+v", r)
	}
	s, _ = run(t, Config{Min: 10, Max: 100, Goals: goals()}, limit(1))
	if r := s.Results()[0]; r.Lower != 0 || r.Upper != 10 || !r.Settled {
		t.Errorf("nothing passes: %+v", r)
	}
}

func TestEndsWithoutAnAnswer(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s, _ := run(t, Config{Min: 10, Max: 100, Goals: goals(), Trials: 20}, func(Trial) float64 { return rng.Float64() * 0.01 })
	for _, r := range s.Results() {
		if r.Settled && r.Lower != 0 && r.Upper != 0 && (r.Upper-r.Lower)/r.Upper > 0.01 {
			t.Errorf("settled without being so: %+v", r)
		}
	}
	if s.Trials() > 20 {
		t.Errorf("%d trials: want at most 20", s.Trials())
	}
}

// TestClassificationOfTheDraft: the cases that the draft's text names.
func TestClassificationOfTheDraft(t *testing.T) {
	g := Goal{Loss: 0, Exceed: 0.5, Trial: time.Second, Sum: 4 * time.Second, Width: 0.01}
	trial := func(d time.Duration, loss float64) Outcome {
		return Outcome{Trial: Trial{Load: 1, Duration: d}, Loss: loss}
	}
	const s = time.Second
	for name, c := range map[string]struct {
		trials []Outcome
		want   class
	}{
		"nothing measured":                                {nil, undecided},
		"half of the sum without loss is enough":          {[]Outcome{trial(s, 0), trial(s, 0)}, lowerBound},
		"one good trial is not":                           {[]Outcome{trial(s, 0)}, undecided},
		"half of the sum lossy is allowed":                {[]Outcome{trial(s, .1), trial(s, .1)}, undecided},
		"more than half lossy is not":                     {[]Outcome{trial(s, .1), trial(s, .1), trial(s, .1)}, upperBound},
		"two of four":                                     {[]Outcome{trial(s, .1), trial(s, .1), trial(s, 0), trial(s, 0)}, lowerBound},
		"short lossy trials count":                        {[]Outcome{trial(s/2, .1), trial(s/2, .1), trial(s/2, .1), trial(s/2, .1), trial(s/2, .1)}, upperBound},
		"short good trials do not make a lower bound":     {[]Outcome{trial(s/2, 0), trial(s/2, 0), trial(s/2, 0), trial(s/2, 0), trial(s/2, 0)}, undecided},
		"short good trials balance short lossy ones":      {[]Outcome{trial(s/2, .1), trial(s/2, 0), trial(s, 0), trial(s, 0)}, lowerBound},
		"a longer trial than asked for is a full one too": {[]Outcome{trial(2*s, 0)}, lowerBound},
	} {
		l := &load{trials: c.trials}
		if got := l.classify(g); got != c.want {
			t.Errorf("%s: class %d, want %d", name, got, c.want)
		}
	}
}

func TestRefusesNonsense(t *testing.T) {
	for name, c := range map[string]Config{
		"no goal":        {Min: 1, Max: 2},
		"empty range":    {Min: 2, Max: 2, Goals: goals()},
		"negative loads": {Min: -1, Max: 2, Goals: goals()},
		"exceed ratio 1": {Min: 1, Max: 2, Goals: []Goal{{Exceed: 1, Trial: ms, Sum: ms, Width: 0.1}}},
		"no width":       {Min: 1, Max: 2, Goals: []Goal{{Trial: ms, Sum: ms}}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func ExampleSearch() {
	s, _ := New(Config{Min: 1e3, Max: 1e6, Goals: []Goal{{Name: "NDR", Exceed: 0.5, Trial: 100 * ms, Sum: 500 * ms, Width: 0.01}}})
	for t, ok := s.Next(); ok; t, ok = s.Next() {
		s.Add(Outcome{Trial: t, Loss: limit(123_456)(t)}) // here a trial would run
	}
	r := s.Results()[0]
	fmt.Println(r.Lower <= 123_456 && 123_456 <= r.Upper, r.Settled)
	// Output: true true
}
